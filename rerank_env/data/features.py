"""What a policy is told about an item: content, popularity and factors of the training ratings.

May import numpy, scipy and `rerank_env.data`.
"""

from __future__ import annotations

import numpy as np

from rerank_env.data.catalog import Catalog
from rerank_env.data.first_stage import ItemStatistics
from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arrays import BoolArray, Float32Array

FACTORS = 16
FACTOR_SHRINKAGE = 5.0
"""The factors of an item seen this often in training are halved."""


def catalog_of(log: Interactions, seen_N: BoolArray, statistics: ItemStatistics) -> Catalog:
    """The catalogue of `log` with features from training interactions only (`seen_N`, `statistics` fitted on them).

    Columns: the content features; `log_count`, log(1 + times seen in training); `factor_0`.. of the ratings
    (`FACTORS`, or as many as the log has rank for).
    """
    factors_IR = _rating_factors(log, seen_N, statistics)
    features = [log.content_IC, np.log1p(statistics.count_I)[:, None], factors_IR]
    return Catalog(
        texts=log.texts,
        features_IF=np.concatenate(features, axis=1).astype(np.float32),
        feature_names=(*log.content_names, "log_count", *(f"factor_{r}" for r in range(factors_IR.shape[1]))),
        popularity_I=statistics.count_I,
        labels=log.labels,
    )


def _rating_factors(log: Interactions, seen_N: BoolArray, statistics: ItemStatistics) -> Float32Array:
    """Right singular vectors of the user x item matrix of ratings minus item means, scaled by the singular values.

    Truncated SVD ("PureSVD", Cremonesi et al., RecSys 2010, on residuals; on ones where all ratings are equal, as in a
    log of purchases). The table has standard deviation 1, but for rows of rarely seen items, shrunken by
    count / (count + `FACTOR_SHRINKAGE`); signs are fixed so that each
    column's largest entry is positive. The training ratings that a policy is asked to rank are in here: what it gains
    in training is not what it gains on unseen requests.
    """
    from scipy import sparse

    seen = np.flatnonzero(seen_N)
    users, items = log.users_N[seen], log.items_N[seen]
    residual = log.ratings_N[seen] - statistics.mean - statistics.item_mean_I()[items]
    if not residual.any():
        residual = np.ones(len(seen))
    matrix = sparse.csr_matrix((residual, (users, items)), shape=(int(log.users_N.max()) + 1, log.item_count))
    smaller = min(matrix.shape)
    rank = min(FACTORS, smaller - 1)
    if rank < 1:
        return np.zeros((log.item_count, 0), dtype=np.float32)
    start = np.ones(smaller) / np.sqrt(smaller)  # where ARPACK begins, for the same result each time
    _, values, vectors_RI = sparse.linalg.svds(matrix, k=rank, v0=start)
    factors = vectors_RI.T * values
    factors *= np.sign(factors[np.abs(factors).argmax(axis=0), np.arange(rank)])
    factors = factors / factors.std() * (statistics.count_I / (statistics.count_I + FACTOR_SHRINKAGE))[:, None]
    table: Float32Array = factors.astype(np.float32)
    return table
