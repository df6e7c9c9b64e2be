"""Click models: what is asked of users who click, and what all of ours share.

A model goes down the list as it is shown. With g the attraction of what stands there, a place is looked at with some
probability, and what is looked at is clicked with a probability that follows from g. Everything is returned by
candidate, as in `relevance_BK`, so that shuffling a request shuffles the answer and nothing else. Rankings are
candidate indices, best first, padded with -1; None: the incoming order. May import numpy, `rerank_env.data` and
`rerank_env.rewards`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rerank_env.clicks.attraction import Attraction
from rerank_env.data.requests import Requests
from rerank_env.rewards.answers import legal_orders
from rerank_env.rewards.arguments import finite
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import Expression
from rerank_env.rewards.kernels import row_sums
from rerank_env.rewards.rankings import row_blocks

Rankings = npt.ArrayLike | None
"""One ranking a request, or None for the incoming order."""

ByPlace = float | tuple[float, ...]
"""A number for every place, or one number a place, from the first down."""


@runtime_checkable
class ClickModel(Protocol):
    """Users who click. All but `sample` is exact; padding is 0; a row depends on its own request only.

    Every method raises `RankingError` (an `InputError`) for what is no ranking of the requests.
    """

    def attraction_BK(self, requests: Requests) -> FloatArray:
        """What each candidate has to give wherever it is shown, float64 [B, K] in [0, 1]."""
        ...

    def examination_BK(self, requests: Requests, rankings_BK: Rankings = None) -> FloatArray:
        """The probability that each candidate is looked at, given the whole list, float64 [B, K]."""
        ...

    def click_probability_BK(self, requests: Requests, rankings_BK: Rankings = None) -> FloatArray:
        """The probability that each candidate is clicked, float64 [B, K]."""
        ...

    def expected_clicks_B(self, requests: Requests, rankings_BK: Rankings = None) -> FloatArray:
        """How many clicks a list gets in the mean, float64 [B]."""
        ...

    def sample(self, requests: Requests, rankings_BK: Rankings = None, *, rng: np.random.Generator) -> FloatArray:
        """One session of every request: 1 where a candidate is clicked, else 0, float64 [B, K]."""
        ...

    def log_likelihood_B(
        self, requests: Requests, clicks_BK: npt.ArrayLike, rankings_BK: Rankings = None
    ) -> FloatArray:
        """The logarithm of the probability of exactly these clicks, 0 or 1 a candidate, float64 [B]; -inf if none."""
        ...


class ListUsers(Expression, ABC):
    """What our models share: a frozen dataclass with a field `attraction` derives from this and works in shown order.

    The arrays that the abstract methods take and return are [b, K] by place, some requests at a time; padding stands
    behind with attraction 0, and what is returned for it is thrown away.
    """

    attraction: Attraction
    uniforms: ClassVar[int] = 1
    """How many uniform numbers a place takes to be drawn."""

    def __post_init__(self) -> None:
        """Check the attraction."""
        if not isinstance(self.attraction, Attraction):
            raise InputError(f"attraction is {self.attraction!r}; give one such as Grades(max_grade=2)")

    @abstractmethod
    def looked_at(self, attraction_BK: FloatArray) -> FloatArray:
        """The probability that each place is looked at."""

    @abstractmethod
    def clicked_if_seen(self, attraction_BK: FloatArray) -> FloatArray:
        """The probability of a click on each place once it is looked at."""

    @abstractmethod
    def drawn(self, attraction_BK: FloatArray, uniforms_BKU: FloatArray) -> BoolArray:
        """Clicks made of uniform numbers in [0, 1), `uniforms` a place."""

    @abstractmethod
    def log_likelihood(self, attraction_BK: FloatArray, clicks_BK: BoolArray, real_BK: BoolArray) -> FloatArray:
        """The logarithm of the probability of these clicks [b], -inf allowed; no warning is shown."""

    def attraction_BK(self, requests: Requests) -> FloatArray:
        """`ClickModel.attraction_BK`; raises `InputError` for what is no probability, naming the first."""
        values_BK = np.asarray(self.attraction.probabilities_BK(requests))
        real_BK = requests.slates.mask_BK
        if values_BK.shape != real_BK.shape or values_BK.dtype.kind not in "fiub":
            raise InputError(
                f"the attraction {self.attraction} has shape {values_BK.shape} and dtype {values_BK.dtype}; give one "
                f"probability a candidate, shape {real_BK.shape}"
            )
        for row, column in np.argwhere(real_BK & ~((values_BK >= 0.0) & (values_BK <= 1.0)))[:1]:
            raise InputError(
                f"the attraction {self.attraction} of request {row}, candidate {column} is "
                f"{float(values_BK[row, column])}; expected a probability"
            )
        return np.where(real_BK, values_BK, 0.0).astype(np.float64, copy=False)

    def examination_BK(self, requests: Requests, rankings_BK: Rankings = None) -> FloatArray:
        """`ClickModel.examination_BK`."""
        return self._by_candidate(requests, rankings_BK, self.looked_at)

    def click_probability_BK(self, requests: Requests, rankings_BK: Rankings = None) -> FloatArray:
        """`ClickModel.click_probability_BK`."""
        return self._by_candidate(requests, rankings_BK, lambda a: self.looked_at(a) * self.clicked_if_seen(a))

    def expected_clicks_B(self, requests: Requests, rankings_BK: Rankings = None) -> FloatArray:
        """`ClickModel.expected_clicks_B`: the sum of `click_probability_BK`."""
        return row_sums(self.click_probability_BK(requests, rankings_BK))

    def sample(self, requests: Requests, rankings_BK: Rankings = None, *, rng: np.random.Generator) -> FloatArray:
        """`ClickModel.sample`; numbers are drawn row by row, place by place, so batches draw what the whole would."""
        return self._by_candidate(requests, rankings_BK, lambda a: self.drawn(a, rng.random((*a.shape, self.uniforms))))

    def log_likelihood_B(
        self, requests: Requests, clicks_BK: npt.ArrayLike, rankings_BK: Rankings = None
    ) -> FloatArray:
        """`ClickModel.log_likelihood_B`; raises `InputError` for clicks other than 0 or 1, or on padding."""
        clicks, real_BK = np.asarray(clicks_BK), requests.slates.mask_BK
        if clicks.shape != real_BK.shape or not (((clicks == 0) | (clicks == 1)) & (real_BK | (clicks == 0))).all():
            raise InputError(
                f"clicks have shape {clicks.shape}; give 0 or 1 a candidate, 0 where padded, shape {real_BK.shape}"
            )
        found_B = np.empty(len(requests))
        for rows, attraction_BK, order_BK in self._blocks(requests, rankings_BK):
            shown_BK = clicks[rows] if order_BK is None else np.take_along_axis(clicks[rows], order_BK, axis=1)
            with np.errstate(divide="ignore"):
                found_B[rows] = self.log_likelihood(attraction_BK, shown_BK == 1, real_BK[rows])
        return found_B

    def _by_candidate(
        self, requests: Requests, rankings_BK: Rankings, kernel: Callable[[FloatArray], npt.NDArray[Any]]
    ) -> FloatArray:
        """What `kernel` makes of attraction by place, by candidate, 0 where padded."""
        values_BK = np.empty(requests.candidates_BK.shape)
        for rows, attraction_BK, order_BK in self._blocks(requests, rankings_BK):
            if order_BK is None:
                values_BK[rows] = kernel(attraction_BK)
            else:
                np.put_along_axis(values_BK[rows], order_BK, kernel(attraction_BK).astype(np.float64), axis=1)
        if not requests.slates.is_full:
            values_BK[~requests.slates.mask_BK] = 0.0
        return values_BK

    def _blocks(self, requests: Requests, rankings_BK: Rankings) -> Iterator[tuple[slice, FloatArray, IntArray | None]]:
        """Some rows at a time: which, their attraction by place, and the order they are shown in, if not 0..K-1."""
        attraction_BK = self.attraction_BK(requests)
        orders_BK = None if rankings_BK is None else legal_orders(rankings_BK, requests.slates)
        for rows in row_blocks(*attraction_BK.shape):
            if orders_BK is None:
                yield rows, attraction_BK[rows], None
            else:
                yield rows, np.take_along_axis(attraction_BK[rows], orders_BK[rows], axis=1), orders_BK[rows]


def probabilities(what: str, value: object, *, positive: bool = False) -> ByPlace:
    """A probability or a tuple of them, as floats; `positive`: above 0. Raises `InputError`."""
    numbers = [finite(what, number) for number in (value if isinstance(value, tuple) else (value,))]
    for number in numbers:
        if not 0.0 <= number <= 1.0 or (positive and number == 0.0):
            raise InputError(f"{what} is {number}; give a probability{' above 0' if positive else ''}")
    if not numbers:
        raise InputError(f"{what} names no place; give one number a place, or one for all")
    return tuple(numbers) if isinstance(value, tuple) else numbers[0]


def by_place(what: str, value: ByPlace, places: int) -> FloatArray:
    """One number a place, float64 [places]. Raises `InputError` where a tuple is too short."""
    if isinstance(value, float):
        return np.full(places, value)
    if len(value) < places:
        raise InputError(f"{what} has numbers for {len(value)} places but lists have {places}; give one a place")
    return np.array(value[:places])
