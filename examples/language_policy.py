"""A language model that reasons, then re-ranks: from nothing, taught by a rule's traces, then reinforced with DAPO.

Run: python examples/language_policy.py            (under a minute on one core; pip install "rerank-env[language]")
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np

from rerank_env.agents.evidence import Evidence, EvidenceRemarks
from rerank_env.agents.language import Decoding, LanguagePolicy
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.data import Requests
from rerank_env.data.interactions import Interactions
from rerank_env.prompts import PromptWriter, ask
from rerank_env.training.evaluate import evaluate
from rerank_env.training.language import dapo, sft
from rerank_env.training.language.examples import training_examples
from rerank_env.training.language.sft_settings import SftConfig
from rerank_env.training.language.traces import RuleTeacher, collect

warnings.filterwarnings("ignore", category=FutureWarning)  # TRL's, of an argument's name in transformers
USERS, LENGTH, ITEMS, K = 3000, 8, 60, 4
rng = np.random.default_rng(0)
steps = rng.choice([1, 2, 7], (USERS, LENGTH), p=[0.6, 0.3, 0.1]).cumsum(1)  # what is taken next is mostly known
walks, times = (rng.integers(ITEMS, size=(USERS, 1)) + steps) % ITEMS, np.arange(USERS * LENGTH, dtype=np.float64)
log = Interactions.arranged(
    np.arange(USERS).repeat(LENGTH), walks.ravel(), np.ones(len(times)), times, content_names=(), seed=0,
    texts=tuple(f"item {i}" for i in range(ITEMS)), content_IC=np.zeros((ITEMS, 0), np.float32),
)  # fmt: skip
taken = log.items_N.reshape(USERS, LENGTH)  # a request asks for the last one
others = [rng.choice(np.setdiff1d(range(ITEMS), own), K - 1, replace=False) for own in taken]
lists = [rng.permutation([own[-1], *some]) for own, some in zip(taken, others, strict=True)]
gains = [(offered == own[-1]).astype(float) for offered, own in zip(lists, taken, strict=True)]
requests = Requests.of(lists, gains, history=list(taken[:, :-1]), texts=log.texts, name="walks")
evidence = Evidence.fit(log, np.arange(len(log)) % LENGTH < LENGTH - 1)
train, watch, test = (requests.take(np.arange(*span)) for span in ((0, 2400), (2400, 2600), (2600, USERS)))

remarks = EvidenceRemarks.fit(evidence, train, features=["next_last", "near_last_3"], levels=5)
train, writer = remarks.on(train), PromptWriter("tagged-list", prompt="compact")
with tempfile.TemporaryDirectory() as directory:
    teacher, place = RuleTeacher.fit(remarks, train), Path(directory)
    traces = collect(train, teacher, writer, mode="rejection", directory=place / "traces").accepted()
    prompts, answers = [prompt.text for prompt in ask(train, writer).prompts], traces.column("completion")
    print(prompts[0], answers[0], sep="\n")
    tokenizer = build_tokenizer(prompts + answers, vocab_size=400)
    model = build_model(tokenizer, width=64, layers=2, heads=2, seed=0)
    policy = LanguagePolicy(model, tokenizer, writer, remarks=remarks, decoding=Decoding(max_tokens=48, batch_size=200))
    lessons = training_examples(train, traces, writer, tokenizer, seed=0)
    sft.run(policy, None, lessons, directory=place / "sft", config=SftConfig(lr=3e-3, epochs=4, batch=32))
    config = dapo.DapoConfig(steps=12, groups_per_step=16, learning_rate=2e-4, max_tokens=48, micro_batch=128)
    run = dapo.run(policy, train, "gain", directory=place / "dapo", config=config, validation=watch)
    print(f"watched NDCG@10 {run.best_validation:.3f} after {run.best_update} updates")
gain = evaluate(test, {"policy": policy}, seed=0).gain("policy", "recall@1")
print(f"held out: recall@1 {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] over the incoming order")
