"""What an audit refuses, in a sentence each, and functions and popularity that it cannot use."""

import re
from functools import partial

import numpy as np
import pytest

from rerank_env import rewards
from rerank_env.rewards import (
    FunctionReward,
    Slates,
    gain,
)
from rerank_env.rewards.errors import InputError, UnknownNameError

audit = partial(rewards.audit, search=False)  # the search has tests of its own

SLATES = Slates.of([[0, 1, 0, 0], [1, 0, 0]])

MANY = SLATES.repeat(15)
"""The same, of as many users as it takes to be judged."""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"users_B": [1]}, "users have shape (1,)"),
        ({"users_B": [0.5, 1.5]}, "dtype float64"),
        ({"popularity_BK": [[1, 2]]}, "popularity has shape (1, 2), but the slates have shape (2, 4)"),
        ({"prompts": ["one"]}, "prompts are 1 texts for 2 requests"),
        ({"prompts": "ab"}, "prompts are one text for 2 requests"),
        ({"text_format": "jsno"}, "did you mean 'json'"),
        ({"step": -1}, "step"),
        ({"seed": -1}, "seed is -1; give a whole number of at least 0"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"users_B": [[1], [2, 3]]}, "users cannot be read as an array"),
        ({"popularity_BK": [["a"] * 4] * 2}, "popularity has dtype <U1; give numbers"),
        ({"popularity_BK": [[1, 2], [3]]}, "popularity cannot be read as an array"),
        ({"popularity_BK": [[1, np.nan, 3, 4]] * 2}, "popularity of candidate 1 of request 0 is nan; give a finite"),
        ({"popularity_BK": [[1, 2, 3, -np.inf]] * 2}, "popularity of candidate 3 of request 0 is -inf"),
        ({"prompts": [None, "b"]}, "the prompt of request 0 is None; give a text"),
        ({"prompts": ["a", 3]}, "the prompt of request 1 is 3"),
        ({"prompts": 3}, "prompts are of type int for 2 requests"),
        ({"parse": 3}, "the parser is 3; give a function"),
    ],
)
def test_what_does_not_fit_the_requests_is_refused(arguments, says):
    with pytest.raises(InputError) as raised:
        audit("naive", SLATES, **arguments)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_plain_function_is_told_how_to_become_a_reward():
    def mine(rankings_BK, slates):
        return slates

    with pytest.raises(InputError, match=r'FunctionReward\(mine, "mine", low=0.0, high=1.0, invalid=-0.1\)'):
        audit(mine, SLATES)
    with pytest.raises(InputError, match=r"FunctionReward\(mine, "):
        audit(lambda rankings_BK, slates: slates, SLATES)
    with pytest.raises(InputError, match="slates are of type list"):
        audit("gain", [[0, 1]])


def test_an_isolated_function_that_fails_is_never_passed():
    def moody(rankings_BK, slates):
        if (rankings_BK[:, 0] == 1).any():
            raise KeyError("one")
        return np.zeros(len(slates))

    mine = FunctionReward(moody, name="moody", low=-1, high=1, invalid=-1.1, on_error="isolate")
    report = audit(gain() + 0.1 * mine, MANY)
    assert report.passed is None
    assert re.fullmatch(
        r"moody failed on \d+ answers, whose worth is not known; the first time, reward moody raised KeyError: 'one'; "
        "see the cause",
        report.undecided[0],
    )
    # an answer that failed is not the worst valid one: malformed answers are paid as little, and pass
    assert {row.passed for row in report.rows if row.kind == "malformed"} == {True}
    assert audit(gain() + 0.1 * mine, Slates.of([[1, 0]] * 30)).failures == ()


def test_padding_of_popularity_is_not_looked_at():
    report = audit("gain", SLATES, popularity_BK=[[1, 9, 1, 0], [2, 1, 0, np.nan]])
    assert report["popularity"].mean_reward == report["oracle"].mean_reward
    assert report["popularity"].valid_share == 1.0


def test_an_audit_needs_slates_and_a_reward_that_exists():
    with pytest.raises(InputError, match="no slates to audit on"):
        audit("naive", Slates.of([]))
    with pytest.raises(UnknownNameError, match="did you mean 'naive'"):
        audit("naiv", SLATES)
    with pytest.raises(InputError, match="needs clicks, which is not known here"):
        audit("click_credit", SLATES)
