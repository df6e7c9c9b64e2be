"""Prove that a reward of your own, a plain function, keeps what a reward should promise; or see how it can be gamed.

Run: python examples/prove_your_reward.py
"""

import numpy as np

from rerank_env import rewards as R
from rerank_env.rewards.testing import assert_reward_sound


def better_on_top(rankings_BK: np.ndarray, slates: R.Slates) -> np.ndarray:
    """How much better the first candidate is than the one that came first, as a share of the best gain there is."""
    rows_B = np.arange(len(rankings_BK))
    shown_B, was_B = slates.relevance_BK[rows_B, rankings_BK[:, 0]], slates.relevance_BK[:, 0]
    best_B = slates.relevance_BK.max(axis=1)
    return np.array((shown_B - was_B) / np.where(best_B > 0, best_B, 1.0))


assert_reward_sound(better_on_top, low=-1, high=1, invalid=-1.1, identity_at_most=0)
print(
    "better_on_top is sound: no request was found on which it breaks a promise. What a hack would earn says the audit\n"
)


def no_copies_please(rankings_BK: np.ndarray, slates: R.Slates) -> np.ndarray:
    """NDCG, and a bonus of 0.1 for an answer that is no copy of the incoming order. It looks harmless."""
    moved_B = ~R.rankings.is_identity(rankings_BK, slates.sizes_B)
    return R.metrics.ndcg(rankings_BK, slates) + 0.1 * moved_B


try:
    assert_reward_sound(no_copies_please, low=0, high=1.1, invalid=-0.1)
except R.RerankError as error:  # an UnsoundRewardError; in a test it fails by itself, as it is an AssertionError too
    print(error)
