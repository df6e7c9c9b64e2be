"""Attraction: the probability that a candidate pleases whoever looks at it, from its relevance or as given.

It belongs to the candidate alone: neither its place nor its neighbours move it, so it is what an estimate that is free
of position bias should find. May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import finite, one_of
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import Expression
from rerank_env.rewards.kernels import GAINS, Gains
from rerank_env.rewards.slates import Slates, canonical_orders

LARGEST_EXP2 = 1000
"""Beyond this a gain of 2^grade - 1 does not fit a float."""


@runtime_checkable
class Attraction(Protocol):
    """Anything that gives the candidates of requests their probabilities, such as a frozen dataclass of yours."""

    def probabilities_BK(self, requests: Requests) -> FloatArray:
        """Float64 [B, K] in [0, 1], a row from its own request only; padding may hold any number."""
        ...


@dataclass(frozen=True, repr=False)
class Grades(Expression):
    """Attraction from relevance: least + (most - least) * gain(relevance) / gain(max_grade), rising with relevance.

    The gain is 2^relevance - 1 ("exp2") or the relevance itself ("linear", with which relevance in 0..1 can BE the
    probability: `Grades(least=0, most=1, gains="linear")`). `least` is the noise: the attraction of what is not
    relevant; `most` that of the top grade. With most = 1 and "exp2" it is the map that the click simulations of Ai et
    al. 2018 (1804.05938) use; a chance for either kind of click is the noise of Joachims et al. 2017 (1608.04468).

    Raises `InputError` unless 0 <= least < most <= 1 and max_grade > 0, and when asked about requests with a relevance
    above `max_grade`, naming the first.
    """

    max_grade: float = 1.0
    least: float = 0.1
    most: float = 0.9
    gains: Gains = "exp2"
    name = "grades"

    def __post_init__(self) -> None:
        """Check the arguments."""
        for field in ("max_grade", "least", "most"):
            object.__setattr__(self, field, finite(field, getattr(self, field)))
        one_of("gain", self.gains, GAINS)
        if not 0.0 <= self.least < self.most <= 1.0:
            raise InputError(f"least is {self.least} and most {self.most}; give 0 <= least < most <= 1")
        if self.max_grade <= 0.0 or (self.gains == "exp2" and self.max_grade > LARGEST_EXP2):
            raise InputError(
                f"max_grade is {self.max_grade}; give the top of your scale of relevance, above 0, and no more than "
                f"{LARGEST_EXP2} with gains='exp2'"
            )

    def probabilities_BK(self, requests: Requests) -> FloatArray:
        """The formula above, float64 [B, K]."""
        for row, column in np.argwhere(requests.relevance_BK > self.max_grade)[:1]:
            raise InputError(
                f"relevance of request {row}, candidate {column} is {float(requests.relevance_BK[row, column])}, above "
                f"max_grade {self.max_grade}; give grades(max_grade=...) the top of your scale"
            )
        if self.gains == "linear":
            share_BK = requests.relevance_BK / self.max_grade
        else:
            share_BK = np.expm1(requests.relevance_BK * math.log(2.0))
            share_BK /= math.expm1(self.max_grade * math.log(2.0))
        share_BK *= self.most - self.least
        share_BK += self.least
        return np.minimum(share_BK, self.most, out=share_BK)  # the sum may round above it


USUAL = Grades()
"""What click models take where nothing is said: for relevance up to 1."""


@dataclass(frozen=True, eq=False, repr=False)
class Given(Expression):
    """Attraction as you have it, `attraction_BK` in [0, 1], one a candidate of `requests`.

    It follows its candidates: requests that were taken from these, or reordered, are told by `origins` and
    `canonical_BK`, so logs, batches and shuffled copies find their numbers. Padding may hold any number.

    Raises `InputError` for numbers of another shape or outside [0, 1], for requests of which two are copies of one, and
    when asked about requests that do not come from these. Its text cannot be parsed.
    """

    requests: Requests
    attraction_BK: FloatArray
    name = "given"

    def __post_init__(self) -> None:
        """Convert and check the numbers, and file them under the candidates' original places."""
        values_BK = np.asarray(self.attraction_BK)
        if values_BK.shape != self.requests.candidates_BK.shape or values_BK.dtype.kind not in "fiub":
            raise InputError(
                f"attraction has shape {values_BK.shape} and dtype {values_BK.dtype}; give one number a candidate, "
                f"shape {self.requests.candidates_BK.shape}"
            )
        values_BK = values_BK.astype(np.float64, copy=False)
        real_BK = self.requests.slates.mask_BK
        for row, column in np.argwhere(real_BK & ~((values_BK >= 0.0) & (values_BK <= 1.0)))[:1]:
            raise InputError(
                f"attraction of request {row}, candidate {column} is {float(values_BK[row, column])}; expected a "
                "probability"
            )
        if len(np.unique(self.requests.origins)) < len(self.requests):
            raise InputError(
                "two of the requests are copies of one; give the attraction of the requests they came from"
            )
        object.__setattr__(self, "attraction_BK", values_BK)

    def __str__(self) -> str:
        """The name alone."""
        return self.name

    @cached_property
    def _filed(self) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
        """Sorted origins, the row of each, and items and numbers by original place."""
        order_B = np.argsort(self.requests.origins)
        places_BK = _original_places(self.requests.slates)
        items_BK = np.empty_like(self.requests.candidates_BK)
        values_BK = np.empty_like(self.attraction_BK)
        np.put_along_axis(items_BK, places_BK, self.requests.candidates_BK, axis=1)
        np.put_along_axis(values_BK, places_BK, self.attraction_BK, axis=1)
        return self.requests.origins[order_B], order_B, items_BK, values_BK

    def probabilities_BK(self, requests: Requests) -> FloatArray:
        """The numbers of the same candidates, float64 [B, K]."""
        if requests is self.requests:
            return self.attraction_BK.copy()
        origins_B, order_B, items_BK, values_BK = self._filed
        width = requests.candidates_BK.shape[1]
        known_B = np.isin(requests.origins, origins_B) & (width == items_BK.shape[1])
        if known_B.all():
            rows_B = order_B[np.searchsorted(origins_B, requests.origins)]
            places_BK = _original_places(requests.slates)
            known_B = (np.take_along_axis(items_BK[rows_B], places_BK, axis=1) == requests.candidates_BK).all(axis=1)
        for row in np.flatnonzero(~known_B)[:1]:
            raise InputError(
                f"request {row} is none of those that the attraction was given for; take them from those, or give "
                "attraction for these"
            )
        return np.take_along_axis(values_BK[rows_B], places_BK, axis=1)


def _original_places(slates: Slates) -> IntArray:
    """Where each candidate stood before anything was reordered, int64 [B, K], padding in place."""
    columns_BK = np.broadcast_to(np.arange(slates.width), (len(slates), slates.width))
    return canonical_orders(columns_BK, slates)
