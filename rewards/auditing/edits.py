"""Edits of the incoming order that read nothing of a request but how long it is. May import numpy only.

An edit is a function (sizes_B, width) -> rankings [B, width], the same change for every request; places count from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.rankings import identity_rankings, padded

MOST_PAIRS = 120
"""Pairs of places that are all tried; of longer lists only neighbours, and each place with the first and the last."""


@dataclass(frozen=True, eq=False)
class Edit:
    """What is done, in words, and how; for a request too short for it nothing is done."""

    about: str
    rankings: Callable[[IntArray, int], IntArray]


def exchanged(first: int, second: int) -> Edit:
    """Two places exchanged."""

    def rankings(sizes_B: IntArray, width: int) -> IntArray:
        swapped_BK = identity_rankings(sizes_B, width)
        long_B = sizes_B > max(first, second)
        swapped_BK[long_B, first], swapped_BK[long_B, second] = second, first
        return swapped_BK

    return Edit(f"places {first + 1} and {second + 1} exchanged", rankings)


def tail_inverted(inversions: int) -> Edit:
    """So many exchanges of neighbours, as far down as they fit; every one that fits where a request is too short.

    The last t places turned round are t * (t - 1) / 2 exchanges; what is left moves the last candidate further up.
    """
    turned = 1
    while (turned + 1) * turned // 2 <= inversions:
        turned += 1
    left = inversions - turned * (turned - 1) // 2

    def rankings(sizes_B: IntArray, width: int) -> IntArray:
        columns_K = np.arange(width)
        backwards_BK = sizes_B[:, None] - 1 - columns_K  # how far each place is from the last one
        keys_BK = np.where(backwards_BK < turned, width + backwards_BK, columns_K).astype(np.float64)
        if left:
            keys_BK[backwards_BK == turned] = width + left - 0.5
        keys_BK[backwards_BK < 0] = 2 * width
        return padded(np.argsort(keys_BK, axis=1, kind="stable"), sizes_B)

    exchanges = "exchange" if inversions == 1 else "exchanges"
    return Edit(f"{inversions} {exchanges} of neighbours at the end", rankings)


def reverse() -> Edit:
    """The incoming order turned round."""
    return Edit("turned round", lambda sizes_B, width: padded(sizes_B[:, None] - 1 - np.arange(width), sizes_B))


def rotated() -> Edit:
    """The first candidate last, and every other one place up."""

    def rankings(sizes_B: IntArray, width: int) -> IntArray:
        return padded((np.arange(width) + 1) % sizes_B[:, None], sizes_B)

    return Edit("the first candidate moved to the end", rankings)


def placed(order_K: IntArray) -> Edit:
    """The places in a given order, a permutation of 0..width-1; a shorter request leaves out what it does not have."""

    def rankings(sizes_B: IntArray, width: int) -> IntArray:
        there_BK = order_K < sizes_B[:, None]
        if there_BK.all():
            return np.broadcast_to(order_K, (len(sizes_B), width))
        packed_BK = np.argsort(~there_BK, axis=1, kind="stable")
        return np.where(np.arange(width) < sizes_B[:, None], order_K[packed_BK], PAD)

    return Edit("the places in the order " + " ".join(str(place + 1) for place in order_K), rankings)


def single_edits(width: int) -> list[Edit]:
    """Every exchange of two places (of long lists: some), the first candidate moved to the end, and the reverse."""
    pairs = [(a, b) for a in range(width) for b in range(a + 1, width)]
    if len(pairs) > MOST_PAIRS:
        pairs = [(a, b) for a, b in pairs if b == a + 1 or a == 0 or b == width - 1]
    return [tail_inverted(1), *(exchanged(a, b) for a, b in pairs), rotated(), reverse()]
