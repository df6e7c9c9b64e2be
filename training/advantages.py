"""Group-relative advantages: how much better an answer was than the other answers to the same request.

May import numpy and `rerank_env.rewards`. With rewards R_1..R_G of one group:

    A_g = (R_g - mean) / std      scale="std"   (GRPO 2402.03300 section 4.1.2, kept by DAPO 2503.14476 equation 9)
    A_g =  R_g - mean             scale="none"  (Dr. GRPO 2503.20783: no reweighting of requests by their spread)

`std` is the population standard deviation, so that a group of two gives +1 and -1. Departures, ours: a group whose
rewards are all EXACTLY equal gets zeros by comparison, not by dividing rounding noise by rounding noise; and a spread
below `SMALLEST_SPREAD` is not blown up to full size. Suffixes: `_B` requests, `_G` answers to one request.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import BoolArray, FloatArray
from rerank_env.rewards.errors import InputError

SCALES = ("none", "std")

SMALLEST_SPREAD = 1e-8
"""Rewards of one group that differ by less are one reward to us; two float64 sums of the same terms differ by 1e-16."""


def dead_groups(values_BG: npt.ArrayLike) -> BoolArray:
    """Whether all values of a group are exactly equal, [B]: such a group says nothing about which answer is better.

    To be asked of a named raw metric, not of a shaped reward: a format bonus would keep groups alive in which every
    ranking is equally good. A group of one is dead. Raises `InputError` for NaN, infinity or a wrong shape.
    """
    values = _checked(values_BG)
    equal: BoolArray = (values == values[:, :1]).all(axis=1)
    return equal


def group_relative(rewards_BG: npt.ArrayLike, *, scale: str = "std") -> FloatArray:
    """Advantages [B, G], mean zero in every group; a group without spread gets zeros.

    >>> group_relative([[1.0, 0.0], [0.5, 0.5]])
    array([[ 1., -1.],
           [ 0.,  0.]])

    Invariant to the order of the groups and of the answers inside one. Raises `InputError` for NaN, infinity or a
    wrong shape, `UnknownNameError` for an unknown scale.
    """
    one_of("advantage scale", scale, SCALES)
    rewards = _checked(rewards_BG)
    centred_BG: FloatArray = rewards - rewards.mean(axis=1, keepdims=True)
    if scale == "std":
        spread_B1 = np.sqrt((centred_BG**2).mean(axis=1, keepdims=True))
        centred_BG /= np.maximum(spread_B1, SMALLEST_SPREAD)
    centred_BG[dead_groups(rewards)] = 0.0
    return centred_BG


def _checked(values_BG: npt.ArrayLike) -> FloatArray:
    values = np.asarray(values_BG, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise InputError(f"group values have shape {values.shape}; give one row a request and one column an answer")
    if not np.isfinite(values).all():
        row, column = (int(x) for x in np.argwhere(~np.isfinite(values))[0])
        raise InputError(f"answer {column} to request {row} is worth {values[row, column]}; every value must be finite")
    return values
