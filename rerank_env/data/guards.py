"""Can the relevant candidate be told by its number? A guard against numbering that knows the answers.

Data sets number items by first appearance, by popularity or by shelf; who reads such numbers, or breaks a tie by them,
profits from what no user meant. Readers permute numbers on load; this measures whether that worked, on any requests.
Ours. May import numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_B` requests, `_K` candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray

DEVIATIONS = 4.0
"""Standard deviations beyond which chance is ruled out."""

RENUMBERINGS = 100
"""How often the items are renumbered at random to see what chance does."""

MOST_REQUESTS = 5000
"""Requests that are looked at; of more, so many are drawn."""


@dataclass(frozen=True)
class NumberingLeak:
    """How well one reading of the numbers tells relevant from irrelevant candidates.

    `auc` is the probability that a relevant candidate scores above an irrelevant one of its request, ties half: 0.5 is
    chance. `error` is the standard deviation of that over random numberings of the same items, so that items which are
    relevant again and again, and copies of one request, do not pass for evidence.
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


def numbering_leaks(requests: Requests, *, seed: int = 0) -> list[NumberingLeak]:
    """What the item numbers tell, read in three ways: as they are, by nearness to the last item, and as its successor.

    Requests without a relevant and an irrelevant candidate say nothing, nor do the last two readings without a
    history. Without any request to judge by the list is empty. `seed` draws requests, where there are more than
    `MOST_REQUESTS`, and the numberings.
    """
    real_BK = requests.candidates_BK != PAD
    relevant_BK = real_BK & (requests.relevance_BK > 0)
    pairs_B = relevant_BK.sum(axis=1) * (real_BK & ~relevant_BK).sum(axis=1)
    rng = np.random.default_rng(seed)
    usable = rng.permutation(np.flatnonzero(pairs_B))[:MOST_REQUESTS]
    if not len(usable):
        return []
    history_BH = requests.history_BH[usable]
    lengths_B = (history_BH != PAD).sum(axis=1)
    last_B = np.where(lengths_B > 0, history_BH[np.arange(len(usable)), np.maximum(lengths_B - 1, 0)], PAD)
    asked = requests.candidates_BK[usable], last_B, relevant_BK[usable], real_BK[usable]
    items = len(requests.catalog)
    found = _areas(np.arange(items), *asked)
    by_chance = [_areas(rng.permutation(items), *asked) for _ in range(RENUMBERINGS)]
    return [
        NumberingLeak(reading, found[reading], float(np.std([areas[reading] for areas in by_chance])))
        for reading in found
    ]


def _areas(
    number_I: IntArray, candidates_BK: IntArray, last_B: IntArray, relevant_BK: BoolArray, real_BK: BoolArray
) -> dict[str, float]:
    """The mean AUC of each reading where item i has number `number_I[i]`."""
    numbers_BK = number_I[candidates_BK].astype(np.float64)
    distance_BK = np.where(last_B[:, None] != PAD, numbers_BK - number_I[last_B][:, None], 0.0)
    readings = {
        "the number itself": numbers_BK,
        "nearness to the number of the last item": -np.abs(distance_BK),
        "being the number after the last item's": (distance_BK == 1).astype(np.float64),
    }
    relevant_B, sizes_B = relevant_BK.sum(axis=1), real_BK.sum(axis=1)
    areas = {}
    for reading, values_BK in readings.items():
        wins_B = (_below(values_BK, real_BK) * relevant_BK).sum(axis=1) - relevant_B * (relevant_B - 1) / 2
        areas[reading] = float((wins_B / (relevant_B * (sizes_B - relevant_B))).mean())
    return areas


def _below(values_BK: FloatArray, real_BK: BoolArray) -> FloatArray:
    """How many candidates of its request each one is above, ties half; 0 where padded."""
    above_BK = np.zeros(values_BK.shape)
    for place in range(values_BK.shape[1]):
        other_B1 = values_BK[:, place : place + 1]
        wins_BK = (values_BK > other_B1) + 0.5 * (values_BK == other_B1)
        above_BK += wins_BK * real_BK[:, place : place + 1]
    return np.where(real_BK, above_BK - 0.5, 0.0)  # it is not above itself
