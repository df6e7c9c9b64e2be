"""Who took what, and how often two items were taken by one user: counts from which any user can be left out.

A re-ranker that is fitted on training lists must not see a user's own purchases in the counts: there the item asked
for has a count more than at test time, and the count gives the answer away. So every count here can be asked for as
if the asking user had never been in the log. Counts are whole numbers, so what is taken off comes off exactly.

May import numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_N` rows of the log, `_U` users, `_I` items,
`_P` distinct pairs, `_M` pairs that are asked about, `_G` classes of gaps (`GAPS`). Source: ours; item-to-item counts
after Linden, Smith and York (2003).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arrays import BoolArray, IntArray

GAPS = (1, 3, 50)
"""The classes of gaps, by the widest of each: the very next item, the two after it, and what follows within 50."""

PENDING = 4_000_000
"""Counts that are gathered before they are merged: bounds the memory of fitting beyond the distinct pairs."""


@dataclass(frozen=True, eq=False)
class Takers:
    """Which user took which item at which place, each item once a user, and how many users took each item.

    `users_U` the numbers of the users, ascending; `keys_N` ascending, index of the user x items + item; `places_N` the
    place of that item in the user's sequence; `counts_I` how many users took the item.
    """

    users_U: IntArray
    keys_N: IntArray
    places_N: IntArray
    counts_I: IntArray

    @classmethod
    def fit(cls, log: Interactions, seen_N: BoolArray) -> tuple[Takers, PairCounts]:
        """Count the rows of `log` where `seen_N` is true, and no others.

        Rows of a user are read in the order of the log; an item that a user took again counts at its first place.
        Raises `InputError` where `seen_N` is no mask of the rows.
        """
        log.check_mask("seen_N", seen_N)
        order_N = np.flatnonzero(seen_N)
        order_N = order_N[np.argsort(log.users_N[order_N], kind="stable")]
        users_U, owner_N = np.unique(log.users_N[order_N], return_inverse=True)
        _, first_N = np.unique(owner_N * log.item_count + log.items_N[order_N], return_index=True)
        kept_N = np.sort(first_N)
        owner_N, items_N = owner_N[kept_N], log.items_N[order_N][kept_N]
        lengths_U = np.bincount(owner_N, minlength=len(users_U))
        places_N = np.arange(len(owner_N)) - np.repeat(np.cumsum(lengths_U) - lengths_U, lengths_U)
        keys_N = owner_N * log.item_count + items_N
        sorted_N = np.argsort(keys_N)
        counts_I = np.bincount(items_N, minlength=log.item_count)
        return cls(users_U, keys_N[sorted_N], places_N[sorted_N], counts_I), _count(owner_N, items_N, log.item_count)

    def owners(self, users_M: IntArray) -> IntArray:
        """The index in `users_U` of each user, -1 for one that is not in the log."""
        return _looked_up(self.users_U, users_M)

    def places(self, owners_M: IntArray, items_M: IntArray) -> IntArray:
        """The place at which each owner took each item, -1 where the owner did not or is nobody."""
        index_M = _looked_up(self.keys_N, owners_M * len(self.counts_I) + items_M)
        taken_M = (index_M >= 0) & (owners_M >= 0)
        return np.where(taken_M, self.places_N[index_M] if len(self.places_N) else -1, -1)


@dataclass(frozen=True, eq=False)
class PairCounts:
    """For pairs of items in the order they were taken, how many users did, by the gap between the two places.

    `keys_P` ascending, earlier item x items + later item; `counts_PG` [P, G], by `GAPS`.
    """

    keys_P: IntArray
    counts_PG: IntArray
    item_count: int

    def between(self, earlier_M: IntArray, later_M: IntArray, gaps_M: IntArray) -> IntArray:
        """How many users took the first item of each pair and then the second, int64 [M, G].

        `gaps_M` is the gap at which the asking user did so, which is left out; 0 or less where that never was.
        """
        index_M = _looked_up(self.keys_P, earlier_M * self.item_count + later_M)
        counts_MG = np.zeros((len(index_M), len(GAPS)), dtype=np.int64)
        known_M = index_M >= 0
        counts_MG[known_M] = self.counts_PG[index_M[known_M]]
        own_M = np.flatnonzero((gaps_M >= 1) & (gaps_M <= GAPS[-1]))
        counts_MG[own_M, np.searchsorted(GAPS, gaps_M[own_M])] -= 1
        return counts_MG


def _count(owner_N: IntArray, items_N: IntArray, item_count: int) -> PairCounts:
    """Count all pairs within the widest gap, gap by gap; `owner_N` ascending, items in order."""
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros((0, len(GAPS)), dtype=np.int64)
    waiting: list[tuple[IntArray, IntArray]] = []
    for gap in range(1, GAPS[-1] + 1):
        same_N = owner_N[gap:] == owner_N[:-gap]
        if not same_N.any():
            break
        pairs_N = items_N[:-gap][same_N] * item_count + items_N[gap:][same_N]
        found_P, times_P = np.unique(pairs_N, return_counts=True)
        wide_PG = np.zeros((len(found_P), len(GAPS)), dtype=np.int64)
        wide_PG[:, np.searchsorted(GAPS, gap)] = times_P
        waiting.append((found_P, wide_PG))
        if sum(len(found) for found, _ in waiting) > PENDING:
            keys, counts = _merged([(keys, counts), *waiting])
            waiting = []
    keys, counts = _merged([(keys, counts), *waiting])
    return PairCounts(keys, counts, item_count)


def _merged(parts: list[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    """One ascending table out of several: equal keys are added up."""
    keys, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.add.reduceat(counts, starts, axis=0) if len(starts) else counts


def _looked_up(known: IntArray, asked: IntArray) -> IntArray:
    """The index of each asked number in ascending `known`, -1 where it is not there."""
    if not len(known):
        return np.full(asked.shape, -1, dtype=np.int64)
    index = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return np.where(known[index] == asked, index, -1)
