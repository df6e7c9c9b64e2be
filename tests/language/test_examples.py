"""Traces as examples: tokens, labels and weights worked out by hand; what is taught is what the parser reads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if find_spec("datasets") is None or find_spec("transformers") is None or find_spec("pyarrow") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

import pyarrow
from tiny import tiny_tokenizer

from rerank_env.data import Requests, load
from rerank_env.prompts import PromptWriter
from rerank_env.rewards import parse
from rerank_env.rewards.errors import InputError
from rerank_env.training.language.examples import token_weights, training_examples
from rerank_env.training.language.traces.manifest import fingerprint
from rerank_env.training.language.traces.store import SCHEMA, Trace, Traces

REASONS = "near [2] [1], text [3]. [2] leads in near."
TAGGED = PromptWriter("tagged-list")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", requests=6, slate_size=3, history=2)


def traces(requests: Requests, *rows: dict[str, Any]) -> Traces:
    """Traces of requests 0, 1, ..., each shown in the order [2, 0, 1] and answered [1, 2, 0] unless it says other."""
    made = []
    for number, changes in enumerate(rows):
        common: dict[str, Any] = {
            "request": number,
            "target": 0,
            "incoming": 1,
            "order": (2, 0, 1),
            "completion": "",
            "reasoning": REASONS,
            "ranking": (1, 2, 0),
            "tail": "own",
            "accepted": True,
            "verdict": "OK",
            "tries": 1,
            "tokens_in": 0,
            "tokens_out": 0,
            "teacher": "a test",
            "mode": "rejection",
        }
        made.append(vars(Trace(**common | changes)))
    table = pyarrow.Table.from_pylist(made, schema=SCHEMA)
    return Traces(table, {"requests": fingerprint(requests), "rows": len(made)})


def taught(tokenizer: Any, example: Any) -> str:
    """The text that is learned, the end of the turn left out."""
    ids = [token for token, label in zip(example["input_ids"], example["labels"], strict=True) if label != -100]
    assert ids[-1] == tokenizer.eos_token_id
    return str(tokenizer.decode(ids[:-1]))


def weights_of(tokenizer: Any, example: Any) -> list[tuple[str, float]]:
    """The tokens that are learned, as texts, with their weights."""
    rows = zip(example["input_ids"], example["labels"], example["loss_weights"], strict=True)
    return [(tokenizer.decode([token]), weight) for token, label, weight in rows if label != -100]


def test_an_example_is_the_prompt_the_teacher_saw_and_the_answer_in_shown_numbers(
    tokenizer: Any, requests: Requests
) -> None:
    (example,) = training_examples(requests, traces(requests, {}), TAGGED, tokenizer, seed=0)
    shown = requests.take([0]).reordered(np.array([[2, 0, 1]]))
    (prompt,) = TAGGED.write(shown)
    chat = tokenizer.apply_chat_template(prompt.chat, tokenize=False, add_generation_prompt=True)
    answer = f"<think>{REASONS}</think><answer>[2, 3, 1]</answer>"
    assert tokenizer.decode(example["input_ids"]) == f"{chat}{answer}<|im_end|>"
    count = len(tokenizer(chat, add_special_tokens=False)["input_ids"])
    assert example["labels"] == [-100] * count + example["input_ids"][count:]
    assert example["loss_weights"][:count] == [0.0] * count and example["roles"][:count] == [-1] * count
    assert taught(tokenizer, example) == answer
    assert (example["request"], example["text_format"]) == (0, "tagged-list")


def test_reasoning_counts_less_than_the_answer_and_the_signs_around_it(tokenizer: Any, requests: Requests) -> None:
    (example,) = training_examples(requests, traces(requests, {}), TAGGED, tokenizer, seed=0)
    pairs = weights_of(tokenizer, example)
    start = next(place for place, (text, _) in enumerate(pairs) if text == "</think>")
    assert pairs[0] == ("<think>", 1.0)
    assert "".join(text for text, _ in pairs[1:start]) == REASONS
    assert {round(weight, 6) for _, weight in pairs[1:start]} == {0.3}
    assert {weight for _, weight in pairs[start:]} == {1.0}
    assert pairs[-1] == ("<|im_end|>", 1.0)
    (other,) = training_examples(
        requests, traces(requests, {}), TAGGED, tokenizer, reasoning_weight=0.0, answer_weight=2.0, seed=0
    )
    assert {weight for _, weight in weights_of(tokenizer, other)} == {0.0, 2.0}


def test_the_elements_of_a_random_tail_count_as_ndcg_discounts_their_slots(tokenizer: Any, requests: Requests) -> None:
    (example,) = training_examples(
        requests, traces(requests, {"tail": "random"}), TAGGED, tokenizer, answer_weight=2.0, seed=0
    )
    pairs = weights_of(tokenizer, example)
    start = next(place for place, (text, _) in enumerate(pairs) if text == "</think>")
    named = {text.strip(): weight for text, weight in pairs[start:] if text.strip() in {"1", "2", "3"}}
    # the list is [2, 3, 1]: slots 1, 2 and 3 count 1 / log2(2), 1 / log2(3) and 1 / log2(4) of the answer's weight
    assert named == {"2": pytest.approx(2.0), "3": pytest.approx(2 / math.log2(3)), "1": pytest.approx(1.0)}
    assert all(weight == 2.0 for text, weight in pairs[start:] if text.strip() not in {"1", "2", "3"})


@given(
    roles=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=20),
    reasoning=st.floats(0, 2),
    answer=st.floats(0, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_weights_follow_roles_and_slots_one_by_one(
    roles: list[int], reasoning: float, answer: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    slots = [int(rng.integers(-1, 9)) if role == 1 else -1 for role in roles]
    for random_tail in (False, True):
        found = token_weights(roles, slots, reasoning_weight=reasoning, answer_weight=answer, random_tail=random_tail)
        for role, slot, weight in zip(roles, slots, found.tolist(), strict=True):
            expected = reasoning if role == 0 else answer
            if random_tail and slot >= 0:
                expected /= math.log2(slot + 2)
            assert weight == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("text_format", ["list", "arrows", "json", "tagged-list", "tagged-arrows", "tagged-json"])
def test_what_is_taught_is_what_the_parser_reads(tokenizer: Any, requests: Requests, text_format: str) -> None:
    examples = training_examples(requests, traces(requests, {}, {}), PromptWriter(text_format), tokenizer, seed=0)
    for example in examples:
        read = parse(taught(tokenizer, example), 3, text_format=text_format)
        assert read.ranking == (1, 2, 0)
        assert read.reasoning == (REASONS if text_format not in ("list", "arrows") else "")
        roles = {role for role in example["roles"] if role >= 0}
        assert roles == ({1, 2} if text_format in ("list", "arrows") else {0, 1, 2})


def test_json_reasoning_is_found_inside_the_object(tokenizer: Any, requests: Requests) -> None:
    (example,) = training_examples(requests, traces(requests, {}), PromptWriter("json"), tokenizer, seed=0)
    pairs = zip(weights_of(tokenizer, example), [role for role in example["roles"] if role >= 0], strict=True)
    assert json.loads(taught(tokenizer, example)) == {"explanation": REASONS, "ranking": [2, 3, 1]}
    assert "".join(text for (text, _), role in pairs if role == 0) == REASONS


def test_traces_that_were_not_accepted_teach_nothing(tokenizer: Any, requests: Requests) -> None:
    rows = traces(requests, {}, {"accepted": False, "ranking": (), "tail": ""}, {})
    assert training_examples(requests, rows, TAGGED, tokenizer, seed=0)["request"][:] == [0, 2]
    with pytest.raises(InputError, match="no trace was accepted"):
        training_examples(requests, traces(requests, {"accepted": False, "ranking": ()}), TAGGED, tokenizer, seed=0)


def test_a_share_of_the_traces_is_also_shown_as_direct_answers(tokenizer: Any, requests: Requests) -> None:
    def formats(seed: int) -> Sequence[tuple[int, str]]:
        made = training_examples(
            requests,
            traces(requests, *[{}] * 6),
            TAGGED,
            tokenizer,
            direct_share=0.5,
            direct_writer=PromptWriter("list"),
            seed=seed,
        )
        for example in made:
            if example["text_format"] == "list":
                assert taught(tokenizer, example) == "[2, 3, 1]"
        return list(zip(made["request"], made["text_format"], strict=True))

    found = formats(0)
    direct = [request for request, text_format in found if text_format == "list"]
    reasoned = [request for request, text_format in found if text_format == "tagged-list"]
    assert len(direct) == 3 and direct == sorted(direct)
    assert reasoned == [*range(6)]
    assert found == formats(0)
    assert any(found != formats(seed) for seed in range(1, 5))


def test_ids_are_taught_where_answers_cite_ids(tokenizer: Any, requests: Requests) -> None:
    table = [f"<a_{item}>" for item in range(len(requests.catalog))]
    writer = PromptWriter("tagged-list", prompt="3-id-steps", semantic_ids=table)
    (example,) = training_examples(requests, traces(requests, {"tail": "random"}), writer, tokenizer, seed=0)
    items = requests.candidates_BK[0].tolist()
    # shown are candidates 2, 0, 1; the answer names shown places 1, 2, 0, which are candidates 0, 1, 2
    expected = ", ".join(table[items[candidate]] for candidate in (0, 1, 2))
    assert taught(tokenizer, example).endswith(f"<answer>[{expected}]</answer>")
    weights = [weight for _, weight in weights_of(tokenizer, example)]
    assert weights.count(pytest.approx(0.5)) >= len(table[items[2]])  # every token of an ID of several has its slot's


def test_what_makes_no_examples_is_refused(tokenizer: Any, requests: Requests) -> None:
    rows = traces(requests, {})
    with pytest.raises(InputError, match="reasoning_weight"):
        training_examples(requests, rows, TAGGED, tokenizer, reasoning_weight=-0.1, seed=0)
    with pytest.raises(InputError, match="answer_weight is nan"):
        training_examples(requests, rows, TAGGED, tokenizer, answer_weight=math.nan, seed=0)
    with pytest.raises(InputError, match="share from 0 to 1"):
        training_examples(requests, rows, TAGGED, tokenizer, direct_share=1.5, direct_writer=TAGGED, seed=0)
    with pytest.raises(InputError, match="no direct_writer"):
        training_examples(requests, rows, TAGGED, tokenizer, direct_share=0.5, seed=0)
    other = load("synthetic", requests=6, slate_size=3, history=2, seed=7)
    with pytest.raises(InputError, match="other requests"):
        training_examples(other, rows, TAGGED, tokenizer, seed=0)
