"""The levels of a feature: the shares of its training values that a value lies in, as small whole numbers.

May import numpy and `rerank_env.rewards`. Suffixes: `_N` values, `_V` distinct values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.arrays import FloatArray, IntArray

BITS = 13
"""Of a value's mantissa: four digits, far from float32's own rounding and far finer than levels."""

KNOWN_SHARE = 0.1
"""Where more than this share of the training candidates has exactly 0, that is said to be nothing: a round number."""


@dataclass(frozen=True)
class Scale:
    """`lowest` is the level of the lowest values; each of `edges` that a value reaches adds one.

    `edges` are finite and do not fall; levels between equal edges are skipped. Where `zero_is_nothing`, 0 has level 0.
    """

    lowest: int
    edges: tuple[float, ...]
    zero_is_nothing: bool

    @classmethod
    def fit(cls, values_N: FloatArray, levels: int) -> Scale:
        """The scale of so many levels from the values in training, at least one and finite.

        A value with b others below it and e that equal it, itself included, has level
        1 + floor(levels (b + e / 2) / N), which is never above `levels`. Where zeros are nothing, N leaves them out.
        """
        zero_is_nothing = bool((values_N == 0).mean() > KNOWN_SHARE)
        known_N = values_N[values_N != 0] if zero_is_nothing else values_N
        values_V, counts_V = np.unique(rounded(known_N), return_counts=True)
        middles_V = np.cumsum(counts_V) - counts_V / 2  # how many values lie below the middle of each run
        places = np.searchsorted(middles_V * levels, np.arange(1, levels) * len(known_N), side="left")
        inner = places[(places > 0) & (places < len(values_V))]
        edges = (values_V[inner - 1] + values_V[inner]) / 2
        return cls(1 + int((places == 0).sum()), tuple(edges.tolist()), zero_is_nothing)

    def levels(self, values: FloatArray) -> IntArray:
        """The level of each value, int64."""
        found = self.lowest + np.searchsorted(np.asarray(self.edges), rounded(values), side="right")
        return np.where(self.zero_is_nothing & (values == 0), 0, found).astype(np.int64)


def rounded(values: FloatArray) -> FloatArray:
    """The values with `BITS` bits of mantissa."""
    mantissas, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissas * 2**BITS), exponents - BITS), dtype=np.float64)
