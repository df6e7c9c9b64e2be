"""Parts of completions, in characters and in tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.agents.language.spans import ANSWER, OTHER, REASONING, completion_spans, token_roles
from rerank_env.rewards.errors import UnknownNameError
from rerank_env.rewards.formats import FORMATS, answer_text

WORDS = st.sampled_from(["near [3] [7]", "a < b", "ünï 🙂", "“so”", "1, 2", "[1] > [2]", " ", "\n"])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")
    from tiny import tiny_tokenizer

    return tiny_tokenizer()


def test_the_parts_of_a_tagged_answer() -> None:
    text = "<think>Drama [2].</think>\n<answer> [3] > [1]>[2] </answer>"
    spans = completion_spans(text, "tagged-arrows")
    assert text[spans.reasoning] == "Drama [2]."
    assert text[spans.answer] == "[3] > [1]>[2]"
    assert [text[element] for element in spans.elements] == ["3", "1", "2"]
    assert [element.start for element in spans.elements] == [36, 42, 46]  # counted by hand


def test_the_parts_of_json_in_either_order() -> None:
    for text in ('{"explanation": "up 1", "ranking": [2, 1]}', '{"ranking": [2, 1], "explanation": "up 1"}'):
        spans = completion_spans(text, "json")
        assert (text[spans.reasoning], text[spans.answer]) == ("up 1", "[2, 1]")
        assert [text[element] for element in spans.elements] == ["2", "1"]


def test_quotes_around_ids_are_no_part_of_them() -> None:
    text = '{"ranking": ["<a_1>", "<a_0>"]}'
    spans = completion_spans(text, "json")
    assert [text[element] for element in spans.elements] == ["<a_1>", "<a_0>"]
    assert text[spans.reasoning] == ""


def test_what_is_no_answer_has_no_parts() -> None:
    for text in ("", "[3, 1", "<think>a<answer>[1, 2]</answer>", "hello"):
        spans = completion_spans(text, "tagged-list")
        assert (text[spans.reasoning], text[spans.answer], spans.elements) == ("", "", [])
    with pytest.raises(UnknownNameError, match="tagged-list"):
        completion_spans("", "tagged")


@given(
    text_format=st.sampled_from(FORMATS),
    ranking=st.integers(2, 12).flatmap(lambda size: st.permutations(range(size))),
    words=st.lists(WORDS, max_size=5),
    cites_ids=st.booleans(),
)
def test_elements_are_the_names_of_the_ranking_in_order(
    text_format: str, ranking: list[int], words: list[str], cites_ids: bool
) -> None:
    ids = [f"<|id|><|a_{one}|><|/id|>" for one in range(len(ranking))] if cites_ids else None
    has_room = text_format == "json" or text_format.startswith("tagged-")
    reasoning = " ".join(words) if has_room else ""
    text = answer_text(ranking, text_format=text_format, ids=ids, reasoning=reasoning)
    spans = completion_spans(text, text_format)
    names = [str(one + 1) for one in range(len(ranking))] if ids is None else ids
    assert [text[element] for element in spans.elements] == [names[one] for one in ranking]
    if text_format != "json":  # there it is written with escapes
        assert text[spans.reasoning] == reasoning
    assert spans.reasoning.stop <= spans.answer.start


def test_roles_and_slots_of_tokens_counted_by_hand(tokenizer: Any) -> None:
    text = "<think>ab</think><answer>[2, 1]</answer>"
    ids, roles, slots = token_roles(tokenizer, text, "tagged-list")
    shown = [tokenizer.decode([number]) for number in ids.tolist()]
    assert "".join(shown) == text
    assert [shown[t] for t in np.flatnonzero(roles == REASONING)] == ["a", "b"]
    assert "".join(shown[t] for t in np.flatnonzero(roles == ANSWER)) == "[2, 1]"
    assert {shown[t].strip(): slot for t, slot in enumerate(slots.tolist()) if slot >= 0} == {"2": 0, "1": 1}
    assert roles[0] == OTHER
    assert roles[-1] == OTHER


@settings(max_examples=40)
@given(words=st.lists(WORDS, max_size=6), ranking=st.permutations(range(11)), text_format=st.sampled_from(FORMATS))
def test_roles_of_tokens_are_those_of_their_text(words: list[str], ranking: list[int], text_format: str) -> None:
    pytest.importorskip("transformers")
    tokenizer = _tokenizer()
    reasoning = " ".join(words) if text_format == "json" or text_format.startswith("tagged-") else ""
    text = answer_text(ranking, text_format=text_format, reasoning=reasoning)
    by_text = token_roles(tokenizer, text, text_format)
    ended = [*by_text.ids_T.tolist(), tokenizer.eos_token_id]
    by_ids = token_roles(tokenizer, ended, text_format)
    assert by_ids.roles_T[-1] == OTHER
    assert by_ids.slots_T[-1] == -1
    np.testing.assert_array_equal(by_ids.slots_T[:-1], by_text.slots_T)
    whole = [t for t in range(len(by_text.ids_T)) if "\ufffd" not in tokenizer.decode([int(by_text.ids_T[t])])]
    np.testing.assert_array_equal(by_ids.roles_T[whole], by_text.roles_T[whole])
    for slot, one in enumerate(ranking):
        parts = by_text.ids_T[by_text.slots_T == slot]
        assert str(one + 1) in tokenizer.decode(parts)
    assert set(by_text.slots_T.tolist()) == {-1, *range(11)}


_MADE: list[Any] = []


def _tokenizer() -> Any:
    from tiny import tiny_tokenizer

    if not _MADE:
        _MADE.append(tiny_tokenizer())
    return _MADE[0]


def test_special_tokens_inside_an_answer_spoil_it_here_as_they_do_where_it_is_read(tokenizer: Any) -> None:
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    ids = tokenizer("[2, 1, 3]", add_special_tokens=False)["input_ids"]
    whole = token_roles(tokenizer, [*ids, end, pad, pad], "list")
    assert whole.slots_T.max() == 2 and set(whole.roles_T[: len(ids)].tolist()) == {ANSWER}
    assert whole.roles_T[len(ids) :].tolist() == [OTHER] * 3
    spoilt = token_roles(tokenizer, [pad, *ids, end], "list")
    assert set(spoilt.roles_T.tolist()) == {OTHER} and set(spoilt.slots_T.tolist()) == {-1}
    named = token_roles(tokenizer, [*ids[:1], pad, *ids[1:], end], "list")
    assert named.slots_T[1] == named.slots_T[2] == 0  # as a part of the name, which is then nobody's


def test_tokens_of_what_is_no_answer_are_other(tokenizer: Any) -> None:
    _, roles, slots = token_roles(tokenizer, "[1, 2", "list")
    assert set(roles.tolist()) == {OTHER}
    assert set(slots.tolist()) == {-1}
    assert token_roles(tokenizer, [], "list").ids_T.shape == (0,)
