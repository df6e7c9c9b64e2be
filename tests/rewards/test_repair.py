"""Repair for serving: always a full ranking, every change said, valid answers left alone, no part in any reward."""

import glob
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rerank_env
from rerank_env.rewards import InputError, UnknownNameError, Verdict, parse
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.proofs.hostile import answers, candidate_ids, spoilt
from rerank_env.rewards.repairing import Repaired, repair
from rerank_env.rewards.testing import hostile_texts

READ = "The answer is not written in the agreed format; took the candidates that can be read in it."
CUT = "The answer stops before its format is complete; took the candidates that can be read in it."


def appended(number):
    return f"Appended {number} candidate{'s that were' if number > 1 else ' that was'} not named, in incoming order."


@pytest.mark.parametrize(
    ("text_format", "text", "order", "changes"),
    [
        ("list", "[3, 1, 4, 2]", "3142", []),
        ("list", "[3, 1]", "3124", [appended(2)]),
        ("list", "[3, 3, 1, 4]", "3142", ["Dropped 1 repetition of candidates named before.", appended(1)]),
        ("list", "[3, 9, 1, 4]", "3142", ["Dropped '9', which is not the name of a candidate.", appended(1)]),
        ("list", "[3, 9, 0, 7, 1, 4, 2]", "3142", ["Dropped '9' and 2 more, none of them the name of a candidate."]),
        ("list", "", "1234", [appended(4)]),
        ("list", "[]", "1234", [appended(4)]),
        ("list", "I cannot decide.", "1234", [READ, appended(4)]),
        ("list", "[3, 1, 4", "3142", [CUT, appended(1)]),
        ("list", "The best are [3, 1, 4, 2].", "3142", [READ]),
        ("list", "Of these 4 the 2 best: [3, 1, 4, 2]", "3142", [READ]),  # the longest list counts
        ("list", "[1, 2] at first, but then [3, 1]", "3124", [READ, appended(2)]),  # the last of equal lists
        ("list", "Candidate 3 is best, then candidate 1.", "3124", [READ, appended(2)]),  # no list: all that are named
        ("list", "3, 9, then 1", "3124", [READ, "Dropped '9', which is not the name of a candidate.", appended(2)]),
        ("list", "1. [3]\n2. [1]\n3. [4]\n4. [2]", "3142", [READ]),
        ("list", "[3, -1, 1.0, +2, 4]", "3412", [READ, appended(2)]),  # signs and points make no candidate's name
        ("list", "3 > 1 > 4 > 2", "3142", [READ]),
        ("list", b"\xff[3, 1, 4, 2]", "3142", [READ]),
        ("arrows", "3>1>4>2", "3142", [READ]),
        ("arrows", "[3] > [1] = [4] > [2]", "3142", [READ]),
        ("arrows", "**[3]** > **[1]** > [4] > [2]!", "3142", [READ]),
        ("json", '```json\n{"ranking": [3, 1, 4, 2]}\n```', "3142", [READ]),
        ("json", '{"explanation": "1, 2, 3, 4 is wrong", "ranking": ["3", "1", "4"', "3142", [READ, appended(1)]),
        ("json", '{"explanation": "1, 2, 3, 4 is wrong", "ranking": [3, 1', "3124", [CUT, appended(2)]),
        ("json", '{"ranking": [[3], [1]], "reasoning": "1, 2, 3, 4 is wrong"}', "3124", [READ, appended(2)]),
        ("tagged-list", "<think>1, 2, 3, 4?</think>[3, 1, 4, 2]", "3142", [READ]),
        ("tagged-list", "<think>1, 2, 3, 4?</think><answer>[3, 1", "3124", [CUT, appended(2)]),
        ("tagged-list", "<answer>[1, 2, 3, 4]</answer><answer>[3, 1, 4, 2]</answer> 4 5", "3142", [READ]),
        ("tagged-list", "<think><answer>[3, 1, 4, 2]</answer></think>", "3142", [READ]),  # nothing behind: all of it
    ],
)
def test_what_can_be_read_is_kept_in_order_and_every_change_is_said(text_format, text, order, changes):
    repaired = repair(text, 4, text_format=text_format)
    assert "".join(str(index + 1) for index in repaired.ranking) == order
    assert list(repaired.changes) == changes
    assert repaired.verdict is parse(text, 4, text_format=text_format).verdict


