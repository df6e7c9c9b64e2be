"""The mathematics of permutations: validate, complete, invert, compare and draw rankings.

A `ranking` lists candidate indices, best first, in an int64 row; `ranks` is its inverse, the 0-based place of each
candidate. A row belongs to a request with `size` candidates: the first `size` entries are a permutation of
0..size-1 and the tail is padded with -1. Functions read entries beyond the size as padding whatever they hold, because
a fixed-width action cannot leave them out. May import numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray, VerdictArray
from rerank_env.rewards.errors import InputError, RankingError

Ties = Literal["incoming", "reverse", "random", "refuse"]

MIN_CANDIDATES = 2
"""A request with fewer candidates has one order only, so nothing about it can be rewarded."""

BLOCK = 2**16
"""Numbers in a block of rows: half a megabyte, which leaves room in a core's cache for what is made of them."""

WORD = 62
"""The widest ranking whose candidates have a bit each in a positive int64."""


class Verdict(IntEnum):
    """Whether an answer is a ranking of its request, or why it is not."""

    OK = 0
    EMPTY = 1
    MALFORMED = 2
    TRUNCATED = 3
    WRONG_COUNT = 4
    UNKNOWN = 5
    DUPLICATE = 6
    MISSING = 7
    OVERLONG = 8
    NOT_FINITE = 9
    TIED = 10

    @property
    def sentence(self) -> str:
        """What the verdict means, in one sentence."""
        return _SENTENCES[self]


_SENTENCES = {
    Verdict.OK: "The answer names every candidate exactly once.",
    Verdict.EMPTY: "The answer holds nothing.",
    Verdict.MALFORMED: "The answer is not written in the agreed format.",
    Verdict.TRUNCATED: "The answer stops before its format is complete.",
    Verdict.WRONG_COUNT: "The answer names more candidates than there are.",
    Verdict.UNKNOWN: "The answer names a candidate that does not exist.",
    Verdict.DUPLICATE: "The answer names a candidate more than once.",
    Verdict.MISSING: "The answer leaves out a candidate.",
    Verdict.OVERLONG: "The answer is longer than the agreed limit.",
    Verdict.NOT_FINITE: "A score in the answer is not a finite number.",
    Verdict.TIED: "Two scores in the answer are equal where ties are refused.",
}


