"""From a rating log to re-ranking requests: graded slates and next-item lists.

Graded slate (the industrial setting of the GR2 Technical Report, 2606.31984): the K items the user rated next, each
with a gain. Next item (the public setting of GR2, 2602.07774): the top K of the first stage among items the user has
not rated, one of which is the item rated next; requests whose target is not listed are left out and counted.
May import numpy and `rerank_env.data`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rerank_env.data.features import catalog_of
from rerank_env.data.first_stage import ItemStatistics, incoming_order
from rerank_env.data.interactions import Interactions
from rerank_env.data.requests import PAD, Catalog, Float32Array, FloatArray, IntArray, Requests
from rerank_env.data.split import Windows, user_windows
from rerank_env.rewards.errors import InputError

LIKED = 4.0
"""From this rating on an item counts as relevant (4 earns gain 1, 5 earns gain 2)."""


def rating_gain(ratings: FloatArray) -> FloatArray:
    """0 below 4 stars, 1 for 4, 2 for 5: the levels none / click / conversion of 2606.31984."""
    return np.clip(ratings - (LIKED - 1), 0.0, None)


def graded_slates(log: Interactions, *, split: str, name: str, slate_size: int = 10, history: int = 30) -> Requests:
    """The next `slate_size` items each user rated, in the order of a shrunken item mean fitted on train only.

    Slates without a relevant or without an irrelevant candidate teach nothing and are left out, as in 2606.31984;
    `notes` says how many.
    """
    windows, statistics, catalog, rng = _prepared(log, slate_size, history)
    chosen = windows.of(split)
    rows_BK = windows.rows(chosen)
    scores_BK = statistics.item_mean_of(log, rows_BK)
    order_BK = incoming_order(scores_BK, rng)
    relevance_BK = np.take_along_axis(rating_gain(log.ratings_N[rows_BK]), order_BK, axis=1)
    kept = (relevance_BK > 0).any(axis=1) & (relevance_BK == 0).any(axis=1)
    history_BH, feedback_BH = _histories(log, windows.first_W[chosen], windows.starts_W[chosen], history)
    requests = Requests(
        catalog=catalog,
        users_B=log.users_N[windows.starts_W[chosen]],
        history_BH=history_BH,
        feedback_BH=feedback_BH,
        candidates_BK=np.take_along_axis(log.items_N[rows_BK], order_BK, axis=1),
        scores_BK=np.take_along_axis(scores_BK, order_BK, axis=1).astype(np.float32),
        relevance_BK=relevance_BK,
        sizes_B=np.full(len(chosen), slate_size, dtype=np.int64),
        name=f"{name}, {split}: graded slates of {slate_size}",
        notes=(
            f"{int((~kept).sum())} of {len(kept)} slates left out: all or none of their candidates are relevant",
            "incoming order: shrunken item mean of the training ratings",
        ),
    )
    return requests.take(kept)


def next_item_lists(log: Interactions, *, split: str, name: str, slate_size: int = 10, history: int = 30) -> Requests:
    """One request for every liked item (4 stars or more) of the split: find it among the most popular unseen items.

    The first stage is popularity in the training interactions, without the request's own; ties in random order.
    Requests whose target is not in the first stage's top `slate_size` are left out, and `notes` gives the share that
    is listed (the first stage's recall, the ceiling of any re-ranker).
    """
    windows, statistics, catalog, rng = _prepared(log, slate_size, history)
    if log.item_count < slate_size:
        raise InputError(
            f"slate_size is {slate_size} but the catalogue has {log.item_count} items; choose a smaller one"
        )
    chosen = windows.of(split)
    targets_BK = windows.rows(chosen)
    firsts = np.repeat(windows.first_W[chosen], slate_size)
    targets = targets_BK.ravel()
    liked = log.ratings_N[targets] >= LIKED
    targets, firsts = targets[liked], firsts[liked]
    jitter_I = rng.random(log.item_count)
    candidates, scores, kept = [], [], []
    for row, first in zip(targets, firsts, strict=True):
        count_I = statistics.count_I.copy()
        count_I[log.items_N[row]] -= statistics.own_count_N[row]
        count_I[log.items_N[first:row]] = -1.0
        top = np.argpartition(-(count_I + jitter_I), slate_size - 1)[:slate_size]
        top = top[np.argsort(-(count_I + jitter_I)[top])]
        if log.items_N[row] in top:
            candidates.append(top)
            scores.append(np.log1p(count_I[top]))
            kept.append(True)
        else:
            kept.append(False)
    listed = np.array(kept, dtype=bool)
    if not listed.any():
        raise InputError(f"no {split} target is in the first stage's top {slate_size}; choose a larger slate_size")
    history_BH, feedback_BH = _histories(log, firsts[listed], targets[listed], history)
    candidates_BK = np.array(candidates, dtype=np.int64)
    return Requests(
        catalog=catalog,
        users_B=log.users_N[targets[listed]],
        history_BH=history_BH,
        feedback_BH=feedback_BH,
        candidates_BK=candidates_BK,
        scores_BK=np.array(scores, dtype=np.float32),
        relevance_BK=(candidates_BK == log.items_N[targets[listed]][:, None]).astype(np.float64),
        sizes_B=np.full(len(candidates_BK), slate_size, dtype=np.int64),
        name=f"{name}, {split}: next item among {slate_size}",
        notes=(
            f"{int((~listed).sum())} of {len(listed)} requests left out: target not in the first stage's top "
            f"{slate_size} (recall@{slate_size} {listed.mean():.3f})",
            "incoming order: popularity in the training ratings",
        ),
    )


def _prepared(
    log: Interactions, slate_size: int, history: int
) -> tuple[Windows, ItemStatistics, Catalog, np.random.Generator]:
    if history < 1:
        raise InputError(f"history is {history} but a policy reads at least 1 past item; choose 1 or more")
    windows = user_windows(log, size=slate_size)
    seen_N = windows.seen_in_training(log)
    statistics = ItemStatistics.fit(log, seen_N)
    return windows, statistics, catalog_of(log, seen_N, statistics), np.random.default_rng(0)


def _histories(log: Interactions, firsts_B: IntArray, ends_B: IntArray, length: int) -> tuple[IntArray, Float32Array]:
    """The last `length` interactions in rows `firsts_B[b] : ends_B[b]`, oldest first, tail padded."""
    begins_B = np.maximum(firsts_B, ends_B - length)
    rows_BH = begins_B[:, None] + np.arange(length)
    real_BH: npt.NDArray[np.bool_] = rows_BH < ends_B[:, None]
    rows_BH = np.where(real_BH, rows_BH, 0)
    return (
        np.where(real_BH, log.items_N[rows_BH], PAD),
        np.where(real_BH, log.ratings_N[rows_BH], 0.0).astype(np.float32),
    )
