"""Signs of copying: how close answers are to the incoming order.

A policy that echoes its input is found out by these three numbers, whatever reward it earns. Read them beside those of
random answers: a short list has few orders, so that of three candidates five orders in six are within two swaps. May
import numpy only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import OK
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.rankings import checked, completed, inversions_unchecked, tau_of, verdicts_unchecked
from rerank_env.rewards.slates import Slates

NEAR_SWAPS = 2
"""Exchanges of neighbours that still count as near the incoming order."""


class Copying(NamedTuple):
    """Over valid answers, each nan if there are none: `identity_rate`, the share equal to the incoming order;
    `near_identity_rate`, the share at most so many swaps of neighbours away, the order itself included; `kendall_tau`,
    the mean of Kendall's tau to the incoming order, +1 for the same, about 0 for chance, -1 for the reverse.
    """

    identity_rate: float
    near_identity_rate: float
    kendall_tau: float


def copying(rankings_BK: npt.ArrayLike, slates: Slates | npt.ArrayLike, *, swaps: int = NEAR_SWAPS) -> Copying:
    """The signs of copying in rankings [B, K] that answer `slates`, or requests of these sizes [B].

    Rows that are no rankings are left out. Raises `RankingError` for a wrong shape, `InputError` for negative `swaps`.

    >>> copying([[0, 1, 2, 3], [1, 0, 2, 3], [3, 2, 1, 0], [0, 0, 0, 0]], [4, 4, 4, 4]).near_identity_rate
    0.6666666666666666
    """
    most = whole("swaps", swaps, least=0)
    rankings, sizes_B = checked(rankings_BK, slates.sizes_B if isinstance(slates, Slates) else slates)
    valid_B = verdicts_unchecked(rankings, sizes_B) == OK
    inversions_B = inversions_unchecked(completed(rankings[valid_B], sizes_B[valid_B]))
    return Copying(_mean(inversions_B == 0), _mean(inversions_B <= most), _mean(tau_of(inversions_B, sizes_B[valid_B])))


def _mean(values_B: npt.NDArray[np.bool_] | FloatArray) -> float:
    return float(values_B.mean()) if len(values_B) else float("nan")
