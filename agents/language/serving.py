"""A language policy for serving: a page has to show something, whatever was written.

May import numpy and the layers below. Suffixes: `_B` requests, `_K` candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rerank_env.agents.language.text_policy import TextPolicy
from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.repairing import repair


class Repaired:
    """The same policy for serving: every answer made a ranking, whatever was written. Never for rewards. A `Policy`."""

    def __init__(self, policy: TextPolicy[Any, Any]) -> None:
        self.policy = policy

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """Rankings int64 [B, K], the tail padded with -1; see `rerank_env.rewards.repairing`."""
        answers = self.policy.answers(requests, rng=rng)
        asked = answers.asked
        rankings_BK = np.full(asked.order_BK.shape, PAD, dtype=np.int64)
        for row, (texts, size) in enumerate(zip(answers.texts_BN, asked.shown.sizes_B.tolist(), strict=True)):
            ids = None if asked.answer_ids is None else asked.answer_ids[row]
            rankings_BK[row, :size] = repair(texts[0], size, text_format=asked.text_format, ids=ids).ranking
        return rankings_BK
