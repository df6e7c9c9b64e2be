"""Requests on which every reward is tried, besides those that are drawn: the rare ones that drawing few would miss.

The same each time. May import numpy only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from rerank_env.rewards.context import Context
from rerank_env.rewards.proofs.trials import Case
from rerank_env.rewards.rankings import identity_rankings, random_rankings
from rerank_env.rewards.slates import MAX_RELEVANCE, Slates

STARS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
"""The grades of film ratings."""

GRADES = (1e-9, 0.1, *STARS, 6.0, 7.0, 8.0, 9.0, 10.0, 30.0, 99.0, 101.0, 1e3, 1e6, 1e9, MAX_RELEVANCE)
"""Gains as they come in data, and some that nobody thinks of, in order."""

LENGTHS = (11, 12, 13, 14, 16, 20, 30, 100)
"""How many candidates the long requests have."""

BATCHES = (16, 130)
"""How many different requests stand in a large batch."""


def small_cases() -> Iterator[Case]:
    """Every request with two or three candidates and gains 0, 1, 2, and with four and gains 0, 1; the smallest first.

    Then two candidates with each of the `GRADES`, beside nothing relevant and beside the next lower grade. With each
    case stands another request.
    """
    for size, grades in ((2, 3), (3, 3), (4, 2)):
        for gains in itertools.product(range(grades), repeat=size):
            yield _case(gains)
    for lower, grade in itertools.pairwise((0.0, *GRADES)):
        for pair in ((0.0, grade), (grade, 0.0), (lower, grade), (grade, lower)):
            yield _case(pair)


def large_cases() -> Iterator[Case]:
    """Requests with more candidates than are drawn, and batches of more requests.

    Of each length: one with stars, a short one beside it, one of which only the last is relevant, by far, and one with
    other numbers.
    """
    rng = np.random.default_rng(0)
    for size in LENGTHS:
        stars = rng.integers(0, 6, size)
        yield _case(stars)
        yield _case([1, 0, 0], beside=stars)
        yield _case([0.0] * (size - 1) + [150.0])
        yield _case(rng.uniform(0, 200, size).round(1))
    for rows in BATCHES:
        batch = Slates.of([rng.integers(0, 6, rng.integers(2, 31)).tolist() for _ in range(rows)])
        yield Case(batch, random_rankings(batch.sizes_B, batch.width, rng), Context(groups_B=np.arange(rows)))


def _case(gains: Iterable[float], *, beside: Iterable[float] = (1, 0, 0)) -> Case:
    batch = Slates.of([list(gains), list(beside)])
    return Case(batch, identity_rankings(batch.sizes_B, batch.width), Context(groups_B=np.arange(2)))
