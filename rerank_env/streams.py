"""Which request comes next and how ties break: drawn from a stream that depends on nothing else, or asked for by row.

May import numpy and `rerank_env.rewards`. Suffixes: `_B` environments, `_E` some of them, `_K` candidate places.

Every environment holds a 64-bit key, drawn when it is seeded, and counts its episodes; episode t reads the t-th output
of the SplitMix64 generator started at the key (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators"), and the upper 32 bits of it, times the number of requests, over 2**32 are the row: uniform up to a bias
below (number of requests) / 2**32. Random tie-breaks continue from the same output. No environment's draws depend on
any other's, nor on the actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError

UIntArray = npt.NDArray[np.uint64]

OPTIONS = ("request",)
"""The keys that `reset(options=...)` knows."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


class Streams:
    """n streams: `keys_B` says which, `turns_B` how many episodes have begun on each."""

    def __init__(self, n: int) -> None:
        """All start at key 0."""
        self.keys_B: UIntArray = np.zeros(n, dtype=np.uint64)
        self.turns_B: UIntArray = np.zeros(n, dtype=np.uint64)

    def reseed(self, which_E: Sequence[int], keys_E: Sequence[np.uint64]) -> None:
        """Give `which_E` new keys and start their counts again."""
        self.keys_B[which_E] = keys_E
        self.turns_B[which_E] = 0

    def next_rows(self, which_E: IntArray, count: int) -> IntArray:
        """Count the next episode of `which_E` and draw its row [E] of `count` requests."""
        self.skip(which_E)
        upper_E = self._outputs(which_E) >> _HALF
        return ((upper_E * np.uint64(count)) >> _HALF).astype(np.int64)

    def skip(self, which_E: IntArray) -> None:
        """Count the next episode of `which_E` without drawing, because its request is chosen."""
        self.turns_B[which_E] += _ONE

    def tiebreaks(self, width: int) -> UIntArray:
        """Random numbers [B, K] of the episodes that are running."""
        places_K = np.arange(1, width + 1, dtype=np.uint64)
        return scrambled(self._outputs(slice(None))[:, None] + places_K * _GOLDEN)

    def _outputs(self, which_E: IntArray | slice) -> UIntArray:
        """The 64-bit number of each running episode."""
        return scrambled(self.keys_B[which_E] + self.turns_B[which_E] * _GOLDEN)


def scrambled(counter: UIntArray) -> UIntArray:
    """SplitMix64's output function: a bijection of 64-bit numbers that looks random; any shape."""
    x = (counter ^ (counter >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def drawn_key(rng: np.random.Generator) -> np.uint64:
    """The key of an environment's stream."""
    return rng.integers(0, np.iinfo(np.uint64).max, dtype=np.uint64, endpoint=True)


def requested_rows(
    options: Mapping[str, Any] | None, count: int, *, shapes: tuple[tuple[int, ...], ...]
) -> IntArray | None:
    """The rows that `options` ask for, or None; of one of `shapes`, whole and in 0..count-1, else `InputError`."""
    for key in options or {}:
        one_of("reset option", key, OPTIONS)
    given = (options or {}).get("request")
    if given is None:
        return None
    try:
        rows = np.asarray(given)
    except ValueError:  # lists of different lengths
        rows = np.asarray(None)
    if rows.dtype.kind not in "iu" or rows.shape not in shapes:
        expected = " or ".join("one row number" if not shape else f"{shape[0]} row numbers" for shape in shapes)
        raise InputError(f"options['request'] is {given!r} but {expected} was expected; rows are 0..{count - 1}")
    wrong = rows.reshape(-1)[(rows.reshape(-1) < 0) | (rows.reshape(-1) >= count)]
    if len(wrong):
        raise InputError(f"options['request'] asks for row {int(wrong[0])}; the data has rows 0..{count - 1}")
    return rows.astype(np.int64)
