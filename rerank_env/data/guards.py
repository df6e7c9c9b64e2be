"""Can the relevant candidate be told by its number? A guard against numbering that knows the answers.

Data sets number items by first appearance, by popularity or by shelf; who reads such numbers, or breaks a tie by them,
profits from what no user meant. Readers permute numbers on load; this measures whether that worked, on any requests.
Ours. May import numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_B` requests, `_K` candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray

DEVIATIONS = 4.0
"""Standard deviations beyond which chance is ruled out: by chance once in 16,000 looks."""


@dataclass(frozen=True)
class NumberingLeak:
    """How well one reading of the numbers tells relevant from irrelevant candidates.

    `auc` is the probability that a relevant candidate scores above an irrelevant one of its request, ties half: 0.5 is
    chance. `error` is the standard deviation of that if numbers said nothing: exact, from drawing the relevant ones of
    every request at random.
    """

    reading: str
    auc: float
    error: float

    def __str__(self) -> str:
        chance = f"by chance 0.5 +- {self.error:.4f}"
        return f"{self.reading} tells relevant candidates from others (AUC {self.auc:.4f}, {chance})"

    @property
    def leaks(self) -> bool:
        """Whether chance cannot explain it."""
        return abs(self.auc - 0.5) > DEVIATIONS * self.error


def numbering_leaks(requests: Requests) -> list[NumberingLeak]:
    """What the item numbers tell, read in three ways: as they are, by nearness to the last item, and as its successor.

    Requests without a relevant and an irrelevant candidate say nothing, nor do the last two readings without a
    history. Without any request to judge by the list is empty.
    """
    numbers_BK = requests.candidates_BK.astype(np.float64)
    real_BK = requests.candidates_BK != PAD
    relevant_BK = real_BK & (requests.relevance_BK > 0)
    lengths_B = (requests.history_BH != PAD).sum(axis=1)
    last_B = requests.history_BH[np.arange(len(requests)), np.maximum(lengths_B - 1, 0)].astype(np.float64)
    distance_BK = np.where(lengths_B[:, None] > 0, numbers_BK - last_B[:, None], 0.0)
    readings = {
        "the number itself": numbers_BK,
        "nearness to the number of the last item": -np.abs(distance_BK),
        "being the number after the last item's": (distance_BK == 1).astype(np.float64),
    }
    sizes_B, relevant_B = real_BK.sum(axis=1), relevant_BK.sum(axis=1)
    pairs_B = relevant_B * (sizes_B - relevant_B)
    usable_B = pairs_B > 0
    found = []
    for reading, values_BK in readings.items():
        above_BK = _below(values_BK, real_BK)[usable_B]
        relevant, sizes, pairs = relevant_B[usable_B], sizes_B[usable_B], pairs_B[usable_B]
        if not len(pairs):
            break
        wins_B = (above_BK * relevant_BK[usable_B]).sum(axis=1) - relevant * (relevant - 1) / 2
        # By chance the relevant are drawn from the candidates without replacement; this is the variance of such a sum.
        mean_B = above_BK.sum(axis=1) / sizes
        spread_B = ((above_BK - mean_B[:, None]) ** 2 * real_BK[usable_B]).sum(axis=1) / (sizes - 1)
        error_B = np.sqrt(spread_B * relevant * (1 - relevant / sizes)) / pairs
        found.append(
            NumberingLeak(reading, float((wins_B / pairs).mean()), float(np.sqrt((error_B**2).sum()) / len(pairs)))
        )
    return found


def _below(values_BK: FloatArray, real_BK: BoolArray) -> FloatArray:
    """How many candidates of its request each one is above, ties half; 0 where padded."""
    above_BK = np.zeros(values_BK.shape)
    for place in range(values_BK.shape[1]):
        other_B1 = values_BK[:, place : place + 1]
        wins_BK = (values_BK > other_B1) + 0.5 * (values_BK == other_B1)
        above_BK += wins_BK * real_BK[:, place : place + 1]
    return np.where(real_BK, above_BK - 0.5, 0.0)  # it is not above itself
