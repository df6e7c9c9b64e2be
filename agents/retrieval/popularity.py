"""The items most often bought, whoever asks: the floor under every first stage. May import numpy and lower layers."""

from __future__ import annotations

import numpy as np

from rerank_env.rewards.arrays import Float32Array, FloatArray, IntArray


class PopularityRetriever:
    """Scores every item by log(1 + count), after any history alike."""

    def __init__(self, count_I: FloatArray) -> None:
        """`count_I` [I]: how often each item occurs in what may be learned from."""
        self._scores_I = np.log1p(np.asarray(count_I)).astype(np.float32)

    def scores(self, history_BH: IntArray) -> Float32Array:
        """The same row for every history, float32 [B, I]."""
        return np.tile(self._scores_I, (len(history_BH), 1))