def checked(rankings_BK: npt.ArrayLike, sizes_B: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """Both as int64 arrays [B, K] and [B], or `RankingError`; legality of the rankings is not looked at."""
    try:
        rankings, sizes = np.asarray(rankings_BK), np.asarray(sizes_B)
    except ValueError as cause:
        raise RankingError("rankings or sizes have rows of unequal length; pad the tails with -1") from cause
    if rankings.ndim != 2:
        raise RankingError(f"rankings have shape {rankings.shape}, expected [requests, candidates]; add an axis")
    if rankings.dtype.kind not in "iu" and rankings.size:
        raise RankingError(f"rankings have dtype {rankings.dtype}, expected integers: candidate numbers, best first")
    if sizes.shape != rankings.shape[:1]:
        raise RankingError(f"rankings have {len(rankings)} rows but sizes have shape {sizes.shape}; give one a row")
    if sizes.dtype.kind not in "iu" and sizes.size:
        raise RankingError(f"sizes have dtype {sizes.dtype}, expected integers; count the candidates of each request")
    sizes = sizes.astype(np.int64, copy=False)
    if len(sizes) and (sizes.min() < MIN_CANDIDATES or sizes.max() > rankings.shape[1]):
        row = int(np.flatnonzero((sizes < MIN_CANDIDATES) | (sizes > rankings.shape[1]))[0])
        raise RankingError(
            f"request {row} has size {int(sizes[row])}; expected {MIN_CANDIDATES}..{rankings.shape[1]}, "
            "the width of the rankings"
        )
    return rankings.astype(np.int64, copy=False), sizes


def verdicts(rankings_BK: npt.ArrayLike, sizes_B: npt.ArrayLike) -> VerdictArray:
    """Verdict codes int8 [B]: UNKNOWN if an entry is outside 0..size-1, else DUPLICATE if one repeats, else OK.

    Entries beyond the size are ignored. Raises `RankingError` for a wrong shape, never for an illegal ranking.

    >>> verdicts([[2, 0, 1], [0, 0, 1], [0, 1, 3]], [3, 3, 3]).tolist()
    [0, 6, 5]
    """
    return verdicts_unchecked(*checked(rankings_BK, sizes_B))


def verdicts_unchecked(rankings_BK: IntArray, sizes_B: IntArray) -> VerdictArray:
    """`verdicts` for arrays whose shapes and sizes are known to be right."""
    codes_B = np.zeros(len(rankings_BK), dtype=np.int8)
    for rows in row_blocks(*rankings_BK.shape):
        if rankings_BK.shape[1] > WORD:
            codes_B[rows] = _faults(rankings_BK[rows], sizes_B[rows])
        elif not (right_B := _names_everybody(rankings_BK[rows], sizes_B[rows])).all():
            wrong_B = np.flatnonzero(~right_B) + rows.start
            codes_B[wrong_B] = _faults(rankings_BK[wrong_B], sizes_B[wrong_B])
    return codes_B


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices that cover so many rows, at least one, each of an array that stays in the processor's cache.

    What is worked on block by block is computed from rows alone, so where blocks end moves no bit.
    """
    step = max(BLOCK // max(width, 1), 1)
    return (slice(first, min(first + step, rows)) for first in range(0, max(rows, 1), step))


def _names_everybody(rankings_BK: IntArray, sizes_B: IntArray) -> BoolArray:
    """True where the first `size` entries set the bits of all `size` candidates, so that none is set twice.

    An entry that is no candidate sets a bit beyond or none. Rows are no wider than a word has bits.
    """
    width = rankings_BK.shape[1]
    bits_BK = np.left_shift(1, rankings_BK)  # 0 for a negative shift or one out of the word
    if not (sizes_B == width).all():
        bits_BK *= np.arange(width) < sizes_B[:, None]
    full_B: BoolArray = np.bitwise_or.reduce(bits_BK, axis=1) == np.left_shift(1, sizes_B) - 1
    return full_B


def _faults(rankings_BK: IntArray, sizes_B: IntArray) -> VerdictArray:
    """Verdict codes int8 [B] of any rankings."""
    rows, width = rankings_BK.shape
    known_BK = rankings_BK.view(np.uint64) < sizes_B.view(np.uint64)[:, None]  # negative numbers wrap to huge ones
    known_BK &= np.arange(width) < sizes_B[:, None]
    seen = np.zeros((rows, width + 1), dtype=np.bool_)  # the last column collects what names nobody
    columns_BK = np.where(known_BK, rankings_BK, width)
    columns_BK += np.arange(0, rows * (width + 1), width + 1)[:, None]
    seen.ravel()[columns_BK] = True
    codes_B = np.zeros(rows, dtype=np.int8)
    if int(np.count_nonzero(seen[:, :width])) != int(sizes_B.sum()):
        codes_B[seen[:, :width].sum(axis=1) != sizes_B] = Verdict.DUPLICATE
        codes_B[known_BK.sum(axis=1) != sizes_B] = Verdict.UNKNOWN
    return codes_B


def legal(rankings_BK: npt.ArrayLike, sizes_B: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """Both as `checked` gives them, or `RankingError` naming the first row that is not a permutation."""
    rankings, sizes = checked(rankings_BK, sizes_B)
    for row in np.flatnonzero(verdicts_unchecked(rankings, sizes))[:1]:
        raise RankingError(
            f"row {row} is no ranking of {int(sizes[row])} candidates: {rankings[row].tolist()}; "
            "name each of them once, and ask `verdicts` first where answers may be illegal"
        )
    return rankings, sizes


def completed(rankings_BK: IntArray, sizes_B: IntArray) -> IntArray:
    """Rankings whose tail lists the padding in place, so that a valid row is a permutation of 0..K-1.

    Padding has no relevance and keeps its columns, so metrics need no mask. The input itself if nothing is padded.
    """
    width = rankings_BK.shape[1]
    if (sizes_B == width).all():
        return rankings_BK
    columns_K = np.arange(width)
    return np.where(columns_K < sizes_B[:, None], rankings_BK, columns_K)


def padded(rankings_BK: npt.ArrayLike, sizes_B: npt.ArrayLike) -> IntArray:
    """A copy whose tail, everything beyond the size, is -1."""
    rankings, sizes = checked(rankings_BK, sizes_B)
    return np.where(np.arange(rankings.shape[1]) < sizes[:, None], rankings, PAD)


def identity_rankings(sizes_B: npt.ArrayLike, width: int) -> IntArray:
    """The incoming order 0, 1, ..., size-1 of every request, int64 [B, width]."""
    sizes = np.asarray(sizes_B)
    columns_BK = np.broadcast_to(np.arange(width, dtype=np.int64), (len(sizes), width))
    return padded(columns_BK, sizes)


def is_identity(rankings_BK: npt.ArrayLike, sizes_B: npt.ArrayLike) -> BoolArray:
    """True [B] where the ranking is the incoming order."""
    rankings, sizes = checked(rankings_BK, sizes_B)
    same_B: BoolArray = (completed(rankings, sizes) == np.arange(rankings.shape[1])).all(axis=1)
    return same_B


def invert(rankings_BK: npt.ArrayLike, sizes_B: npt.ArrayLike) -> IntArray:
    """0-based place of each candidate, int64 [B, K], -1 where padded; `invert` undoes itself.

    Raises `RankingError` naming the first row that is not a permutation.

    >>> invert([[2, 0, 1]], [3]).tolist()
    [[1, 2, 0]]
    """
    rankings, sizes = legal(rankings_BK, sizes_B)
    return padded(ranks_unchecked(completed(rankings, sizes)), sizes)


def ranks_unchecked(orders_BK: IntArray) -> IntArray:
    """The inverse of rows known to be permutations of 0..K-1."""
    rows, width = orders_BK.shape
    ranks_BK = np.empty((rows, width), dtype=np.int64)
    flat_BK = orders_BK + np.arange(0, rows * width, max(width, 1))[:, None]
    ranks_BK.ravel()[flat_BK] = np.arange(width)
    return ranks_BK


def kendall_tau(rankings_BK: npt.ArrayLike, sizes_B: npt.ArrayLike) -> FloatArray:
    """Kendall's tau [B] between the ranking and the incoming order: +1 for the identity, -1 for its reverse.

    tau = 1 - 4 * inversions / (size * (size - 1)), exact because a ranking has no ties (Kendall 1938).
    Raises `RankingError` naming the first row that is not a permutation.
    """
    rankings, sizes = legal(rankings_BK, sizes_B)
    return tau_of(inversions_unchecked(completed(rankings, sizes)), sizes)


def tau_of(inversions_B: IntArray, sizes_B: IntArray) -> FloatArray:
    """Kendall's tau [B] of rankings with so many inversions."""
    tau_B: FloatArray = 1.0 - 4.0 * inversions_B / (sizes_B * (sizes_B - 1))
    return tau_B


def inversions_unchecked(orders_BK: IntArray) -> IntArray:
    """How many pairs of candidates stand the other way round than in the incoming order [B], for legal orders."""
    inversions_B = np.zeros(len(orders_BK), dtype=np.int64)
    for place in range(orders_BK.shape[1] - 1):
        inversions_B += (orders_BK[:, place : place + 1] > orders_BK[:, place + 1 :]).sum(axis=1)
    return inversions_B


def random_rankings(sizes_B: npt.ArrayLike, width: int, rng: np.random.Generator) -> IntArray:
    """A ranking of each request, every permutation equally likely up to ties of 53-bit keys, int64 [B, width]."""
    sizes = np.asarray(sizes_B)
    columns_K = np.arange(width)
    keys_BK = np.where(columns_K < sizes[:, None], rng.random((len(sizes), width)), 1.0)
    return padded(np.argsort(keys_BK, axis=1, kind="stable"), sizes)


def from_scores(
    scores_BK: npt.ArrayLike,
    sizes_B: npt.ArrayLike,
    *,
    ties: Ties,
    rng: np.random.Generator | None = None,
    tiebreak_BK: npt.NDArray[np.uint64] | None = None,
) -> tuple[IntArray, VerdictArray]:
    """Rankings by score, higher first, with the verdict of each row.

    `ties` decides between equal scores: "incoming" keeps the incoming order (which teaches order copying), "reverse"
    reverses it, "random" draws from `rng` or compares `tiebreak_BK` (uint64 [B, K], smaller first), "refuse" gives
    the row the verdict TIED. A score that is NaN or infinite gives NOT_FINITE. Rows with a verdict other than OK
    come back as -1 throughout. Scores of padding are ignored; 0.0 and -0.0 are equal.

    Raises `UnknownNameError` for another tie rule, `RankingError` for a wrong shape, `InputError` if "random" is
    given neither numbers nor a generator.
    """
    one_of("tie rule", ties, get_args(Ties))
    scores = np.asarray(scores_BK)
    if scores.ndim != 2 or scores.dtype.kind not in "fiu":
        raise RankingError(
            f"scores have shape {scores.shape} and dtype {scores.dtype}, expected real numbers [requests, candidates]"
        )
    columns_BK = np.broadcast_to(np.arange(scores.shape[1], dtype=np.int64), scores.shape)
    _, sizes = checked(columns_BK, sizes_B)
    real_BK = columns_BK < sizes[:, None]
    keys_BK = np.where(real_BK, -scores.astype(np.float64), np.inf)  # padding sorts behind every finite score
    bad_B = (~np.isfinite(keys_BK) & real_BK).any(axis=1)
    keys_BK[bad_B] = 0.0
    orders_BK = np.argsort(keys_BK, axis=1, kind="stable")
    ordered_BK = np.take_along_axis(keys_BK, orders_BK, axis=1)
    tied_B = ((ordered_BK[:, 1:] == ordered_BK[:, :-1]) & real_BK[:, 1:]).any(axis=1)
    codes_B = np.zeros(len(scores), dtype=np.int8)
    if ties == "refuse":
        codes_B[tied_B] = Verdict.TIED
    elif ties != "incoming" and tied_B.any():
        if ties == "reverse":
            breaks_BK: npt.NDArray[np.generic] = -columns_BK[tied_B]
        elif tiebreak_BK is not None:
            breaks_BK = np.asarray(tiebreak_BK)[tied_B]
        elif rng is not None:
            breaks_BK = rng.random(scores.shape)[tied_B]
        else:
            raise InputError("ties='random' needs numbers to draw from; pass rng or tiebreak_BK")
        orders_BK[tied_B] = np.lexsort((breaks_BK, keys_BK[tied_B]), axis=1)
    codes_B[bad_B] = Verdict.NOT_FINITE
    return np.where(real_BK & (codes_B == Verdict.OK)[:, None], orders_BK, PAD), codes_B
