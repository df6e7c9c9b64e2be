"""The consistency reward: agreement with the other valid answers of a group, in the original frame."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from rerank_env.rewards import Context, Slates, parse_reward, rankings
from rerank_env.rewards.counterfactual import shuffled_groups
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.groups import Consistency
from rerank_env.rewards.slates import ideal_rankings
from rerank_env.rewards.testing import groups, rankings_of

THREE = Slates.of([[0, 1, 2]])


def consistency(answers_BK, slates, groups_B):
    return Consistency()(answers_BK, slates, context=Context(groups_B=np.asarray(groups_B)))


def test_agreement_is_that_worked_by_hand():
    # pairs in the same order, of 3: 012 and 021 share 2, 012 and 210 none, 021 and 210 one (2 before 1)
    answers = [[0, 1, 2], [0, 2, 1], [2, 1, 0]]
    scores = consistency(answers, THREE.repeat(3), [5, 5, 5])
    assert scores == pytest.approx([(2 / 3 + 0) / 2, (2 / 3 + 1 / 3) / 2, (0 + 1 / 3) / 2], abs=1e-15)
    # a group of two agrees on what it agrees; one alone has nobody to agree with
    assert consistency(answers, THREE.repeat(3), [7, 7, -1]) == pytest.approx([2 / 3, 2 / 3, 0], abs=1e-15)


def test_answers_to_shuffled_copies_are_compared_by_their_original_names():
    # copy 1 holds originals 2, 0, 1 in its places: its answer 1 2 0 names 0 1 2, the same as copy 0's
    copies = Slates(np.array([[0.0, 1, 2], [2, 0, 1]]), np.array([3, 3]), canonical_BK=np.array([[0, 1, 2], [2, 0, 1]]))
    assert consistency([[0, 1, 2], [1, 2, 0]], copies, [0, 0]).tolist() == [1, 1]
    # and its answer 0 1 2 names 2 0 1: of the pairs 01, 02, 12 one is kept
    assert consistency([[0, 1, 2], [0, 1, 2]], copies, [0, 0]) == pytest.approx([1 / 3, 1 / 3], abs=1e-15)


@given(groups(), st.data())
def test_agreement_is_the_mean_of_scipys_kendall_tau_over_the_other_valid_answers(drawn, data):
    answers_BK = data.draw(rankings_of(drawn.slates, invalid=True))
    scores_B = consistency(answers_BK, drawn.slates, drawn.groups_B)
    originals_BK = drawn.to_canonical(answers_BK)
    sizes_B = drawn.slates.sizes_B
    valid_B = rankings.verdicts(originals_BK, sizes_B) == 0
    for row, size in enumerate(sizes_B.tolist()):
        others = [
            (1 + kendalltau(np.argsort(originals_BK[row, :size]), np.argsort(originals_BK[other, :size])).statistic) / 2
            for other in np.flatnonzero(valid_B & (drawn.groups_B == drawn.groups_B[row]))
            if other != row and valid_B[row]
        ]
        assert scores_B[row] == pytest.approx(np.mean(others) if others else 0, abs=1e-12)


@given(groups(), st.data())
def test_the_order_of_the_answers_in_the_batch_does_not_matter(drawn, data):
    answers_BK = data.draw(rankings_of(drawn.slates, invalid=True))
    rows = data.draw(st.permutations(range(len(answers_BK))))
    scores_B = consistency(answers_BK, drawn.slates, drawn.groups_B)
    moved_B = consistency(answers_BK[rows], drawn.slates.take(rows), 9 - drawn.groups_B[rows])
    assert (moved_B == scores_B[rows]).all()


@given(groups(), st.data())
def test_an_invalid_answer_influences_nobody_and_earns_what_is_declared(drawn, data):
    answers_BK = data.draw(rankings_of(drawn.slates, invalid=True))
    verdicts_B = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(answers_BK), max_size=len(answers_BK))))
    valid_B = (rankings.verdicts(answers_BK, drawn.slates.sizes_B) == 0) & (verdicts_B == 0)
    context = Context(groups_B=drawn.groups_B)
    scores_B = Consistency(invalid=-1)(answers_BK, drawn.slates, verdicts_B=verdicts_B, context=context)
    assert (scores_B[~valid_B] == -1).all()
    without_B = consistency(answers_BK[valid_B], drawn.slates.take(valid_B), drawn.groups_B[valid_B])
    assert (scores_B[valid_B] == without_B).all()
    assert ((without_B >= 0) & (without_B <= 1)).all()


def test_under_shuffles_reading_earns_one_and_copying_about_a_half():
    batch = Slates(np.random.default_rng(0).random((200, 8)), np.full(200, 8))
    shuffled = shuffled_groups(batch, 8, np.random.default_rng(1))
    copying_BK = rankings.identity_rankings(shuffled.slates.sizes_B, 8)
    reading_BK = ideal_rankings(shuffled.slates)
    assert (consistency(reading_BK, shuffled.slates, shuffled.groups_B) == 1).all()
    # Kendall's tau of random orders of 8 has variance 2 (2n + 5) / (9 n (n - 1)) = 1/12; pairs of answers are
    # uncorrelated, so the mean of 200 * 28 of (1 + tau) / 2 has a standard deviation of sqrt(1/12) / 2 / sqrt(5600)
    mean = consistency(copying_BK, shuffled.slates, shuffled.groups_B).mean()
    assert abs(mean - 0.5) < 4 * np.sqrt(1 / 12) / 2 / np.sqrt(5600)
    # without shuffles copying is as consistent as can be
    assert (consistency(copying_BK, batch.repeat(8), shuffled.groups_B) == 1).all()


def test_groups_that_mix_requests_are_refused():
    with pytest.raises(InputError, match="answers 0 and 2 are both in group 4 but answer different requests"):
        consistency([[0, 1]] * 3, Slates.of([[0, 1], [0, 1], [1, 0]]), [4, 4, 4])
    with pytest.raises(InputError, match="give shuffled copies their canonical_BK"):
        consistency([[0, 1, -1], [0, 1, 2]], Slates.of([[1, 0], [1, 0, 0]]), [4, 4])


def test_groups_have_to_be_known():
    with pytest.raises(InputError, match="needs groups"):
        Consistency()([[0, 1, 2]], THREE)
    assert parse_reward("0.1*consistency") == 0.1 * Consistency()
    assert consistency(np.zeros((0, 2), int), Slates.of([]), np.zeros(0, int)).shape == (0,)
