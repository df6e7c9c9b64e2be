"""Completions to numbers: what counts as a completion, and that reading and scoring are two halves of one path."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from rerank_env.rewards import FunctionReward, InputError, Ndcg, Scorer, Slates, UnknownNameError, Verdict, gain
from rerank_env.rewards.scoring import ReadAnswers, as_text

TWO = Slates.of([[0, 1], [1, 0, 0]])
USER, TOOL = {"role": "user", "content": "[9]"}, {"role": "tool", "content": "[8]"}


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("[1, 2]", "[1, 2]"),
        (b"[1, 2]", b"[1, 2]"),
        ([{"role": "assistant", "content": "[1, 2]"}], "[1, 2]"),
        ([{"content": "[1, 2]"}], "[1, 2]"),
        (
            [{"role": "assistant", "content": "[2, 1]"}, USER, {"role": "assistant", "content": "[1, 2]"}, TOOL],
            "[1, 2]",
        ),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "assistant", "content": [{"type": "text", "text": "[1,"}, {"type": "image"}, " 2]"]}], "[1, 2]"),
    ],
)
def test_the_text_of_a_completion_is_what_the_assistant_said_last(completion, text):
    assert as_text(completion) == text


@pytest.mark.parametrize("completion", [None, 3, [], [USER], [3], {"role": "assistant"}, [{"content": 3}]])
def test_what_holds_no_text_of_the_assistant_is_refused(completion):
    with pytest.raises(InputError, match="a completion is of type"):
        as_text(completion)


def test_a_completion_a_slate_is_asked_for():
    for completions, given in (("[1, 2]", "one text"), (["[1, 2]"], "1 completions")):
        with pytest.raises(InputError, match=f"{given} came with 2 slates"):
            Scorer("gain")(completions, TWO)


def test_a_call_is_reading_and_scoring():
    scorer, completions = (
        Scorer("ndcg + 0.5*cites(least=1) + 0.5*length(most=9)", "tagged-list"),
        [
            "<think>[2] fits</think><answer>[2, 1]</answer>",
            "<answer>[1, 2]</answer>",
        ],
    )
    read = scorer.read(completions, TWO, tokens_B=[9, 10])
    assert read.rankings_BK.tolist() == [[1, 0, -1], [-1, -1, -1]]
    assert read.verdicts_B.tolist() == [Verdict.OK, Verdict.MISSING]
    assert (read.context.reasonings, read.context.lengths["chars"].tolist()) == (("[2] fits", ""), [46, 23])
    called, scored = scorer(completions, TWO, tokens_B=[9, 10]), scorer.score(read, TWO)
    # NDCG 1 and half of each bonus; what is no ranking earns the invalid scores, which are 0.
    assert called.total_B.tolist() == scored.total_B.tolist() == [2.0, 0.0]
    assert called.reasonings == scored.reasonings == ("[2] fits", "")
    assert replace(scorer, reward=Ndcg()).score(read, TWO).total_B.tolist() == [1.0, 0.0]


def test_answers_that_were_never_text_are_scored_too():
    read = ReadAnswers(np.array([[1, 0, -1], [0, 1, 2]]), np.zeros(2, dtype=np.int8))
    scored = Scorer("ndcg").score(read, TWO)
    assert (scored.total_B.tolist(), scored.reasonings) == ([1.0, 1.0], ("", ""))


def test_a_verdict_of_the_reader_stands_though_the_array_is_a_ranking():
    read = ReadAnswers(np.array([[1, 0, -1], [0, 1, 2]]), np.array([Verdict.MALFORMED, Verdict.OK], dtype=np.int8))
    scored = Scorer("gain").score(read, TWO)
    assert (scored.total_B.tolist(), scored.valid_B.tolist()) == ([-1.1, 0.0], [False, True])


def test_what_is_not_known_is_named_with_what_the_caller_can_do():
    for reward, remedy in [
        ("linear(start=0, end=1, steps=9)*ndcg", "needs step.*pass step"),
        ("consistency", "needs groups.*pass groups_B"),
        ("length(most=9)", "needs tokens.*pass token counts to the Scorer"),
    ]:
        with pytest.raises(InputError, match=remedy):
            Scorer(reward)(["[1, 2]", "[1, 2, 3]"], TWO)
    with pytest.raises(InputError, match="in the shop, length.* needs tokens, which is not known here; count them"):
        Scorer("length(most=9)").check_needs("step", where="the shop", remedies={"tokens": "count them"})
    Scorer("length(most=9) + cites").check_needs("tokens", where="the shop")


def test_an_isolated_failure_is_told_by_row():
    def picky(rankings_BK, slates):
        if (slates.sizes_B == 2).any():
            raise ValueError("two")
        return np.ones(len(slates))

    scored = Scorer(FunctionReward(picky, "picky", 0.0, 1.0, -1.0, on_error="isolate"))(["[1, 2]", "[1, 2, 3]"], TWO)
    assert (scored.total_B.tolist(), scored.failed_B.tolist()) == ([-1.0, 1.0], [True, False])


def test_a_scorer_is_a_value_made_from_a_reward_or_its_text():
    scorer = Scorer("gain", "arrows", max_chars=50)
    assert scorer == Scorer(gain(), "arrows", max_chars=50) == pickle.loads(pickle.dumps(scorer))
    assert scorer.reward == gain()
    assert scorer != replace(scorer, max_chars=49)
    with pytest.raises(UnknownNameError, match="did you mean 'list'"):
        Scorer("gain", "lists")
    with pytest.raises(InputError, match="max_chars"):
        Scorer("gain", max_chars=0)
