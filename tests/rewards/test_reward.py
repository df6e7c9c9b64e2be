"""The protocol and the algebra: what every reward promises, on random expressions and by hand."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.rewards import (
    Auc,
    Constant,
    Hit,
    Improved,
    IncomingIsIdeal,
    KeptFirst,
    Mrr,
    Ndcg,
    NotIdentity,
    RankPromotion,
    Recall,
    Slates,
    Valid,
    ValidFormat,
    Verdict,
    WasFirst,
    parse_reward,
    rankings,
)
from rerank_env.rewards.algebra import Product, Scaled, Sum
from rerank_env.rewards.errors import InputError, RankingError, SlateError, UnknownNameError
from rerank_env.rewards.reward import Bounds, Leaf
from rerank_env.rewards.testing import conditions, rankings_of, rewards, slates

TWO = Slates.of([[0, 0, 1], [2, 0, 1]])
KEEP, SPOILT = [0, 1, 2], [0, 0, 2]


@given(rewards(), st.data())
def test_valid_answers_score_within_the_range_and_invalid_ones_the_declared_score(reward, data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch, invalid=True))
    valid_B = rankings.verdicts(given_BK, batch.sizes_B) == Verdict.OK
    total_B = reward(given_BK, batch)
    slack = 1e-9 * (1 + abs(reward.low) + abs(reward.high))
    assert total_B.dtype == np.float64
    assert (total_B[valid_B] >= reward.low - slack).all()
    assert (total_B[valid_B] <= reward.high + slack).all()
    assert (total_B[~valid_B] == reward.invalid).all()


@given(rewards(), st.data())
def test_a_given_verdict_makes_an_answer_invalid_and_never_valid(reward, data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch, invalid=True))
    flagged_B = np.array(data.draw(st.lists(st.sampled_from(Verdict), min_size=len(batch), max_size=len(batch))))
    valid_B = (rankings.verdicts(given_BK, batch.sizes_B) == Verdict.OK) & (flagged_B == Verdict.OK)
    expected_B = np.where(valid_B, reward(given_BK, batch), reward.invalid)
    assert (reward(given_BK, batch, verdicts_B=flagged_B) == expected_B).all()


@given(rewards(), st.data())
def test_the_parts_add_up_to_the_total(reward, data):
    batch = data.draw(slates())
    score = reward.score(data.draw(rankings_of(batch, invalid=True)), batch)
    assert sum(score.parts.values()) == pytest.approx(score.total_B, abs=1e-9, rel=1e-9)


@given(rewards(), slates())
def test_echoing_earns_exactly_nothing_over_the_incoming_order(reward, batch):
    net = reward.over_incoming()
    echo = rankings.identity_rankings(batch.sizes_B, batch.width)
    assert (net(echo, batch) == 0.0).all()
    assert (net(echo, batch.repeat(3).take(np.arange(len(batch)) * 3)) == 0.0).all()


@settings(max_examples=40)
@given(rewards(), st.data())
def test_an_answer_scores_the_same_bits_in_any_batch(reward, data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch, invalid=True))
    together_B = reward(given_BK, batch)
    for row in range(len(batch)):
        alone = Slates(batch.relevance_BK[row : row + 1].copy(), batch.sizes_B[row : row + 1].copy())
        assert reward(given_BK[row : row + 1], alone)[0] == together_B[row]
        assert reward(given_BK[row : row + 1], batch.take([row]))[0] == together_B[row]


@given(rewards(), st.data())
def test_scoring_is_pure(reward, data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch, invalid=True))
    before = given_BK.copy(), batch.relevance_BK.copy()
    first = reward.score(given_BK, batch)
    first.total_B[:] = 99  # what is handed out is the caller's own
    for part in first.parts.values():
        part[:] = 99
    assert (reward(given_BK, batch) == parse_reward(str(reward))(given_BK, batch)).all()
    assert (given_BK == before[0]).all()
    assert (batch.relevance_BK == before[1]).all()


@given(rewards())
def test_a_reward_is_a_value(reward):
    again = pickle.loads(pickle.dumps(reward))
    assert again == reward
    assert hash(again) == hash(reward)
    assert (again.low, again.high, again.invalid) == (reward.low, reward.high, reward.invalid)
    assert reward.low <= reward.high


@given(conditions(), st.data())
def test_no_condition_holds_for_an_invalid_answer(condition, data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch, invalid=True))
    valid_B = rankings.verdicts(given_BK, batch.sizes_B) == Verdict.OK
    held_B, denied_B = condition.holds(given_BK, batch), (~condition).holds(given_BK, batch)
    assert not held_B[~valid_B].any()
    assert not denied_B[~valid_B].any()
    assert (held_B ^ denied_B)[valid_B].all()
    if condition.always:
        assert held_B[valid_B].all()
    assert pickle.loads(pickle.dumps(condition)) == condition


def test_a_score_has_the_terms_of_the_sum_as_parts():
    score = (Ndcg() + 0.5 * ValidFormat() - 0.25).score([KEEP, SPOILT], TWO)
    # row 0: one item at place 3: 1 / log2(4) = 0.5
    assert {name: part.tolist() for name, part in score.parts.items()} == {
        "ndcg": [0.5, 0.0],
        "0.5*valid_format": [0.5, 0.0],
        "-0.25": [-0.25, -0.25],
    }
    assert score.total_B.tolist() == [0.75, -0.25]


def test_equal_terms_share_a_part():
    score = (Mrr() + Mrr()).score([KEEP], TWO.take([0]))
    assert {name: part.tolist() for name, part in score.parts.items()} == {"mrr": [2 / 3]}


def test_operators_build_one_canonical_form():
    a, b, c = Ndcg(), Auc(), Mrr()
    assert (a + b) + c == a + (b + c) == sum([a, b, c]) == Sum((a, b, c))
    assert (a * b) * c == a * (b * c) == Product((a, b, c))
    assert 2 * (3 * a) == a * 6 == Scaled(6.0, a)
    assert (2 * a) * (3 * b) == Scaled(6.0, Product((a, b)))
    assert -a == -1 * a == Scaled(-1.0, a)
    assert a - b == a + -b
    assert 1 - a == Constant(1) + -a
    assert Constant(2) * 3 == Constant(6)
    assert a + b != b + a  # parts are reported in order
    assert (KeptFirst() | Valid()) | NotIdentity() == KeptFirst() | (Valid() | NotIdentity())


@pytest.mark.parametrize(
    ("reward", "low", "high", "invalid"),
    [
        (RankPromotion(), -1, 1, -1),
        (Ndcg(), 0, 1, 0),
        (Ndcg(invalid=-0.5), 0, 1, -0.5),
        (ValidFormat(), 1, 1, 0),
        (Constant(0.5), 0.5, 0.5, 0.5),
        (RankPromotion() + 0.2 * ValidFormat(), -0.8, 1.2, -1),
        (0.5 * RankPromotion(), -0.5, 0.5, -0.5),
        (-Ndcg(), -1, 0, -1),  # turned round, an invalid answer must not become the best one
        (-RankPromotion(), -1, 1, -1),
        (RankPromotion() * RankPromotion(), -1, 1, -1),  # nor must two penalties make a prize
        (Ndcg() * ValidFormat(), 0, 1, 0),
        (RankPromotion().when(Improved()), -1, 1, 0),
        (ValidFormat().when(Improved()), 0, 1, 0),
        (ValidFormat().when(Valid()), 1, 1, 0),
        (Ndcg().gate(Valid(), otherwise=-3), 0, 1, -3),
        (Ndcg().gate(KeptFirst(), otherwise=-3), -3, 1, -3),
        (Ndcg().gate(KeptFirst() | Valid(), otherwise=-3), 0, 1, -3),
        (Ndcg().gate(KeptFirst() & Valid(), otherwise=-3), -3, 1, -3),
        (RankPromotion().clip(-0.25, 2), -0.25, 1, -0.25),
        (Ndcg().over_incoming(), -1, 1, -1),
        (RankPromotion().over_incoming(), -2, 2, -2),
    ],
)
def test_declared_scores_follow_the_structure(reward, low, high, invalid):
    assert (reward.low, reward.high, reward.invalid) == pytest.approx((low, high, invalid))


def test_conditions_by_hand():
    batch = Slates.of([[0, 1, 0], [2, 2, 1], [1, 0, 0], [0, 0, 0]])
    swap = [[1, 0, 2]] * 4  # the first two exchanged
    keep = [[0, 1, 2]] * 4
    # improved: row 0 yes; row 1 exchanges equals; row 2 is demoted; row 3 has nothing relevant
    assert Improved().holds(swap, batch).tolist() == [True, False, False, False]
    assert Improved().holds(keep, batch).tolist() == [False] * 4
    # kept first: row 0's best was not first; row 1's two best exchange; row 2's best left; row 3 has none
    assert KeptFirst().holds(swap, batch).tolist() == [False, True, False, False]
    assert KeptFirst().holds(keep, batch).tolist() == [False, True, True, False]
    assert WasFirst().holds(swap, batch).tolist() == [False, True, True, False]
    assert NotIdentity().holds(swap, batch).tolist() == [True] * 4
    assert NotIdentity().holds(keep, batch).tolist() == [False] * 4
    assert IncomingIsIdeal().holds(swap, batch).tolist() == [False, True, True, True]
    assert IncomingIsIdeal(Ndcg()).holds(swap, batch).tolist() == [False, True, True, True]


def test_rounding_is_no_improvement():
    # gains 2 3 1, ranking 1 2 0: items 1 and 2 rise by one place, item 0 falls by two: 3 + 1 - 2 * 2 = 0, but the
    # shares 1/3, 1/2, 1/6 are not exact in binary and leave 1e-17
    batch = Slates.of([[2, 3, 1]])
    assert 0 < RankPromotion()([[1, 2, 0]], batch)[0] < 1e-16
    assert not Improved().holds([[1, 2, 0]], batch).any()


def test_any_order_is_ideal_for_a_quality_that_never_varies():
    assert IncomingIsIdeal(ValidFormat()).holds([KEEP, KEEP], TWO).all()
    assert not Improved(ValidFormat()).holds([[2, 1, 0], KEEP], TWO).any()


def test_total_and_parts_are_arrays_of_their_own():
    score = Ndcg().score([KEEP, KEEP], TWO)
    score.total_B[:] = 99
    assert score.parts["ndcg"][0] == 0.5


def test_padding_counts_neither_for_nor_against_the_identity():
    ragged = Slates.of([[0, 1], [0, 0, 1]])
    assert NotIdentity().holds([[0, 1, -1], [0, 1, 2]], ragged).tolist() == [False, False]


def test_arrays_of_another_shape_are_refused():
    for wrong in ([KEEP], [[0, 1], [0, 1]], KEEP, [[0.0, 1.0, 2.0]] * 2):
        with pytest.raises(RankingError, match=r"the slates need integers of shape \(2, 3\)"):
            Ndcg()(wrong, TWO)
    with pytest.raises(RankingError, match=r"verdicts have shape \(1,\) but there are 2 rankings"):
        Ndcg()([KEEP, KEEP], TWO, verdicts_B=[0])


def test_useless_expressions_are_refused():
    with pytest.raises(InputError, match="a constant reward is 'x'; expected a number"):
        Ndcg() + "x"
    with pytest.raises(InputError, match="expected a finite number"):
        float("nan") * Ndcg()
    with pytest.raises(InputError, match="use smaller numbers"):
        1e308 * RankPromotion() + 1e308 * RankPromotion()
    with pytest.raises(InputError, match="is no condition"):
        Ndcg().when(Auc())
    with pytest.raises(InputError, match="give the lower end first"):
        Ndcg().clip(1, 0)
    with pytest.raises(InputError, match="of at least 1"):
        Recall(k=0)
    with pytest.raises(InputError, match="of at least 1"):
        Hit(k=1.5)
    with pytest.raises(UnknownNameError, match="did you mean 'linear'"):
        Ndcg(gains="linea")
    with pytest.raises(InputError, match="quality is 0.5; expected a reward"):
        Improved(0.5)
    with pytest.raises(TypeError):
        KeptFirst() & Ndcg()


def test_an_empty_batch_scores_nothing():
    score = (Ndcg() + ValidFormat().when(Improved() | KeptFirst())).score(np.zeros((0, 2), int), Slates.of([]))
    assert score.total_B.shape == (0,)


def test_the_smallest_integers_will_do_for_rankings():
    assert Ndcg()(np.array([KEEP, KEEP], dtype=np.uint8), TWO)[0] == 0.5


@given(st.lists(st.floats(-3, 3, allow_subnormal=False), min_size=2, max_size=6))
def test_a_sum_declares_exactly_what_it_pays_an_invalid_answer(weights: list[float]) -> None:
    # The built-in sum compensates rounding since Python 3.12; declared and paid must be added alike.
    reward = sum((Ndcg(k=place, invalid=weight) for place, weight in enumerate(weights, start=1)), start=0)
    paid = reward([[0, 0]], Slates.of([[1, 0]]))[0]
    assert paid == reward.invalid


def test_rows_of_unequal_length_are_refused_in_one_sentence() -> None:
    slates = Slates.of([[1, 0], [1, 0, 2]])
    with pytest.raises(RankingError, match="unequal length"):
        Ndcg()([[0, 1], [0, 1, 2]], slates)
    with pytest.raises(SlateError, match="unequal length"):
        Slates([[0, 1], [1]], [2, 1])
    with pytest.raises(RankingError, match="unequal length"):
        rankings.verdicts([[0, 1], [0, 1, 2]], [2, 3])


@dataclass(frozen=True, repr=False)
class Kept(Leaf):
    """The share of the first k places that are as they came."""

    k: int | None = None
    invalid: float = -0.5
    name = "kept"
    identity_at_most = 1.0

    def evaluate(self, answers):
        same_BK = answers.orders_BK == np.arange(answers.slates.width)
        return same_BK[:, : self.k].mean(axis=1)


def test_a_leaf_of_your_own_needs_a_field_a_name_and_a_formula():
    assert Kept(k=2).bounds() == Bounds(0.0, 1.0, -0.5, 1.0)
    assert Kept(k=2)([KEEP, SPOILT], TWO).tolist() == [1.0, -0.5]
    assert str(Kept(k=2, invalid=-1)) == "kept(k=2, invalid=-1)"
    for k, says in ((0, "k is 0"), (1.5, "k is 1.5")):
        with pytest.raises(InputError, match=says):
            Kept(k=k)
    with pytest.raises(InputError, match="invalid is nan"):
        Kept(invalid=float("nan"))
