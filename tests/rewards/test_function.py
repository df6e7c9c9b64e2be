"""A plain function as a reward: five lines for the user, and every fault attributed by name and row."""

import pickle
import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import FunctionCondition, FunctionReward, Ndcg, Slates, parse_reward, rankings, register_reward
from rerank_env.rewards.errors import InputError, RewardError
from rerank_env.rewards.testing import rankings_of, slates, unsound_properties

BATCH = Slates.of([[0, 3], [0, 0, 2]])


def first_gain(rankings_BK, slates):
    """The gain of the candidate shown first, as a share of 100."""
    return slates.relevance_BK[np.arange(len(slates)), rankings_BK[:, 0]] / 100


REWARD = FunctionReward(first_gain, "first_gain", low=0.0, high=1.0, invalid=-0.5)


def faulty(result):
    """A reward whose function returns `result`, or raises it."""

    def function(rankings_BK, slates):
        if isinstance(result, Exception):
            raise result
        return result

    return FunctionReward(function, "faulty", low=0.0, high=1.0, invalid=0.0)


def test_a_function_scores_and_invalid_answers_earn_what_is_declared():
    assert REWARD([[1, 0, -1], [2, 0, 1]], BATCH).tolist() == [0.03, 0.02]
    assert REWARD([[1, 1, -1], [2, 0, 1]], BATCH).tolist() == [-0.5, 0.02]


def test_a_function_sees_valid_padded_rankings_only():
    seen = []

    def spy(rankings_BK, slates):
        seen.append(rankings_BK.tolist())
        return np.zeros(len(slates))

    FunctionReward(spy, "spy", low=0, high=0, invalid=-1)([[9, 9, 9], [2, 0, 1]], BATCH)
    assert seen == [[[0, 1, -1], [2, 0, 1]]]


def test_a_function_composes_like_any_reward():
    reward = 0.5 * REWARD.over_incoming() + Ndcg()
    assert str(reward) == "0.5*first_gain.over_incoming() + ndcg"
    # row 1: first gain 2 against 0 incoming: 0.5 * 0.02, and the ideal order
    assert reward([[0, 1, -1], [2, 0, 1]], BATCH)[1] == pytest.approx(0.01 + 1)
    register_reward("first_gain", REWARD)
    assert parse_reward(str(reward)) == reward
    assert pickle.loads(pickle.dumps(reward)) == reward


@given(st.data())
def test_echoing_earns_exactly_nothing_even_if_a_function_depends_on_the_batch(data):
    batch = data.draw(slates())
    centred = FunctionReward(lambda r, s: first_gain(r, s) - first_gain(r, s).mean(), "c", low=-1, high=1, invalid=-1)
    echo = rankings.identity_rankings(batch.sizes_B, batch.width)
    assert (centred.over_incoming()(echo, batch) == 0).all()
    assert (centred.over_incoming()(echo[:1], batch.take([0])) == 0).all()
    assert centred(data.draw(rankings_of(batch)), batch).shape == (len(batch),)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ZeroDivisionError("division by zero"), "reward faulty raised ZeroDivisionError: division by zero"),
        ([0.0], r"reward faulty returned shape \(1,\) for 2 requests"),
        (0.5, r"reward faulty returned shape \(\) for 2 requests"),
        ([[0.0], [0.0]], r"reward faulty returned shape \(2, 1\) for 2 requests"),
        ([0.0, np.nan], "reward faulty returned nan for row 1"),
        ([-np.inf, 0.0], "reward faulty returned -inf for row 0"),
        ([None, 0.0], "reward faulty returned dtype object"),
        (["0.5", "0.5"], "reward faulty returned dtype <U3"),
        ([1j, 0j], "reward faulty returned dtype complex128"),
        ([[0.0], [0.0, 1.0]], "reward faulty raised ValueError"),
    ],
)
def test_a_fault_of_the_function_names_reward_and_row(result, message):
    with pytest.raises(RewardError, match=message) as caught:
        faulty(result)([[0, 1, -1], [0, 1, 2]], BATCH)
    assert isinstance(result, Exception) == (caught.value.__cause__ is result)
    row = re.search("for row ([0-9])", message)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.name, error.row) == ("faulty", int(row[1]) if row else None)


