"""The features themselves: what the first stage, popularity, co-purchases and texts say of each candidate.

Every count leaves the asking user out (see `pairs`). May import numpy, `grid`, `pairs` and `similarity`. Suffixes as
in `grid`. Shares, rates and cosines are of users: n(i) took item i, n(i, j) took both within 50 places. Source: ours.
"""

from __future__ import annotations

import numpy as np

from rerank_env.agents.evidence.grid import Grid
from rerank_env.agents.evidence.pairs import PairCounts, Takers
from rerank_env.agents.evidence.similarity import ItemVectors
from rerank_env.rewards.arrays import FloatArray

Columns = dict[str, FloatArray]

FIRST_STAGE = {
    "score": "the first stage's score",
    "score_below_top": "the same minus the highest of the list, 0 or less",
    "score_z": "the same minus the mean of the list, in standard deviations of the list; 0 where all are equal",
    "score_place": "how many candidates of the list have a higher score",
}
POPULARITY = {
    "popularity": "ln(1 + n(candidate))",
    "popularity_place": "how many candidates of the list were taken by more users",
}
COUNTS = {
    "next_last": "ln(1 + users who took the candidate right after the latest item)",
    "near_last": "the same within 3 places",
    "near_last_3": "the same summed over the latest 3 items",
    "after_last": "the same within 50 places, after the latest item",
    "after_all": "the same summed over the history",
    "together_last": "ln(1 + n(candidate, latest item)), in either order",
    "together_all": "the same before the logarithm summed over the history",
    "near_rate": "users who took the candidate within 3 places after the latest item / (n(latest item) + 5)",
    "after_rate": "the same within 50 places",
    "near_cosine_last": "users who took it within 3 places after the latest item / sqrt(n(candidate) n(latest item))",
    "near_cosine_recent": "the same over the history, weighted by 1 / (1 + age)",
    "together_cosine_last": "n(candidate, latest item) / sqrt(n(candidate) n(latest item))",
    "together_cosine_recent": "the same over the history, weighted by 1 / (1 + age)",
    "together_cosine_all": "the same summed over the history",
    "together_cosine_max": "the highest of the same",
    "lift_last": "ln((n(candidate, item) + 0.1) users / (n(candidate) n(item) + 1)) for the latest item",
    "lift_mean": "the mean of the same over the history",
    "lift_max": "the highest of the same",
    "covered": "the share of the history that anybody took together with the candidate",
    "together_peers": "n(candidate, other) / sqrt(n(candidate) n(other)) summed over the other candidates",
}
LIKENESS = {
    "last": "cosine with the latest item",
    "recent": "mean cosine with the history, weighted by 1 / (1 + age)",
    "mean": "mean cosine with the history",
    "max": "highest cosine with an item of the history",
    "peers": "mean cosine with the other candidates",
}
"""For each kind of vectors; the names get the kind in front, as in `text_last`."""

PRIOR = 5.0
"""Added to the count that a rate is divided by, so that one user is no rate of one: a round number, not tuned."""

RARE = 0.1
"""What a pair that nobody took counts in the lift, as a logarithm needs something."""


def first_stage(grid: Grid) -> Columns:
    """`FIRST_STAGE`, each float64 [B, K]; what stands in padded columns is to be ignored, here and below."""
    scores_BK, real_BK, sizes_B1 = grid.scores_BK, grid.real_BK, grid.sizes_B[:, None]
    top_B1 = np.where(real_BK, scores_BK, -np.inf).max(axis=1, keepdims=True)
    mean_B1 = (scores_BK * real_BK).sum(axis=1, keepdims=True) / sizes_B1
    spread_B1 = np.sqrt((np.square(scores_BK - mean_B1) * real_BK).sum(axis=1, keepdims=True) / sizes_B1)
    flat_B1 = spread_B1 <= 1e-9 * np.maximum(np.abs(mean_B1), 1.0)
    return {
        "score": scores_BK,
        "score_below_top": scores_BK - top_B1,
        "score_z": np.where(flat_B1, 0.0, (scores_BK - mean_B1) / np.where(flat_B1, 1.0, spread_B1)),
        "score_place": _higher(scores_BK, grid),
    }


def popularity(grid: Grid, takers: Takers) -> Columns:
    """`POPULARITY`, each [B, K]."""
    counts_BK, _ = _counts(grid, takers)
    return {"popularity": np.log1p(counts_BK), "popularity_place": _higher(counts_BK, grid)}


