"""Random numbers that depend on a seed, a row and a try, and on nothing else: not on batches, processes or restarts.

May import numpy and `rerank_env.streams`. Suffixes: `_B` requests, `_K` candidates. The numbers are those of SplitMix64
(see `rerank_env.streams`), keyed by seed, purpose, row and try, one after the other.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.rankings import padded
from rerank_env.streams import UIntArray, scrambled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MANTISSA = np.uint64(11)
_SEED_BITS = np.uint64(33)


class Purpose(IntEnum):
    """What a number is drawn for, so that no two things share one."""

    ORDER = 1
    """The order in which candidates are shown."""
    TARGET = 2
    """Which of several best candidates is the target."""
    TAIL = 3
    """The order of what follows the target where the teacher gave none."""
    ANSWER = 4
    """The teacher's answer."""
    NOISE = 5
    """The noise on the scores of a rule."""


def keys(seed: int, purpose: Purpose, rows_B: npt.ArrayLike, tries: int = 0) -> UIntArray:
    """A 64-bit number for each row, [B]. Raises `InputError` for a seed or a try below 0."""
    start = np.array([whole("seed", seed, least=0) % 2**64], dtype=np.uint64)
    start = scrambled(start + np.array([purpose], dtype=np.uint64) * _GOLDEN)
    key_B = scrambled(start + np.asarray(rows_B, dtype=np.int64).astype(np.uint64) * _GOLDEN)
    return scrambled(key_B + np.array([whole("tries", tries, least=0)], dtype=np.uint64) * _GOLDEN)


def seeds(seed: int, rows_B: npt.ArrayLike, tries: int) -> IntArray:
    """What to seed the teacher with for each row and try, int64 [B] in 0..2**31 - 1, which servers take."""
    return (keys(seed, Purpose.ANSWER, rows_B, tries) >> _SEED_BITS).astype(np.int64)


def uniform(key_B: UIntArray, width: int) -> FloatArray:
    """`width` numbers above 0 and below 1 for each key, float64 [B, width]."""
    places_K = np.arange(1, width + 1, dtype=np.uint64)
    bits_BK = scrambled(key_B[:, None] + places_K * _GOLDEN) >> _MANTISSA
    return np.asarray((bits_BK.astype(np.float64) + 0.5) / 2.0**53)


def orders(key_B: UIntArray, sizes_B: IntArray, width: int) -> IntArray:
    """A ranking for each key, every permutation equally likely up to ties of 53-bit keys, int64 [B, width]."""
    columns_K = np.arange(width)
    drawn_BK = np.where(columns_K < sizes_B[:, None], uniform(key_B, width), 1.0)
    return padded(np.argsort(drawn_BK, axis=1, kind="stable"), sizes_B)


def gumbel(key_B: UIntArray, width: int) -> FloatArray:
    """Noise of the standard Gumbel law for each key, float64 [B, width]; scores plus it sort as Plackett-Luce."""
    return np.asarray(-np.log(-np.log(uniform(key_B, width))))
