"""A block of requests laid out for counting: candidates against the latest history, the asking user marked.

May import numpy, `rerank_env.data`, `rerank_env.rewards` and `pairs`. Suffixes: `_B` requests, `_K` candidates, `_A`
history entries by age (0 is the latest), `_M` the real (request, candidate, entry) triples, `_W` the real (request,
candidate, other candidate) triples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerank_env.agents.evidence.pairs import Takers
from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray

LATEST = 50
"""How many history entries are read, the latest ones: what the published sequence models read, too."""

Triples = tuple[IntArray, IntArray, IntArray]


@dataclass(frozen=True, eq=False)
class Grid:
    """`items_BK` and `recent_BA` item numbers, -1 where there is none; `scores_BK` of the earlier stage.

    `place_BK` and `place_BA` say at which place the asking user took the item in the counted log, -1 where never.
    `owners_B` is -1 for a user who is not in that log.
    """

    items_BK: IntArray
    scores_BK: FloatArray
    recent_BA: IntArray
    owners_B: IntArray
    place_BK: IntArray
    place_BA: IntArray

    @classmethod
    def of(cls, requests: Requests, rows: slice, takers: Takers) -> Grid:
        """Lay out the requests in `rows`."""
        items_BK, history_BH = requests.candidates_BK[rows], requests.history_BH[rows]
        lengths_B = (history_BH != PAD).sum(axis=1)
        from_BA = lengths_B[:, None] - 1 - np.arange(LATEST)  # always as wide, so that sums round alike in any block
        if history_BH.shape[1]:
            recent_BA = np.where(from_BA >= 0, np.take_along_axis(history_BH, np.maximum(from_BA, 0), axis=1), PAD)
        else:
            recent_BA = np.full(from_BA.shape, PAD, dtype=np.int64)
        owners_B = takers.owners(requests.users_B[rows])
        places = [
            np.where(items != PAD, takers.places(np.broadcast_to(owners_B[:, None], items.shape), items), -1)
            for items in (items_BK, recent_BA)
        ]
        scores_BK = requests.scores_BK[rows].astype(np.float64)
        return cls(items_BK, scores_BK, recent_BA, owners_B, places[0], places[1])

    @cached_property
    def real_BK(self) -> BoolArray:
        """Which candidates there are."""
        return np.asarray(self.items_BK != PAD)

    @cached_property
    def real_BA(self) -> BoolArray:
        """Which history entries there are."""
        return np.asarray(self.recent_BA != PAD)

    @cached_property
    def sizes_B(self) -> IntArray:
        """How many candidates each request has."""
        return np.asarray(self.real_BK.sum(axis=1))

    @cached_property
    def against_history(self) -> Triples:
        """The real triples: request, candidate and age of the history entry, each [M]."""
        return np.nonzero(self.real_BK[:, :, None] & self.real_BA[:, None, :])  # type: ignore[return-value]

    @cached_property
    def against_peers(self) -> Triples:
        """The real triples: request, candidate and another candidate of the same list, each [W]."""
        apart_KK = ~np.eye(self.items_BK.shape[1], dtype=bool)
        return np.nonzero(self.real_BK[:, :, None] & self.real_BK[:, None, :] & apart_KK)  # type: ignore[return-value]

    def over_history(self, values_M: npt.NDArray[np.generic]) -> FloatArray:
        """Values of `against_history` in their places, float64 [B, K, A]; 0 elsewhere."""
        spread_BKA = np.zeros((*self.items_BK.shape, self.recent_BA.shape[1]))
        spread_BKA[self.against_history] = values_M
        return spread_BKA

    def summed_over_peers(self, values_W: npt.NDArray[np.generic]) -> FloatArray:
        """Values of `against_peers` summed over the other candidates, float64 [B, K]."""
        spread_BKK = np.zeros((*self.items_BK.shape, self.items_BK.shape[1]))
        spread_BKK[self.against_peers] = values_W
        return np.asarray(spread_BKK.sum(axis=2))

    def highest(self, values_BKA: FloatArray) -> FloatArray:
        """The highest value over the real history entries, [B, K]; 0 where the history is empty."""
        highest_BK = np.where(self.real_BA[:, None, :], values_BKA, -np.inf).max(axis=2)
        return np.where(np.isfinite(highest_BK), highest_BK, 0.0)

    @staticmethod
    def gaps(earlier_M: IntArray, later_M: IntArray) -> IntArray:
        """By how many places the asking user took one item before the other; 0 where one was never taken."""
        return np.where((earlier_M >= 0) & (later_M >= 0), later_M - earlier_M, 0)
