"""Which requests come next in training: reshuffled epochs, seeded, able to go on after a restart.

May import numpy and `rerank_env.rewards`. Every request is visited once before any is visited again; a draw may reach
over the end of an epoch into the next. The state is a few numbers, whatever the number of requests: the generator as
it stood before the epoch was shuffled, and how far the epoch has been read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError


class RequestEpochs:
    """Draws row numbers 0..`requests`-1 in reshuffled epochs."""

    def __init__(self, requests: int, seed: int) -> None:
        """Start the first epoch; raises `InputError` without requests."""
        if requests < 1:
            raise InputError("there are no requests to train on; give at least one")
        self.requests = requests
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._shuffle()

    def draw(self, n: int) -> IntArray:
        """The next `n` rows, int64 [n]."""
        parts: list[IntArray] = []
        missing = n
        while missing > 0:
            if self._position == self.requests:
                self._shuffle()
            part = self._order[self._position : self._position + missing]
            self._position += len(part)
            missing -= len(part)
            parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def state(self) -> dict[str, Any]:
        """JSON-ready; `restore` goes on from here."""
        return {"before_shuffle": self._before_shuffle, "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, with the same number of requests."""
        self._rng.bit_generator.state = state["before_shuffle"]
        self._shuffle()
        self._position = int(state["position"])

    def _shuffle(self) -> None:
        self._before_shuffle: dict[str, Any] = dict(self._rng.bit_generator.state)
        self._order: IntArray = self._rng.permutation(self.requests)
        self._position = 0
