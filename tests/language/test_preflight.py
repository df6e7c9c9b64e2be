"""What is said before a run: shares, costs, and advice for each cause, from policies with answers made to order."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

import torch

from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.data import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.training.language.dapo_settings import DapoConfig
from rerank_env.training.language.preflight import Preflight, report

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),
]

WRITER = PromptWriter()
LISTS = [f"[{a}, {b}, {c}]" for a in "123" for b in "123" for c in "123"]


def requests_of(count: int, *, relevant: bool = True) -> Requests:
    """Lists of three of which the second is relevant."""
    return Requests.of(
        [[n % 5, 5 + n % 4, 9 + n % 3] for n in range(count)],
        [[0.0, float(relevant), 0.0]] * count,
        history=[[n % 12] for n in range(count)],
        texts=[f"item {n}" for n in range(12)],
    )


REQUESTS = requests_of(8)


@pytest.fixture(scope="module")
def speaker() -> Any:
    """Makes policies that answer every prompt with one of the texts that they were taught, each as often."""
    texts = [prompt.text for prompt in WRITER.write(REQUESTS)]
    tokenizer = build_tokenizer([*texts, *LISTS * 3], vocab_size=400)

    def taught(*answers: str, updates: int = 60) -> LanguagePolicy:
        model = build_model(tokenizer, width=32, layers=1, heads=2, seed=0)
        policy = LanguagePolicy(model, tokenizer, WRITER, decoding=Decoding(max_tokens=12))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        rng = np.random.default_rng(0)
        for _ in range(updates):
            told = [answers[int(rng.integers(len(answers)))] for _ in range(4)]
            loss = -torch.cat(policy.log_prob(REQUESTS.take(rng.integers(8, size=4)), told)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        return policy

    return taught


def found(policy: LanguagePolicy, requests: Requests = REQUESTS, **settings: Any) -> Preflight:
    small = {"groups_per_step": 16, "group_size": 4, "max_tokens": 12, "steps": 100, "shuffle": "none"}
    group = {"group_size": settings.pop("answers")} if "answers" in settings else {}
    return report(policy, requests, "gain", config=DapoConfig(**{**small, **settings}), n_requests=8, **group)


def advised(said: Preflight, words: str) -> bool:
    return any(words in advice for advice in said.advice)


def test_a_policy_that_copies_the_order_is_found_out(speaker: Any) -> None:
    copier = speaker("[1, 2, 3]")
    before = {name: weight.detach().clone() for name, weight in copier.model.named_parameters()}
    said = found(copier, temperature=0.2)
    assert (said.groups, said.group_size) == (8, 4)
    assert said.valid == said.identity == said.dead_share == said.all_identity == 1.0
    assert said.reward == said.spread == 0.0 and said.raw == pytest.approx(1 / np.log2(3))
    assert advised(said, "copies of the incoming order")
    assert said.seconds_per_step > 0 and said.hours == pytest.approx(said.seconds_per_step * 100 / 3600)
    assert said.answer_tokens > 3 and said.prompt_tokens > 10
    for name, weight in copier.model.named_parameters():
        assert torch.equal(weight, before[name]) and weight.grad is None


def test_one_answer_that_is_not_the_order_is_another_cause(speaker: Any) -> None:
    said = found(speaker("[3, 1, 2]"), temperature=0.2)
    assert said.all_equal == said.dead_share == 1.0 and said.all_identity == 0.0
    assert advised(said, "all answers are worth the same")


def test_answers_that_are_no_rankings_are_found_out(speaker: Any) -> None:
    said = found(speaker("[1, 1, 3]"), temperature=0.2)
    assert said.valid == 0.0 and said.all_invalid == said.dead_share == 1.0
    assert advised(said, "no rankings")
    assert not advised(said, "worth the same")


def test_answers_without_an_end_are_found_out(speaker: Any) -> None:
    said = found(speaker("[1, 2, 3]"), temperature=0.2, max_tokens=3)
    assert said.finished == 0.0 and advised(said, "100% of the answers are cut off at 3 tokens")


def test_a_policy_with_something_to_learn_gets_no_advice(speaker: Any) -> None:
    # First and second are drawn as if by themselves: 1 then 2 in 9 of 16, 2 then 1 in 1 of 16, the rest is invalid.
    said = found(speaker(*["[1, 2, 3]"] * 3, "[2, 1, 3]", updates=100), answers=8)
    assert said.group_size == 8 and said.valid > 0.5
    assert said.dead_share < 0.5 and said.spread > 0.05
    assert said.advice == ()


def test_one_prompt_one_answer_and_a_blind_metric_are_named(speaker: Any) -> None:
    copier = speaker("[1, 2, 3]", updates=40)
    assert advised(found(copier, requests_of(1)), "one request only")
    assert advised(found(copier, answers=1), "a group of one")
    assert advised(found(copier, metric="recall@10"), "recall@10 says the same of every order")
    assert advised(found(copier, requests_of(4, relevant=False)), "says the same of every order")
