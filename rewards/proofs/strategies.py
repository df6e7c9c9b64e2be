"""Hypothesis strategies for requests and for answers to them.

What else is drawn, rewards, conditions and hostile texts, is in `testing`, which exports what is here too. May import
numpy and hypothesis.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.context import HINTS, UNITS, Context
from rerank_env.rewards.counterfactual import ShuffledGroups, shuffled_groups
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.rewards.slates import Slates

Drawn = TypeVar("Drawn")

GRADES = (0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.5, 0.1, 1e-9, 4.75)
"""Gains that are drawn more often than others: mostly small whole numbers, some that are not exact in binary."""


def relevances() -> SearchStrategy[float]:
    """Gains of one candidate: usual grades, and any float from 0 to 100."""
    return st.sampled_from(GRADES) | st.floats(0, 100, allow_subnormal=False)


@st.composite
def slates(
    draw: st.DrawFn,
    *,
    max_requests: int = 6,
    max_candidates: int = 8,
    relevance: SearchStrategy[float] | None = None,
    logged: bool = False,
) -> Slates:
    """Ragged batches of at least one request with at least two candidates each, some with nothing relevant.

    `logged`: with clicks, propensities and predictions.
    """
    gains = relevances() if relevance is None else relevance
    rows = draw(
        st.lists(st.lists(gains, min_size=2, max_size=max_candidates), min_size=1, max_size=max_requests),
        label="relevance",
    )
    if not logged:
        return Slates.of(rows)

    def beside(values: SearchStrategy[float]) -> list[list[float]]:
        return [draw(st.lists(values, min_size=len(row), max_size=len(row))) for row in rows]

    return Slates.of(
        rows,
        clicks=beside(st.sampled_from([0.0, 1.0])),
        propensities=beside(st.sampled_from([1.0, 0.5, 0.1]) | st.floats(0, 1, exclude_min=True)),
        predictions=beside(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)),
    )


@st.composite
def rankings_of(draw: st.DrawFn, slates: Slates, *, invalid: bool = False) -> IntArray:
    """One ranking a request, padded with -1; with `invalid`, any row may be spoilt by a wrong or repeated number."""
    rankings_BK = np.full((len(slates), slates.width), PAD, dtype=np.int64)
    for row, size in enumerate(slates.sizes_B.tolist()):
        rankings_BK[row, :size] = draw(st.permutations(range(size)))
        if invalid and draw(st.booleans()):
            place = draw(st.integers(0, size - 1))
            rankings_BK[row, place] = draw(st.sampled_from([-1, size, 2**62, -(2**63), *range(size)]))
    return rankings_BK


@st.composite
def groups(draw: st.DrawFn, *, requests: SearchStrategy[Slates] | None = None, max_size: int = 4) -> ShuffledGroups:
    """Rollout groups: one to `max_size` copies of each request, at times under shuffled orders, the first as it came.

    Draw answers with `rankings_of(drawn.slates)`, and score them with `Context(groups_B=drawn.groups_B)`.
    """
    batch = draw(slates() if requests is None else requests)
    size, order = draw(st.integers(1, max_size)), draw(st.none() | st.integers(0, 99))
    if order is not None:
        return shuffled_groups(batch, size, np.random.default_rng(order), keep_first=True)
    repeated = batch.repeat(size)
    originals_BK = identity_rankings(repeated.sizes_B, repeated.width)
    return ShuffledGroups(replace(repeated, canonical_BK=originals_BK), np.repeat(np.arange(len(batch)), size))


@st.composite
def contexts_of(draw: st.DrawFn, slates: Slates, *, needs: Collection[str] = tuple(HINTS)) -> Context:
    """A context that meets these needs, all but those of a log: step, groups, reasonings with citations, lengths.

    Only answers to equal requests share a group, some of them.
    """
    rows = len(slates)

    def each(values: SearchStrategy[Drawn]) -> list[Drawn]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    citations = st.lists(st.sampled_from(["[1]", "[2]", "[03]", "[0]", "[99]", "[x]", "because"]), max_size=4)
    return Context(
        step=draw(st.integers(0, 30)) if "step" in needs else None,
        groups_B=3 * _requests(slates) + np.array(each(st.integers(0, 2))) if "groups" in needs else None,
        reasonings=tuple(each(citations.map(" ".join))) if "reasonings" in needs else None,
        lengths={unit: np.array(each(st.integers(0, 60)), dtype=np.int64) for unit in UNITS if unit in needs},
    )


def _requests(slates: Slates) -> IntArray:
    """A number for each request, the same for equal ones, int64 [B]."""
    _, request_B = np.unique(np.c_[slates.sizes_B, slates.relevance_BK], axis=0, return_inverse=True)
    return request_B.ravel().astype(np.int64)
