"""Counterfactual shuffles: one request under several incoming orders, and its answers in one frame.

A rollout group that sees one order cannot tell reading from copying, and one shuffle shared by all is as constant a
bias as none. Here each member of a group gets an order of its own, and answers are renamed to the original candidates:

    groups = shuffled_groups(slates, 8, rng)                                # ask about groups.slates, row by row
    reward(groups.to_canonical(answers_BK), slates.repeat(8))               # what the list is worth
    reward.over_incoming()(answers_BK, groups.slates)                       # ... net of what copying that order earns
    Consistency()(answers_BK, groups.slates, context=Context(groups_B=groups.groups_B))

The first and the second differ, within a group, by what each order is worth. For a policy that copies, the first is
all noise and the second exactly 0; for one that reads, the first is constant and the second all noise. Early in
training take the second. Ours. May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import checked_rankings
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import SlateError
from rerank_env.rewards.rankings import identity_rankings, padded, random_rankings
from rerank_env.rewards.slates import Slates, canonical_orders


@dataclass(frozen=True, eq=False)
class ShuffledGroups:
    """`slates`: each original request `group_size` times in a row (b0 b0 b1 b1), every copy under its own order, with
    `canonical_BK` saying which original candidate stands where; `groups_B` int64: the original request of each copy.

    The same shuffles of `Requests`: `requests.take(groups.groups_B).reordered(groups.slates.canonical_BK)`.
    """

    slates: Slates
    groups_B: IntArray

    def to_canonical(self, rankings_BK: npt.ArrayLike) -> IntArray:
        """Answers to `slates` as answers to the original requests, int64 [B, K], tails -1.

        Each number that names a candidate is renamed, and every other one stays what it is, so that an answer has the
        same verdict after as before. Raises `RankingError` for a wrong shape.
        """
        rankings = checked_rankings(rankings_BK, self.slates)
        sizes_B1 = self.slates.sizes_B[:, None]
        named_BK = (rankings >= 0) & (rankings < sizes_B1)
        originals_BK = canonical_orders(np.where(named_BK, rankings, 0), self.slates)
        return padded(np.where(named_BK, originals_BK, rankings), self.slates.sizes_B)


def shuffled_groups(
    slates: Slates, group_size: int, rng: np.random.Generator, *, keep_first: bool = False
) -> ShuffledGroups:
    """`group_size` copies of each request, each under a random order of its own; whatever a log says moves along.

    `keep_first`: the first copy of each request keeps the order that came. Orders are drawn independently, so that two
    copies of a short list may share one. Raises `SlateError` for slates that are shuffled copies already, `InputError`
    for a group size below 1.
    """
    size = whole("group_size", group_size, least=1)
    if slates.canonical_BK is not None:
        raise SlateError("these slates are shuffled copies already; shuffle the original ones")
    originals_BK = identity_rankings(slates.sizes_B, slates.width)
    repeated = replace(slates, canonical_BK=originals_BK).repeat(size)
    orders_BK = random_rankings(repeated.sizes_B, slates.width, rng)
    if keep_first:
        orders_BK[::size] = originals_BK
    groups_B = np.repeat(np.arange(len(slates), dtype=np.int64), size)
    return ShuffledGroups(repeated.reordered(orders_BK), groups_B)
