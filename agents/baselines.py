"""The yardsticks: incoming order, random, popularity, and the oracle that sees the relevance.

May import numpy and the layers below. Every evaluation prints them beside the policy (ours).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rerank_env.agents.policy import Policy
from rerank_env.data.requests import IntArray, Requests
from rerank_env.rewards.errors import UnknownNameError
from rerank_env.rewards.rankings import from_scores, ideal_rankings, identity_rankings, random_rankings


@dataclass(frozen=True)
class Incoming:
    """Leaves the candidates as the earlier stage put them: what a re-ranker has to beat."""

    name: str = "incoming"

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """The identity, [B, K]."""
        del rng  # nothing is random here
        return identity_rankings(requests.sizes_B, requests.candidates_BK.shape[1])


@dataclass(frozen=True)
class Random:
    """Every order equally likely: what knowing nothing earns."""

    name: str = "random"

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """A fresh uniform permutation a request, [B, K]."""
        return random_rankings(requests.sizes_B, requests.candidates_BK.shape[1], rng)


@dataclass(frozen=True)
class Popularity:
    """The item most often seen in training first: what ignoring the user earns."""

    name: str = "popularity"

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """By `catalog.popularity_I`, [B, K]; equal counts in random order, so the incoming order does not leak in."""
        popularity_BK = requests.catalog.popularity_I[np.maximum(requests.candidates_BK, 0)]
        rankings_BK, _ = from_scores(popularity_BK, requests.sizes_B, ties="random", rng=rng)
        return rankings_BK


@dataclass(frozen=True)
class Oracle:
    """The ideal order, read off the relevance: what no honest policy can beat."""

    name: str = "oracle"

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """By relevance, [B, K]; equal gains keep the incoming order, which no metric can tell apart."""
        del rng  # nothing is random here
        return ideal_rankings(requests.slates)


BASELINES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {"incoming": Incoming, "oracle": Oracle, "popularity": Popularity, "random": Random}
)
"""What builds each baseline, by its name."""


def baseline(name: str) -> Policy:
    """The baseline called `name`; `UnknownNameError` with the nearest name where there is none."""
    if name not in BASELINES:
        raise UnknownNameError.of("baseline", name, BASELINES)
    return BASELINES[name]()
