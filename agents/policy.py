"""What every policy can do: put the candidates of requests in order.

May import numpy and the layers below. A user's own policy needs no base class, only this one method.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import IntArray


@runtime_checkable
class Policy(Protocol):
    """Somebody who answers re-ranking requests.

    A policy may look at what `Requests.observation()` and the catalogue show, never at the relevance; `Oracle` is the
    one declared exception. An answer that reads the items is the same whatever order the candidates come in.
    """

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """One ranking a request, int64 [B, K]: candidate indices, best first, tail padded with -1.

        All randomness comes from `rng`; a deterministic policy leaves it alone.
        """
        ...
