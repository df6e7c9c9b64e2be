"""Rewards of a whole rollout group: what an answer is worth beside the other answers to its request.

The group of each answer comes with the `Context`; where answers stand in the batch does not matter. May import numpy
only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import ranks_unchecked
from rerank_env.rewards.reward import Leaf
from rerank_env.rewards.slates import Slates, canonical_orders


@dataclass(frozen=True, repr=False)
class Consistency(Leaf):
    """Agreement with the group: the mean of (1 + Kendall's tau) / 2 between this answer and the others. Ours.

    That is the share of candidate pairs in the same order, compared by original number (`Slates.canonical_BK`). Only
    valid answers count, and one without another valid answer in its group earns 0. Under counterfactual shuffles a
    policy that reads the candidates earns 1 and one that copies the order about 1/2.

    Without shuffles copying earns 1, and any fixed order of the items does even with them: give it a small weight
    beside a quality. Raises `InputError` where a group mixes requests, told by sizes and relevance.
    """

    invalid: float = 0.0
    name = "consistency"
    own_needs = frozenset({"groups"})

    def evaluate(self, answers: Answers) -> FloatArray:
        """Votes on each pair of candidates are counted once a group, in integers: G answers cost G, not G squared."""
        slates, given_B = answers.slates, answers.context.groups_B
        assert given_B is not None, "the need was checked"
        rows_B = np.argsort(given_B, kind="stable")  # from here on answers of a group lie together
        _, starts_G, group_B = np.unique(given_B[rows_B], return_index=True, return_inverse=True)
        _check_same_request(slates, given_B, rows_B, rows_B[starts_G[group_B]])
        ranks_BK = ranks_unchecked(canonical_orders(answers.orders_BK, slates)[rows_B])
        valid_B, sizes_B, mask_BK = answers.valid_B[rows_B], slates.sizes_B[rows_B], slates.mask_BK[rows_B]
        voters_B = np.add.reduceat(valid_B, starts_G, dtype=np.int64)[group_B]
        agreeing_B = np.zeros(len(slates), dtype=np.int64)
        for candidate in range(slates.width - 1):
            before_BJ = ranks_BK[:, candidate, None] < ranks_BK[:, candidate + 1 :]
            votes_GJ = np.add.reduceat(before_BJ & valid_B[:, None], starts_G, axis=0, dtype=np.int64)
            votes_BJ = votes_GJ[group_B]
            same_BJ = np.where(before_BJ, votes_BJ, voters_B[:, None] - votes_BJ)
            agreeing_B += (same_BJ * mask_BK[:, candidate + 1 :]).sum(axis=1)
        pairs_B = sizes_B * (sizes_B - 1) // 2
        agreeing_B -= valid_B * pairs_B  # everyone agrees with himself
        others_B = (voters_B - valid_B) * valid_B
        shares_B = np.zeros(len(slates))
        shares_B[rows_B] = np.divide(agreeing_B, others_B * pairs_B, out=np.zeros(len(slates)), where=others_B > 0)
        return shares_B


def _check_same_request(slates: Slates, given_B: IntArray, rows_B: IntArray, first_B: IntArray) -> None:
    """Raise `InputError` unless each of `rows_B` answers the request that the first row of its group answers."""
    columns_BK = np.broadcast_to(np.arange(slates.width), slates.relevance_BK.shape)
    relevance_BK = np.empty_like(slates.relevance_BK)
    np.put_along_axis(relevance_BK, canonical_orders(columns_BK, slates), slates.relevance_BK, axis=1)
    differs_B = (slates.sizes_B[rows_B] != slates.sizes_B[first_B]) | (
        relevance_BK[rows_B] != relevance_BK[first_B]
    ).any(axis=1)
    for one, other in zip(first_B[differs_B][:1].tolist(), rows_B[differs_B][:1].tolist(), strict=True):
        raise InputError(
            f"answers {one} and {other} are both in group {int(given_B[one])} but answer different requests; "
            "number groups by request, and give shuffled copies their canonical_BK"
        )
