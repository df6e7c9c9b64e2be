"""Which code may come next: the codes of items as a tree of prefixes, in sorted arrays.

May import numpy and `rerank_env.rewards`. The rows of codes are sorted, so that everything under a prefix is one slice
of them, and every level keeps where its distinct prefixes begin; a step down is one binary search among at most as many
codes as the level has. Suffixes: `_I` items, `_L` levels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError


class PrefixTrie:
    """The codes of some items, asked by prefix; never changed once built.

    `codes_IL` are the codes of a whole catalogue, and `items` which of them the trie holds (default: all), each once.
    No items at all are a trie in which nothing may follow. Raises `InputError` for codes that are no table and for
    items that do not exist or are given twice.
    """

    def __init__(self, codes_IL: npt.ArrayLike, items: npt.ArrayLike | None = None) -> None:
        codes_IL = np.asarray(codes_IL, dtype=np.int64)
        if codes_IL.ndim != 2 or not codes_IL.shape[1]:
            raise InputError(f"codes have shape {codes_IL.shape}; give one row an item and one column a level")
        chosen = np.arange(len(codes_IL)) if items is None else _as_items(items, len(codes_IL))
        rows = codes_IL[chosen]
        order = np.lexsort((chosen, *rows.T[::-1]))
        rows = rows[order]
        self._items = chosen[order]
        self._codes: list[IntArray] = []
        self._starts: list[IntArray] = []
        begins = np.zeros(len(rows), dtype=bool)
        begins[:1] = True
        for level in range(rows.shape[1]):
            begins[1:] |= rows[1:, level] != rows[:-1, level]
            starts = np.flatnonzero(begins)
            self._codes.append(rows[starts, level])
            self._starts.append(np.append(starts, len(rows)))
        for array in (self._items, *self._codes, *self._starts):
            array.setflags(write=False)

    def __len__(self) -> int:
        """How many items."""
        return len(self._items)

    @property
    def levels(self) -> int:
        """How many codes an item has."""
        return len(self._codes)

    def allowed(self, prefix: Sequence[int] = ()) -> IntArray:
        """The codes that may follow `prefix`, sorted, each once; none where no item begins so or the ID is complete."""
        if len(prefix) >= self.levels:
            return np.empty(0, dtype=np.int64)
        first, last = self._nodes(len(prefix), *self._rows(prefix))
        return self._codes[len(prefix)][first:last]

    def items(self, prefix: Sequence[int] = ()) -> IntArray:
        """The items whose codes begin with `prefix`; those with equal codes in rising order."""
        if len(prefix) > self.levels:
            return np.empty(0, dtype=np.int64)
        low, high = self._rows(prefix)
        return self._items[low:high]

    def _rows(self, prefix: Sequence[int]) -> tuple[int, int]:
        """The slice of sorted rows under `prefix`, an empty one where there is none."""
        low, high = 0, len(self._items)
        for level, code in enumerate(prefix):
            first, last = self._nodes(level, low, high)
            node = first + int(np.searchsorted(self._codes[level][first:last], code))
            if node == last or self._codes[level][node] != code:
                return 0, 0
            low, high = int(self._starts[level][node]), int(self._starts[level][node + 1])
        return low, high

    def _nodes(self, level: int, low: int, high: int) -> tuple[int, int]:
        """The slice of a level's distinct prefixes that begin in the rows from `low` to below `high`."""
        first, last = np.searchsorted(self._starts[level][:-1], (low, high))
        return int(first), int(last)


def _as_items(items: npt.ArrayLike, count: int) -> IntArray:
    chosen = np.asarray(items)
    if chosen.size == 0:
        return np.empty(0, dtype=np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InputError(f"items have shape {chosen.shape} and dtype {chosen.dtype}; give a row of item numbers")
    if chosen.min() < 0 or chosen.max() >= count:
        raise InputError(f"items range from {chosen.min()} to {chosen.max()} but the catalogue has 0..{count - 1}")
    if len(np.unique(chosen)) < len(chosen):
        raise InputError("items hold one item twice; give each once")
    return chosen.astype(np.int64)
