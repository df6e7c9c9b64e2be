"""Answers that name candidates by identifier are read as strictly as numbers; misleading identifiers are refused."""

import pytest

from rerank_env.rewards import Verdict, parse, parse_batch
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS

IDS = ["<a_12><b_3><c_200>", "B00X/(4)", "<|sid_7|>"]

ID_ANSWERS = {
    "list": "[<|sid_7|>,<a_12><b_3><c_200>, B00X/(4) ]",
    "arrows": "[<|sid_7|>] > [<a_12><b_3><c_200>]>[B00X/(4)]",
    "json": '{"ranking": ["<|sid_7|>", "<a_12><b_3><c_200>", "B00X/(4)"]}',
}


@pytest.mark.parametrize("text_format", ID_ANSWERS)
def test_ids_stand_for_numbers_where_a_request_has_them(text_format):
    text = ID_ANSWERS[text_format]
    tagged = f"<think>{text}</think><answer>{text}</answer>"
    for form, given_text in ((text_format, text), (f"tagged-{text_format}", tagged)):
        assert parse(given_text, 3, text_format=form, ids=IDS).ranking == (2, 0, 1)
        read = parse_batch([given_text, given_text, given_text], [3, 3, 3], text_format=form, ids=[IDS, IDS, IDS[::-1]])
        assert read.rankings_BK.tolist() == [[2, 0, 1], [2, 0, 1], [0, 2, 1]]
        assert parse(given_text, 3, text_format=form).verdict is Verdict.MALFORMED  # and no number is an ID, either
    for number in ("1", "2"):
        assert parse(f"[{number}]", 3, ids=IDS).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("text_format", "text", "verdict"),
    [
        ("list", "[<a_1>, <a_2>]", Verdict.OK),
        ("list", "[<a_1>, <a_3>]", Verdict.UNKNOWN),
        ("list", "[<a_1>, <A_2>]", Verdict.UNKNOWN),
        ("list", "[<a_1>, <a_1>]", Verdict.DUPLICATE),
        ("list", "[<a_1>]", Verdict.MISSING),
        ("list", "[<a_1>, <a_2>, <a_2>]", Verdict.WRONG_COUNT),
        ("list", "[<a_1>, <a_", Verdict.TRUNCATED),
        ("list", "[<a_1> <a_2>]", Verdict.MALFORMED),
        ("list", '["<a_1>", "<a_2>"]', Verdict.MALFORMED),
        ("list", "[<a_1>, \uff1ca_2>]", Verdict.MALFORMED),
        ("arrows", "[<a_1>] > [<a_2>", Verdict.TRUNCATED),
        ("arrows", "<a_1> > <a_2>", Verdict.MALFORMED),
        ("json", '{"ranking": ["<a_1>", "<a_', Verdict.TRUNCATED),
        ("json", '{"ranking": ["<a_1>", "<a_3>"]}', Verdict.UNKNOWN),
        ("json", '{"ranking": [<a_1>, <a_2>]}', Verdict.MALFORMED),
        ("json", '{"ranking": ["<a_1>", "<a\\u005f2>"]}', Verdict.MALFORMED),  # verbatim means without escapes
        ("json", '{"ranking": ["<a_1>", 2]}', Verdict.MALFORMED),
        ("tagged-list", "<answer>[<a_1>, <a_2>", Verdict.TRUNCATED),
        ("tagged-list", "<answer>[<a_1>, <a_2></answer>", Verdict.MALFORMED),
        ("tagged-list", "<answer>[<a_1>, <answer>]</answer>", Verdict.MALFORMED),
    ],
)
def test_every_deviation_from_ids_has_its_verdict(text_format, text, verdict):
    assert parse(text, 2, text_format=text_format, ids=["<a_1>", "<a_2>"]).verdict is verdict


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"], "a request with 2 candidates came with 1 IDs; give one ID a candidate"),
        ("ab", "came with one text; give one ID a candidate"),
        (["a", "a"], "candidate ID 'a' is given twice in one request"),
        *(
            (["a", bad], "cannot be told from the format around it")
            for bad in (
                "",
                " ",
                "a b",
                "a,b",
                "[a",
                "a]",
                'a"',
                "a\\",
                "a\n",
                "é",
                "\x00",
                "x<answer>",
                "</think>",
                7,
                None,
            )
        ),
    ],
)
def test_ids_that_could_be_taken_for_something_else_are_refused(ids, message):
    for text_format in FORMATS:
        with pytest.raises(InputError, match=message):
            parse("[1, 2]", 2, text_format=text_format, ids=ids)
        with pytest.raises(InputError, match=message):
            parse_batch(["[1, 2]"], [2], text_format=text_format, ids=[ids])


def test_a_batch_needs_ids_of_every_request():
    with pytest.raises(InputError, match="2 texts came with IDs of 1 requests"):
        parse_batch(["[a]", "[b]"], [2, 2], ids=[["a", "b"]])
