"""K-means on what the levels before left over: how the codebooks of an RQ-VAE begin, and all there is to RQ-k-means.

May import numpy, the layers below, and inside functions scikit-learn. k-means++ starts (Arthur and Vassilvitskii, SODA
2007), Lloyd's steps follow. Suffixes: `_I` items, `_D` dimensions, `_C` codes.
"""

from __future__ import annotations

import numpy as np

from rerank_env.rewards.arrays import Float32Array, IntArray
from rerank_env.rewards.errors import MissingExtraError

STEPS = 50
"""Lloyd's steps at most; on catalogues of some ten thousand items they end sooner."""


def centres(points_ID: Float32Array, count: int, *, rng: np.random.Generator, steps: int = STEPS) -> Float32Array:
    """At most `count` centres [C, D] float32: as many as there are different points, where these are fewer.

    Raises `MissingExtraError` without scikit-learn.
    """
    try:
        from sklearn.cluster import KMeans
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            'clustering needs scikit-learn, which is not installed; run: pip install "rerank-env[semantic-ids]"'
        ) from error
    distinct = np.unique(points_ID, axis=0)
    if len(distinct) <= count:
        return distinct
    fitted = KMeans(count, n_init=1, max_iter=steps, random_state=int(rng.integers(2**31))).fit(points_ID)
    return np.asarray(fitted.cluster_centers_, dtype=np.float32)


def nearest(points_ID: Float32Array, centres_CD: Float32Array) -> IntArray:
    """The number of each point's nearest centre [I], the lowest of equally near ones."""
    halves_C = 0.5 * (centres_CD * centres_CD).sum(axis=1)
    found = [(halves_C - block @ centres_CD.T).argmin(axis=1) for block in _blocks(points_ID)]
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)


def _blocks(points_ID: Float32Array, rows: int = 4096) -> list[Float32Array]:
    return [points_ID[start : start + rows] for start in range(0, len(points_ID), rows)]
