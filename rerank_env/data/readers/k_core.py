"""The k-core of a log: what is left when users and items with fewer than k interactions are taken out, over and over.

Seidman 1983 for graphs; for logs as in He and McAuley 2016. May import numpy and `rerank_env.rewards`. Suffix: `_N`
interactions.
"""

from __future__ import annotations

import numpy as np

from rerank_env.rewards.arrays import BoolArray, IntArray


def k_core(users_N: IntArray, items_N: IntArray, *, core: int) -> tuple[BoolArray, int]:
    """Which interactions are in the `core`-core, and after how many rounds nothing more was taken out.

    Each pair of user and item should be there once: repeats count as interactions. It may be empty, and is everything
    for a core of 1 or less. The largest such set is unique, so the order of taking out does not matter.

    >>> k_core(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 0]), core=2)
    (array([ True,  True,  True,  True, False]), 1)
    """
    kept_N = np.ones(len(users_N), dtype=bool)
    rounds = 0
    while True:
        poor_N = np.zeros(len(kept_N), dtype=bool)
        for names_N in (users_N, items_N):
            counts = np.bincount(names_N[kept_N], minlength=int(names_N.max(initial=-1)) + 1)
            poor_N |= counts[names_N] < core
        if not (kept_N & poor_N).any():
            return kept_N, rounds
        kept_N &= ~poor_N
        rounds += 1
