"""Users who go down the list until they have had enough: the cascade model and its relatives.

The user looks at the first place. What is looked at is clicked with its attraction g; after a click the user goes on
with probability l_i, after none with s_i, else never looks again. So, exactly,

    P(look at 1) = 1,    P(look at i + 1) = P(look at i) (g_i l_i + (1 - g_i) s_i)

since whether place i is looked at depends on what stands above it only. May import numpy and `rerank_env`'s data and
rewards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rerank_env.clicks.attraction import USUAL, Attraction
from rerank_env.clicks.models import ByPlace, ListUsers, by_place, probabilities
from rerank_env.rewards.arrays import BoolArray, FloatArray


@dataclass(frozen=True, repr=False)
class Cascade(ListUsers):
    """Goes on with probability `after_click` after a click, `after_skip` after none, each a number or one a place.

    0 and 1: the cascade model, whose sessions end with the first click (Craswell et al. 2008, section 2.4).
    `after_click` above 0: the dependent click model (Guo et al. 2009). `after_skip` below 1: patience runs out, as in
    the perseverance of Chapelle and Zhang 2009.

    Its propensities are P(look at i) given the whole list: they depend on the attraction of what stands above, which
    a real log knows by estimate only. Under them inverse propensity scoring is unbiased, though clicks of one list are
    not independent. Under a mean by place, which is what a position-based model fitted to such a log has, it is biased.

    Raises `InputError` for numbers that are no probabilities, or a tuple that is shorter than a list.
    """

    after_click: ByPlace = 0.0
    after_skip: ByPlace = 1.0
    attraction: Attraction = USUAL
    name = "cascade"
    uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the chances of going on."""
        object.__setattr__(self, "after_click", probabilities("after_click", self.after_click))
        object.__setattr__(self, "after_skip", probabilities("after_skip", self.after_skip))
        super().__post_init__()

    def _onward(self, places: int) -> tuple[FloatArray, FloatArray]:
        """l_i and s_i of the first `places`."""
        return by_place("after_click", self.after_click, places), by_place("after_skip", self.after_skip, places)

    def looked_at(self, attraction_BK: FloatArray) -> FloatArray:
        """The recursion above."""
        clicked_K, skipped_K = self._onward(attraction_BK.shape[1])
        seen_BK = np.ones_like(attraction_BK)
        onward_BK = attraction_BK * clicked_K + (1.0 - attraction_BK) * skipped_K
        np.cumprod(np.minimum(onward_BK[:, :-1], 1.0), axis=1, out=seen_BK[:, 1:])
        return seen_BK

    def clicked_if_seen(self, attraction_BK: FloatArray) -> FloatArray:
        """The attraction."""
        return attraction_BK

    def drawn(self, attraction_BK: FloatArray, uniforms_BKU: FloatArray) -> BoolArray:
        """Down the list, all requests at once: one uniform number for the click, one for going on."""
        clicks_BK = uniforms_BKU[:, :, 0] < attraction_BK
        looks_B = np.ones(len(attraction_BK), dtype=np.bool_)
        for place, (clicked, skipped) in enumerate(zip(*self._onward(attraction_BK.shape[1]), strict=True)):
            click_B = clicks_BK[:, place]
            click_B &= looks_B
            looks_B &= uniforms_BKU[:, place, 1] < np.where(click_B, clicked, skipped)
        return clicks_BK

    def log_likelihood(self, attraction_BK: FloatArray, clicks_BK: BoolArray, real_BK: BoolArray) -> FloatArray:
        """Down the list with the probabilities of still looking and of having left, given the clicks so far."""
        found_B = np.zeros(len(attraction_BK))
        looks_B, left_B = np.ones(len(attraction_BK)), np.zeros(len(attraction_BK))
        for place, (clicked, skipped) in enumerate(zip(*self._onward(attraction_BK.shape[1]), strict=True)):
            click_B, attraction_B = clicks_BK[:, place], attraction_BK[:, place]
            here_B = looks_B * np.where(click_B, attraction_B, 1.0 - attraction_B)
            on_B = np.where(click_B, clicked, skipped)
            left_B = np.where(click_B, 0.0, left_B) + here_B * (1.0 - on_B)
            looks_B = here_B * on_B
            total_B = looks_B + left_B
            possible_B = total_B > 0.0
            found_B += np.where(real_BK[:, place], np.log(total_B), 0.0)
            looks_B = np.divide(looks_B, total_B, out=np.zeros_like(looks_B), where=possible_B)
            left_B = np.divide(left_B, total_B, out=np.zeros_like(left_B), where=possible_B)
        return found_B
