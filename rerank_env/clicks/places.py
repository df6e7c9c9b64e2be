"""Users who look at each place by itself: the position-based model, and the one with trust bias.

Clicks are independent given the list, and the probability of each is affine in the attraction g of what is shown at
place i = 1, 2, ...:

    P(click) = slope_i g + offset_i

    position-based  slope_i = e_i              offset_i = 0         Richardson et al. 2007; Craswell et al. 2008
    trust bias      slope_i = e_i (r_i - w_i)  offset_i = e_i w_i   Agarwal et al. 2019; Vardasbi et al. 2020

with e_i the probability of looking, r_i of clicking what pleases and w_i of clicking what does not, under the
first 1 and 0. There a click over e_i expects g, so inverse propensities are unbiased. Under the second it expects
(r_i - w_i) g + w_i: they are not, and no other propensity of the place mends it, while (click - offset_i) / slope_i is
(Vardasbi et al. 2020, 2008.10242). May import numpy and `rerank_env`'s data and rewards.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rerank_env.clicks.attraction import USUAL, Attraction
from rerank_env.clicks.models import ByPlace, ListUsers, by_place, probabilities
from rerank_env.rewards.arguments import finite, one_of
from rerank_env.rewards.arrays import BoolArray, FloatArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.kernels import row_sums

Curve = Literal["power", "log2"]


class PlaceUsers(ListUsers):
    """What both share: the examination of a place, and clicks that are affine in the attraction."""

    eta: float
    curve: Curve | tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the examination."""
        object.__setattr__(self, "eta", finite("eta", self.eta))
        if self.eta < 0.0:
            raise InputError(f"eta is {self.eta}; give 0 for no position bias, 1 for the usual, more for a steeper one")
        if isinstance(self.curve, tuple):
            object.__setattr__(self, "curve", probabilities("curve", self.curve, positive=True))
        else:
            one_of("curve", self.curve, get_args(Curve))
        super().__post_init__()

    def examination_K(self, places: int) -> FloatArray:
        """e_i for the first `places`, float64 [places]; raises `InputError` where the curve is shorter."""
        if isinstance(self.curve, tuple):
            base_K = by_place("curve", self.curve, places)
        else:
            place_K = np.arange(1, places + 1)
            base_K = 1.0 / (place_K if self.curve == "power" else np.log2(place_K + 1))
        return np.asarray(base_K**self.eta)

    @abstractmethod
    def chances_K(self, places: int) -> tuple[FloatArray, FloatArray]:
        """r_i and w_i of the first `places`, float64 [places] each."""

    def affine_K(self, places: int) -> tuple[FloatArray, FloatArray]:
        """slope_i and offset_i, e_i (r_i - w_i) and e_i w_i, of the first `places`, float64 [places] each."""
        right_K, wrong_K = self.chances_K(places)
        seen_K = self.examination_K(places)
        return seen_K * (right_K - wrong_K), seen_K * wrong_K

    def looked_at(self, attraction_BK: FloatArray) -> FloatArray:
        """The same for every list."""
        return np.broadcast_to(self.examination_K(attraction_BK.shape[1]), attraction_BK.shape)

    def clicked_if_seen(self, attraction_BK: FloatArray) -> FloatArray:
        """(r_i - w_i) g + w_i, which stands where e_i is too small for a float and slopes are 0."""
        right_K, wrong_K = self.chances_K(attraction_BK.shape[1])
        return np.minimum(attraction_BK * (right_K - wrong_K) + wrong_K, 1.0)

    def drawn(self, attraction_BK: FloatArray, uniforms_BKU: FloatArray) -> BoolArray:
        """One uniform number a place against P(click)."""
        slope_K, offset_K = self.affine_K(attraction_BK.shape[1])
        clicks_BK: BoolArray = uniforms_BKU[:, :, 0] < attraction_BK * slope_K + offset_K
        return clicks_BK

    def log_likelihood(self, attraction_BK: FloatArray, clicks_BK: BoolArray, real_BK: BoolArray) -> FloatArray:
        """The sum over places."""
        slope_K, offset_K = self.affine_K(attraction_BK.shape[1])
        chance_BK = np.minimum(attraction_BK * slope_K + offset_K, 1.0)
        return row_sums(
            np.log(np.where(clicks_BK, chance_BK, 1.0 - chance_BK), out=np.zeros_like(chance_BK), where=real_BK)
        )


@dataclass(frozen=True, repr=False)
class PositionBased(PlaceUsers):
    """Looks at place i with probability e_i = curve_i^eta whatever is shown, and clicks what it looks at as it pleases.

    `curve`: "power" is 1 / i (Joachims et al. 2017, 1608.04468), "log2" is 1 / log2(i + 1), with which the expected
    clicks are the DCG of the attraction; or a number in (0, 1] a place, for lists no longer than that. `eta` 0: no
    position bias. Its propensities are e_i, and inverse propensity scoring is unbiased under them.

    Raises `InputError` for a negative eta or numbers that are no probabilities, `UnknownNameError` for another curve.
    """

    eta: float = 1.0
    curve: Curve | tuple[float, ...] = "power"
    attraction: Attraction = USUAL
    name = "pbm"

    def chances_K(self, places: int) -> tuple[FloatArray, FloatArray]:
        """1 and 0."""
        return np.ones(places), np.zeros(places)


@dataclass(frozen=True, repr=False)
class TrustBias(PlaceUsers):
    """Looks as `PositionBased` does, and takes a high place for a reason to click what does not please.

    Attraction is the probability that a candidate pleases once it is looked at; then it is clicked with probability
    `right`, and otherwise with `wrong`, each a number a place. As one number `right` holds for all places, while
    `wrong` is that of the first and w_i = wrong / i (defaults and this form are ours). Its propensities are e_i: what
    a log of lookings would hold, and not enough. Inverse propensity scoring is biased; see `affine_credit`.

    Raises `InputError` as `PositionBased` does, and where `wrong` is not below `right`.
    """

    eta: float = 1.0
    curve: Curve | tuple[float, ...] = "power"
    right: ByPlace = 0.98
    wrong: ByPlace = 0.65
    attraction: Attraction = USUAL
    name = "trust"

    def __post_init__(self) -> None:
        """Check the two chances of a click too."""
        super().__post_init__()
        for field in ("right", "wrong"):
            object.__setattr__(self, field, probabilities(field, getattr(self, field)))
        places = min((len(value) for value in (self.right, self.wrong) if isinstance(value, tuple)), default=1)
        right_K, wrong_K = self.chances_K(places)
        for place in np.flatnonzero(wrong_K >= right_K)[:1]:
            raise InputError(
                f"at place {place + 1} wrong is {float(wrong_K[place])} and right {float(right_K[place])}; give "
                "less for wrong than for right, or clicks say nothing"
            )

    def chances_K(self, places: int) -> tuple[FloatArray, FloatArray]:
        """`right` and `wrong` of each place."""
        wrong_K = by_place("wrong", self.wrong, places)
        if not isinstance(self.wrong, tuple):
            wrong_K /= np.arange(1, places + 1)
        return by_place("right", self.right, places), wrong_K
