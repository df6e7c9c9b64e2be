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

__all__ = ["auc", "hit", "mrr", "ndcg", "rank_promotion", "recall"]


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


def auc(rankings_BK: npt.ArrayLike, slates: Slates) -> FloatArray:
    """Share of (relevant, not relevant) pairs in which the relevant candidate is ranked higher, in [0, 1].

    R_AUC of GR2 Technical Report. No such pair (all or nothing relevant): 1, as no pair is in the wrong order.
    """
    return kernels.auc(legal_orders(rankings_BK, slates), slates)


def rank_promotion(rankings_BK: npt.ArrayLike, slates: Slates) -> FloatArray:
    """How far up relevance moved, as a share of the list: sum_j rel_j (pre_j - out_j) / (K sum_j rel_j), in (-1, 1).

    With one relevant candidate this is R_rank = (r_pre - r_out) / K of GR2, to the last bit; the weighted mean beyond
    one is ours. K is the request's own size. Nothing relevant: 0. Keeping the order: exactly 0.
    """
    return kernels.rank_promotion(legal_orders(rankings_BK, slates), slates)
