"""The parser: every deviation is a verdict, nothing is repaired, and no text raises."""

import json
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strict_reader import strictly_read

from rerank_env.rewards import Verdict, parse, parse_batch
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.formats import FORMATS, answer_text, has_reasoning, numbers
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.proofs.hostile import answers, candidate_ids, spoilt
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
    (
        "json",
        '{"reasoning": "\\ud83d\\ude00 <answer>", "ranking": [3, 1, 2]}',
    ),  # tags mean nothing outside tagged formats
    ("tagged-list", "<answer>[3, 1, 2]</answer>"),
    ("tagged-list", "<think>any > text, [1, 2] even\n</think>\r\n<answer> [3, 1, 2]\n</answer>\n"),
    ("tagged-list", "the prompt opened the block\n</think><answer>[3,1,2]</answer>"),
    ("tagged-list", " \n<think>a < b, <b>, </ think>, <THINK></think><answer>[3,1,2]</answer>"),  # none of the four
    ("tagged-list", b"<think></think><answer>[3, 1, 2]</answer>"),
    ("tagged-arrows", "<think>\x00\x1b[2J\u202e</think><answer>[3] > [1] > [2]</answer>"),
    ("tagged-json", '<think>a</think><answer>{"ranking": [3, 1, 2], "reasoning": "a < b"}</answer>'),
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
    ("json", '{"ranking": [3, 1, 2], "explanation": "a", "reasoning": "b"}', Verdict.MALFORMED),
    ("json", '{"explanation": "a", "ranking": [3, 1, 2], "reasoning": "b"}', Verdict.MALFORMED),
    ("json", '{"explanation": "a", "explanation": "a", "ranking": [3, 1, 2]}', Verdict.MALFORMED),
    ("json", '{"r\\u0061nking": [3, 1, 2]}', Verdict.MALFORMED),  # names are written without escapes
    ("json", '{"ranking": [3, 1, 2], "explanation": "\n"}', Verdict.MALFORMED),  # a bare line break in a string
    ("json", '{"ranking": [3, 1, 2], "explanation": "\\x41"}', Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1, 2], "explanation": "\\ud800"}', Verdict.MALFORMED),  # half a surrogate pair
    ("json", '{"ranking": [3, 1, 2], "explanation": "\ud800"}', Verdict.MALFORMED),
    ("json", "{'ranking': [3, 1, 2]}", Verdict.MALFORMED),
    ("json", '{"ranking": [3, 1, 2],}', Verdict.MALFORMED),
    ("json", '{"explanation": "cut in an escape \\', Verdict.TRUNCATED),
    ("json", '{"explanation": "cut in an escape \\u', Verdict.TRUNCATED),
    ("json", '{"explanation": "cut in an escape \\u00e', Verdict.TRUNCATED),
    ("json", '{"explanation": "cut in an escape \\ug', Verdict.MALFORMED),
    ("tagged-list", "<think>a</think><answer>[3, 1]</answer>", Verdict.MISSING),
    ("tagged-list", "<answer>[3, 1, 1]</answer>", Verdict.DUPLICATE),
    ("tagged-list", "<answer>[3, 1, 7]</answer>", Verdict.UNKNOWN),
    ("tagged-list", "<answer>[3, 1, 2, 2]</answer>", Verdict.WRONG_COUNT),
    ("tagged-list", " ", Verdict.EMPTY),
    ("tagged-list", "Still thinking, with the block opened by the prompt", Verdict.TRUNCATED),
    ("tagged-list", "<thi", Verdict.TRUNCATED),
    ("tagged-list", "<think>[3, 1, 2]", Verdict.TRUNCATED),
    ("tagged-list", "<think>a</think", Verdict.TRUNCATED),
    ("tagged-list", "<think>a</think><ans", Verdict.TRUNCATED),
    ("tagged-list", "<think>a</think><answer>[3, 1", Verdict.TRUNCATED),
    ("tagged-list", "<think>a</think><answer>[3, 1, 2]</answer", Verdict.TRUNCATED),
    ("tagged-list", "<answer></answer>", Verdict.MALFORMED),
    ("tagged-list", "<answer>[3, 1, 2</answer>", Verdict.MALFORMED),
    ("tagged-list", "<answer>[3, 1, 2]</answer>.", Verdict.MALFORMED),
    ("tagged-list", "<answer>[3, 1, 2]</answer><think>a</think>", Verdict.MALFORMED),
    ("tagged-list", "<answer>[3, 1, 2]</answer><answer>[3, 1, 2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "<think><answer>[3, 1, 2]</answer></think>", Verdict.MALFORMED),
    ("tagged-list", "<think><answer>[1, 2, 3]</answer></think><answer>[3, 1, 2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "<think>a<think>b</think></think><answer>[3, 1, 2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "<think>a</think>b</think><answer>[3, 1, 2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "<think>a</think> so <answer>[3, 1, 2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "well <think>a</think><answer>[3, 1, 2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "<think>a<answer>[3, 1, 2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "<answer><answer>[3, 1, 2]</answer></answer>", Verdict.MALFORMED),
    ("tagged-list", "<Answer>[3, 1, 2]</Answer>", Verdict.TRUNCATED),  # so far it could be a reasoning
    ("tagged-list", "<think>a</think>[3, 1, 2]", Verdict.MALFORMED),
    ("tagged-list", "<answer>[3] > [1] > [2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "<think>\ud800</think><answer>[3, 1, 2]</answer>", Verdict.MALFORMED),
    ("tagged-list", "<think>" + "a" * 20_000 + "</think><answer>[3, 1, 2]</answer>", Verdict.OVERLONG),
    ("tagged-arrows", "<answer>[3] > [1]</answer>", Verdict.MISSING),
    ("tagged-arrows", "<answer>[3] > [1]", Verdict.TRUNCATED),
    ("tagged-arrows", "<answer>[3] > [1] ></answer>", Verdict.MALFORMED),
    ("tagged-json", '<answer>{"ranking": [3, 1, 2], "explanation": "</answer>"}</answer>', Verdict.MALFORMED),
    ("tagged-json", '<answer>{"ranking": [3, 1, 2], "explanation": "<think>"}</answer>', Verdict.MALFORMED),
    ("tagged-json", '<answer>{"explanation": "a</answer>', Verdict.MALFORMED),
    ("tagged-json", '<answer>{"explanation": "a</answ', Verdict.TRUNCATED),
    ("tagged-json", '<answer>{"ranking": [3, 1, 2]}', Verdict.TRUNCATED),
    ("json", "[" * 19_000, Verdict.MALFORMED),
    ("json", '{"ranking":' * 1_800, Verdict.MALFORMED),
]


@pytest.mark.parametrize(("text_format", "text", "verdict"), REFUSED)
def test_every_deviation_has_its_verdict(text_format, text, verdict):
    parsed = parse(text, 3, text_format=text_format)
    assert (parsed.ranking, parsed.verdict) == ((), verdict)
    assert parsed.reason.endswith(".")
    assert len(parsed.reason) < 200
    rankings_BK, verdicts_B, reasonings, chars_B = parse_batch([text], [3], text_format=text_format)
    assert (rankings_BK.tolist(), verdicts_B.tolist(), reasonings) == ([[-1, -1, -1]], [verdict], ("",))
    assert chars_B.tolist() == [len(text) if isinstance(text, str) else len(text.decode("latin-1"))]


def test_the_reason_names_the_candidate_or_the_place():
    assert parse("[3, 3, 1]", 3).reason == "The answer names candidate '3' more than once."
    assert parse("[3, 7, 1]", 3).reason == "The answer names '7', which is none of the 3 candidates."
    assert parse("[3, 1]", 3).reason.endswith("leaves out 1 of 3 candidates, the first of them candidate '2'.")
    assert parse("[3, 1, 2, 1]", 3).reason == "The answer names 4 candidates but there are 3."
    assert parse(" " * 21, 3, max_chars=20).reason == "The answer is 21 characters long; 20 are allowed."
    assert parse(b"\xff", 3).reason == "The answer is not UTF-8 text, or holds half a surrogate pair."
    assert parse("[3, 01, 2]", 3).reason == (
        "The answer does not read like [3, 1, 2]: it departs at character 6, '1, 2]'."  # 0 is a number
    )
    assert parse('["x"]', 2, text_format="tagged-json", ids=["x", "y"]).verdict is Verdict.TRUNCATED
    assert parse('["x"]', 2, text_format="json", ids=["x", "y"]).reason.startswith(
        'The answer does not read like {"ranking": ["ID", "ID", "ID"], "explanation": "..."}: it departs'
    )


def test_the_length_limit_can_be_set():
    assert parse("[2, 1]", 2, max_chars=6).verdict is Verdict.OK
    assert parse("[2, 1]", 2, max_chars=5).verdict is Verdict.OVERLONG
    with pytest.raises(InputError, match="max_chars is 0; give a whole number"):
        parse("[2, 1]", 2, max_chars=0)


def test_the_length_limit_counts_characters_in_text_and_in_bytes():
    """An e with an accent takes two bytes: 31 characters of tags and list and 3 letters are 34, but 37 bytes."""
    text = "<think>ééé</think><answer>[2, 1]</answer>"
    assert (len(text), len(text.encode())) == (41, 44)
    for given_text in (text, text.encode()):
        for max_chars, verdict in ((41, Verdict.OK), (40, Verdict.OVERLONG)):
            parsed = parse(given_text, 2, text_format="tagged-list", max_chars=max_chars)
            assert parsed.verdict is verdict
            assert parsed.reasoning == ("ééé" if verdict is Verdict.OK else "")
    assert (
        parse(b"\xff" * 81, 2, max_chars=20).verdict is Verdict.OVERLONG
    )  # more than 4 bytes a character: not decoded
    assert parse_batch([text, text.encode(), b"\xff" * 81], [2, 2, 2]).chars_B.tolist() == [41, 41, 81]


@pytest.mark.parametrize(
    ("text_format", "text", "reasoning"),
    [
        ("list", "[2, 1]", ""),
        ("json", '{"ranking": [2, 1]}', ""),
        ("json", '{"ranking": [2, 1], "explanation": ""}', ""),
        ("json", '{"ranking": [2, 1], "explanation": "\\u00e9 \\"a\\" \\ud83d\\ude00"}', 'é "a" \U0001f600'),
        ("json", '{"reasoning": " b", "ranking": [2, 1]}', " b"),
        ("tagged-list", "<answer>[2, 1]</answer>", ""),
        ("tagged-list", "<think> a\n</think><answer>[2, 1]</answer>", " a\n"),
        ("tagged-list", " a </think><answer>[2, 1]</answer>", " a "),
        ("tagged-json", '<think>a</think><answer>{"ranking": [2, 1]}</answer>', "a"),
        ("tagged-json", '<answer>{"ranking": [2, 1], "explanation": "b"}</answer>', "b"),
        ("tagged-json", '<think>a</think><answer>{"ranking": [2, 1], "explanation": "b"}</answer>', "a\nb"),
        ("tagged-json", '<think>a</think><answer>{"ranking": [2, 2], "explanation": "b"}</answer>', ""),  # no answer
    ],
)
def test_the_reasoning_of_an_answer_is_handed_on(text_format, text, reasoning):
    assert parse(text, 2, text_format=text_format).reasoning == reasoning
    assert parse_batch([text], [2], text_format=text_format).reasonings == (reasoning,)


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
    rankings_BK, verdicts_B, *_ = parse_batch(["[2, 1]", "[1, 2", b"[3, 1, 2]"], [2, 2, 3], width=4)
    assert rankings_BK.tolist() == [[1, 0, -1, -1], [-1, -1, -1, -1], [2, 0, 1, -1]]
    assert verdicts_B.tolist() == [Verdict.OK, Verdict.TRUNCATED, Verdict.OK]
    assert (rankings_BK.dtype, verdicts_B.dtype) == (np.int64, np.int8)


def test_a_batch_needs_one_size_a_text_and_room_for_it():
    with pytest.raises(InputError, match="2 texts came with sizes of shape"):
        parse_batch(["[1, 2]", "[1, 2]"], [2])
    with pytest.raises(InputError, match="give one whole number a text"):
        parse_batch(["[1, 2]"], [2.5])
    with pytest.raises(InputError, match="size is 1; give a whole number of at least 2"):
        parse_batch(["[1, 2]", "[1]"], [2, 1])
    assert parse_batch([], []).rankings_BK.shape == (0, 2)
    with pytest.raises(InputError, match="width is 2 but a request has 3 candidates"):
        parse_batch(["[1, 2, 3]"], [3], width=2)


@settings(max_examples=300)
@given(hostile_texts(), st.integers(2, 10), st.sampled_from(FORMATS), st.booleans())
def test_hostile_text_never_raises_and_is_read_as_a_second_reader_reads_it(text, size, text_format, with_ids):
    check_reading(text, size, text_format, with_ids)


@settings(max_examples=300)
@given(st.sampled_from(FORMATS), st.data())
def test_answers_with_a_few_edits_are_read_as_a_second_reader_reads_them(text_format, data):
    text = data.draw(spoilt(answers(text_format=text_format, size=4)))
    for with_ids in (False, True):
        check_reading(text, 4, text_format, with_ids)


def check_reading(text, size, text_format, with_ids):
    ids = candidate_ids(size) if with_ids else None
    names = {name: index for index, name in enumerate(ids)} if with_ids else numbers(size)
    expected = strictly_read(text, names, text_format, with_ids=with_ids, max_chars=MAX_CHARS)
    parsed = parse(text, size, text_format=text_format, ids=ids)
    assert (parsed.verdict is Verdict.OK) == (expected is not None)
    assert (list(parsed.ranking), parsed.reasoning) == (expected or ([], ""))
    assert len(parsed.reason) < 200
    batch = parse_batch([text], [size], text_format=text_format, ids=None if ids is None else [ids])
    assert (batch.verdicts_B.tolist(), batch.reasonings) == ([parsed.verdict], (parsed.reasoning,))
    assert batch.rankings_BK.tolist() == [list(parsed.ranking) or [-1] * size]
    if isinstance(text, str) and not re.search("[\ud800-\udfff]", text):
        assert parse(text.encode(), size, text_format=text_format, ids=ids) == parsed
        assert parse_batch([text.encode()], [size]).chars_B == [len(text)]


@given(answers(), st.sampled_from(FORMATS), st.data())
def test_what_begins_an_answer_is_truncated_empty_or_a_shorter_answer(text, text_format, data):
    text = data.draw(answers(text_format=text_format, size=5))
    ids = candidate_ids(5) if "<a_0>" in text else None
    assert parse(text, 5, text_format=text_format, ids=ids).verdict is Verdict.OK
    cut = data.draw(st.integers(0, len(text) - 1))
    verdict = parse(text[:cut], 5, text_format=text_format, ids=ids).verdict
    # without its last signs an arrows answer can be a complete shorter one
    assert verdict in {Verdict.EMPTY, Verdict.TRUNCATED} | ({Verdict.MISSING} if text_format == "arrows" else set())


@given(
    st.integers(2, 30).flatmap(lambda size: st.permutations(range(size))),
    st.sampled_from(FORMATS),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_what_is_written_is_read_back(ranking, text_format, with_ids, reasoning):
    ids = candidate_ids(len(ranking)) if with_ids else None
    reasoning = reasoning if has_reasoning(text_format) else ""
    text = answer_text(ranking, text_format=text_format, ids=ids, reasoning=reasoning)
    parsed = parse(text, len(ranking), text_format=text_format, ids=ids)
    assert (list(parsed.ranking), parsed.reasoning) == (ranking, reasoning)
    if text_format == "json":
        assert json.loads(text)["ranking"] == [ids[index] if ids else index + 1 for index in ranking]


def test_a_reasoning_without_a_place_is_not_written():
    for text_format, reasoning in (("list", "a"), ("arrows", "a"), ("tagged-json", "a</think>")):
        with pytest.raises(InputError, match="cannot hold the reasoning 'a"):
            answer_text([1, 0], text_format=text_format, reasoning=reasoning)


@pytest.mark.parametrize("text_format", FORMATS)
def test_the_time_to_read_a_text_is_linear_in_its_length(text_format):
    """Every start with every sign repeated, 20,000 characters: quadratic time would be 400 million steps for each."""
    starts = [
        "",
        "[",
        "[1] > ",
        '{"ranking": [',
        '{"explanation": "',
        "<think>",
        "<answer>[",
        '<answer>{"reasoning": "',
    ]
    signs = [
        *'[]{}"\\<> 1\n',
        "</",
        "<think>",
        "</answer>",
        "[1] > ",
        "1, ",
        "\\u00e9",
        '{"ranking":',
        "<a_1>, ",
        "\ud800",
    ]
    texts = [(start + sign * MAX_CHARS)[:MAX_CHARS] for start in starts for sign in signs]
    began = time.process_time()
    for ids in (None, [["1", "<a_1>"]] * len(texts)):
        parsed = parse_batch(texts, [2] * len(texts), text_format=text_format, ids=ids)
        assert (parsed.verdicts_B != Verdict.OK).all()
    assert time.process_time() - began < 0.02 * len(texts)
