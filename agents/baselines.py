"""The yardsticks: incoming order, random, popularity, and the oracle that sees the relevance.

May import numpy and the layers below. Every evaluation prints incoming, random and oracle beside the policy (ours).
"""

from __future__ import annotations

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.rankings import from_scores, identity_rankings, random_rankings
from rerank_env.rewards.slates import ideal_rankings


class Incoming:
    """Leaves the candidates as the earlier stage put them: what a re-ranker has to beat."""

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """The identity, [B, K]."""
        del rng  # nothing is random here
        return identity_rankings(requests.sizes_B, requests.candidates_BK.shape[1])


class Random:
    """Every order equally likely: what knowing nothing earns."""

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """A fresh uniform permutation a request, [B, K]."""
        return random_rankings(requests.sizes_B, requests.candidates_BK.shape[1], rng)


class Popularity:
    """The item most often seen in training first: what ignoring the user earns."""

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """By `popularity_BK`, [B, K]; equal counts in random order, so the incoming order does not leak in."""
        rankings_BK, _ = from_scores(requests.popularity_BK, requests.sizes_B, ties="random", rng=rng)
        return rankings_BK


class Oracle:
    """The ideal order, read off the relevance: what no honest policy can beat."""

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """By relevance, [B, K]; equal gains keep the incoming order, which no metric can tell apart."""
        del rng  # nothing is random here
        return ideal_rankings(requests.slates)
