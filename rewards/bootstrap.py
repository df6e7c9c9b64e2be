"""Percentile bootstrap over users, for the mean over requests of many columns at once.

May import numpy only. Requests of one user are not independent, so users are drawn, with
replacement, and every request of a drawn user comes along (the cluster bootstrap: Davison and Hinkley 1997, section
3.8). With s_u the sum of a column over the requests of user u and n_u their number, one resample is the ratio

    sum_u w_u s_u / sum_u w_u n_u,      w ~ Multinomial(U; 1/U, ..., 1/U)

All columns share the same resamples, so the difference of two columns' resampled means IS the resampled mean of their
paired difference. `scipy.stats.bootstrap` states the same ratio for one column (and is the reference in our tests);
this form does hundreds of columns in one matrix product. The ratio of two columns is resampled the same way.
Suffixes: `_B` requests, `_C` columns, `_R` resamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import InputError

RESAMPLES_AT_A_TIME = 256
"""Bounds the memory at 256 weights a user, whatever the number of resamples."""


@dataclass(frozen=True)
class Interval:
    """A value and its percentile interval; all nan where nothing is known."""

    value: float
    low: float
    high: float

    @property
    def is_gain(self) -> bool:
        """Whether the whole interval lies above zero: for a difference, whether a gain may be claimed."""
        return self.low > 0.0

    def to_dict(self) -> dict[str, float | None]:
        """JSON-ready: nan is None."""
        return {"value": known(self.value), "low": known(self.low), "high": known(self.high)}

    def __str__(self) -> str:
        """To four places."""
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def known(value: float) -> float | None:
    """The number, or None for nan, which JSON does not have."""
    return None if math.isnan(value) else value


@dataclass(frozen=True, eq=False)
class ClusterBootstrap:
    """Means [C] and their resampled values [R, C]; intervals of columns, and of differences and ratios of two."""

    means_C: FloatArray
    resampled_RC: FloatArray
    level: float = 0.95

    def interval(self, column: int) -> Interval:
        """The mean of a column with its interval."""
        return self._interval(float(self.means_C[column]), self.resampled_RC[:, column])

    def difference(self, column: int, baseline: int) -> Interval:
        """The mean paired difference of two columns, first minus second, with its interval."""
        mean = float(self.means_C[column] - self.means_C[baseline])
        return self._interval(mean, self.resampled_RC[:, column] - self.resampled_RC[:, baseline])

    def ratio(self, column: int, divisor: int) -> Interval:
        """The sum of a column over the sum of another that is nowhere negative, with its interval.

        Resamples in which there is nothing to divide by are left out; nan where no request has any.
        """
        some_R = self.resampled_RC[:, divisor] > 0
        if not self.means_C[divisor] or not some_R.any():
            return Interval(math.nan, math.nan, math.nan)
        value = float(self.means_C[column] / self.means_C[divisor])
        return self._interval(value, self.resampled_RC[some_R, column] / self.resampled_RC[some_R, divisor])

    def _interval(self, value: float, resampled_R: FloatArray) -> Interval:
        tail = (1.0 - self.level) / 2.0
        low, high = np.quantile(resampled_R, [tail, 1.0 - tail])
        return Interval(value=value, low=float(low), high=float(high))


def cluster_bootstrap(
    values_BC: FloatArray,
    users_B: IntArray,
    *,
    resamples: int,
    rng: np.random.Generator,
    level: float = 0.95,
) -> ClusterBootstrap:
    """Resample users `resamples` times and take the mean over requests of every column.

    With one user every interval is a point: nothing can be said about other users. Raises `InputError` for no rows,
    NaN, shapes that disagree, no resamples or a level outside (0, 1).
    """
    rows = len(users_B)
    if values_BC.ndim != 2 or len(values_BC) != rows or rows == 0:
        raise InputError(
            f"values have shape {values_BC.shape} for {rows} users; give at least one row, and one user a row"
        )
    if not np.isfinite(values_BC).all():
        raise InputError(f"row {int(np.argwhere(~np.isfinite(values_BC))[0, 0])} holds a value that is not finite")
    if resamples < 1 or not 0.0 < level < 1.0:
        raise InputError(f"resamples is {resamples} and level {level}; take at least 1 resample and a level in (0, 1)")
    _, cluster_B = np.unique(users_B, return_inverse=True)
    users = int(cluster_B.max()) + 1
    sizes_U = np.bincount(cluster_B, minlength=users).astype(np.float64)
    sums_UC = np.zeros((users, values_BC.shape[1]))
    np.add.at(sums_UC, cluster_B, values_BC)
    chance_U = np.full(users, 1.0 / users)
    resampled = []
    for start in range(0, resamples, RESAMPLES_AT_A_TIME):
        weights_RU = rng.multinomial(users, chance_U, size=min(RESAMPLES_AT_A_TIME, resamples - start)).astype(float)
        resampled.append((weights_RU @ sums_UC) / (weights_RU @ sizes_U)[:, None])
    return ClusterBootstrap(values_BC.mean(axis=0), np.concatenate(resampled), level)