def test_ids_are_found_in_the_order_in_which_they_are_named():
    ids = ["<a_1><b_1>", "<a_1><b_2>", "<a_2><b_1>"]
    for text in ("[<a_2><b_1>, <a_1><b_2>, ]", "<a_2><b_1>, then <a_1><b_2>.", '"<a_2><b_1>"\n"<a_1><b_2>"\n"<a_1>"'):
        assert repair(text, 3, ids=ids) == Repaired((2, 1, 0), Verdict.MALFORMED, (READ, appended(1)))
    assert repair("[<a_2><b_1>, <a_9>, <a_1><b_2>, 1]", 3, ids=ids).changes == (
        "Dropped '<a_9>' and 1 more, none of them the name of a candidate.",
        appended(1),
    )


def test_of_a_text_that_is_too_long_the_end_is_read():
    long = (
        "The answer is longer than the agreed limit; took the candidates that can be read in its last 20000 characters."
    )
    for text in ("[1, 2, 3] " + "a" * MAX_CHARS + "[3, 2]", ("é" * 5 * MAX_CHARS + "[3, 2]").encode()):
        assert repair(text, 3) == Repaired((2, 1, 0), Verdict.OVERLONG, (long, appended(1)))


def test_only_misuse_by_the_caller_raises():
    with pytest.raises(UnknownNameError, match="did you mean 'arrows'"):
        repair("[1]", 2, text_format="arrow")
    with pytest.raises(InputError, match="give a whole number of at least 2"):
        repair("[1]", 1)
    with pytest.raises(InputError, match="not NoneType"):
        repair(None, 2)
    with pytest.raises(InputError, match="is given twice"):
        repair("[1]", 2, ids=["a", "a"])


def check_repair(text, size, text_format, ids):
    repaired = repair(text, size, text_format=text_format, ids=ids)
    parsed = parse(text, size, text_format=text_format, ids=ids)
    assert sorted(repaired.ranking) == list(range(size))
    assert repaired.verdict is parsed.verdict
    assert (repaired.changes == ()) == (parsed.verdict is Verdict.OK)
    assert all(change.endswith(".") and len(change) < 120 for change in repaired.changes)
    if parsed.verdict is Verdict.OK:
        assert repaired.ranking == parsed.ranking


@settings(max_examples=200)
@given(hostile_texts(), st.integers(2, 10), st.sampled_from(FORMATS), st.booleans())
def test_any_text_becomes_a_permutation(text, size, text_format, with_ids):
    check_repair(text, size, text_format, candidate_ids(size) if with_ids else None)


@settings(max_examples=200)
@given(st.sampled_from(FORMATS), st.data())
def test_a_valid_answer_is_not_changed_and_a_spoilt_one_is_never_silently(text_format, data):
    text = data.draw(spoilt(answers(text_format=text_format, size=4)))
    for ids in (None, candidate_ids(4)):
        check_repair(text, 4, text_format, ids)


def test_nothing_that_computes_a_reward_uses_the_repair():
    package = Path(rerank_env.__file__).parent
    files = [Path(name) for name in glob.glob(f"{package}/**/*.py", recursive=True)]
    using = {str(path.relative_to(package)) for path in files if "repairing" in path.read_text(encoding="utf-8")}
    assert len(files) > 40
    assert using <= {"rewards/__init__.py", "agents/language/serving.py"}
    serving = [path for path in files if "language.serving" in path.read_text(encoding="utf-8")]
    assert {str(path.relative_to(package)) for path in serving} <= {"agents/language/__init__.py"}
