"""Slates: what a reward may look at, for a batch of re-ranking requests.

A slate is one request as a reward sees it: the gain of every candidate, listed in the order the earlier stage left
them. Nothing else about users or items reaches a reward. May import numpy only. Suffixes: `_B` requests, `_K`
candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import SlateError

MIN_CANDIDATES = 2
"""A request with fewer candidates has one order only, so nothing about it can be rewarded."""

MAX_RELEVANCE = 1e100
"""Sums of this over any list that fits in memory stay finite, which is what keeps NaN out of every metric."""


@dataclass(frozen=True, eq=False)
class Slates:
    """A batch of requests: `relevance_BK` float64 >= 0 in incoming order, `sizes_B` int64 >= 2 real candidates a row.

    Row b is real up to `sizes_B[b]`; beyond it relevance is 0. The incoming position of a candidate is its column, so
    the incoming order is always 0, 1, ..., K-1. Arrays of the right dtype are stored as given, without a copy, and
    must not be changed afterwards; other numeric dtypes are converted.

    Raises `SlateError`, naming the row and where it helps the candidate, where the arrays cannot be requests.

    >>> Slates.of([[0, 2, 1], [1, 0]]).relevance_BK
    array([[0., 2., 1.],
           [1., 0., 0.]])
    """

    relevance_BK: FloatArray
    sizes_B: IntArray

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

    @classmethod
    def of(cls, rows: Iterable[Sequence[float]]) -> Slates:
        """Slates from lists of gains that may differ in length, one list a request.

        Raises `SlateError` for a row that is no list of at least two numbers.
        """
        lists: list[FloatArray] = []
        for row, gains in enumerate(rows):
            try:
                values = np.asarray(gains, dtype=np.float64)
            except (TypeError, ValueError) as cause:
                raise SlateError(f"relevance of request {row} is {gains!r}; expected a list of numbers") from cause
            if values.ndim != 1:
                raise SlateError(f"relevance of request {row} has shape {values.shape}; expected a flat list")
            lists.append(values)
        sizes_B = np.array([len(values) for values in lists], dtype=np.int64)
        relevance_BK = np.zeros((len(lists), int(sizes_B.max(initial=MIN_CANDIDATES))))
        for row, values in enumerate(lists):
            relevance_BK[row, : len(values)] = values
        return cls(relevance_BK, sizes_B)

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

    def take(self, rows_B: npt.ArrayLike) -> Slates:
        """The slates at `rows_B` (integers or booleans), in that order; rows may repeat.

        They are not checked again. Raises `SlateError` if a row does not exist.
        """
        rows = np.asarray(rows_B)
        if not rows.size:
            rows = rows.astype(np.int64)
        if rows.ndim != 1:
            raise SlateError(f"rows have shape {rows.shape}; expected a flat array of row numbers")
        taken = object.__new__(Slates)
        try:
            taken.__dict__.update({field.name: getattr(self, field.name)[rows] for field in fields(self)})
        except IndexError as cause:
            raise SlateError(f"cannot take rows from {len(self)} slates: {cause}") from cause
        return taken

    def repeat(self, n: int) -> Slates:
        """Each slate n times in a row (b0 b0 b1 b1): the layout of a group of n answers to each request."""
        return self.take(np.repeat(np.arange(len(self)), whole("n", n, least=0)))
