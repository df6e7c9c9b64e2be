"""Faults of answers, counted by hand in every format, and held to the strict parser and to each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.rewards import InputError, UnknownNameError, Verdict, faults, parse
from rerank_env.rewards.formats import FORMATS, written
from rerank_env.rewards.mistakes import Faults
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.proofs.hostile import answers, candidate_ids, spoilt
from rerank_env.rewards.testing import hostile_texts

SIZE = 4
COUNTED = [  # the names of a list of four candidates, then named, duplicates, dropped, unknown
    ("3142", 4, 0, 0, 0),
    ("314", 3, 0, 1, 0),
    ("3143", 4, 1, 1, 0),
    ("3333", 4, 3, 3, 0),
    ("3192", 4, 0, 1, 1),
    ("9999", 4, 0, 4, 4),  # what is no candidate is no duplicate either
    ("31429", 5, 0, 0, 1),
    ("314231", 6, 2, 0, 0),
    ("39330", 5, 2, 3, 2),
]
EMPTY = ("", 0, 0, 4, 0)  # a list without names is a list, but the arrows have no way to write it


def spelt(names, text_format, *, with_ids):
    """The names as an answer in that format; with IDs, names 1..4 are "a".."d" and every other is itself."""
    if not with_ids:
        return written(list(names), text_format)
    quote = '"' if text_format.endswith("json") else ""
    return written(
        [f"{quote}{'abcd'[int(name) - 1] if name in '1234' else name}{quote}" for name in names], text_format
    )


def counts(found, row=0):
    """Named, duplicates, dropped and unknown of one answer."""
    return tuple(int(each_B[row]) for each_B in (found.named_B, found.duplicates_B, found.dropped_B, found.unknown_B))


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("text_format", FORMATS)
def test_faults_in_every_format_are_those_counted_by_hand(text_format, with_ids):
    cases = COUNTED if text_format.endswith("arrows") else [*COUNTED, EMPTY]
    texts = [spelt(names, text_format, with_ids=with_ids) for names, *_ in cases]
    ids = [list("abcd")] * len(cases) if with_ids else None
    found = faults(texts, [SIZE] * len(cases), text_format=text_format, ids=ids)
    assert found.parsed_B.all()
    for row, (_, *expected) in enumerate(cases):
        assert counts(found, row) == tuple(expected), texts[row]
    assert found.valid_B.tolist() == [names == "3142" for names, *_ in cases]


def test_names_inside_the_reasoning_do_not_count():
    found = faults(
        ["<think>[1] [1] [9]</think><answer>[3, 1, 2]</answer>", "<think>[1, 2, 3]</think>"],
        [3, 3],
        text_format="tagged-list",
    )
    assert found.parsed_B.tolist() == [True, False]
    assert (counts(found, 0), counts(found, 1)) == ((3, 0, 0, 0), (0, 0, 3, 0))


@pytest.mark.parametrize(
    "text", ["", " \n", "[3, 1", "3, 1, 2", "The ranking is [3, 1, 2]", b"\xff", "[3, 1, 2]" + " " * MAX_CHARS]
)
def test_a_text_of_another_form_has_no_list_and_drops_everybody(text):
    found = faults([text], [3], text_format="list")
    assert (found.parsed_B[0], found.valid_B[0], counts(found)) == (False, False, (0, 0, 3, 0))


def test_every_request_has_its_own_size_and_ids():
    texts = ["[a, b]", "[b, a, a]", "[1, 2]"]
    found = faults(texts, [2, 3, 2], text_format="list", ids=[["a", "b"], ["x", "y", "a"], ["2", "1"]])
    assert [counts(found, row) for row in range(3)] == [(2, 0, 0, 0), (3, 1, 2, 1), (2, 0, 0, 0)]
    assert found.valid_B.tolist() == [True, False, True]
    assert found.sizes_B.tolist() == [2, 3, 2]


def test_rates_are_those_worked_by_hand():
    # Lists of 3: valid; two names, one twice; four names, two of them unknown, all candidates but one named; no list.
    found = faults(["[1, 2, 3]", "[2, 2]", "[1, 3, 7, 8]", "none"], [3] * 4, text_format="list")
    assert found.rates() == {
        "valid": 1 / 4,
        "unparseable": 1 / 4,
        "wrong length": 2 / 4,
        "duplicates a list": (0 + 1 + 0) / 3,
        "dropped a list": (0 + 2 + 1 + 3) / 4,
        "out of set a list": (0 + 0 + 2) / 3,
    }


def test_rates_of_nothing_are_zero_and_never_nan():
    assert set(faults([], [], text_format="list").rates().values()) == {0.0}
    assert faults(["no", "none"], [2, 4], text_format="json").rates() == {
        "valid": 0.0,
        "unparseable": 1.0,
        "wrong length": 0.0,
        "duplicates a list": 0.0,
        "dropped a list": 3.0,
        "out of set a list": 0.0,
    }


def test_arrays_have_one_entry_an_answer_and_the_types_they_say():
    for texts in ([], ["[1, 2]"], ["[1, 2]", "x"]):
        found = faults(texts, np.full(len(texts), 2), text_format="list")
        for name in Faults.__annotations__:
            values_B = getattr(found, name)
            assert values_B.shape == (len(texts),)
            assert values_B.dtype == (np.bool_ if name in ("parsed_B", "valid_B") else np.int64)


def check_faults(text, size, text_format, ids):
    """What holds for any text: agreement with the parser, and one balance for every list."""
    found = faults([text], [size], text_format=text_format, ids=None if ids is None else [ids])
    verdict = parse(text, size, text_format=text_format, ids=ids).verdict
    unread = (Verdict.EMPTY, Verdict.MALFORMED, Verdict.TRUNCATED, Verdict.OVERLONG)
    named, duplicates, dropped, unknown = counts(found)
    assert found.valid_B[0] == (verdict is Verdict.OK)
    assert found.parsed_B[0] == (verdict not in unread)
    assert min(named, duplicates, dropped, unknown) >= 0
    assert dropped <= size
    if found.parsed_B[0]:
        assert named == size - dropped + duplicates + unknown
        assert found.valid_B[0] == (duplicates == dropped == unknown == 0)
        assert (named > size) == (verdict is Verdict.WRONG_COUNT)
    else:
        assert (named, duplicates, dropped, unknown) == (0, 0, size, 0)


@settings(max_examples=200)
@given(hostile_texts(), st.integers(2, 10), st.sampled_from(FORMATS), st.booleans())
def test_any_text_is_counted_as_the_parser_reads_it(text, size, text_format, with_ids):
    check_faults(text, size, text_format, candidate_ids(size) if with_ids else None)


@settings(max_examples=200)
@given(st.sampled_from(FORMATS), st.data())
def test_answers_and_spoilt_ones_are_counted_as_the_parser_reads_them(text_format, data):
    text = data.draw(spoilt(answers(text_format=text_format, size=SIZE)))
    for ids in (None, candidate_ids(SIZE)):
        check_faults(text, SIZE, text_format, ids)


@given(st.lists(st.integers(1, 9), max_size=8))
def test_counts_of_any_list_are_those_of_a_plain_loop(names):
    seen, duplicates, unknown = set(), 0, 0
    for name in names:
        if name > SIZE:
            unknown += 1
        elif name in seen:
            duplicates += 1
        seen.add(name)
    dropped = sum(name not in seen for name in range(1, SIZE + 1))
    found = faults([str(names)], [SIZE], text_format="list")
    assert counts(found) == (len(names), duplicates, dropped, unknown)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"sizes_B": [3]}, r"2 texts came with sizes of shape \(1,\)"),
        ({"sizes_B": 3}, r"2 texts came with sizes of shape \(\)"),
        ({"sizes_B": [3.0, 3.0]}, "size is 3.0; give a whole number of at least 2"),
        ({"sizes_B": [3, 1]}, "size is 1; give a whole number of at least 2"),
        ({"ids": [["a", "b", "c"]]}, "2 texts came with IDs of 1 requests"),
        ({"ids": [["a", "b", "c"], ["a", "b", "a"]]}, "given twice"),
        ({"texts": ["[1, 2, 3]", None]}, "not NoneType"),
    ],
)
def test_misuse_by_the_caller_is_told(told, message):
    given_ = {"texts": ["[1, 2, 3]"] * 2, "sizes_B": [3, 3], "ids": None, **told}
    with pytest.raises(InputError, match=message):
        faults(given_["texts"], given_["sizes_B"], text_format="list", ids=given_["ids"])


def test_an_unknown_format_is_told_also_where_there_are_no_answers():
    with pytest.raises(UnknownNameError, match="did you mean 'arrows'"):
        faults([], [], text_format="arrow")
