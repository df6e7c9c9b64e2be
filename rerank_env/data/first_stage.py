"""The stage before re-ranking: point-wise scores that put the candidates into their incoming order.

Everything here is fitted on training interactions only, and each of them is scored as if it alone had not been seen
(leave-one-out; the rest of its user's stay in): otherwise the incoming order of training requests would know the
answers, and a policy would learn to trust it more than it deserves. May import numpy and `rerank_env.data`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray

SHRINKAGE = 5.0
"""How many average ratings an item's mean is pulled by: a round number, not tuned."""


@dataclass(frozen=True, eq=False)
class ItemStatistics:
    """Sums over training interactions: `deviation_I` of rating minus `mean`, `count_I`; and each one's own share.

    `own_deviation_N` and `own_count_N` are the interaction's own contribution (0 where it was not trained on).
    """

    mean: float
    deviation_I: FloatArray
    count_I: FloatArray
    own_deviation_N: FloatArray
    own_count_N: FloatArray

    @classmethod
    def fit(cls, log: Interactions, seen_N: BoolArray) -> ItemStatistics:
        """Sum over the interactions where `seen_N` is true (at least one)."""
        mean = float(log.ratings_N[seen_N].mean())
        own_count = seen_N.astype(np.float64)
        own_deviation = (log.ratings_N - mean) * own_count
        return cls(
            mean=mean,
            deviation_I=np.bincount(log.items_N, weights=own_deviation, minlength=log.item_count).astype(np.float64),
            count_I=log.counts_I(seen_N),
            own_deviation_N=own_deviation,
            own_count_N=own_count,
        )

    def item_mean_I(self) -> FloatArray:
        """Shrunken mean deviation of every item: sum / (count + SHRINKAGE); 0 for an item never seen."""
        return self.deviation_I / (self.count_I + SHRINKAGE)

    def item_mean_of(self, log: Interactions, rows: IntArray) -> FloatArray:
        """The same for the items at `rows` of the log, without those interactions' own contribution."""
        items = log.items_N[rows]
        deviation = self.deviation_I[items] - self.own_deviation_N[rows]
        return deviation / (self.count_I[items] - self.own_count_N[rows] + SHRINKAGE)
