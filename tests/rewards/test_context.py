"""What rewards know besides rankings and slates: steps, groups, lengths, reasonings and clicks, and its absence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import Cites, Context, Length, Linear, Ndcg, Overlong, Since, Slates, ValidFormat, gain
from rerank_env.rewards.context import HINTS
from rerank_env.rewards.errors import InputError, SlateError
from rerank_env.rewards.testing import contexts_of, rankings_of, rewards, slates

ONE = Slates.of([[0, 1]])
ORDER = [[1, 0]]


@given(st.data())
def test_a_reward_is_scored_where_its_needs_are_met_and_refused_where_not(data):
    reward = data.draw(rewards(contextual=True))
    batch = data.draw(slates(logged=True))
    answers_BK = data.draw(rankings_of(batch, invalid=True))
    context = data.draw(contexts_of(batch))
    total_B = reward(answers_BK, batch, context=context)
    valid_B = reward.score(answers_BK, batch, context=context).total_B != reward.invalid
    slack = 1e-9 * (1 + abs(reward.low) + abs(reward.high))
    assert np.isfinite(total_B).all()
    assert ((total_B >= reward.low - slack) & (total_B <= reward.high + slack) | ~valid_B).all()
    if missing := reward.needs - batch.provides:
        with pytest.raises(InputError, match=f"needs {min(missing)}"):
            reward(answers_BK, batch)


def test_needs_are_those_of_all_parts():
    reward = (Ndcg() * Linear(0, 1, steps=5)).when(Since(3)) + 0.1 * Cites() + 0.1 * Length(most=9, unit="chars")
    assert reward.needs == {"step", "reasonings", "chars"}
    assert Overlong(limit=9, buffer=3).needs == {"tokens"}
    assert Ndcg().needs == frozenset()
    assert reward.needs < set(HINTS)


def test_a_schedule_is_a_straight_line_between_its_ends():
    weight = Linear(1, 0.2, steps=4, begin=10)
    # 0.8 less over 4 steps: 0.2 a step from step 10 on
    at = {step: weight(ORDER, ONE, context=Context(step=step))[0] for step in (0, 10, 11, 12, 14, 99)}
    assert at == pytest.approx({0: 1.0, 10: 1.0, 11: 0.8, 12: 0.6, 14: 0.2, 99: 0.2}, abs=1e-15)


def test_an_invalid_answer_never_profits_from_a_falling_weight():
    fading = 0.2 * Ndcg(invalid=-1) * Linear(1, 0, steps=4)
    for step in (0, 2, 9):
        assert fading([[0, 0]], ONE, context=Context(step=step))[0] == fading.invalid == -0.2
    assert fading(ORDER, ONE, context=Context(step=9))[0] == 0.0


def test_a_switch_holds_from_its_step_on():
    late = ValidFormat().when(Since(5))
    assert [late(ORDER, ONE, context=Context(step=step))[0] for step in (4, 5, 6)] == [0.0, 1.0, 1.0]


def test_a_reward_that_begins_late_never_shelters_an_invalid_answer_if_it_is_gated():
    # the worse order earns 1 / log2(3) - 1 = -0.37, and only the gate pays an invalid answer less
    worse, spoilt = [[1, 0]], [[0, 0]]
    one = Slates.of([[1, 0]])
    sheltered, gated = gain().when(Since(5)), gain().gate(Since(5), otherwise=-1.1)
    late = Context(step=5)
    assert sheltered(spoilt, one, context=late)[0] == 0.0 > sheltered(worse, one, context=late)[0]
    assert gated(spoilt, one, context=late)[0] == -1.1 < gated(worse, one, context=late)[0]


def test_a_length_is_paid_within_its_limits():
    four = ONE.repeat(4)
    lengths = Context(lengths={"tokens": np.array([4, 5, 9, 10])})
    assert Length(least=5, most=9)([[1, 0]] * 4, four, context=lengths).tolist() == [0.0, 1.0, 1.0, 0.0]


def test_the_overlong_punishment_is_that_of_dapo():
    # L_max 100, L_cache 20 (DAPO equation 13): 0 up to 80, (80 - 90) / 20 = -0.5 at 90, -1 from 100 on
    lengths = Context(lengths={"tokens": np.array([0, 80, 81, 90, 100, 101, 500])})
    paid = Overlong(limit=100, buffer=20)([[1, 0]] * 7, ONE.repeat(7), context=lengths)
    assert paid.tolist() == pytest.approx([0.0, 0.0, -0.05, -0.5, -1.0, -1.0, -1.0], abs=1e-15)


@pytest.mark.parametrize(
    ("reasoning", "paid"),
    [
        ("[1] fits, [2] does not", 1.0),
        ("[2] fits, and again [2]", 0.5),
        ("nothing fits", 0.0),
        ("1 and 2", 0.0),
        ("[1] and [2] and [3]", 0.0),  # there is no candidate 3
        ("[1] and [2] and [0]", 0.0),
        ("[1] and [02]", 0.0),
        ("[1] and [-2]", 0.0),
        ("[1] and [\uff12]", 0.0),  # a full-width 2
        ("[1] [x] []", 0.5),
        ("[ 1 ] [2]", 1.0),
        ("", 0.0),
    ],
)
def test_reasoning_is_paid_for_citing_real_candidates_only(reasoning, paid):
    assert Cites(least=2)(ORDER, ONE, context=Context(reasonings=(reasoning,))).tolist() == [paid]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "step is -1"),
        ({"step": 1.5}, "step is 1.5"),
        ({"groups_B": np.array([0.5])}, "groups have shape"),
        ({"reasonings": "text"}, "give a list of texts"),
        ({"reasonings": (text for text in ["a"])}, "give a list of texts"),
        ({"lengths": None}, "give a mapping"),
        ({"lengths": {"words": np.array([1])}}, r"units are chars, tokens"),
        ({"lengths": {"chars": np.array([[1]])}}, "chars have shape"),
    ],
)
def test_a_useless_context_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        Context(**change)


@pytest.mark.parametrize(
    "context",
    [
        Context(groups_B=np.array([0, 0])),
        Context(reasonings=("", "")),
        Context(lengths={"chars": np.array([1, 2, 3])}),
    ],
)
def test_a_context_speaks_of_as_many_answers_as_there_are(context):
    with pytest.raises(InputError, match=r"for 1 answers; give one an answer"):
        Ndcg()(ORDER, ONE, context=context)


def test_useless_arguments_are_refused():
    for build in (
        lambda: Linear(-1, 0, steps=3),
        lambda: Linear(0, 1, steps=0),
        lambda: Length(most=3, least=4),
        lambda: Overlong(limit=5, buffer=6),
        lambda: Overlong(limit=5, buffer=2, unit="words"),
        lambda: Cites(least=0),
        lambda: Since(-1),
    ):
        with pytest.raises(InputError):
            build()


LOG = {"clicks": [[1, 0], [0, 1, 0]], "propensities": [[1.0, 0.5], [1.0, 0.5, 0.25]]}


def test_slates_carry_the_log_of_the_incoming_order():
    batch = Slates.of([[0, 1], [1, 0, 0]], **LOG)
    assert batch.clicks_BK.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert batch.propensities_BK.tolist() == [[1, 0.5, 0], [1, 0.5, 0.25]]
    assert batch.predictions_BK is None
    assert batch.provides == {"clicks"}
    assert batch.take([1]).clicks_BK.tolist() == [[0, 1, 0]]
    assert batch.repeat(2).propensities_BK.tolist() == batch.propensities_BK[[0, 0, 1, 1]].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"propensities": None}, "come together"),
        ({"clicks": [[1, 0], [0, 0.5, 0]]}, "clicks of request 1, candidate 1 is 0.5; expected 0 or 1"),
        ({"propensities": [[1, 0], [1, 1, 1]]}, "propensities of request 0, candidate 1 is 0.0"),
        ({"propensities": [[1, 1], [1, 1, 1.5]]}, "propensities of request 1, candidate 2 is 1.5"),
        ({"predictions": [[1, 1], [1, 1, float("nan")]]}, "predictions of request 1, candidate 2 is nan"),
        ({"clicks": [[1], [0, 0, 0]]}, "give one number a candidate"),
    ],
)
def test_a_log_that_cannot_be_one_is_refused(change, message):
    with pytest.raises(SlateError, match=message):
        Slates.of([[0, 1], [1, 0, 0]], **(LOG | change))


def test_canonical_numbers_are_a_ranking_of_each_request():
    relevance = np.array([[0.0, 1, 0], [1, 0, 0]])
    Slates(relevance, np.array([2, 3]), canonical_BK=np.array([[1, 0, -1], [2, 0, 1]]))
    with pytest.raises(SlateError, match=r"canonical numbers of request 0 are \[1, 1, -1\]"):
        Slates(relevance, np.array([2, 3]), canonical_BK=np.array([[1, 1, -1], [2, 0, 1]]))
    with pytest.raises(SlateError, match="canonical numbers have shape"):
        Slates(relevance, np.array([2, 3]), canonical_BK=np.array([[1, 0]]))
