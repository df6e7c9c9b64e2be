"""Permutation mathematics, against hand-worked values, plain loops and scipy."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from rerank_env.rewards import rankings
from rerank_env.rewards.errors import InputError, RankingError, UnknownNameError
from rerank_env.rewards.rankings import Verdict, from_scores
from rerank_env.rewards.testing import rankings_of, slates

OK, UNKNOWN, DUPLICATE = Verdict.OK, Verdict.UNKNOWN, Verdict.DUPLICATE


@pytest.mark.parametrize(
    ("ranking", "size", "verdict"),
    [
        ([2, 0, 1], 3, OK),
        ([0, 1, 2], 3, OK),
        ([0, 0, 1], 3, DUPLICATE),
        ([0, 1, 3], 3, UNKNOWN),
        ([0, 1, -1], 3, UNKNOWN),
        ([0, 0, 3], 3, UNKNOWN),  # both: the unknown candidate comes first
        ([2**62, 0, 1], 3, UNKNOWN),
        ([-(2**63), 0, 1], 3, UNKNOWN),
        ([1, 0, -1], 2, OK),
        ([1, 0, 0], 2, OK),  # what lies beyond the size is padding, whatever it holds
        ([1, 0, 99], 2, OK),
        ([1, 2, 0], 2, UNKNOWN),
    ],
)
def test_the_verdict_of_an_array(ranking, size, verdict):
    assert rankings.verdicts([ranking], [size]).tolist() == [verdict]


@given(st.data())
def test_exactly_the_permutations_are_valid(data):
    size = data.draw(st.integers(2, 5))
    rows = data.draw(st.lists(st.lists(st.integers(-1, size), min_size=size, max_size=size), min_size=1, max_size=20))
    expected = [sorted(row) == list(range(size)) for row in rows]
    assert (rankings.verdicts(rows, [size] * len(rows)) == OK).tolist() == expected


@pytest.mark.parametrize("width", [61, 62, 63, 64, 65, 130])  # candidates are bits of a word where they fit
def test_wide_and_odd_rankings_get_the_verdicts_of_plain_sets(width, monkeypatch):
    rng = np.random.default_rng(width)
    sizes_B = rng.choice([2, 33, width - 1, width], 200)
    given_BK = rankings.random_rankings(sizes_B, width, rng)
    stray_BK = rng.choice([0, 1, width - 1, width, 62, 63, 64, 65, 128, -1, -64, 2**62, -(2**63)], given_BK.shape)
    given_BK = np.where(rng.random(given_BK.shape) < 0.01, stray_BK, given_BK)
    monkeypatch.setattr(rankings, "BLOCK", 30 * width)  # several blocks, some without a fault
    expected = []
    for row, size in zip(given_BK.tolist(), sizes_B.tolist(), strict=True):
        known = set(row[:size]) <= set(range(size))
        expected.append(UNKNOWN if not known else OK if len(set(row[:size])) == size else DUPLICATE)
    assert rankings.verdicts(given_BK, sizes_B).tolist() == expected
    assert {OK, UNKNOWN, DUPLICATE} == set(expected)


def test_all_permutations_of_five_are_valid():
    rows = list(itertools.permutations(range(5)))
    assert not rankings.verdicts(rows, [5] * len(rows)).any()


def test_verdicts_are_small_integers_with_a_sentence_each():
    assert rankings.verdicts(np.zeros((1, 2), dtype=np.int32), [2]).dtype == np.int8
    assert [int(verdict) for verdict in Verdict] == list(range(11))
    assert all(verdict.sentence.endswith(".") and verdict.sentence.count(".") == 1 for verdict in Verdict)
    assert len({verdict.sentence for verdict in Verdict}) == len(Verdict)


@pytest.mark.parametrize(
    ("array", "sizes", "message"),
    [
        ([0, 1], [2], r"shape \(2,\), expected \[requests, candidates\]"),
        ([[0.0, 1.0]], [2], "dtype float64, expected integers"),
        ([[0, 1]], [2, 2], r"rankings have 1 rows but sizes have shape \(2,\)"),
        ([[0, 1]], [3], r"request 0 has size 3; expected 2\.\.2"),
        ([[0, 1], [0, 1]], [2, 1], r"request 1 has size 1; expected 2\.\.2"),
        ([[0, 1]], [2.5], "sizes have dtype float64, expected integers"),
    ],
)
def test_arrays_that_cannot_be_rankings_are_refused(array, sizes, message):
    with pytest.raises(RankingError, match=message):
        rankings.verdicts(array, sizes)


def test_the_identity_is_padded_and_recognised():
    identity = rankings.identity_rankings([2, 3], 3)
    assert identity.tolist() == [[0, 1, -1], [0, 1, 2]]
    assert rankings.is_identity(identity, [2, 3]).tolist() == [True, True]
    assert rankings.is_identity([[0, 1, 7], [0, 2, 1]], [2, 3]).tolist() == [True, False]


def test_padding_is_set_without_touching_the_input():
    given_BK = np.array([[1, 0, 5]])
    assert rankings.padded(given_BK, [2]).tolist() == [[1, 0, -1]]
    assert given_BK.tolist() == [[1, 0, 5]]


def test_ranks_are_the_places_of_the_candidates():
    # candidate 2 is shown first, 0 second, 1 third: places 1, 2, 0
    assert rankings.invert([[2, 0, 1], [1, 0, 9]], [3, 2]).tolist() == [[1, 2, 0], [1, 0, -1]]


@pytest.mark.parametrize("function", [rankings.invert, rankings.kendall_tau])
@pytest.mark.parametrize("ranking", [[0, 0, 1], [0, 1, 3], [0, 1, -1]])
def test_what_has_no_inverse_is_refused_by_row(function, ranking):
    with pytest.raises(RankingError, match=re.escape(f"row 1 is no ranking of 3 candidates: {ranking}")):
        function([[2, 0, 1], ranking], [3, 3])


@given(st.data())
def test_inverting_twice_gives_the_ranking_back(data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch))
    ranks = rankings.invert(given_BK, batch.sizes_B)
    assert (rankings.invert(ranks, batch.sizes_B) == given_BK).all()
    for row, size in enumerate(batch.sizes_B):
        assert [given_BK[row, place] for place in ranks[row, :size]] == list(range(size))


def test_tau_is_one_for_the_identity_and_minus_one_reversed():
    # [1, 0, 2]: one inversion of three pairs, 1 - 4 * 1 / (3 * 2) = 1/3
    tau = rankings.kendall_tau([[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 0, -1]], [3, 3, 3, 2])
    assert tau.tolist() == [1.0, -1.0, pytest.approx(1 / 3), -1.0]


@given(st.data())
def test_tau_agrees_with_scipy(data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch))
    tau = rankings.kendall_tau(given_BK, batch.sizes_B)
    for row, size in enumerate(batch.sizes_B):
        expected = kendalltau(given_BK[row, :size], np.arange(size)).statistic
        assert tau[row] == pytest.approx(expected, abs=1e-12)


def test_random_rankings_are_valid_and_cover_every_permutation_evenly():
    sizes_B = np.full(6000, 3)
    drawn = rankings.random_rankings(sizes_B, 4, np.random.default_rng(0))
    assert (drawn[:, 3] == -1).all()
    assert not rankings.verdicts(drawn, sizes_B).any()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    # 6 permutations, 1000 expected each, standard deviation sqrt(6000 * 1/6 * 5/6) = 29
    assert len(counts) == 6
    assert (abs(counts - 1000) < 150).all()


SCORES = [[1.0, 3.0, 1.0, 3.0]]


@pytest.mark.parametrize(
    ("ties", "expected"), [("incoming", [1, 3, 0, 2]), ("reverse", [3, 1, 2, 0]), ("refuse", [-1, -1, -1, -1])]
)
def test_every_tie_rule_does_as_it_says(ties, expected):
    given_BK, verdicts_B = from_scores(SCORES, [4], ties=ties)
    assert given_BK.tolist() == [expected]
    assert verdicts_B.tolist() == [Verdict.TIED if ties == "refuse" else Verdict.OK]


def test_refusing_ties_lets_distinct_scores_through():
    given_BK, verdicts_B = from_scores([[0.1, 0.3, 0.2]], [3], ties="refuse")
    assert (given_BK.tolist(), verdicts_B.tolist()) == ([[1, 2, 0]], [0])


def test_padding_cannot_tie_or_spoil_a_row():
    scores = [[0.1, 0.3, np.nan, np.nan], [0.1, 0.3, 0.3, 0.3]]
    given_BK, verdicts_B = from_scores(scores, [2, 2], ties="refuse")
    assert (given_BK.tolist(), verdicts_B.tolist()) == ([[1, 0, -1, -1], [1, 0, -1, -1]], [0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_flagged_row_by_row(bad):
    given_BK, verdicts_B = from_scores([[0.0, bad, 1.0], [0.0, 2.0, 1.0]], [3, 3], ties="incoming")
    assert given_BK.tolist() == [[-1, -1, -1], [1, 2, 0]]
    assert verdicts_B.tolist() == [Verdict.NOT_FINITE, Verdict.OK]


def test_zero_and_minus_zero_are_equal():
    assert from_scores([[-0.0, 0.0]], [2], ties="refuse")[1].tolist() == [Verdict.TIED]


def test_supplied_numbers_break_ties_smaller_first():
    breaks = np.array([[5, 9, 4, 8]], dtype=np.uint64)
    given_BK, _ = from_scores(SCORES, [4], ties="random", tiebreak_BK=breaks)
    assert given_BK.tolist() == [[3, 1, 2, 0]]


def test_random_ties_are_even():
    given_BK, _ = from_scores(np.zeros((4000, 2)), np.full(4000, 2), ties="random", rng=np.random.default_rng(1))
    # fair coin, 4000 throws: standard deviation 32
    assert abs((given_BK[:, 0] == 0).sum() - 2000) < 160


def test_random_ties_need_numbers_to_draw_from():
    with pytest.raises(InputError, match="pass rng or tiebreak_BK"):
        from_scores(SCORES, [4], ties="random")


def test_an_unknown_tie_rule_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match="did you mean 'random'"):
        from_scores(SCORES, [4], ties="randm")


def test_scores_of_the_wrong_kind_are_refused():
    with pytest.raises(RankingError, match="expected real numbers"):
        from_scores([["a", "b"]], [2], ties="incoming")
    with pytest.raises(RankingError, match=r"shape \(2,\)"):
        from_scores([1.0, 2.0], [2], ties="incoming")


@settings(max_examples=50)
@given(st.data())
def test_scores_never_rise_along_a_ranking(data):
    size = data.draw(st.integers(2, 6))
    scores = data.draw(st.lists(st.integers(-3, 3).map(float), min_size=size, max_size=size))
    ties = data.draw(st.sampled_from(["incoming", "reverse", "random"]))
    given_BK, verdicts_B = from_scores([scores], [size], ties=ties, rng=np.random.default_rng(0))
    assert verdicts_B.tolist() == [OK]
    assert not rankings.verdicts(given_BK, [size]).any()
    assert sorted(scores, reverse=True) == [scores[j] for j in given_BK[0]]
