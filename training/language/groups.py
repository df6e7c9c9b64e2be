"""Answers to one request, compared: which groups say nothing, and by how much an answer is better than the others.

May import numpy and `rerank_env`. Advantages are those of `trl.GRPOTrainer`, with its denominator: for the rewards
R_1..R_n of the answers of a group that count,

    A_i = (R_i - mean) / (std + 1e-4)     scale="std",  std with n - 1 in its denominator
    A_i =  R_i - mean                     scale="none"

and 0 for the answers that do not count. Ours: where all that count earn EXACTLY the same, or only one counts, the
advantages are exactly 0, by comparison and not by dividing rounding noise. A group is dead where the raw metric, never
the shaped reward, is exactly the same for all that count. Suffixes: `_B` groups, `_G` answers of one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import BoolArray, FloatArray
from rerank_env.rewards.errors import InputError

SCALES = ("std", "none")
"""What an advantage is divided by: the spread of its group, or nothing."""

SMALLEST = 1e-4
"""What TRL adds to the spread."""


def equal_groups(values_BG: npt.ArrayLike, counted_BG: npt.ArrayLike | None = None) -> BoolArray:
    """Where all values that count are exactly equal, bool [B]; where fewer than two count, too.

    >>> equal_groups([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [[True, True], [True, True], [True, False]]).tolist()
    [True, False, True]
    """
    values, counted = _checked(values_BG, counted_BG)
    highest_B = np.where(counted, values, -np.inf).max(axis=1)
    lowest_B = np.where(counted, values, np.inf).min(axis=1)
    return np.asarray(highest_B <= lowest_B)


def advantages(rewards_BG: npt.ArrayLike, counted_BG: npt.ArrayLike | None = None, *, scale: str = "std") -> FloatArray:
    """Advantages, float64 [B, G], see the module; raises `InputError` for a reward that counts and is not finite."""
    one_of("advantage scale", scale, SCALES)
    rewards, counted = _checked(rewards_BG, counted_BG)
    count_B1 = np.maximum(counted.sum(axis=1, keepdims=True), 1)
    values = np.where(counted, rewards, 0.0)
    centred_BG = np.where(counted, values - values.sum(axis=1, keepdims=True) / count_B1, 0.0)
    if scale == "std":
        variance_B1 = (centred_BG**2).sum(axis=1, keepdims=True) / np.maximum(count_B1 - 1, 1)
        centred_BG = centred_BG / (np.sqrt(variance_B1) + SMALLEST)
    centred_BG[equal_groups(rewards, counted)] = 0.0
    return np.asarray(centred_BG)


def _checked(values_BG: npt.ArrayLike, counted_BG: npt.ArrayLike | None) -> tuple[FloatArray, BoolArray]:
    values = np.asarray(values_BG, dtype=np.float64)
    counted = np.ones(values.shape, dtype=np.bool_) if counted_BG is None else np.asarray(counted_BG, dtype=np.bool_)
    if values.ndim != 2 or values.shape != counted.shape:
        raise InputError(
            f"values have shape {values.shape} and what counts {counted.shape}; give one row a group, one column an "
            "answer"
        )
    for row, column in np.argwhere(counted & ~np.isfinite(values))[:1]:
        raise InputError(f"answer {column} of group {row} is worth {values[row, column]}; every value must be finite")
    return values, counted
