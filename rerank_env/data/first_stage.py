"""The stage before re-ranking: point-wise scores that put the candidates into their incoming order.

Everything here is fitted on training interactions only, and each of them is scored by the interactions of other users
alone (cross-fitting by users): otherwise the incoming order of training requests would know the answers, and a policy
would learn to trust it more than it deserves. Leaving out the one interaction that is asked for is not enough, because
what is left out can be read off by comparing requests. May import numpy and `rerank_env.data`. Suffixes: `_J` folds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray

SHRINKAGE = 5.0
"""How many average ratings an item's mean is pulled by: a round number, not tuned."""

FOLDS = 10
"""Parts of the users, each scored by the other nine; fewer where there are fewer users."""

_NOWHERE = -1


@dataclass(frozen=True, eq=False)
class ItemStatistics:
    """Sums over training interactions: `deviation_I` of rating minus `mean`, and `count_I`; and those of each fold.

    `fold_N` is the fold of each interaction's user, -1 where it was not trained on; `deviation_JI` and `count_JI` are
    the contributions of the folds.
    """

    mean: float
    deviation_I: FloatArray
    count_I: FloatArray
    fold_N: IntArray
    deviation_JI: FloatArray
    count_JI: FloatArray

    @classmethod
    def fit(cls, log: Interactions, seen_N: BoolArray) -> ItemStatistics:
        """Sum over the interactions where `seen_N` is true (at least one); which user is in which fold is fixed."""
        users, number_N = np.unique(log.users_N, return_inverse=True)
        folds = min(FOLDS, len(users))
        dealt_U = np.random.default_rng(len(users)).permutation(np.arange(len(users)) % folds)
        fold_N: IntArray = np.where(seen_N, dealt_U[number_N], _NOWHERE)
        mean = float(log.ratings_N[seen_N].mean())
        cell_S = fold_N[seen_N] * log.item_count + log.items_N[seen_N]
        shape, cells = (folds, log.item_count), folds * log.item_count
        summed = np.bincount(cell_S, weights=log.ratings_N[seen_N] - mean, minlength=cells)
        count_JI = np.bincount(cell_S, minlength=cells).astype(np.float64).reshape(shape)
        deviation_JI = summed.astype(np.float64).reshape(shape)
        return cls(mean, deviation_JI.sum(axis=0), count_JI.sum(axis=0), fold_N, deviation_JI, count_JI)

    def item_mean_I(self) -> FloatArray:
        """Shrunken mean deviation of every item: sum / (count + SHRINKAGE); 0 for an item never seen."""
        return self.deviation_I / (self.count_I + SHRINKAGE)

    def item_mean_of(self, log: Interactions, rows: IntArray) -> FloatArray:
        """The same for the items at `rows` of the log, without what the folds of their users contributed."""
        items, fold = log.items_N[rows], self.fold_N[rows]
        own = fold != _NOWHERE
        deviation = self.deviation_I[items] - np.where(own, self.deviation_JI[fold, items], 0.0)
        return deviation / (self.count_I[items] - np.where(own, self.count_JI[fold, items], 0.0) + SHRINKAGE)

    def counts_for(self, row: int) -> FloatArray:
        """How often training holds each item, [I], without the fold of the user of a row of the log; a copy."""
        fold = self.fold_N[row]
        return self.count_I - self.count_JI[fold] if fold != _NOWHERE else self.count_I.copy()
