"""The arithmetic of the metrics, for orders that are known to be legal: rewards check once and call these.

`orders_BK` is int64 [B, K], every row a permutation of 0..K-1 with padding in place behind the ranking; an order that
is anything else gives garbage, which is why `metrics` is the public form. Formulas and sources are given there. A
request scores the same float in a batch of one and of a million, because every number of a row comes from that row
alone and sums run left to right along it, never through a blocked reduction. May import numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import ranks_unchecked, row_blocks
from rerank_env.rewards.slates import MAX_RELEVANCE, Slates

Gains = Literal["linear", "exp2"]
GAINS: tuple[Gains, ...] = ("linear", "exp2")

LARGEST_EXPONENT = 500
"""Gains 2^relevance - 1 above this are scaled down by a power of two, row by row, which NDCG does not notice."""

MANY_ROWS = 64
"""From here on, adding whole columns beats walking along the rows."""

Arguments = ParamSpec("Arguments")


class _Rows(NamedTuple):
    """Some requests of a batch, few enough for what is made of them to stay in the processor's cache."""

    orders_BK: IntArray
    relevance_BK: FloatArray
    sizes_B: IntArray
    starts_B1: IntArray
    """Where each row starts in the flattened arrays."""
    full: bool
    """True if no row is padded."""

    @property
    def width(self) -> int:
        """K."""
        return int(self.relevance_BK.shape[1])

    def cut(self, k: int | None) -> int:
        """How many places count."""
        return self.width if k is None else min(whole("k", k, least=1), self.width)

    def shown(self, values_BK: FloatArray, places: int | None = None) -> FloatArray:
        """`values_BK` of the candidates in ranked order, in the first `places`."""
        ordered_BK: FloatArray = np.take(values_BK, self.orders_BK[:, :places] + self.starts_B1)
        return ordered_BK

    def relevant(self) -> BoolArray:
        """Where a candidate of relevance above 0 is shown."""
        relevant_BK: BoolArray = self.shown(self.relevance_BK) > 0
        return relevant_BK


