"""What buyers say of an item, as a vector, and which items they bought one after the other.

Counts are of users who have both items; positive pointwise mutual information with a smoothed context (Levy, Goldberg
and Dagan, TACL 2015, equations 3 and 6) turns them into an item-by-item matrix, and its truncated singular vectors,
each times the square root of its value, are the rows. May import numpy, scipy and the layers below. Suffixes: `_N`
interactions, `_I` items, `_D` dimensions, `_P` pairs.

Nothing is counted but the interactions that the caller names, which must be those a model may be fitted on
(`Targets.seen_N`). The rows know the training purchases of every user, so lists for training targets that are read with
them are in-sample: name the interactions of other users (a fold) where that matters.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, Float32Array, IntArray

WIDTH = 64
SMOOTHING = 0.75
"""The power of the context's counts: makes rare items less surprising company (Levy et al., equation 6)."""


def collaborative_embedding(
    log: Interactions, among_N: BoolArray, *, rng: np.random.Generator, width: int = WIDTH
) -> Float32Array:
    """Rows [I, width] float32, of length 1, or 0 for an item that nobody bought together with another.

    `among_N` marks the interactions that may be counted. A catalogue with fewer than `width` + 2 items fills fewer
    columns. `rng` starts the search for singular vectors. Memory grows with the pairs of items that have a common
    buyer. Raises `InputError` where `among_N` does not fit the log.
    """
    whole("width", width, least=1)
    matrix = ppmi(co_purchases(log, among_N))
    rows = np.zeros((log.item_count, width), dtype=np.float64)
    kept = min(width, log.item_count - 2)
    if matrix.nnz and kept > 0:
        left, values, _ = svds(matrix, k=kept, v0=rng.standard_normal(log.item_count), return_singular_vectors="u")
        rows[:, :kept] = (left * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    rows[np.diff(matrix.indptr) == 0] = 0.0
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Float32Array = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-12).astype(np.float32)
    return unit


def co_purchases(log: Interactions, among_N: BoolArray) -> sparse.csr_array:
    """How many users have both items, [I, I] float64, sparse and symmetric, with an empty diagonal."""
    log.check_mask("among", among_N)
    users, items = log.users_N[among_N], log.items_N[among_N]
    users = np.unique(users, return_inverse=True)[1]
    shape = (int(users.max(initial=-1)) + 1, log.item_count)
    bought = sparse.csr_array((np.ones(len(users)), (users, items)), shape=shape)
    counts = sparse.csr_array(bought.T @ bought)
    counts.setdiag(0.0)
    counts.eliminate_zeros()
    return counts


def ppmi(counts: sparse.csr_array, *, smoothing: float = SMOOTHING) -> sparse.csr_array:
    """max(0, log P(i, j) / (P(i) P'(j))) where P'(j) is j's share of all counts, each to the power of `smoothing`.

    `counts` is square; what was not counted stays 0.
    """
    total = counts.sum()
    if not total:
        return sparse.csr_array(counts.shape)
    row, context = counts.sum(axis=1), counts.sum(axis=0) ** smoothing
    pairs = counts.tocoo()
    first, second = pairs.coords
    values = np.log(pairs.data / row[first] / (context[second] / context.sum()))
    kept = values > 0
    return sparse.csr_array((values[kept], (first[kept], second[kept])), shape=counts.shape)


def consecutive(log: Interactions, among_N: BoolArray) -> IntArray:
    """The pairs of items that one user bought one directly after the other, [P, 2], earlier item first.

    Both must be `among_N`; a pair stands as often as it happened.
    """
    log.check_mask("among", among_N)
    follows = (log.users_N[1:] == log.users_N[:-1]) & among_N[1:] & among_N[:-1]
    return np.stack([log.items_N[:-1][follows], log.items_N[1:][follows]], axis=1)
