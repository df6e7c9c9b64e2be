"""Ranking metrics as functions: legal rankings [B, K] and slates in, one float64 a request out.

Every function checks once that its rankings are legal, reads the tail beyond a request's size as padding, and raises
`RankingError`, naming the row, for anything else: a number for an illegal answer is what a `Reward` declares. The
number of a request depends on its own row only. A candidate is relevant if its relevance is above 0. May import numpy
only; the arithmetic is in `kernels`.
"""

from __future__ import annotations

import numpy.typing as npt

from rerank_env.rewards import kernels
from rerank_env.rewards.answers import legal_orders
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.kernels import Gains
from rerank_env.rewards.slates import Slates

__all__ = [
    "ap",
    "auc",
    "err",
    "exact_set",
    "hit",
    "mrr",
    "ndcg",
    "pairwise_accuracy",
    "rank_promotion",
    "rbp",
    "recall",
]


def ndcg(rankings_BK: npt.ArrayLike, slates: Slates, *, k: int | None = None, gains: Gains = "linear") -> FloatArray:
    """Normalised discounted cumulative gain at `k` (None: the whole list), in [0, 1].

    DCG = sum over places i = 1..k of gain / log2(i + 1), divided by the DCG of the ideal order of the full slate.
    Gain is the relevance ("linear", Jarvelin & Kekalainen 2002) or 2^relevance - 1 ("exp2", Burges et al. 2005; R_NDCG
    of GR2 Technical Report). Nothing relevant: 0. `k` beyond the list: the whole list. Raises `InputError` for k < 1.

    >>> ndcg([[1, 0]], Slates.of([[0, 1]])).tolist()
    [1.0]
    """
    return kernels.ndcg(legal_orders(rankings_BK, slates), slates, k=k, gains=gains)


def recall(rankings_BK: npt.ArrayLike, slates: Slates, *, k: int) -> FloatArray:
    """Relevant candidates among the first `k` over all relevant candidates; nothing relevant: 0."""
    return kernels.recall(legal_orders(rankings_BK, slates), slates, k=k)


def hit(rankings_BK: npt.ArrayLike, slates: Slates, *, k: int) -> FloatArray:
    """1 if any of the first `k` candidates is relevant, else 0."""
    return kernels.hit(legal_orders(rankings_BK, slates), slates, k=k)


def mrr(rankings_BK: npt.ArrayLike, slates: Slates) -> FloatArray:
    """1 / place of the first relevant candidate (first place is 1); nothing relevant: 0. Its mean is the MRR."""
    return kernels.mrr(legal_orders(rankings_BK, slates), slates)


def ap(rankings_BK: npt.ArrayLike, slates: Slates, *, k: int | None = None) -> FloatArray:
    """Average precision at `k` (None: the whole list), in [0, 1].

    AP = sum over places i = 1..k with a relevant candidate of (relevant among the first i) / i, divided by ALL relevant
    candidates of the slate, as `map` and `map_cut` of trec_eval; so a cut before the last of them caps it below 1.
    Nothing relevant: 0. Its mean is the MAP. Raises `InputError` for k < 1.

    >>> ap([[1, 0, 2]], Slates.of([[1, 0, 1]])).tolist()  # (1 / 2 + 2 / 3) / 2
    [0.5833333333333333]
    """
    return kernels.ap(legal_orders(rankings_BK, slates), slates, k=k)


def rbp(rankings_BK: npt.ArrayLike, slates: Slates, *, p: float, max_grade: int | None = None) -> FloatArray:
    """Rank-biased precision with persistence `p`, in [0, 1] (Moffat & Zobel 2008).

    RBP = (1 - p) sum over places i of p^(i - 1) gain_i: the reader looks at the next place with probability p. The gain
    is 1 for a relevant candidate and 0 for another, or with `max_grade` the relevance as a share of it, where relevance
    above counts as `max_grade`. The ideal order of n candidates earns 1 - p^n at most, not 1. Nothing relevant: 0.
    Raises `InputError` for p outside (0, 1) and for a `max_grade` that is no whole number from 1 up.

    >>> rbp([[1, 0]], Slates.of([[1, 0]]), p=0.5).tolist()
    [0.25]
    """
    return kernels.rbp(legal_orders(rankings_BK, slates), slates, p=p, max_grade=max_grade)


def err(rankings_BK: npt.ArrayLike, slates: Slates, *, max_grade: int, k: int | None = None) -> FloatArray:
    """Expected reciprocal rank at `k` (None: the whole list), in [0, 1] (Chapelle et al. 2009).

    ERR = sum over places i = 1..k of R_i / i prod_{j < i} (1 - R_j), where R = (2^relevance - 1) / 2^max_grade is the
    probability that the reader is satisfied and stops. `max_grade` is the top of the grading scale; relevance above
    counts as `max_grade`. It is not normalised: one top grade, shown first, earns 1 - 2^-max_grade alone. Nothing
    relevant: 0. Raises `InputError` for k < 1 and for a `max_grade` that is no whole number from 1 up.

    >>> err([[0, 1]], Slates.of([[0, 1]]), max_grade=1).tolist()
    [0.25]
    """
    return kernels.err(legal_orders(rankings_BK, slates), slates, max_grade=max_grade, k=k)


def auc(rankings_BK: npt.ArrayLike, slates: Slates) -> FloatArray:
    """Share of (relevant, not relevant) pairs in which the relevant candidate is ranked higher, in [0, 1].

    R_AUC of GR2 Technical Report. No such pair (all or nothing relevant): 1, as no pair is in the wrong order.
    """
    return kernels.auc(legal_orders(rankings_BK, slates), slates)


def pairwise_accuracy(rankings_BK: npt.ArrayLike, slates: Slates) -> FloatArray:
    """Share of the pairs of different relevance in which the more relevant candidate is ranked higher, in [0, 1].

    With two grades it is `auc`; in general (1 + D) / 2 where D is Somers' D of the order given the relevance (Somers
    1962). Pairs of equal relevance do not count. No other pair: 1, as no pair is in the wrong order. The work grows
    with the square of the list.
    """
    return kernels.pairwise_accuracy(legal_orders(rankings_BK, slates), slates)


def exact_set(rankings_BK: npt.ArrayLike, slates: Slates, *, k: int | None = None) -> FloatArray:
    """1 if the first R places hold exactly the R most relevant candidates, in any order, else 0. Ours.

    R is `k`, or for None the number of relevant candidates (then it is 1 where R-precision is 1). Candidates of equal
    relevance stand in for each other, so with fewer than `k` relevant ones all of them among the first `k` is enough,
    as it is for a list no longer than `k`. Nothing relevant: 0, as nothing was found. Raises `InputError` for k < 1.

    >>> exact_set([[2, 0, 1], [0, 1, 2]], Slates.of([[1, 0, 3]] * 2)).tolist()
    [1.0, 0.0]
    """
    return kernels.exact_set(legal_orders(rankings_BK, slates), slates, k=k)


def rank_promotion(rankings_BK: npt.ArrayLike, slates: Slates) -> FloatArray:
    """How far up relevance moved, as a share of the list: sum_j rel_j (pre_j - out_j) / (K sum_j rel_j), in (-1, 1).

    With one relevant candidate this is R_rank = (r_pre - r_out) / K of GR2, to the last bit; the weighted mean beyond
    one is ours. K is the request's own size. Nothing relevant: 0. Keeping the order: exactly 0.
    """
    return kernels.rank_promotion(legal_orders(rankings_BK, slates), slates)