def _in_blocks(
    kernel: Callable[Concatenate[_Rows, Arguments], npt.NDArray[Any]],
) -> Callable[Concatenate[IntArray, Slates, Arguments], FloatArray]:
    """A kernel of some rows as a kernel of any number, a block at a time; arguments are checked for no rows too."""

    @wraps(kernel)
    def scored(orders_BK: IntArray, slates: Slates, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> FloatArray:
        scores_B = np.empty(len(slates))
        for rows in row_blocks(len(slates), slates.width):
            starts_B1 = slates.offsets_B1[: rows.stop - rows.start]
            block = orders_BK[rows], slates.relevance_BK[rows], slates.sizes_B[rows], starts_B1, slates.is_full
            scores_B[rows] = kernel(_Rows(*block), *args, **kwargs)
        return scores_B

    return scored


@_in_blocks
def ndcg(rows: _Rows, *, k: int | None = None, gains: Gains = "linear") -> FloatArray:
    """`metrics.ndcg`."""
    cut = rows.cut(k)
    gains_BK = _gains(rows.relevance_BK, gains)
    dcg_B = row_sums(rows.shown(gains_BK, cut), discounts(cut))
    ideal_B = row_sums(_descending(gains_BK)[:, :cut], discounts(cut))
    return _at_most_one(_ratio(dcg_B, ideal_B, empty=0.0))


@_in_blocks
def recall(rows: _Rows, *, k: int) -> FloatArray:
    """`metrics.recall`."""
    relevant_BK = rows.relevant()
    return _ratio(relevant_BK[:, : rows.cut(k)].sum(axis=1), relevant_BK.sum(axis=1), empty=0.0)


@_in_blocks
def hit(rows: _Rows, *, k: int) -> BoolArray:
    """`metrics.hit`."""
    found_B: BoolArray = rows.relevant()[:, : rows.cut(k)].max(axis=1)
    return found_B


@_in_blocks
def mrr(rows: _Rows) -> FloatArray:
    """`metrics.mrr`."""
    relevant_BK = rows.relevant()
    return np.where(relevant_BK.any(axis=1), 1.0 / (1 + relevant_BK.argmax(axis=1)), 0.0)


@_in_blocks
def ap(rows: _Rows, *, k: int | None = None) -> FloatArray:
    """`metrics.ap`; no more than 1, as no partial sum can round above the number of its terms."""
    cut = rows.cut(k)
    relevant_BK = rows.relevant()
    found_BK = np.cumsum(relevant_BK, axis=1)
    precision_BK = found_BK[:, :cut] / np.arange(1, cut + 1)
    return _ratio(row_sums(precision_BK * relevant_BK[:, :cut]), found_BK[:, -1], empty=0.0)


@_in_blocks
def rbp(rows: _Rows, *, p: float, max_grade: int | None = None) -> FloatArray:
    """`metrics.rbp`."""
    if max_grade is None:
        gains_BK: npt.NDArray[Any] = rows.relevant()
    else:
        top = float(checked_max_grade(max_grade))
        gains_BK = np.minimum(rows.shown(rows.relevance_BK), top) / top
    return _at_most_one(row_sums(gains_BK, _persistence(checked_p(p), rows.width)))


@_in_blocks
def err(rows: _Rows, *, max_grade: int, k: int | None = None) -> FloatArray:
    """`metrics.err`; 2^(grade - top) - 2^-top cannot overflow, nor fall below 0, as 2^-top is exact."""
    cut, top = rows.cut(k), float(checked_max_grade(max_grade))
    grades_BK = np.minimum(rows.shown(rows.relevance_BK, cut), top)
    stops_BK = np.exp2(grades_BK - top) - np.exp2(-top)
    reached_BK = np.cumprod(1.0 - stops_BK, axis=1)
    stops_BK[:, 1:] *= reached_BK[:, :-1]
    return row_sums(stops_BK / np.arange(1, cut + 1))


@_in_blocks
def auc(rows: _Rows) -> FloatArray:
    """`metrics.auc`; exact, as pairs are counted in integers."""
    relevant_BK = rows.relevant()
    above_BK = np.cumsum(relevant_BK, axis=1)
    positives_B = above_BK[:, -1].copy()
    above_BK *= ~relevant_BK
    if not rows.full:
        above_BK *= np.arange(rows.width) < rows.sizes_B[:, None]
    pairs_B = positives_B * (rows.sizes_B - positives_B)
    return _ratio(above_BK.sum(axis=1), pairs_B, empty=1.0)


@_in_blocks
def pairwise_accuracy(rows: _Rows) -> FloatArray:
    """`metrics.pairwise_accuracy`; exact, as pairs are counted in integers."""
    shown_BK = rows.shown(rows.relevance_BK)
    right_B, wrong_B = np.zeros((2, len(shown_BK)), dtype=np.int64)
    for place in range(rows.width - 1):
        upper_B1, lower_BK = shown_BK[:, place : place + 1], shown_BK[:, place + 1 :]
        right_B += (upper_B1 > lower_BK).sum(axis=1)
        wrong_B += (upper_B1 < lower_BK).sum(axis=1)
    if not rows.full:
        right_B -= (shown_BK > 0).sum(axis=1) * (rows.width - rows.sizes_B)  # pairs with padding, which stands last
    return _ratio(right_B, right_B + wrong_B, empty=1.0)


@_in_blocks
def exact_set(rows: _Rows, *, k: int | None = None) -> BoolArray:
    """`metrics.exact_set`."""
    shown_BK = rows.shown(rows.relevance_BK)
    relevant_BK = shown_BK > 0
    if k is None:
        late_BK = relevant_BK[:, 1:] & ~relevant_BK[:, :-1]  # relevant, and right behind one that is not
        exact_B: BoolArray = relevant_BK[:, 0] & ~late_BK.max(axis=1)
        return exact_B
    cut = rows.cut(k)
    exact_B = shown_BK[:, :cut].min(axis=1) >= shown_BK[:, cut:].max(axis=1, initial=0.0)
    exact_B &= relevant_BK.max(axis=1)
    return exact_B


@_in_blocks
def rank_promotion(rows: _Rows) -> FloatArray:
    """`metrics.rank_promotion`."""
    total_B1 = row_sums(rows.relevance_BK)[:, None]
    weights_BK = np.divide(rows.relevance_BK, total_B1, out=np.zeros_like(rows.relevance_BK), where=total_B1 > 0)
    moved_BK = np.arange(rows.width) - ranks_unchecked(rows.orders_BK)
    promoted_B: FloatArray = row_sums(weights_BK * moved_BK) / rows.sizes_B
    return promoted_B


def checked_p(p: object) -> float:
    """A persistence, or `InputError`."""
    value = finite("p", p)
    if not 0.0 < value < 1.0:
        raise InputError(f"p is {value}; give a persistence between 0 and 1, both excluded, such as 0.8")
    return value


def checked_max_grade(max_grade: object) -> int:
    """The top of a scale of grades, or `InputError`."""
    top = whole("max_grade", max_grade, least=1)
    if top > MAX_RELEVANCE:
        raise InputError(f"max_grade is {top}, but no relevance is above {MAX_RELEVANCE:g}; give the top of your scale")
    return top


def _gains(relevance_BK: FloatArray, gains: Gains) -> FloatArray:
    if one_of("gain", gains, GAINS) == "linear":
        return relevance_BK
    top_B1 = relevance_BK.max(axis=1, initial=0.0, keepdims=True)
    shift_B1 = np.where(top_B1 > LARGEST_EXPONENT, np.floor(top_B1), 0.0)
    scaled_BK: FloatArray = np.exp2(np.ascontiguousarray(relevance_BK) - shift_B1) - np.exp2(-shift_B1)
    return scaled_BK


def _descending(gains_BK: FloatArray) -> FloatArray:
    """Each row sorted, largest first: floats from 0 up are in the order of their bits, and integers sort faster."""
    return np.sort(gains_BK.view(np.int64), axis=1).view(np.float64)[:, ::-1]


@lru_cache(maxsize=256)
def discounts(cut: int) -> FloatArray:
    """1 / log2(i + 1) for the places i = 1..cut; not to be written to."""
    return _fixed([1.0 / math.log2(place + 1) for place in range(1, cut + 1)])


@lru_cache(maxsize=256)
def _persistence(p: float, width: int) -> FloatArray:
    return _fixed([(1.0 - p) * p**place for place in range(width)])


def _fixed(weights: list[float]) -> FloatArray:
    weights_K = np.array(weights)
    weights_K.flags.writeable = False
    return weights_K


def row_sums(values_BK: npt.NDArray[Any], weights_K: npt.ArrayLike = 1.0) -> FloatArray:
    """Sums along each row, strictly left to right, so that neither batch size nor padding moves the last bit.

    Both ways add in the same order; column by column is several times faster for many rows.
    """
    sums_B: FloatArray
    if len(values_BK) < MANY_ROWS:
        sums_B = np.cumsum(values_BK * weights_K, axis=1)[:, -1]
        return sums_B
    columns_KB: FloatArray = np.multiply(values_BK.T, np.reshape(weights_K, (-1, 1)), order="C")
    sums_B = columns_KB[0]
    for column_B in columns_KB[1:]:
        sums_B += column_B
    return sums_B


def _ratio(part_B: npt.NDArray[Any], whole_B: npt.NDArray[Any], *, empty: float) -> FloatArray:
    """`part_B / whole_B`, and `empty` where the whole is 0."""
    ratio_B: FloatArray = np.divide(part_B, whole_B, out=np.full(len(part_B), empty), where=whole_B > 0)
    return ratio_B


def _at_most_one(scores_B: FloatArray) -> FloatArray:
    """Rounding may leave 1 + 2e-16."""
    return np.minimum(scores_B, 1.0)
