"""Made-up requests with remarks, and a language model of the tiny recipe's shape that has been taught to answer them.

What a step of training or a request of serving costs depends on how long prompts and answers are and on how they are
cut into tokens, so what decides that is read from the recipe's settings: the words and levels of remarks, the
temperature of the teacher whose reasons are written, the size of the vocabulary, the model and its context. What the
remarks say is made up: the place in the incoming order, and levels that the relevant candidate has more of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rerank_env.agents.evidence.words import WORDS
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.data import Requests, load
from rerank_env.prompts import Prompt, PromptWriter, ask
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.formats import answer_text
from rerank_env.rewards.rankings import random_rankings
from rerank_env.training.language.traces import RuleTeacher
from rerank_env.training.recipes.sizes import size_of

TINY = size_of("tiny").settings
SLATE_SIZE = 10
HISTORY = 3
LEVELS = TINY.remarks.levels
SHOWN = 500
"""How many requests the tokenizer learns its words from."""

ID_WORDS = tuple(f"<{level}_{code}>" for level in "abcd" for code in range(256))
"""Words of semantic IDs, which the recipe adds to a vocabulary; nothing here is shown in them."""

NUMBERS = tuple(f", {number}" for number in range(1, SLATE_SIZE + 1))
"""Single tokens here, unlike in the recipe, so that the next number follows from the token before it."""

LEARNING_RATE = 5e-3
LESSONS = 16
"""Of one update, when a model is taught."""


@dataclass(frozen=True)
class Levels:
    """Remarks as `RuleTeacher` wants them, read back from their texts."""

    names: tuple[str, ...] = tuple(WORDS[feature].word for feature in TINY.remarks.features.split(","))

    def on(self, requests: Requests, *, seed: int) -> Requests:
        """The requests with remarks on every candidate; the same seed makes the same."""
        shape = requests.candidates_BK.shape
        rng = np.random.default_rng(seed)
        drawn_BKF = rng.integers(0, LEVELS // 2 + 1, size=(*shape, len(self.names)))
        levels_BKF = drawn_BKF + rng.integers(0, LEVELS // 2 + 1, size=drawn_BKF.shape) * (
            requests.relevance_BK[:, :, None] > 0
        )
        levels_BKF[:, :, 0] = np.maximum(LEVELS - np.arange(shape[1]), 1)
        remarks_BK = np.full(shape, "", dtype=object)
        for row, size in enumerate(requests.sizes_B.tolist()):
            for place, levels in enumerate(levels_BKF[row, :size].tolist()):
                said = zip(self.names, levels, strict=True)
                remarks_BK[row, place] = " ".join(f"{name} {level}" for name, level in said)
        return replace(requests, remarks_BK=remarks_BK)

    def levels_of(self, requests: Requests) -> IntArray:
        """What the texts say, int64 [B, K, F]; 0 where padded."""
        assert requests.remarks_BK is not None, "were put on before"
        nothing = [0] * len(self.names)
        rows = [[[int(n) for n in text.split()[1::2]] or nothing for text in row] for row in requests.remarks_BK]
        return np.array(rows, dtype=np.int64)


def requests_of(count: int, *, seed: int) -> Requests:
    """Requests of `SLATE_SIZE` candidates with remarks, of which one is relevant."""
    made = load("synthetic", requests=count, slate_size=SLATE_SIZE, history=HISTORY, seed=seed, kind="next_item")
    return Levels().on(made, seed=seed)


def lessons(requests: Requests, writer: PromptWriter, *, seed: int) -> tuple[list[Prompt], list[str]]:
    """A prompt a request, its candidates shuffled, and an answer: the rule-based teacher's reasons and pick.

    After the pick come the candidates behind it as they were shown, then those before it. A few dozen updates teach a
    model to write such a ranking; to write any other takes the recipe's hours.
    """
    levels = Levels()
    asked = ask(requests, writer, rng=np.random.default_rng(seed))
    teacher = RuleTeacher.fit(levels, requests, temperature=TINY.traces.temperature)
    seeds_B = np.arange(len(requests), dtype=np.int64)
    answers = []
    for said in teacher.propose(asked, targets_B=None, seeds_B=seeds_B):
        ranking = np.roll(np.arange(SLATE_SIZE), -said.ranking[0]).tolist()
        answers.append(answer_text(ranking, text_format=writer.text_format, reasoning=said.reasoning))
    return list(asked.prompts), answers


def tokenizer_for(requests: Requests, *writers: PromptWriter) -> Any:
    """The tokenizer of these prompts, the teacher's answers to them, and answers without reasons."""
    some = requests.take(np.arange(min(SHOWN, len(requests))))
    texts = list(requests.catalog.texts)
    for writer in writers:
        prompts, answers = lessons(some, writer, seed=0)
        texts += [message["content"] for prompt in prompts for message in prompt.chat] + answers
    orders_BK = random_rankings(some.sizes_B, SLATE_SIZE, np.random.default_rng(0))
    texts += [str((order + 1).tolist()) for order in orders_BK]
    size = TINY.model.vocabulary + len(ID_WORDS)
    return build_tokenizer(texts, vocab_size=size, extra_tokens=(*NUMBERS, *ID_WORDS))


def model_for(
    tokenizer: Any,
    *,
    width: int = TINY.model.width,
    layers: int = TINY.model.layers,
    heads: int = TINY.model.heads,
    seed: int = 0,
) -> Any:
    """A random model for that tokenizer; the defaults are the tiny recipe's."""
    return build_model(tokenizer, width=width, layers=layers, heads=heads, seed=seed, context=TINY.model.context)


def teach(policy: LanguagePolicy, prompts: list[Prompt], answers: list[str], *, updates: int, seed: int = 0) -> None:
    """Train the policy's model on the answers, the prompts not learned, until it writes the like."""
    model, pad_id = policy.model, policy.pad_id
    asked, told = policy.prompt_ids(prompts), [policy.completion_ids(answer) for answer in answers]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=updates, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(updates):
        picked = torch.randint(len(asked), (LESSONS,), generator=generator).tolist()
        width = max(len(asked[row]) + len(told[row]) for row in picked)
        ids = torch.full((len(picked), width), pad_id)
        labels = torch.full((len(picked), width), -100)
        for place, row in enumerate(picked):
            start, end = len(asked[row]), len(asked[row]) + len(told[row])
            ids[place, :end] = torch.tensor([*asked[row], *told[row]])
            labels[place, start:end] = ids[place, start:end]
        loss = model(input_ids=ids, labels=labels).loss  # what is behind an answer is not seen by it
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
