"""The arithmetic of the metrics, for orders that are known to be legal: rewards check once and call these.

`orders_BK` is int64 [B, K], every row a permutation of 0..K-1 with padding in place behind the ranking; an order that
is anything else gives garbage, which is why `metrics` is the public form. Formulas and sources are given there. A
request scores the same float in a batch of one and of a million, because sums run left to right along the row and
never through a blocked reduction. May import numpy only.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.rankings import ranks_unchecked
from rerank_env.rewards.slates import Slates

Gains = Literal["linear", "exp2"]
GAINS: tuple[Gains, ...] = ("linear", "exp2")

LARGEST_EXPONENT = 500
"""Gains 2^relevance - 1 above this are scaled down by a power of two, row by row, which NDCG does not notice."""

MANY_ROWS = 64
"""From here on, adding whole columns beats walking along the rows."""


def ndcg(orders_BK: IntArray, slates: Slates, *, k: int | None = None, gains: Gains = "linear") -> FloatArray:
    """`metrics.ndcg`."""
    cut = _cut(k, slates)
    gains_BK = _gains(slates, gains)
    dcg_B = _discounted(_gathered(gains_BK, orders_BK, slates), cut)
    ideal_B = _discounted(np.sort(gains_BK, axis=1)[:, ::-1], cut)
    ratio_B = _ratio(dcg_B, ideal_B, empty=0.0)
    ratio_B[ratio_B > 1.0] = 1.0  # rounding may leave 1 + 2e-16
    return ratio_B


def recall(orders_BK: IntArray, slates: Slates, *, k: int) -> FloatArray:
    """`metrics.recall`."""
    relevant_BK = _relevant(orders_BK, slates)
    return _ratio(relevant_BK[:, : _cut(k, slates)].sum(axis=1), relevant_BK.sum(axis=1), empty=0.0)


def hit(orders_BK: IntArray, slates: Slates, *, k: int) -> FloatArray:
    """`metrics.hit`."""
    found_B = _relevant(orders_BK, slates)[:, : _cut(k, slates)].any(axis=1)
    return np.asarray(found_B, dtype=np.float64)


def mrr(orders_BK: IntArray, slates: Slates) -> FloatArray:
    """`metrics.mrr`."""
    relevant_BK = _relevant(orders_BK, slates)
    return np.where(relevant_BK.any(axis=1), 1.0 / (1 + relevant_BK.argmax(axis=1)), 0.0)


def auc(orders_BK: IntArray, slates: Slates) -> FloatArray:
    """`metrics.auc`; exact, as pairs are counted in integers."""
    relevant_BK = _relevant(orders_BK, slates)
    above_BK = np.cumsum(relevant_BK, axis=1)
    positives_B = above_BK[:, -1].copy()
    above_BK *= ~relevant_BK
    if not slates.is_full:
        above_BK *= slates.mask_BK
    pairs_B = positives_B * (slates.sizes_B - positives_B)
    return _ratio(above_BK.sum(axis=1), pairs_B, empty=1.0)


def rank_promotion(orders_BK: IntArray, slates: Slates) -> FloatArray:
    """`metrics.rank_promotion`."""
    total_B1 = _row_sums(slates.relevance_BK)[:, None]
    weights_BK = np.divide(slates.relevance_BK, total_B1, out=np.zeros_like(slates.relevance_BK), where=total_B1 > 0)
    moved_BK = np.arange(slates.width) - ranks_unchecked(orders_BK)
    promoted_B: FloatArray = _row_sums(weights_BK * moved_BK) / slates.sizes_B
    return promoted_B


def _gathered(values_BK: npt.NDArray[Any], orders_BK: IntArray, slates: Slates) -> npt.NDArray[Any]:
    """`values_BK` of the candidates in ranked order."""
    ordered_BK: npt.NDArray[Any] = values_BK.ravel()[orders_BK + slates.offsets_B1]
    return ordered_BK


def _relevant(orders_BK: IntArray, slates: Slates) -> BoolArray:
    """Where a candidate of relevance above 0 is shown."""
    relevant_BK: BoolArray = _gathered(slates.relevance_BK, orders_BK, slates) > 0
    return relevant_BK


def _gains(slates: Slates, gains: Gains) -> FloatArray:
    if one_of("gain", gains, GAINS) == "linear":
        return slates.relevance_BK
    top_B1 = slates.relevance_BK.max(axis=1, initial=0.0, keepdims=True)
    shift_B1 = np.where(top_B1 > LARGEST_EXPONENT, np.floor(top_B1), 0.0)
    scaled_BK: FloatArray = np.exp2(np.ascontiguousarray(slates.relevance_BK) - shift_B1) - np.exp2(-shift_B1)
    return scaled_BK


@lru_cache(maxsize=256)
def _discounts(cut: int) -> FloatArray:
    discounts_K = np.array([1.0 / math.log2(place + 1) for place in range(1, cut + 1)])
    discounts_K.flags.writeable = False
    return discounts_K


def _discounted(gains_BK: npt.NDArray[Any], cut: int) -> FloatArray:
    return _row_sums(gains_BK[:, :cut] * _discounts(cut))


def _row_sums(values_BK: npt.NDArray[Any]) -> FloatArray:
    """Sums along each row, strictly left to right, so that neither batch size nor padding moves the last bit.

    Both ways add in the same order; column by column is five times faster for many rows.
    """
    sums_B: FloatArray
    if len(values_BK) < MANY_ROWS:
        sums_B = np.cumsum(values_BK, axis=1)[:, -1]
        return sums_B
    sums_B = values_BK[:, 0].copy()
    for column in range(1, values_BK.shape[1]):
        sums_B += values_BK[:, column]
    return sums_B


def _ratio(part_B: npt.NDArray[Any], whole_B: npt.NDArray[Any], *, empty: float) -> FloatArray:
    """`part_B / whole_B`, and `empty` where the whole is 0."""
    ratio_B: FloatArray = np.divide(part_B, whole_B, out=np.full(len(part_B), empty), where=whole_B > 0)
    return ratio_B


def _cut(k: int | None, slates: Slates) -> int:
    return slates.width if k is None else min(whole("k", k, least=1), slates.width)
