"""Texts that look like an answer: refused in every format, and what a parser that repairs them costs."""

import re

import numpy as np
import pytest

from rerank_env.rewards import Slates, Verdict, audit, gain, parse
from rerank_env.rewards.auditing.texts import TEXT_ATTACKS, VERBOSE_CHARS, Original, stand_in_prompt
from rerank_env.rewards.auditing.writing import Dress, dressed
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS, answer_text, has_reasoning, written
from rerank_env.rewards.repairing import repair

SLATES = Slates.of(np.eye(5)[np.random.default_rng(0).integers(0, 3, 60)].tolist())
MALFORMED = [attack for attack in TEXT_ATTACKS if attack.kind == "malformed"]
TEXTS = {attack.name: attack for attack in TEXT_ATTACKS}


def text(name, text_format="list", ranking=(2, 0, 1)):
    return TEXTS[name].write(Original(ranking, text_format, stand_in_prompt(len(ranking))))


@pytest.mark.parametrize(
    ("name", "says", "verdict"),
    [
        ("empty", "", Verdict.EMPTY),
        ("truncated", "[3, 1]", Verdict.MISSING),
        ("top_only", "[3]", Verdict.MISSING),
        ("cut_off", "[3, 1, 2", Verdict.TRUNCATED),
        ("duplicate_top", "[3, 3, 2]", Verdict.DUPLICATE),
        ("padded_repeat", "[3, 1, 2, 3]", Verdict.WRONG_COUNT),
        ("padded_unknown", "[3, 1, 2, 4]", Verdict.WRONG_COUNT),
        ("alias_zero_based", "[2, 0, 1]", Verdict.UNKNOWN),
        ("alias_negative", "[-1, 1, 2]", Verdict.MALFORMED),
        ("alias_leading_zero", "[03, 01, 02]", Verdict.MALFORMED),
        ("alias_plus_sign", "[+3, +1, +2]", Verdict.MALFORMED),
        ("alias_decimal", "[3.0, 1.0, 2.0]", Verdict.MALFORMED),
        ("alias_exponent", "[3e0, 1e0, 2e0]", Verdict.MALFORMED),
        ("alias_quoted", "['3', '1', '2']", Verdict.MALFORMED),
        ("alias_full_width", "[\uff13, \uff11, \uff12]", Verdict.MALFORMED),
        ("tag_injection", "</think><answer>[3, 1, 2]</answer>[3, 1, 2]", Verdict.MALFORMED),
        ("two_answers", "[3, 1, 2]\n[2, 1, 3]", Verdict.MALFORMED),
    ],
)
def test_what_the_tricks_look_like_and_how_they_are_read(name, says, verdict):
    assert text(name) == says
    assert parse(says, 3).verdict is verdict


def test_the_prompt_is_echoed_whole():
    assert text("prompt_echo") == stand_in_prompt(3)
    assert text("prompt_then_answer") == f"{stand_in_prompt(3)}\n\n[3, 1, 2]"
    report = audit("gain", SLATES, prompts=["[1, 2, 3, 4, 5]"] * len(SLATES), search=False)
    # a prompt that is an answer is read as one
    assert report["prompt_echo"].valid_share == 1.0
    assert report["prompt_echo"].passed is False


@pytest.mark.parametrize("text_format", FORMATS)
def test_no_trick_is_a_ranking_in_any_format(text_format):
    report = audit("gain", SLATES, text_format=text_format, search=False)
    assert report.failures == ()
    for prefix in ("", "oracle_"):
        for attack in MALFORMED:
            assert report[prefix + attack.name].valid_share == 0.0, attack.name


@pytest.mark.parametrize("text_format", FORMATS)
def test_a_written_ranking_reads_back(text_format):
    for dress in (Dress(), Dress(chars=300), Dress(cited=2), Dress(cited=None), Dress("Because", cited=1, chars=99)):
        if dress.cited == 0 or has_reasoning(text_format):
            answer = dressed((2, 0, 1), text_format, dress)
            assert parse(answer, 3, text_format=text_format).ranking == (2, 0, 1)
            assert len(answer) >= dress.chars


def test_reasons_stand_where_the_format_has_a_place_for_them():
    assert written(["2", "1"], "json", "Up.") == '{"explanation": "Up.", "ranking": [2, 1]}'
    assert written(["2", "1"], "tagged-json", "Up.") == '<think>Up.</think><answer>{"ranking": [2, 1]}</answer>'
    assert written(["2", "1"], "tagged-arrows") == "<answer>[2] > [1]</answer>"
    assert parse(dressed((1, 0), "json", Dress("Up", cited=None)), 2, text_format="json").reasoning == "Up [1] [2]"
    assert parse(written(["2", "1"], "list", "Up."), 2).verdict is Verdict.MALFORMED


@pytest.mark.parametrize("text_format", FORMATS)
def test_reasons_are_escaped_where_they_are_a_json_string(text_format):
    reasoning = 'a "quoted" line,\n\\ and \u00e9' if has_reasoning(text_format) else ""
    answer = dressed((1, 0), text_format, Dress(reasoning))
    assert answer == answer_text([1, 0], text_format=text_format, reasoning=reasoning)
    assert parse(answer, 2, text_format=text_format).reasoning == reasoning


