"""BM25 over item texts: what the last items were called asks for what is called alike.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, as in the library `bm25s` (its
Lucene variant). May import bm25s, numpy and the layers below.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import bm25s
import numpy as np

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import PAD, Float32Array, IntArray
from rerank_env.rewards.errors import InputError

LAST = 2
"""How many of the last items are asked with: the best on the validation split of Amazon Beauty of 1, 2, 3, 5, 10."""

_WORD = re.compile(r"\w+")


class Bm25Retriever:
    """Scores item texts against the texts of a history's last items; an item that shares no word scores 0."""

    def __init__(self, texts: Sequence[str], *, last: int = LAST) -> None:
        """Index `texts`, one an item. Raises `InputError` where none of them holds a word."""
        self._last = whole("last", last, least=1)
        self._words = [sorted(set(_WORD.findall(text.casefold()))) for text in texts]
        documents = [_WORD.findall(text.casefold()) for text in texts]
        if not any(documents):
            raise InputError("none of the texts holds a word; BM25 needs item texts")
        self._index = bm25s.BM25()
        self._index.index(documents, show_progress=False)

    def scores(self, history_BH: IntArray) -> Float32Array:
        """Sum of BM25 over the last items of each history, float32 [B, I]; 0 everywhere for an empty one."""
        rows = []
        for history in np.asarray(history_BH):
            asked = [word for item in history[history != PAD][-self._last :] for word in self._words[item]]
            known = [word for word in asked if word in self._index.vocab_dict]
            rows.append(self._index.get_scores(known) if known else np.zeros(len(self._words)))
        return np.stack(rows).astype(np.float32) if rows else np.zeros((0, len(self._words)), dtype=np.float32)
