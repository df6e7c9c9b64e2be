"""What a ranking model is fitted on: features and gains of lists, and lists parted by user for cross-validation.

May import numpy, `rerank_env.data`, `rerank_env.rewards` and `features`. Suffixes: `_B` requests, `_K` candidates,
`_F` features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rerank_env.agents.evidence.features import Evidence
from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, Float32Array, FloatArray, IntArray
from rerank_env.rewards.errors import InputError


@dataclass(frozen=True, eq=False)
class Lists:
    """`features_BKF`, `relevance_BK`, `users_B`, and `real_BK` that marks what is no padding."""

    features_BKF: Float32Array
    relevance_BK: FloatArray
    real_BK: BoolArray
    users_B: IntArray

    @classmethod
    def of(cls, requests: Requests, evidence: Evidence) -> Lists:
        """The lists of `requests` from which something can be learned, that is with unequal gains, in their order.

        Raises `InputError` where there is none.
        """
        real_BK, relevance_BK = requests.slates.mask_BK, requests.relevance_BK
        highest_B = np.where(real_BK, relevance_BK, -np.inf).max(axis=1, initial=-np.inf)
        lowest_B = np.where(real_BK, relevance_BK, np.inf).min(axis=1, initial=np.inf)
        kept = requests.take(highest_B > lowest_B)
        if not len(kept):
            raise InputError(
                f"none of the {len(requests)} lists has a better and a worse candidate; give lists with unequal gains"
            )
        return cls(evidence.features(kept), kept.relevance_BK, kept.slates.mask_BK, kept.users_B)

    def __len__(self) -> int:
        """How many lists."""
        return len(self.users_B)

    def take(self, rows_B: IntArray | BoolArray) -> Lists:
        """The lists at `rows_B`."""
        return Lists(self.features_BKF[rows_B], self.relevance_BK[rows_B], self.real_BK[rows_B], self.users_B[rows_B])

    def folds(self, count: int, *, rng: np.random.Generator) -> Iterator[tuple[Lists, Lists]]:
        """Cut the users at random into `count` parts; for each, the lists of all others and those of the part.

        Raises `InputError` for fewer than two parts, and where there are fewer users than parts.
        """
        whole("folds", count, least=2)
        users_U, owner_B = np.unique(self.users_B, return_inverse=True)
        if len(users_U) < count:
            raise InputError(
                f"{len(users_U)} users cannot be cut into {count} folds; give lists of more users, or fewer folds"
            )
        part_U = rng.permutation(np.arange(len(users_U)) % count)
        for part in range(count):
            held_B = part_U[owner_B] == part
            yield self.take(~held_B), self.take(held_B)
