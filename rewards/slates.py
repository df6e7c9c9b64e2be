"""Slates: what a reward may look at, for a batch of re-ranking requests.

A slate is one request as a reward sees it: the gain of every candidate, listed in the order the earlier stage left
them, and where there is a log the clicks on that order. Nothing else about users or items reaches a reward. May import
numpy only. Suffixes: `_B` requests, `_K` candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import RankingError, SlateError
from rerank_env.rewards.rankings import MIN_CANDIDATES, completed, legal, padded, verdicts_unchecked

MAX_RELEVANCE = 1e100
"""Sums of this over any list that fits in memory stay finite, which is what keeps NaN out of every metric."""

_EXPECTED = {"clicks": "0 or 1", "propensities": "a probability above 0", "predictions": "a probability"}


@dataclass(frozen=True, eq=False)
class Slates:
    """A batch of requests: `relevance_BK` float64 >= 0 in incoming order, `sizes_B` int64 >= 2 real candidates a row.

    Row b is real up to `sizes_B[b]`; beyond it relevance is 0. The incoming position of a candidate is its column, so
    the incoming order is always 0, 1, ..., K-1. Arrays of the right dtype are stored as given, without a copy, and
    must not be changed afterwards; other numeric dtypes are converted.

    What a log of the incoming order adds, None where there is none, 0 where padded: `clicks_BK` 0 or 1 and
    `propensities_BK` in (0, 1], the probability that the candidate was looked at where it was shown, always together;
    `predictions_BK` in [0, 1], a model's estimate of a click once looked at. `canonical_BK` int64 says, for shuffled
    copies of one request, which candidate of the unshuffled order stands in each place, a ranking padded with -1.

    Raises `SlateError`, naming the row and where it helps the candidate, where the arrays cannot be requests.

    >>> Slates.of([[0, 2, 1], [1, 0]]).relevance_BK
    array([[0., 2., 1.],
           [1., 0., 0.]])
    """

    relevance_BK: FloatArray
    sizes_B: IntArray
    clicks_BK: FloatArray | None = None
    propensities_BK: FloatArray | None = None
    predictions_BK: FloatArray | None = None
    canonical_BK: IntArray | None = None

    def __post_init__(self) -> None:
        """Convert and check the arrays."""
        try:
            relevance, sizes = np.asarray(self.relevance_BK), np.asarray(self.sizes_B)
        except ValueError as cause:
            raise SlateError("relevance or sizes have rows of unequal length; build slates with Slates.of") from cause
        if relevance.ndim != 2:
            raise SlateError(f"relevance has shape {relevance.shape}, expected [requests, candidates]; add an axis")
        if relevance.dtype.kind not in "fiub":
            raise SlateError(f"relevance has dtype {relevance.dtype}, expected numbers; convert it to float64")
        if sizes.shape != relevance.shape[:1]:
            raise SlateError(
                f"sizes have shape {sizes.shape} but relevance has {len(relevance)} rows; give one size a request"
            )
        if sizes.dtype.kind not in "iu" and sizes.size:
            raise SlateError(f"sizes have dtype {sizes.dtype}, expected integers; count the candidates of each request")
        object.__setattr__(self, "relevance_BK", np.asarray(relevance, dtype=np.float64))
        object.__setattr__(self, "sizes_B", np.asarray(sizes, dtype=np.int64))
        self._check_sizes()
        self._check_relevance()
        self._check_log()
        self._check_canonical()

    def _check_sizes(self) -> None:
        for row in np.flatnonzero((self.sizes_B < MIN_CANDIDATES) | (self.sizes_B > self.width))[:1]:
            size = int(self.sizes_B[row])
            if size < MIN_CANDIDATES:
                raise SlateError(
                    f"request {row} has {size} candidates; a request needs at least {MIN_CANDIDATES} candidates, "
                    "so drop it"
                )
            raise SlateError(f"request {row} has size {size} but relevance is only {self.width} wide; pad its rows")
        if self.width < MIN_CANDIDATES:
            raise SlateError(f"relevance is {self.width} wide; a request needs at least {MIN_CANDIDATES} candidates")

    def _check_relevance(self) -> None:
        with np.errstate(invalid="ignore"):
            fine = self.relevance_BK.min(initial=0.0) >= 0 and self.relevance_BK.max(initial=0.0) <= MAX_RELEVANCE
            if fine and self.is_full:
                return  # nothing more to look for, and the slower checks below find the place of a fault
            bad_BK = ~((self.relevance_BK >= 0) & (self.relevance_BK <= MAX_RELEVANCE))
        if bad_BK.any():
            row, candidate = (int(x) for x in np.argwhere(bad_BK)[0])
            value = float(self.relevance_BK[row, candidate])
            raise SlateError(
                f"relevance of request {row}, candidate {candidate} is {value}; "
                f"expected a finite number from 0 to {MAX_RELEVANCE:g}, 0 meaning not relevant"
            )
        stray_BK = ~self.mask_BK & (self.relevance_BK != 0)
        if stray_BK.any():
            row, candidate = (int(x) for x in np.argwhere(stray_BK)[0])
            raise SlateError(
                f"request {row} has {int(self.sizes_B[row])} candidates but relevance at candidate {candidate}; "
                "fill the tail of the row with 0"
            )

    def _check_log(self) -> None:
        if (self.clicks_BK is None) != (self.propensities_BK is None):
            raise SlateError("clicks and propensities come together; give both, or neither")
        for name in ("clicks", "propensities", "predictions"):
            given = getattr(self, f"{name}_BK")
            if given is None:
                continue
            values_BK = np.asarray(given)
            if values_BK.shape != self.relevance_BK.shape or values_BK.dtype.kind not in "fiub":
                raise SlateError(
                    f"{name} have shape {values_BK.shape} and dtype {values_BK.dtype}; give one number a candidate, "
                    f"shape {self.relevance_BK.shape}"
                )
            values_BK = values_BK.astype(np.float64, copy=False)
            least = np.nextafter(0.0, 1.0) if name == "propensities" else 0.0
            good_BK = (values_BK >= least) & (values_BK <= 1.0)
            if name == "clicks":
                good_BK &= values_BK == np.floor(values_BK)
            good_BK = np.where(self.mask_BK, good_BK, values_BK == 0.0)
            if not good_BK.all():
                row, candidate = (int(x) for x in np.argwhere(~good_BK)[0])
                raise SlateError(
                    f"{name} of request {row}, candidate {candidate} is {float(values_BK[row, candidate])}; "
                    f"expected {_EXPECTED[name]}, and 0 where padded"
                )
            object.__setattr__(self, f"{name}_BK", values_BK)

    def _check_canonical(self) -> None:
        if self.canonical_BK is None:
            return
        canonical_BK = np.asarray(self.canonical_BK)
        if canonical_BK.shape != self.relevance_BK.shape or canonical_BK.dtype.kind not in "iu":
            raise SlateError(
                f"canonical numbers have shape {canonical_BK.shape} and dtype {canonical_BK.dtype}; give one whole "
                f"number a candidate, shape {self.relevance_BK.shape}"
            )
        canonical_BK = canonical_BK.astype(np.int64, copy=False)
        for row in np.flatnonzero(verdicts_unchecked(canonical_BK, self.sizes_B))[:1].tolist():
            raise SlateError(
                f"canonical numbers of request {row} are {canonical_BK[row].tolist()}; name each of its "
                f"{int(self.sizes_B[row])} candidates once"
            )
        object.__setattr__(self, "canonical_BK", canonical_BK)

    @classmethod
    def of(
        cls,
        rows: Iterable[Sequence[float]],
        *,
        clicks: Iterable[Sequence[float]] | None = None,
        propensities: Iterable[Sequence[float]] | None = None,
        predictions: Iterable[Sequence[float]] | None = None,
    ) -> Slates:
        """Slates from lists of gains that may differ in length, one list a request; the log's lists likewise.

        Raises `SlateError` for a row that is no list of at least two numbers, or lists that disagree in length.
        """
        relevance_BK, sizes_B = _padded("relevance", rows)
        log: dict[str, FloatArray] = {}
        for name, lists in (("clicks", clicks), ("propensities", propensities), ("predictions", predictions)):
            if lists is not None:
                log[f"{name}_BK"], counts_B = _padded(name, lists)
                if counts_B.tolist() != sizes_B.tolist():
                    raise SlateError(
                        f"{name} have rows of {counts_B.tolist()!r:.60} numbers but relevance of "
                        f"{sizes_B.tolist()!r:.60}; give one number a candidate"
                    )
        return cls(relevance_BK, sizes_B, log.get("clicks_BK"), log.get("propensities_BK"), log.get("predictions_BK"))

    def __len__(self) -> int:
        """How many requests."""
        return len(self.sizes_B)

    @property
    def width(self) -> int:
        """K, the padded number of candidates."""
        return int(self.relevance_BK.shape[1])

    @cached_property
    def mask_BK(self) -> BoolArray:
        """True where a candidate is real."""
        mask: BoolArray = np.arange(self.width) < self.sizes_B[:, None]
        return mask

    @cached_property
    def is_full(self) -> bool:
        """True if no row is padded."""
        return bool((self.sizes_B == self.width).all())

    @cached_property
    def offsets_B1(self) -> IntArray:
        """Where each row starts in the flattened arrays; added to a ranking it makes flat indices."""
        return np.arange(0, len(self) * self.width, self.width, dtype=np.int64)[:, None]

    @property
    def provides(self) -> frozenset[str]:
        """The needs of rewards that are met."""
        given = {"clicks": self.clicks_BK, "predictions": self.predictions_BK}
        return frozenset(need for need, values in given.items() if values is not None)

    @property
    def by_candidate(self) -> dict[str, npt.NDArray[Any]]:
        """All that is known of each candidate: the fields [B, K] that are not None, by name."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_BK")}
        return {name: values_BK for name, values_BK in known.items() if values_BK is not None}

    def take(self, rows_B: npt.ArrayLike) -> Slates:
        """The slates at `rows_B` (integers or booleans), in that order; rows may repeat.

        They are not checked again. Raises `SlateError` if a row does not exist.
        """
        rows = np.asarray(rows_B)
        if not rows.size:
            rows = rows.astype(np.int64)
        if rows.ndim != 1:
            raise SlateError(f"rows have shape {rows.shape}; expected a flat array of row numbers")
        try:
            return self._but({name: values[rows] for name, values in self.by_candidate.items()}, self.sizes_B[rows])
        except IndexError as cause:
            raise SlateError(f"cannot take rows from {len(self)} slates: {cause}") from cause

    def reordered(self, orders_BK: npt.ArrayLike) -> Slates:
        """The same requests with their candidates listed in the orders `orders_BK`, rankings padded with -1.

        All that is known of a candidate moves along, its canonical number too; nothing is checked again. Raises
        `RankingError` for a wrong shape, and naming the first row that is no ranking.

        >>> Slates.of([[0, 2, 1]]).reordered([[1, 2, 0]]).relevance_BK
        array([[2., 1., 0.]])
        """
        orders = completed(*legal(orders_BK, self.sizes_B))
        if orders.shape != self.relevance_BK.shape:
            raise RankingError(
                f"the orders have shape {orders.shape}, expected {self.relevance_BK.shape}; pad their rows"
            )
        moved = {name: np.take_along_axis(values, orders, axis=1) for name, values in self.by_candidate.items()}
        return self._but(moved, self.sizes_B)

    def repeat(self, n: int) -> Slates:
        """Each slate n times in a row (b0 b0 b1 b1): the layout of a group of n answers to each request."""
        return self.take(np.repeat(np.arange(len(self)), whole("n", n, least=0)))

    def _but(self, by_candidate: dict[str, npt.NDArray[Any]], sizes_B: IntArray) -> Slates:
        """Slates with the same fields None, the others as given, unchecked."""
        made = object.__new__(Slates)
        made.__dict__.update(dict.fromkeys(field.name for field in fields(self)), **by_candidate, sizes_B=sizes_B)
        return made


