"""Counterfactual shuffles: everything moves together, answers come back under their own names, copying shows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.data import load
from rerank_env.rewards import Auc, Mrr, Ndcg, RankPromotion, Slates, gain, rankings
from rerank_env.rewards.clicks import ClickCredit
from rerank_env.rewards.counterfactual import ShuffledGroups, shuffled_groups
from rerank_env.rewards.errors import InputError, RankingError, SlateError
from rerank_env.rewards.slates import ideal_rankings
from rerank_env.rewards.testing import rankings_of, slates


def rng(seed=0):
    return np.random.default_rng(seed)


@given(slates(logged=True), st.integers(1, 4), st.booleans(), st.integers(0, 9))
def test_every_candidate_takes_along_what_is_known_of_it(batch, size, keep_first, seed):
    groups = shuffled_groups(batch, size, rng(seed), keep_first=keep_first)
    shuffled = groups.slates
    assert groups.groups_B.tolist() == [row for row in range(len(batch)) for _ in range(size)]
    for row, original in enumerate(groups.groups_B.tolist()):
        count = batch.sizes_B[original]
        names = shuffled.canonical_BK[row, :count]
        assert sorted(names) == list(range(count))
        assert (shuffled.canonical_BK[row, count:] == -1).all()
        for field in ("relevance_BK", "clicks_BK", "propensities_BK", "predictions_BK"):
            assert (getattr(shuffled, field)[row, :count] == getattr(batch, field)[original, names]).all()
    if keep_first:
        assert (shuffled.canonical_BK[::size] == rankings.identity_rankings(batch.sizes_B, batch.width)).all()


@given(st.data(), st.integers(1, 4))
def test_renaming_answers_is_a_bijection_that_keeps_every_verdict(data, size):
    batch = data.draw(slates())
    groups = shuffled_groups(batch, size, rng(data.draw(st.integers(0, 9))))
    answers_BK = data.draw(rankings_of(groups.slates, invalid=True))
    originals_BK = groups.to_canonical(answers_BK)
    sizes_B = groups.slates.sizes_B
    assert (rankings.verdicts(originals_BK, sizes_B) == rankings.verdicts(answers_BK, sizes_B)).all()
    places_BK = rankings.invert(groups.slates.canonical_BK, sizes_B)
    for row, count in enumerate(sizes_B.tolist()):
        # back again: the place in which the named original stands, and what names nobody as it is
        back = [places_BK[row, x] if 0 <= x < count else x for x in originals_BK[row, :count].tolist()]
        assert back == answers_BK[row, :count].tolist()


def test_an_answer_is_renamed_as_worked_by_hand():
    orders = np.array([[0, 2, 1], [1, 0, -1]])
    shuffled = Slates(np.array([[0.0, 2, 1], [0, 1, 0]]), np.array([3, 2]), canonical_BK=orders)
    groups = ShuffledGroups(shuffled, np.array([0, 1]))
    # place 1 of request 0 holds original 2, place 2 original 1; what names nobody stays
    assert groups.to_canonical([[1, 2, 0], [0, 1, 7]]).tolist() == [[2, 1, 0], [1, 0, -1]]
    assert groups.to_canonical([[1, 3, -5], [0, 0, 0]]).tolist() == [[2, 3, -5], [1, 1, -1]]


@given(st.data(), st.integers(1, 4), st.sampled_from([Ndcg(k=2), Auc(), Mrr(), ClickCredit(), ClickCredit("dr")]))
def test_a_list_is_worth_the_same_in_both_frames(data, size, reward):
    batch = data.draw(slates(logged=True))
    groups = shuffled_groups(batch, size, rng(data.draw(st.integers(0, 9))))
    answers_BK = data.draw(rankings_of(groups.slates, invalid=True))
    assert (reward(groups.to_canonical(answers_BK), batch.repeat(size)) == reward(answers_BK, groups.slates)).all()


@given(slates(), st.integers(0, 9))
def test_the_oracle_earns_the_same_under_every_order(batch, seed):
    groups = shuffled_groups(batch, 4, rng(seed))
    oracle_BK = groups.to_canonical(ideal_rankings(groups.slates))
    for reward in (Ndcg(), Auc(), RankPromotion(), gain()):
        earned_BG = reward(oracle_BK, batch.repeat(4)).reshape(-1, 4)
        np.testing.assert_allclose(earned_BG, np.repeat(earned_BG[:, :1], 4, axis=1), atol=1e-12)


def test_a_policy_that_copies_answers_at_random_once_renamed():
    groups = shuffled_groups(Slates.of([[0, 1, 2]]), 6000, rng())
    copies_BK = rankings.identity_rankings(groups.slates.sizes_B, 3)
    orders, counts = np.unique(groups.to_canonical(copies_BK), axis=0, return_counts=True)
    assert len(orders) == 6
    # 1,000 each, binomial with a standard deviation of sqrt(6000 / 6 * 5 / 6) = 29
    assert np.abs(counts - 1000).max() < 4 * 29


def test_netting_each_order_leaves_copying_without_noise_and_reading_with_all_of_it():
    batch = Slates.of([[3, 0, 1, 0], [0, 2, 0, 1, 1]])
    groups = shuffled_groups(batch, 50, rng())
    copying_BK = rankings.identity_rankings(groups.slates.sizes_B, 5)
    reading_BK = ideal_rankings(groups.slates)
    spread = {
        (who, what): values.reshape(2, 50).std(axis=1).min()
        for who, answers_BK in (("copying", copying_BK), ("reading", reading_BK))
        for what, values in (
            ("gross", Ndcg()(groups.to_canonical(answers_BK), batch.repeat(50))),
            ("net", Ndcg().over_incoming()(answers_BK, groups.slates)),
        )
    }
    assert spread["copying", "net"] == spread["reading", "gross"] == 0
    assert min(spread["copying", "gross"], spread["reading", "net"]) > 0.05


def test_requests_are_shuffled_alike_in_one_line():
    requests = load("synthetic", requests=30, slate_size=6, min_slate_size=3).take(np.arange(10))
    groups = shuffled_groups(requests.slates, 3, rng())
    shown = requests.take(groups.groups_B).reordered(groups.slates.canonical_BK)
    assert (shown.relevance_BK == groups.slates.relevance_BK).all()
    assert (shown.sizes_B == groups.slates.sizes_B).all()


def test_the_generator_decides_the_orders():
    batch = Slates.of([[0, 1, 2, 3, 4, 5]])
    one, same, other = (shuffled_groups(batch, 3, rng(seed)).slates.canonical_BK.tolist() for seed in (1, 1, 2))
    assert one == same != other
    assert len({tuple(order) for order in one}) == 3


def test_what_cannot_be_shuffled_is_refused():
    groups = shuffled_groups(Slates.of([[0, 1, 2]]), 2, rng())
    with pytest.raises(SlateError, match="shuffled copies already"):
        shuffled_groups(groups.slates, 2, rng())
    with pytest.raises(InputError, match="group_size is 0"):
        shuffled_groups(Slates.of([[0, 1]]), 0, rng())
    with pytest.raises(RankingError, match=r"the slates need integers of shape \(2, 3\)"):
        groups.to_canonical([[0, 1, 2]])
