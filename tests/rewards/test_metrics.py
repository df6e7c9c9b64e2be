"""Metrics against hand-worked values, plain loops, and the properties they promise."""

import inspect
import itertools
import math
import re

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.rewards import RankPromotion, Slates, metrics, rankings
from rerank_env.rewards.errors import InputError, RankingError, UnknownNameError
from rerank_env.rewards.kernels import GAINS
from rerank_env.rewards.registry import LEAVES
from rerank_env.rewards.slates import ideal_rankings
from rerank_env.rewards.testing import rankings_of, slates
from rerank_env.rewards.verifiable import Err, Rbp

CHOICES = {"k": (2, 3), "gains": GAINS, "p": (0.8,), "max_grade": (2,)}
"""Arguments that metrics are tried with, beside their defaults."""


def variants(leaf):
    """A built-in reward with every combination of its arguments."""
    arguments = [p for p in inspect.signature(leaf).parameters.values() if p.name in CHOICES]
    choices = [{*CHOICES[p.name], *([] if p.default is p.empty else [p.default])} for p in arguments]
    names = [p.name for p in arguments]
    return [leaf(**dict(zip(names, chosen, strict=True))) for chosen in itertools.product(*choices)]


def arguments_of(kernel):
    """Those that its metric takes too."""
    return {name: getattr(kernel, name) for name in CHOICES if hasattr(kernel, name)}


KERNELS = {str(reward): reward for leaf in LEAVES for reward in variants(leaf)}
"""Every built-in reward. On valid answers it is its metric, as is tested below."""

USE_THE_INCOMING_ORDER = (RankPromotion,)
"""Rewards for which it matters where a candidate stood before."""

ANY_KERNEL = pytest.mark.parametrize("kernel", sorted(KERNELS.values(), key=str), ids=str)


def test_ndcg_by_hand():
    batch = Slates.of([[3, 2, 0, 1]])
    # shown gains 3 2 0 1: 3/1 + 2/1.584963 + 0 + 1/2.321928 = 4.692536; ideal 3 2 1 0: 3 + 1.261860 + 1/2 = 4.761860
    assert metrics.ndcg([[0, 1, 2, 3]], batch) == pytest.approx([4.692536 / 4.761860], abs=1e-6)
    # exp2 gains 7 3 0 1: 7 + 1.892789 + 0 + 0.430677 = 9.323466; ideal 7 3 1 0: 7 + 1.892789 + 0.5 = 9.392789
    assert metrics.ndcg([[0, 1, 2, 3]], batch, gains="exp2") == pytest.approx([9.323466 / 9.392789], abs=1e-6)
    # k = 2 of ranking 2 3 0 1: gains 0 1: 1/1.584963 = 0.630930; ideal 3 2: 4.261860
    assert metrics.ndcg([[2, 3, 0, 1]], batch, k=2) == pytest.approx([0.630930 / 4.261860], abs=1e-6)


def test_ndcg_with_one_relevant_item_is_the_papers():
    # one positive: 1[r <= k] / log2(r + 1), ideal DCG = 1
    batch = Slates.of([[1] + [0] * 9])
    for place in range(10):
        ranking = list(range(1, 10))
        ranking.insert(place, 0)
        expected = 1 / math.log2(place + 2) if place < 5 else 0.0
        assert metrics.ndcg([ranking], batch, k=5).tolist() == [pytest.approx(expected, abs=1e-15)]


def test_the_ideal_comes_from_the_full_slate():
    # k = 1, best gain 2 is not shown first: 1 / 2
    assert metrics.ndcg([[0, 1]], Slates.of([[1, 2]]), k=1).tolist() == [0.5]


def test_a_cut_beyond_the_list_is_the_whole_list():
    batch = Slates.of([[0, 1, 2]])
    assert metrics.ndcg([[0, 1, 2]], batch, k=99) == metrics.ndcg([[0, 1, 2]], batch)


