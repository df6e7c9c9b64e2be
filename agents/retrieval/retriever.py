"""What every first stage can do: score the whole catalogue after a history; and lists made of such scores.

May import numpy and the layers below. Suffixes: `_B` histories, `_H` history entries, `_I` items, `_K` places.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import PAD, Float32Array, IntArray
from rerank_env.rewards.errors import InputError

BATCH = 512
"""Histories scored at once: 512 x 20,000 scores are 40 MB."""


@runtime_checkable
class Retriever(Protocol):
    """Somebody who proposes candidates."""

    def scores(self, history_BH: IntArray) -> Float32Array:
        """How well each item follows each history, float32 [B, I], finite, higher is better.

        `history_BH` holds item numbers, oldest first, tail padded with -1. Items of the history are scored like others.
        """
        ...


def top(
    retriever: Retriever, history_BH: IntArray, size: int, *, rng: np.random.Generator
) -> tuple[IntArray, Float32Array]:
    """The `size` best items of each row that are not in its history, best first, and their scores, both [B, size].

    Equal scores are put in random order by `rng`: an item's number decides nothing. Raises `InputError` where a
    catalogue is too small for the list.
    """
    whole("size", size, least=1)
    items: list[IntArray] = []
    scores: list[Float32Array] = []
    for start in range(0, len(history_BH), BATCH):
        seen_BH = history_BH[start : start + BATCH]
        score_BI = np.array(retriever.scores(seen_BH), dtype=np.float32)
        rows, places = np.nonzero(seen_BH != PAD)
        score_BI[rows, seen_BH[rows, places]] = -np.inf
        free = int(np.isfinite(score_BI).sum(axis=1).min(initial=score_BI.shape[1]))
        if free < size:
            raise InputError(
                f"size is {size} but a user has left {free} of the {score_BI.shape[1]} items; choose a smaller one"
            )
        shuffled_I = rng.permutation(score_BI.shape[1])
        mixed_BI = score_BI[:, shuffled_I]
        best_BK = np.argpartition(-mixed_BI, size - 1, axis=1)[:, :size] if size < mixed_BI.shape[1] else None
        best_BK = np.tile(np.arange(size), (len(mixed_BI), 1)) if best_BK is None else best_BK
        found_BK = np.take_along_axis(mixed_BI, best_BK, axis=1)
        order_BK = np.argsort(-found_BK, axis=1, kind="stable")
        items.append(shuffled_I[np.take_along_axis(best_BK, order_BK, axis=1)])
        scores.append(np.take_along_axis(found_BK, order_BK, axis=1))
    if not items:
        return np.empty((0, size), dtype=np.int64), np.empty((0, size), dtype=np.float32)
    return np.concatenate(items), np.concatenate(scores)
