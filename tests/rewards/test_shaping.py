"""Branches, head-room, closeness to the incoming order, and what echoing that order may earn."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import (
    Auc,
    Consistency,
    FunctionCondition,
    FunctionReward,
    Improved,
    IncomingIsIdeal,
    KeptFirst,
    Mrr,
    Ndcg,
    NearIdentity,
    NotIdentity,
    RankPromotion,
    Recall,
    Slates,
    TauAtLeast,
    Valid,
    ValidFormat,
    Worsened,
    gain,
    gr2,
    gr2_hardened,
    gr2_industrial,
    gr2_industrial_hardened,
    naive,
    names,
    parse_reward,
    rankings,
    register_condition,
)
from rerank_env.rewards.errors import InputError, RewardError, UnknownNameError
from rerank_env.rewards.testing import contexts_of, rankings_of, rewards, slates

PERMUTATIONS = [list(order) for order in itertools.permutations(range(3))]
THREE = Slates.of([[0, 1, 0]] * 6)


@given(rewards(contextual=True), st.data())
def test_echoing_never_earns_more_than_is_declared(reward, data):
    batch = data.draw(slates(logged=True))
    context = data.draw(contexts_of(batch))
    echo = rankings.identity_rankings(batch.sizes_B, batch.width)
    slack = 1e-9 * (1 + abs(reward.low) + abs(reward.high))
    assert (reward(echo, batch, context=context) <= reward.identity + slack).all()


@pytest.mark.parametrize(
    ("reward", "identity"),
    [
        (Ndcg(), 1.0),
        (RankPromotion(), 0.0),
        (ValidFormat(), 1.0),
        (naive(), 0.2),  # 0 + alpha
        (gr2(), 0.2),  # alpha where the best candidate was first
        (gr2_industrial(), 1.2),  # where the order is ideal already
        (gain(), 0.0),
        (gr2_hardened(), 0.0),
        (gr2_industrial_hardened(), 0.0),
        (Ndcg().when(NotIdentity()), 0.0),
        (Ndcg().gate(~NearIdentity(), otherwise=-0.5), -0.5),
        (Ndcg().when(Improved() | KeptFirst()), 1.0),
        (Ndcg().when(Improved() & KeptFirst()), 0.0),
        (-1 * Ndcg(), 0.0),
        (2 * RankPromotion() * Ndcg(), 0.0),
        (RankPromotion().clip(0.25, 1), 0.25),
        (Ndcg().when(Improved()).otherwise(RankPromotion()), 0.0),
    ],
    ids=str,
)
def test_what_echoing_may_earn_follows_from_the_structure(reward, identity):
    assert reward.identity == pytest.approx(identity, abs=1e-15)


def test_otherwise_pays_a_second_reward_where_the_condition_fails():
    reward = Ndcg().when(Improved()).otherwise(0.5 * Recall(1))
    # The relevant candidate is number 1, second of three. It rises only in [1, 0, 2] and [1, 2, 0]: NDCG 1. Elsewhere
    # it is not first, so half the recall at 1 is 0.
    assert reward(PERMUTATIONS, THREE).tolist() == [0, 0, 1, 1, 0, 0]
    assert str(reward) == "ndcg.when(improved).otherwise(0.5*recall@1)"
    assert parse_reward(str(reward)) == reward


def test_otherwise_with_a_number_shelters_no_invalid_answer_either():
    reward = RankPromotion().when(Improved()).otherwise(0.3)
    assert reward([[1, 0, 2], [0, 1, 2], [1, 1, 2]], THREE.take([0, 0, 0])).tolist() == pytest.approx([1 / 3, 0.3, -1])
    assert parse_reward("rank_promotion.when(improved).otherwise(0.3)") == reward
    assert str(reward) == "rank_promotion.when(improved).otherwise(0.3)"


@pytest.mark.parametrize("build", [gain, gr2_industrial, Improved, Worsened, IncomingIsIdeal])
def test_a_reward_of_the_group_is_no_quality_of_an_answer(build):
    with pytest.raises(InputError, match="looks at the whole rollout group"):
        build(Consistency())
    with pytest.raises(InputError, match="looks at the whole rollout group"):
        (Ndcg() + 0.1 * Consistency()).over_incoming()


def test_no_branch_shelters_an_invalid_answer():
    reward = RankPromotion().when(Improved()).otherwise(Ndcg())
    assert reward.invalid == -1.0
    assert reward([[0, 0, 1]], THREE.take([0])).tolist() == [-1.0]


def test_otherwise_follows_a_when_once():
    with pytest.raises(InputError, match="says already what it is otherwise"):
        Ndcg().gate(Valid(), otherwise=-1).otherwise(0.5)
    with pytest.raises(InputError, match="it follows a when"):
        parse_reward("ndcg.otherwise(0.5)")


def test_headroom_is_the_share_of_what_could_be_gained():
    # MRR of the incoming order is 1/2 and the ideal 1: first place gains all of the room, +1; third place, MRR 1/3,
    # loses (1/2 - 1/3) / (1/2) = 1/3 as much as could have been gained.
    reward = Mrr().over_incoming(scale="headroom")
    expected = [0, -1 / 3, 1, 1, -1 / 3, 0]
    # orders: 012, 021, 102, 120, 201, 210 - the relevant candidate 1 stands 2nd, 3rd, 1st, 1st, 3rd, 2nd
    assert reward(PERMUTATIONS, THREE).tolist() == pytest.approx(expected, abs=1e-15)
    assert str(reward) == "mrr.over_incoming(scale='headroom')"


def test_headroom_is_defined_where_the_incoming_order_is_ideal_already():
    ideal = Slates.of([[1, 0, 0]] * 6)
    # kept first: 0; else something is lost where nothing could be gained
    assert gain(Mrr(), scale="headroom")(PERMUTATIONS, ideal).tolist() == [0, 0, -1, -1, -1, -1]


def test_headroom_is_defined_where_nothing_is_relevant():
    nothing = Slates.of([[0, 0, 0]] * 6)
    assert gain(scale="headroom")(PERMUTATIONS, nothing).tolist() == [0.0] * 6


@given(st.data())
def test_headroom_keeps_the_sign_of_the_difference_and_stays_within_one(data):
    batch = data.draw(slates())
    answers_BK = data.draw(rankings_of(batch))
    plain_B = Ndcg().over_incoming()(answers_BK, batch)
    scaled_B = Ndcg().over_incoming(scale="headroom")(answers_BK, batch)
    assert (np.abs(scaled_B) <= 1).all()
    large_B = np.abs(plain_B) > 1e-9
    assert (np.sign(scaled_B[large_B]) == np.sign(plain_B[large_B])).all()


def test_an_unknown_scale_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'headroom'"):
        Ndcg().over_incoming(scale="head_room")


def test_near_identity_counts_exchanges_of_neighbours():
    # inversions of 012, 021, 102, 120, 201, 210: 0, 1, 1, 2, 2, 3
    for swaps, expected in enumerate([[0], [0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]):
        assert np.flatnonzero(NearIdentity(swaps).holds(PERMUTATIONS, THREE)).tolist() == expected


def test_tau_at_least_counts_in_shares():
    # tau = 1 - 4 * inversions / 6: 1, 1/3, 1/3, -1/3, -1/3, -1
    assert TauAtLeast(0.3).holds(PERMUTATIONS, THREE).tolist() == [True, True, True, False, False, False]
    assert TauAtLeast(-1).holds(PERMUTATIONS, THREE).all()
    five = Slates.of([[1, 0, 0, 0, 0]])
    assert TauAtLeast(0.2).holds([[2, 1, 3, 0, 4]], five).all()  # 4 of 10 pairs turned round: 1 - 4 * 4 / 20, rounded
    with pytest.raises(InputError, match="tau is 1.5"):
        TauAtLeast(1.5)


def test_worsened_is_a_fall_by_more_than_rounding():
    assert Worsened().holds(PERMUTATIONS, THREE).tolist() == [False, True, False, False, True, False]
    assert not Worsened(Auc()).holds([[0, 1]], Slates.of([[0, 0]])).any()


def test_a_condition_has_no_truth_value():
    for combine in (lambda: Improved() and KeptFirst(), lambda: not Improved(), lambda: bool(Valid())):
        with pytest.raises(InputError, match="combine conditions with & | ~"):
            combine()


@pytest.fixture(autouse=True)
def _names_of_this_test_only(monkeypatch):
    monkeypatch.setattr(names, "CONDITION_OF", dict(names.CONDITION_OF))


def shows_last_first(rankings_BK, slates):
    return rankings_BK[:, 0] == slates.sizes_B - 1


def test_a_function_is_a_condition_in_five_lines():
    condition = FunctionCondition(shows_last_first, "shows_last_first")
    register_condition("shows_last_first", condition)
    register_condition("shows_last_first", condition)
    reward = Ndcg().when(condition & ~Improved())
    assert condition.holds(PERMUTATIONS, THREE).tolist() == [False, False, False, False, True, True]
    assert condition.holds([[2, 2, 0]], THREE.take([0])).tolist() == [False]
    assert parse_reward(str(reward)) == reward
    assert parse_reward("ndcg.when(shows_last_first & ~improved)") == reward


def test_a_condition_made_of_others_can_have_a_name():
    register_condition("did_good", Improved() | KeptFirst())
    assert parse_reward("valid_format.when(did_good)") == ValidFormat().when(Improved() | KeptFirst())
    with pytest.raises(InputError, match="takes no arguments"):
        parse_reward("valid_format.when(did_good(swaps=1))")


def test_conditions_that_cannot_be_registered_are_refused():
    with pytest.raises(InputError, match="is no condition"):
        register_condition("mine", Ndcg())
    with pytest.raises(InputError, match="is taken"):
        register_condition("ndcg", Improved())
    with pytest.raises(InputError, match="is taken"):
        register_condition("improved", KeptFirst())
    with pytest.raises(InputError, match="does not read back"):
        register_condition("other", FunctionCondition(shows_last_first, "not_known_by_this_name"))
    with pytest.raises(UnknownNameError):
        parse_reward("ndcg.when(other)")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rankings_BK, slates: 1 / 0, "condition odd raised ZeroDivisionError"),
        (lambda rankings_BK, slates: np.array([True]), r"condition odd returned shape \(1,\)"),
        (lambda rankings_BK, slates: np.ones(6), "dtype float64"),
    ],
)
def test_a_fault_of_a_condition_names_it(function, message):
    with pytest.raises(RewardError, match=message):
        Ndcg().when(FunctionCondition(function, "odd"))(PERMUTATIONS, THREE)


def test_functions_that_are_none_are_refused():
    with pytest.raises(InputError, match="is no function"):
        FunctionCondition("improved", "mine")
    with pytest.raises(InputError, match="cannot name a reward"):
        FunctionCondition(shows_last_first, "last first")
    with pytest.raises(UnknownNameError, match="way to handle errors"):
        FunctionReward(shows_last_first, "mine", low=0, high=1, invalid=0, on_error="ignore")