def test_huge_relevance_neither_overflows_nor_hides_the_order():
    batch = Slates.of([[2000.0, 1999.0], [1e100, 0.0], [0.0, 1e100]])
    scores = metrics.ndcg([[1, 0], [0, 1], [0, 1]], batch, gains="exp2")
    # gains 2^1999 and 2^2000, scaled by 2^2000: (0.5 + 1/1.584963) / (1 + 0.5/1.584963) = 1.130930 / 1.315465
    assert scores == pytest.approx([1.130930 / 1.315465, 1.0, 1 / math.log2(3)], abs=1e-6)
    assert metrics.ndcg([[1, 0], [0, 1], [0, 1]], batch)[1:] == pytest.approx([1.0, 1 / math.log2(3)])


def test_rounding_never_lifts_ndcg_above_one():
    # the last gain is one float below the others; shown first, the discounted sum rounds up above the ideal one
    batch = Slates.of([[0.3, 0.3, 0.3, math.nextafter(0.3, 0)]])
    assert metrics.ndcg([[3, 1, 2, 0]], batch).tolist() == [1.0]


def test_recall_and_hit_by_hand():
    batch = Slates.of([[1, 0, 2, 0], [0, 0, 0, 0]])
    both = [[1, 2, 0, 3], [0, 1, 2, 3]]
    assert metrics.recall(both, batch, k=1).tolist() == [0.0, 0.0]
    assert metrics.recall(both, batch, k=2).tolist() == [0.5, 0.0]
    assert metrics.recall(both, batch, k=4).tolist() == [1.0, 0.0]
    assert metrics.hit(both, batch, k=1).tolist() == [0.0, 0.0]
    assert metrics.hit(both, batch, k=2).tolist() == [1.0, 0.0]


def test_mrr_by_hand():
    batch = Slates.of([[0, 0, 1], [1, 0, 1], [0, 0, 0]])
    assert metrics.mrr([[0, 1, 2]] * 3, batch).tolist() == [1 / 3, 1.0, 0.0]


