"""The parser: every deviation is a verdict, nothing is repaired, and no text raises."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.rewards import Verdict, parse, parse_batch
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.parsing import FORMATS
from rerank_env.rewards.testing import hostile_texts

ACCEPTED = [
    ("list", "[3, 1, 2]"),
    ("list", "[3,1,2]"),
    ("list", " \n[ 3 ,\t1, 2 ]\r\n"),
    ("list", b"[3, 1, 2]"),
    ("arrows", "[3] > [1] > [2]"),
    ("arrows", "[3]>[1]\n>[2] "),
    ("json", '{"ranking": [3, 1, 2]}'),
    ("json", ' {"explanation": "[1] > [2], \\u00e9, {\\"ranking\\": 1}", "ranking": [3,1,2]}\n'),
    ("json", b'{"ranking": [3, 1, 2], "explanation": ""}'),
]


@pytest.mark.parametrize(("text_format", "text"), ACCEPTED)
def test_an_exact_permutation_is_read_from_one(text_format, text):
    parsed = parse(text, 3, text_format=text_format)
    assert (parsed.ranking, parsed.verdict) == ((2, 0, 1), Verdict.OK)


REFUSED = [
    ("list", "", Verdict.EMPTY),
    ("list", " \n\t\u3000", Verdict.EMPTY),
    ("list", b"", Verdict.EMPTY),
    ("list", "[]", Verdict.MISSING),
    ("list", "[3, 1]", Verdict.MISSING),
    ("list", "[3, 3, 1]", Verdict.DUPLICATE),
    ("list", "[3, 1, 4]", Verdict.UNKNOWN),
    ("list", "[0, 1, 2]", Verdict.UNKNOWN),  # 0 would be the last candidate by a negative index
    ("list", "[3, 1, " + "9" * 5000 + "]", Verdict.UNKNOWN),
    ("list", "[3, 1, 2, 1]", Verdict.WRONG_COUNT),
    ("list", "[3, 1, 2, 4]", Verdict.WRONG_COUNT),
    ("list", "[", Verdict.TRUNCATED),
    ("list", "[3, 1,", Verdict.TRUNCATED),
    ("list", "[3, 1, 2", Verdict.TRUNCATED),
    ("list", "[3, 1, 2,]", Verdict.MALFORMED),
    ("list", "[3 1 2]", Verdict.MALFORMED),
    ("list", "[3, -1, 2]", Verdict.MALFORMED),
    ("list", "[3, +1, 2]", Verdict.MALFORMED),
    ("list", "[3, 01, 2]", Verdict.MALFORMED),
    ("list", "[3, 1.0, 2]", Verdict.MALFORMED),
    ("list", "[3, 1e0, 2]", Verdict.MALFORMED),
    ("list", "[3, 1_0, 2]", Verdict.MALFORMED),
    ("list", "[3, \uff11, 2]", Verdict.MALFORMED),  # full-width 1
    ("list", "[3, \u0661, 2]", Verdict.MALFORMED),  # Arabic-Indic 1
    ("list", "[3, true, 2]", Verdict.MALFORMED),
    ("list", '["3", "1", "2"]', Verdict.MALFORMED),
    ("list", "[[3, 1, 2]]", Verdict.MALFORMED),
    ("list", "3, 1, 2", Verdict.MALFORMED),
    ("list", "(3, 1, 2)", Verdict.MALFORMED),
    ("list", "The ranking is [3, 1, 2]", Verdict.MALFORMED),
    ("list", "[3, 1, 2].", Verdict.MALFORMED),
    ("list", "[3, 1, 2][1, 2, 3]", Verdict.MALFORMED),
    ("list", "```[3, 1, 2]```", Verdict.MALFORMED),
    ("list", "<think></think>[3, 1, 2]", Verdict.MALFORMED),
    ("list", "[3, 1, 2]\x00", Verdict.MALFORMED),
    ("list", "\ufeff[3, 1, 2]", Verdict.MALFORMED),
    ("list", "[3,\u00a01, 2]", Verdict.MALFORMED),  # no-break space
    ("list", b"\xff[3, 1, 2]", Verdict.MALFORMED),
    ("list", "[3, 1, 2]".encode("utf-16"), Verdict.MALFORMED),
    ("list", " " * 20_001, Verdict.OVERLONG),
    ("list", "[3, 1, 2]" + " " * 20_000, Verdict.OVERLONG),
    ("arrows", "[3] > [1]", Verdict.MISSING),
    ("arrows", "[3] > [1] > [1]", Verdict.DUPLICATE),
    ("arrows", "[3] > [1] > [9]", Verdict.UNKNOWN),
    ("arrows", "[3] > [1] > [2] > [2]", Verdict.WRONG_COUNT),
    ("arrows", "[3] > [1] >", Verdict.TRUNCATED),
    ("arrows", "[3] > [1] > [", Verdict.TRUNCATED),
    ("arrows", "[3] > [1] > [2", Verdict.TRUNCATED),
    ("arrows", "[3] > [1] = [2]", Verdict.MALFORMED),
    ("arrows", "[3] [1] [2]", Verdict.MALFORMED),
    ("arrows", "[ 3] > [1] > [2]", Verdict.MALFORMED),
    ("arrows", "[3] > [01] > [2]", Verdict.MALFORMED),
    ("arrows", "> [3] > [1] > [2]", Verdict.MALFORMED),
    ("arrows", "[3, 1, 2]", Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1]}', Verdict.MISSING),
    ("json", '{"ranking": []}', Verdict.MISSING),
    ("json", '{"ranking": [3, 1, 1]}', Verdict.DUPLICATE),
    ("json", '{"ranking": [3, 0, 1]}', Verdict.UNKNOWN),
    ("json", '{"ranking": [3, ' + "9" * 5000 + ", 1]}", Verdict.UNKNOWN),
    ("json", '{"ranking": [3, 1, 2, 2]}', Verdict.WRONG_COUNT),
    ("json", "{", Verdict.TRUNCATED),
    ("json", '{"rank', Verdict.TRUNCATED),
    ("json", '{"ranking": [3, 1', Verdict.TRUNCATED),
    ("json", '{"ranking": [3, 1, 2]', Verdict.TRUNCATED),
    ("json", '{"explanation": "because', Verdict.TRUNCATED),
    ("json", '{"explanation": "of [2] and {3}, \\\\ and \\"[', Verdict.TRUNCATED),
    ("json", '{"ranking": [3, [1', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1, 2], "ranking": [3, 1, 2]}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1, 2], "explanation": {"a": 1, "a": 2}}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1, 2], "confidence": 1}', Verdict.MALFORMED),
    ("json", '{"explanation": "only"}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1, 2], "explanation": null}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1, 2], "explanation": 7}', Verdict.MALFORMED),
    ("json", '{"ranking": "3, 1, 2"}', Verdict.MALFORMED),
    ("json", '{"ranking": ["3", "1", "2"]}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, true, 2]}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, null, 2]}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1.0, 2]}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1e0, 2]}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, -1, 2]}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 01, 2]}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, NaN, 2]}', Verdict.MALFORMED),
    ("json", '{"ranking": [[3], [1], [2]]}', Verdict.MALFORMED),
    ("json", '{"ranking": {"3": 1, "1": 2, "2": 3}}', Verdict.MALFORMED),
    ("json", "[3, 1, 2]", Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1, 2]} thanks', Verdict.MALFORMED),
    ("json", '```json\n{"ranking": [3, 1, 2]}\n```', Verdict.MALFORMED),
    ("json", "[" * 19_000, Verdict.MALFORMED),
    ("json", '{"ranking":' * 1_800, Verdict.MALFORMED),
]


@pytest.mark.parametrize(("text_format", "text", "verdict"), REFUSED)
def test_every_deviation_has_its_verdict(text_format, text, verdict):
    parsed = parse(text, 3, text_format=text_format)
    assert (parsed.ranking, parsed.verdict) == ((), verdict)
    assert parsed.reason.endswith(".")
    assert len(parsed.reason) < 200
    rankings_BK, verdicts_B = parse_batch([text], [3], text_format=text_format)
    assert (rankings_BK.tolist(), verdicts_B.tolist()) == ([[-1, -1, -1]], [verdict])


def test_the_reason_names_the_candidate():
    assert parse("[3, 3, 1]", 3).reason == "The answer names candidate 3 more than once."
    assert parse("[3, 7, 1]", 3).reason == "The answer names candidate '7' but candidates are numbered 1..3."
    assert "first of them candidate 2" in parse("[3, 1]", 3).reason


def test_the_length_limit_can_be_set():
    assert parse("[2, 1]", 2, max_chars=6).verdict is Verdict.OK
    assert parse("[2, 1]", 2, max_chars=5).verdict is Verdict.OVERLONG


def test_only_misuse_by_the_caller_raises():
    with pytest.raises(UnknownNameError, match="did you mean 'arrows'"):
        parse("[1]", 2, text_format="arrow")
    with pytest.raises(UnknownNameError):
        parse_batch([], [], text_format="xml")
    for size in (1, 0, -3, 2.0, True):
        with pytest.raises(InputError, match="give a whole number of at least 2"):
            parse("[1]", size)
    with pytest.raises(InputError, match="not NoneType"):
        parse(None, 2)


def test_a_batch_pads_to_the_width_of_the_slates():
    rankings_BK, verdicts_B = parse_batch(["[2, 1]", "[1, 2", b"[3, 1, 2]"], [2, 2, 3], width=4)
    assert rankings_BK.tolist() == [[1, 0, -1, -1], [-1, -1, -1, -1], [2, 0, 1, -1]]
    assert verdicts_B.tolist() == [Verdict.OK, Verdict.TRUNCATED, Verdict.OK]
    assert (rankings_BK.dtype, verdicts_B.dtype) == (np.int64, np.int8)


def test_a_batch_needs_one_size_a_text_and_room_for_it():
    with pytest.raises(InputError, match="2 texts came with sizes of shape"):
        parse_batch(["[1, 2]", "[1, 2]"], [2])
    with pytest.raises(InputError, match="give one whole number a text"):
        parse_batch(["[1, 2]"], [2.5])
    with pytest.raises(InputError, match="width is 2 but a request has 3 candidates"):
        parse_batch(["[1, 2, 3]"], [3], width=2)


@settings(max_examples=60)
@given(hostile_texts(), st.integers(2, 10), st.sampled_from(FORMATS))
def test_hostile_text_never_raises_and_only_an_exact_permutation_is_ok(text, size, text_format):
    parsed = parse(text, size, text_format=text_format)
    if parsed.verdict is Verdict.OK:
        assert sorted(parsed.ranking) == list(range(size))
        plain = text.decode() if isinstance(text, bytes) else text
        numbers = json.loads(plain)["ranking"] if text_format == "json" else plain.strip().strip("[]")
        if text_format != "json":
            numbers = [int(part.strip("[] ")) for part in numbers.split("," if text_format == "list" else ">")]
        assert [number - 1 for number in numbers] == list(parsed.ranking)
    else:
        assert parsed.ranking == ()


WRITERS = {
    "list": lambda numbers: f"[{', '.join(map(str, numbers))}]",
    "arrows": lambda numbers: " > ".join(f"[{number}]" for number in numbers),
    "json": lambda numbers: json.dumps({"explanation": "why", "ranking": numbers}),
}


@given(st.integers(2, 30).flatmap(lambda size: st.permutations(range(1, size + 1))), st.sampled_from(FORMATS))
def test_what_is_written_is_read_back(numbers, text_format):
    parsed = parse(WRITERS[text_format](numbers), len(numbers), text_format=text_format)
    assert parsed.verdict is Verdict.OK
    assert [index + 1 for index in parsed.ranking] == numbers


@given(st.permutations(range(1, 6)), st.sampled_from(FORMATS), st.data())
def test_every_proper_beginning_of_an_answer_is_truncated_empty_or_incomplete(numbers, text_format, data):
    text = WRITERS[text_format](numbers)
    cut = data.draw(st.integers(0, len(text) - 1))
    verdict = parse(text[:cut], 5, text_format=text_format).verdict
    # without its last signs an arrows answer can be a complete shorter one
    assert verdict in {Verdict.EMPTY, Verdict.TRUNCATED} | ({Verdict.MISSING} if text_format == "arrows" else set())