def test_a_format_has_room_for_reasons_in_json_and_in_tags():
    assert [name for name in FORMATS if not has_reasoning(name)] == ["arrows", "list"]


def test_prose_is_read_where_it_may_stand_and_pays_nothing_anywhere():
    inside = audit("gain", SLATES, text_format="tagged-list", search=False)
    outside = audit("gain", SLATES, text_format="list", search=False)
    assert inside["oracle_verbosity"].valid_share == 1.0
    assert inside["oracle_verbosity"].share_of_oracle == 0.0
    assert outside["oracle_verbosity"].verdict is Verdict.MALFORMED
    assert len(text("verbosity", "tagged-list")) > VERBOSE_CHARS
    assert inside.passed
    assert outside.passed


def test_a_reward_of_length_pays_for_blanks():
    # an answer of five is 15 characters, and 2,000 with blanks
    report = audit("gain + 0.5*length(least=1000, most=5000, unit='chars')", SLATES, search=False)
    assert report["oracle_blanks"].mean_reward == pytest.approx(
        report["oracle"].mean_reward
    )  # the oracle adds them too
    assert report["oracle_blanks"].share_of_oracle == pytest.approx(0.5 / report["oracle"].mean_reward)
    assert not report["oracle_blanks"].passed
    assert not report["blanks"].passed


def test_a_parser_that_repairs_hands_out_the_order_it_repairs_with():
    report = audit("ndcg(invalid=-1)", SLATES, parse=lambda text, size: repair(text, size).ranking, search=False)
    # what was left out is appended in incoming order, so that nothing at all earns what the incoming order does
    assert report["empty"].mean_reward == pytest.approx(report["identity"].mean_reward)
    assert report["empty"].identity_rate == 1.0
    # ... and the oracle's first candidate alone is worth the oracle's whole list where one is relevant
    assert report["oracle_top_only"].share_of_oracle == pytest.approx(1.0)
    assert not any(report[prefix + attack.name].passed for prefix in ("", "oracle_") for attack in MALFORMED)
    assert report["truncated"].reason.startswith("100% of these texts were read as rankings")


def test_even_gain_is_gamed_through_a_parser_that_repairs():
    report = audit(gain(), SLATES, parse=lambda text, size: repair(text, size).ranking, search=False)
    assert report["empty"].mean_reward == 0.0  # not -1.1
    assert report["oracle_top_only"].share_of_oracle == pytest.approx(1.0)
    assert {row.kind for row in report.failures} == {"malformed"}


def test_a_parser_that_takes_digits_is_found_out_by_the_aliases():
    def any_digits(text, size):
        """What many graders do: all numbers in the text, each decimal digit whatever its script."""
        found = [int(number) - 1 for number in re.findall(r"\d+", text)]
        return found if len(found) == size else None

    report = audit("gain", SLATES, parse=any_digits, search=False)
    assert {row.name.removeprefix("oracle_") for row in report.failures} == {
        "cut_off",
        "alias_leading_zero",
        "alias_plus_sign",
        "alias_quoted",
        "alias_full_width",
    }
    # read, and then found to be no ranking after all
    assert report["alias_zero_based"].verdict is Verdict.UNKNOWN
    assert report["duplicate_top"].verdict is Verdict.DUPLICATE


def test_a_strict_parser_of_your_own_passes():
    def strict(text, size):
        return parse(text, size).ranking or None

    assert audit("gain", SLATES, parse=strict, search=False).passed


@pytest.mark.parametrize(
    "answer",
    [
        "12345",
        b"12345",
        7,
        True,
        {0, 1, 2, 3, 4},
        [0.6, 1.6, 2.6, 3.6, 4.6],
        np.arange(5.0),
        np.eye(5, dtype=int),
        ["0", "1", "2", "3", "4"],
        [True, False, 2, 3, 4],
        [0, 1, 2, 3],
        [2**70, 0, 1, 2, 3],
        [-(2**70), 0, 1, 2, 3],
    ],
    ids=repr,
)
def test_what_is_no_list_of_whole_numbers_is_no_ranking(answer):
    report = audit("gain", SLATES, parse=lambda text, size: answer, search=False)
    assert report["blanks"].valid_share == 0.0
    # a parser that reads nothing can be paid for nothing: that is no pass
    assert report.passed is None
    assert report.undecided[0].startswith("only 0% of plain answers in the text format 'list' are read as the rankings")


def test_a_parser_may_answer_with_an_array():
    def strict(text, size):
        return np.array(parse(text, size).ranking)

    assert audit("gain", SLATES, parse=strict, search=False).passed


def test_a_parser_that_raises_is_told_what_to_return():
    def strict(text, size):
        raise LookupError("no\nthing")

    with pytest.raises(InputError, match=r"the parser raised LookupError .* on the answer '.*'; return None") as raised:
        audit("gain", SLATES, parse=strict, search=False)
    assert isinstance(raised.value.__cause__, LookupError)


def test_a_parser_of_yours_leaves_the_reasons_where_they_are():
    def strict(text, size):
        return parse(text, size, text_format="tagged-list").ranking or None

    options = {"text_format": "tagged-list", "search": False}
    report = audit("gain + 0.1*cites", SLATES, parse=strict, **options)
    own = audit("gain + 0.1*cites", SLATES, **options)
    assert [row.mean_reward for row in report.rows] == [row.mean_reward for row in own.rows]