def test_auc_by_hand():
    # relevant 0 and 3, ranking 0 1 3 2: 0 beats 1 and 2, 3 beats 2: 3 of 4 pairs
    batch = Slates.of([[1, 0, 0, 2], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert metrics.auc([[0, 1, 3, 2]] * 3, batch).tolist() == [0.75, 1.0, 1.0]


def test_ap_by_hand():
    # relevant are the first, third and fourth shown: precisions 1/1, 2/3, 3/4; their sum 29/12 over 3
    batch = Slates.of([[2, 0, 1, 3, 0], [0, 0, 0, 0, 0]])
    both = [[3, 1, 0, 2, 4]] * 2
    assert metrics.ap(both, batch) == pytest.approx([29 / 36, 0.0], abs=1e-15)
    # at 3 the last of the three is cut off, and still counts below: (1 + 2/3) / 3
    assert metrics.ap(both, batch, k=3) == pytest.approx([5 / 9, 0.0], abs=1e-15)
    assert metrics.ap([[0, 2, 3, 1, 4]] * 2, batch).tolist() == [1.0, 0.0]


def test_rbp_by_hand():
    batch = Slates.of([[4, 0, 1, 2]])
    # shown 1 0 4 2 with p = 1/2: weights 1/2 1/4 1/8 1/16, so 1/2 + 1/8 + 1/16
    assert metrics.rbp([[2, 1, 0, 3]], batch, p=0.5).tolist() == [0.6875]
    # as shares of 4: 1/4 0 1 1/2, so 1/8 + 1/8 + 1/32
    assert metrics.rbp([[2, 1, 0, 3]], batch, p=0.5, max_grade=4).tolist() == [0.28125]
    # 4 and 2 count as 2 on a scale up to 2: gains 1/2 0 1 1, so 1/4 + 1/8 + 1/16
    assert metrics.rbp([[2, 1, 0, 3]], batch, p=0.5, max_grade=2).tolist() == [0.4375]
    assert metrics.rbp([[0, 1]], Slates.of([[0, 0]]), p=0.5).tolist() == [0.0]


def test_rbp_of_all_relevant_is_one_less_the_chance_to_read_beyond():
    batch = Slates.of([[1, 1, 1], [3, 1, 2]])
    assert metrics.rbp([[0, 1, 2]] * 2, batch, p=0.8) == pytest.approx([1 - 0.8**3] * 2, abs=1e-15)


def test_err_by_hand():
    batch = Slates.of([[2, 0, 1]])
    # scale up to 2: stopping probabilities 3/4 0 1/4.  shown 1 0 2: 1/4 / 1 + 3/4 * 1 * 3/4 / 3 = 1/4 + 3/16
    assert metrics.err([[2, 1, 0]], batch, max_grade=2).tolist() == [0.4375]
    assert metrics.err([[2, 1, 0]], batch, max_grade=2, k=2).tolist() == [0.25]
    # scale up to 4: 3/16 0 1/16.  shown 2 1 0: 3/16 + 13/16 * 1/16 / 2 = 3/16 + 13/512
    assert metrics.err([[0, 2, 1]], batch, max_grade=4).tolist() == [0.212890625]
    # a scale up to 1 holds both for 1: stopping probability 1/2.  shown 2 1 0: 1/2 + 1/2 * 1/2 / 2
    assert metrics.err([[0, 2, 1]], batch, max_grade=1).tolist() == [0.625]
    assert metrics.err([[0, 1]], Slates.of([[0, 0]]), max_grade=1).tolist() == [0.0]


def test_pairwise_accuracy_by_hand():
    # shown 1 2 0 1: of the pairs of different relevance 1>0 2>0 2>1 are right, 1<2 0<1 wrong: 3 of 5
    batch = Slates.of([[2, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert metrics.pairwise_accuracy([[1, 0, 3, 2]] * 3, batch).tolist() == [0.6, 1.0, 1.0]


def test_padding_makes_no_pairs():
    batch = Slates.of([[0, 1], [0, 1, 2, 3, 4]])
    assert metrics.pairwise_accuracy([[0, 1, -1, -1, -1], [4, 3, 2, 1, 0]], batch).tolist() == [0.0, 1.0]
    assert metrics.auc([[0, 1, -1, -1, -1], [4, 3, 2, 1, 0]], batch).tolist() == [0.0, 1.0]


def test_exact_set_by_hand():
    batch = Slates.of([[3, 0, 1, 1]] * 4 + [[0, 0, 0, 0]])
    answers = [[2, 0, 3, 1], [0, 2, 1, 3], [0, 3, 2, 1], [2, 3, 0, 1], [0, 1, 2, 3]]
    # three are relevant: 0, 2 and 3
    assert metrics.exact_set(answers, batch).tolist() == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert metrics.exact_set(answers, batch, k=1).tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]
    # the two best are 0 and one of 2 and 3, which are equal
    assert metrics.exact_set(answers, batch, k=2).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    # with more places than relevant candidates, all of them must be there
    assert metrics.exact_set([[1, 2, 0], [0, 1, 2]], Slates.of([[0, 0, 1]] * 2), k=2).tolist() == [1.0, 0.0]
    assert metrics.exact_set(answers, batch, k=9).tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_rank_promotion_by_hand():
    batch = Slates.of([[0, 0, 0, 1], [0, 3, 0, 1], [0, 0, 0, 0]])
    # row 0: place 4 -> 2: (4 - 2) / 4.  row 1, ranking 0 3 1 2: item 1 falls 2 -> 3 (weight 3), item 3 rises 4 -> 2
    # (weight 1): (3 * -1 + 1 * 2) / (4 * 4) = -1/16.  row 2: nothing relevant
    assert metrics.rank_promotion([[0, 3, 1, 2]] * 3, batch).tolist() == [0.5, -1 / 16, 0.0]


@pytest.mark.parametrize("relevance", [1.0, 0.1, 5e-324, 1e100])
def test_rank_promotion_of_one_item_is_exact_whatever_its_gain(relevance):
    for pre in range(10):
        for out in range(10):
            gains = [0.0] * 10
            gains[pre] = relevance
            ranking = [j for j in range(10) if j != pre]
            ranking.insert(out, pre)
            assert metrics.rank_promotion([ranking], Slates.of([gains])).tolist() == [(pre - out) / 10]


@pytest.mark.parametrize("top", [1, 50, 1100, 10**100])
def test_a_relevance_beyond_the_scale_counts_as_its_top(top):
    batch, capped = Slates.of([[1e100, 0.5, 3.0]]), Slates.of([[float(top), 0.5, min(3.0, top)]])
    for name, arguments in (("rbp", {"p": 0.9}), ("err", {})):
        metric = getattr(metrics, name)
        assert metric([[1, 0, 2]], batch, max_grade=top, **arguments) == (
            metric([[1, 0, 2]], capped, max_grade=top, **arguments)
        )


def test_rounding_never_lifts_rbp_above_one():
    batch = Slates.of([[1.0] * 500])
    assert all(metrics.rbp([range(500)], batch, p=p) <= 1.0 for p in (0.01, 0.1, 0.3, 0.7, 0.9))


def test_unusable_arguments_are_refused():
    batch = Slates.of([[0, 1]])
    for top in (0, -1, 2.0, True, "2", 10**101):
        for call in (lambda **top: metrics.err([[0, 1]], batch, **top), lambda **top: Rbp(p=0.5, **top), Err):
            with pytest.raises(InputError, match="max_grade is"):
                call(max_grade=top)
    with pytest.raises(InputError, match="max_grade is None"):
        Err(max_grade=None)
    for p in (0, 1, 1.5, -0.1, True, "half", math.nan):
        for call in (lambda **p: metrics.rbp([[0, 1]], batch, **p), Rbp):
            with pytest.raises(InputError, match="p is"):
                call(p=p)
    for k in (0, -1, 2.0, True, "2"):
        with pytest.raises(InputError, match="give a whole number of at least 1"):
            metrics.ndcg([[0, 1]], batch, k=k)
    with pytest.raises(UnknownNameError, match="did you mean 'exp2'"):
        metrics.ndcg([[0, 1]], batch, gains="exp")
    for wrong in ([[0, 1, 2]], [[0, 1], [0, 1]], [0, 1], [[0.0, 1.0]]):
        with pytest.raises(RankingError, match=r"the slates need integers of shape \(1, 2\)"):
            metrics.auc(wrong, batch)


@ANY_KERNEL
@given(data=st.data())
def test_metrics_agree_with_plain_loops(kernel, data):
    if kernel.name == "valid_format":
        return
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch))
    loop, arguments, got_B = getattr(reference, kernel.name), arguments_of(kernel), kernel(given_BK, batch)
    for row, size in enumerate(batch.sizes_B.tolist()):
        gains, ranking = batch.relevance_BK[row, :size].tolist(), given_BK[row, :size].tolist()
        seen = (gains, ranking) if isinstance(kernel, USE_THE_INCOMING_ORDER) else ([gains[j] for j in ranking],)
        assert got_B[row] == pytest.approx(loop(*seen, **arguments), abs=1e-12)


@ANY_KERNEL
@given(data=st.data())
def test_a_reward_is_its_metric(kernel, data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch))
    if kernel.name in metrics.__all__:
        assert (getattr(metrics, kernel.name)(given_BK, batch, **arguments_of(kernel)) == kernel(given_BK, batch)).all()


def test_every_metric_is_a_reward():
    assert metrics.__all__ == sorted({leaf.name for leaf in LEAVES} - {"valid_format"})


ILLEGAL = [
    [0, 1, 3],  # one past the end, where the next row begins
    [-1, 0, 1],  # a negative number would count from the end
    [0, 0, 2],  # recall would count a relevant candidate twice
    [2**62, 0, 1],
    [64, 1, 2],  # candidates are bits of a word here, and a shift by 64 must not pass for a shift by 0
    [-64, 1, 2],
]


@pytest.mark.parametrize("ranking", ILLEGAL, ids=str)
@pytest.mark.parametrize("name", metrics.__all__)
def test_an_illegal_ranking_is_refused_by_row(name, ranking):
    batch = Slates.of([[0, 1], [0, 1, 0], [2, 0, 1]])
    arguments = {"hit": {"k": 2}, "recall": {"k": 2}, "rbp": {"p": 0.5}, "err": {"max_grade": 1}}.get(name, {})
    message = re.escape(f"row 1 is no ranking of 3 candidates: {ranking}; name each of them once")
    with pytest.raises(RankingError, match=message):
        getattr(metrics, name)([[1, 0, 99], ranking, [0, 1, 2]], batch, **arguments)


@ANY_KERNEL
@settings(max_examples=30)
@given(data=st.data())
def test_a_request_scores_the_same_bits_in_any_batch_width_and_layout(kernel, data):
    batch = data.draw(slates())
    given_BK = data.draw(rankings_of(batch))
    together = kernel(given_BK, batch)
    wider = Slates(np.pad(batch.relevance_BK, ((0, 0), (0, 3))), batch.sizes_B)
    assert (kernel(np.pad(given_BK, ((0, 0), (0, 3)), constant_values=-1), wider) == together).all()
    columnwise = Slates(np.asfortranarray(batch.relevance_BK), batch.sizes_B)
    assert (kernel(np.asfortranarray(given_BK), columnwise) == together).all()
    repeated = Slates(np.repeat(batch.relevance_BK, 100, axis=0), np.repeat(batch.sizes_B, 100))
    assert (kernel(np.repeat(given_BK, 100, axis=0), repeated) == np.repeat(together, 100)).all()
    for row, size in enumerate(batch.sizes_B):
        alone = Slates(batch.relevance_BK[row : row + 1, :size].copy(), np.array([size]))
        assert kernel(given_BK[row : row + 1, :size], alone)[0] == together[row]
        assert kernel(given_BK[row : row + 1], batch.take([row]))[0] == together[row]


@ANY_KERNEL
def test_where_a_block_of_rows_ends_moves_no_bit(kernel, monkeypatch):
    rng = np.random.default_rng(0)
    sizes_B = rng.integers(2, 10, 300)
    relevance_BK = rng.choice([0.0, 0.0, 1.0, 2.0, 3.7, 0.1], (300, 9)) * (np.arange(9) < sizes_B[:, None])
    batch, given_BK = Slates(relevance_BK, sizes_B), rankings.random_rankings(sizes_B, 9, rng)
    together = kernel(given_BK, batch)
    for rows in (1, 7, 100):
        monkeypatch.setattr(rankings, "BLOCK", 9 * rows)
        assert (kernel(given_BK, batch) == together).all()


@ANY_KERNEL
@given(data=st.data())
def test_metrics_stay_in_their_range(kernel, data):
    batch = data.draw(slates(relevance=st.floats(0, 1e100)))
    scores = kernel(data.draw(rankings_of(batch)), batch)
    assert scores.dtype == np.float64
    assert ((scores >= kernel.low) & (scores <= kernel.high)).all()


@given(slates(relevance=st.floats(0, 1e100)))
def test_ndcg_is_one_for_the_ideal_ranking(batch):
    best = metrics.ndcg(ideal_rankings(batch), batch)
    assert (best == (batch.relevance_BK > 0).any(axis=1)).all()


@ANY_KERNEL
@given(data=st.data())
def test_moving_a_better_item_up_past_a_worse_one_never_costs(kernel, data):
    batch = data.draw(slates())
    before = data.draw(rankings_of(batch))
    row = data.draw(st.integers(0, len(batch) - 1))
    place = data.draw(st.integers(0, int(batch.sizes_B[row]) - 2))
    after = before.copy()
    pair = before[row, place : place + 2]
    after[row, place : place + 2] = sorted(pair, key=lambda j: -batch.relevance_BK[row, j])
    assert kernel(after, batch)[row] >= kernel(before, batch)[row] - 1e-12


@ANY_KERNEL
@given(data=st.data())
def test_relabelling_candidates_together_with_their_gains_changes_no_bit(kernel, data):
    if isinstance(kernel, USE_THE_INCOMING_ORDER):
        return
    batch = data.draw(slates(max_requests=1))
    ranking = data.draw(rankings_of(batch))
    label = np.array(data.draw(st.permutations(range(batch.width))))  # candidate j is called label[j] now
    relabelled = np.empty_like(batch.relevance_BK)
    relabelled[:, label] = batch.relevance_BK
    assert kernel(label[ranking], Slates(relabelled, batch.sizes_B)) == kernel(ranking, batch)


@ANY_KERNEL
def test_an_empty_batch_scores_nothing(kernel):
    empty = Slates.of([])
    assert kernel(np.zeros((0, 2), dtype=np.int64), empty).shape == (0,)