def test_an_error_of_another_layer_may_know_neither_name_nor_row():
    assert (RewardError("it failed").name, RewardError("it failed").row) == (None, None)


@pytest.mark.parametrize("result", [[0, 1], [True, False], np.zeros(2, dtype=np.float32)])
def test_any_real_numbers_will_do(result):
    assert faulty(result)([[0, 1, -1], [0, 1, 2]], BATCH).dtype == np.float64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": 3}, "3 is no function"),
        ({"name": "two words"}, "cannot name a reward"),
        ({"name": "lambda"}, "cannot name a reward"),
        ({"name": 3}, "3 cannot name a reward"),
        ({"low": 2.0}, "low 2.0 above high 1.0"),
        ({"high": float("inf")}, "high of f is inf"),
        ({"invalid": None}, "invalid of f is None"),
        ({"identity": "0"}, "identity of f is '0'; expected a number"),
        ({"identity": float("nan")}, "identity of f is nan; expected a finite number"),
        ({"identity": 1.5}, "identity of f is 1.5, the most .* give a number from low 0.0 to high 1.0"),
        ({"identity": -0.1}, "identity of f is -0.1"),
        ({"seconds": 0}, "f may take 0 seconds; give a number above 0 and up to 86400, or None"),
        ({"seconds": 86_401}, "f may take 86401 seconds"),
    ],
)
def test_a_useless_declaration_is_refused(change, message):
    fields = {"function": first_gain, "name": "f", "low": 0.0, "high": 1.0, "invalid": 0.0} | change
    with pytest.raises(InputError, match=message):
        FunctionReward(**fields)


@pytest.mark.parametrize("value", [1.5, -0.25])
def test_a_value_outside_the_declared_range_is_named_with_its_row(value: float) -> None:
    bold = FunctionReward(lambda r, s: np.full(len(s), value), "bold", low=0.0, high=1.0, invalid=-1.0)
    with pytest.raises(RewardError, match="reward bold returned .* for row 0 but declares 0.0 to 1.0") as caught:
        bold([[0, 1, 2], [2, 0, 1]], BATCH)
    assert (caught.value.name, caught.value.row) == ("bold", 0)


def test_what_echoing_may_earn_is_declared_and_changes_no_score():
    careful = FunctionReward(first_gain, "first_gain", low=0.0, high=1.0, invalid=-0.5, identity=0)
    assert (REWARD.identity, careful.identity) == (1.0, 0.0)
    assert (careful + 0.2).identity == 0.2
    assert careful([[1, 0, -1], [0, 0, 1]], BATCH).tolist() == REWARD([[1, 0, -1], [0, 0, 1]], BATCH).tolist()
    # where something relevant came first, echoing earns a share of it
    assert "echoing" in unsound_properties(careful, max_examples=15)["identity"]


@dataclass
class Scaled:
    """A callable that cannot be hashed, as it can change."""

    scale: float

    def __call__(self, rankings_BK, slates):
        return self.scale * first_gain(rankings_BK, slates)


def test_a_callable_that_cannot_be_hashed_is_refused_with_the_remedy():
    refused = r"callable Scaled cannot be hashed \(.*\); give a plain function, or .* frozen=True"
    with pytest.raises(InputError, match=refused):
        FunctionReward(Scaled(0.5), "scaled", low=0.0, high=1.0, invalid=-0.5)
    with pytest.raises(InputError, match=refused):
        FunctionCondition(Scaled(0.5), "scaled")

    @dataclass(frozen=True)
    class Fixed:
        scale: float
        __call__ = Scaled.__call__

    halved = FunctionReward(Fixed(0.5), "halved", low=0.0, high=1.0, invalid=-0.5)
    assert halved([[1, 0, -1], [0, 1, 2]], BATCH).tolist() == [0.015, 0.0]