def ideal_rankings(slates: Slates) -> IntArray:
    """The most relevant candidate first, int64 [B, K]; candidates of equal relevance keep their incoming order."""
    return padded(np.argsort(-slates.relevance_BK, axis=1, kind="stable"), slates.sizes_B)


def canonical_orders(orders_BK: IntArray, slates: Slates) -> IntArray:
    """Candidates 0..K-1 in any order, padding in place, under the numbers of the unshuffled requests, int64 [B, K]."""
    if slates.canonical_BK is None:
        return orders_BK
    return np.take_along_axis(completed(slates.canonical_BK, slates.sizes_B), orders_BK, axis=1)


def _padded(name: str, rows: Iterable[Sequence[float]]) -> tuple[FloatArray, IntArray]:
    """Lists as one array, tails filled with 0, and their lengths; `SlateError` for what is no list of numbers."""
    lists: list[FloatArray] = []
    for row, numbers in enumerate(rows):
        try:
            values = np.asarray(numbers, dtype=np.float64)
        except (TypeError, ValueError) as cause:
            raise SlateError(f"{name} of request {row} is {numbers!r}; expected a list of numbers") from cause
        if values.ndim != 1:
            raise SlateError(f"{name} of request {row} has shape {values.shape}; expected a flat list")
        lists.append(values)
    sizes_B = np.array([len(values) for values in lists], dtype=np.int64)
    padded_BK = np.zeros((len(lists), int(sizes_B.max(initial=MIN_CANDIDATES))))
    for row, values in enumerate(lists):
        padded_BK[row, : len(values)] = values
    return padded_BK, sizes_B