def co_purchases(grid: Grid, takers: Takers, pairs: PairCounts) -> Columns:
    """`COUNTS`, each [B, K]; 0 where the history is empty, the lifts too."""
    b, k, a = grid.against_history
    items, entries = grid.items_BK[b, k], grid.recent_BA[b, a]
    gaps = grid.gaps(grid.place_BA[b, a], grid.place_BK[b, k])
    forward, backward = pairs.between(entries, items, gaps), pairs.between(items, entries, -gaps)
    counts_BK, counts_BA = _counts(grid, takers)
    n_item, n_entry = counts_BK[b, k], counts_BA[b, a]
    users_B = len(takers.users_U) - (grid.owners_B >= 0)
    after, together = forward.sum(axis=1), forward.sum(axis=1) + backward.sum(axis=1)
    scale = np.sqrt(np.maximum(n_item, 1.0) * np.maximum(n_entry, 1.0))
    lift = np.log((together + RARE) * np.maximum(users_B[b], 1) / (n_item * n_entry + 1.0))

    next_BKA, near_BKA = grid.over_history(forward[:, 0]), grid.over_history(forward[:, :2].sum(axis=1))
    after_BKA, together_BKA = grid.over_history(after), grid.over_history(together)
    near_cosine_BKA = grid.over_history(forward[:, :2].sum(axis=1) / scale)
    cosine_BKA, lift_BKA = grid.over_history(together / scale), grid.over_history(lift)
    rate_B1 = 1.0 / (np.where(grid.real_BA[:, :1], counts_BA[:, :1], 0.0) + PRIOR)
    weights_A = _weights(grid)
    entries_B1 = np.maximum(grid.real_BA.sum(axis=1, keepdims=True), 1)
    return {
        "next_last": np.log1p(next_BKA[:, :, 0]),
        "near_last": np.log1p(near_BKA[:, :, 0]),
        "near_last_3": np.log1p(near_BKA[:, :, :3].sum(axis=2)),
        "after_last": np.log1p(after_BKA[:, :, 0]),
        "after_all": np.log1p(after_BKA.sum(axis=2)),
        "together_last": np.log1p(together_BKA[:, :, 0]),
        "together_all": np.log1p(together_BKA.sum(axis=2)),
        "near_rate": near_BKA[:, :, 0] * rate_B1,
        "after_rate": after_BKA[:, :, 0] * rate_B1,
        "near_cosine_last": near_cosine_BKA[:, :, 0],
        "near_cosine_recent": (near_cosine_BKA * weights_A).sum(axis=2),
        "together_cosine_last": cosine_BKA[:, :, 0],
        "together_cosine_recent": (cosine_BKA * weights_A).sum(axis=2),
        "together_cosine_all": cosine_BKA.sum(axis=2),
        "together_cosine_max": grid.highest(cosine_BKA),
        "lift_last": lift_BKA[:, :, 0],
        "lift_mean": lift_BKA.sum(axis=2) / entries_B1,
        "lift_max": grid.highest(lift_BKA),
        "covered": (together_BKA > 0).sum(axis=2) / entries_B1,
        "together_peers": _peers(grid, takers, pairs),
    }


def likeness(kind: str, grid: Grid, vectors: ItemVectors) -> Columns:
    """`LIKENESS` of one kind of vectors, each [B, K]; 0 where the history is empty or nothing is known of an item."""
    b, k, a = grid.against_history
    cosines_BKA = grid.over_history(vectors.cosines(grid.items_BK[b, k], grid.recent_BA[b, a]))
    weights_A = _weights(grid)
    b, k, j = grid.against_peers
    peers_BK = grid.summed_over_peers(vectors.cosines(grid.items_BK[b, k], grid.items_BK[b, j]))
    found: Columns = {
        "last": cosines_BKA[:, :, 0],
        "recent": (cosines_BKA * weights_A).sum(axis=2)
        / np.maximum((grid.real_BA * weights_A).sum(axis=1), 1.0)[:, None],
        "mean": cosines_BKA.sum(axis=2) / np.maximum(grid.real_BA.sum(axis=1), 1)[:, None],
        "max": grid.highest(cosines_BKA),
        "peers": peers_BK / (grid.sizes_B - 1)[:, None],
    }
    return {f"{kind}_{name}": values_BK for name, values_BK in found.items()}


def _counts(grid: Grid, takers: Takers) -> tuple[FloatArray, FloatArray]:
    """How many other users took each candidate [B, K] and each history entry [B, A]."""
    counts_BK = takers.counts_I[grid.items_BK] - (grid.place_BK >= 0)
    counts_BA = takers.counts_I[grid.recent_BA] - (grid.place_BA >= 0)
    return counts_BK.astype(np.float64), counts_BA.astype(np.float64)


def _peers(grid: Grid, takers: Takers, pairs: PairCounts) -> FloatArray:
    b, k, j = grid.against_peers
    items, others = grid.items_BK[b, k], grid.items_BK[b, j]
    gaps = grid.gaps(grid.place_BK[b, k], grid.place_BK[b, j])
    together = pairs.between(items, others, gaps).sum(axis=1) + pairs.between(others, items, -gaps).sum(axis=1)
    counts_BK, _ = _counts(grid, takers)
    scale = np.sqrt(np.maximum(counts_BK[b, k], 1.0) * np.maximum(counts_BK[b, j], 1.0))
    return grid.summed_over_peers(together / scale)


def _higher(values_BK: FloatArray, grid: Grid) -> FloatArray:
    """How many real candidates of the list have a higher value, [B, K]."""
    higher_BKK = (values_BK[:, None, :] > values_BK[:, :, None]) & grid.real_BK[:, None, :]
    return np.asarray(higher_BKK.sum(axis=2), dtype=np.float64)


def _weights(grid: Grid) -> FloatArray:
    """1 / (1 + age), [A]."""
    return np.asarray(1.0 / (1.0 + np.arange(grid.recent_BA.shape[1])), dtype=np.float64)
