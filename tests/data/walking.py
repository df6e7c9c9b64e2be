"""A log in which what follows is known: users who walk around a ring of items. In the place of a data set."""

from __future__ import annotations

import numpy as np

from rerank_env.data.interactions import Interactions

ITEMS, USERS, LENGTH = 64, 200, 8


def walks() -> Interactions:
    """The next item is always the one after the last."""
    rng = np.random.default_rng(0)
    starts = rng.integers(ITEMS, size=USERS)
    return Interactions.arranged(
        np.repeat(np.arange(USERS), LENGTH),
        ((starts[:, None] + np.arange(LENGTH)) % ITEMS).ravel(),
        np.ones(USERS * LENGTH),
        np.tile(np.arange(float(LENGTH)), USERS),
        texts=tuple(f"word{i} pair{i // 2}" for i in range(ITEMS)),
        content_IC=np.zeros((ITEMS, 0), dtype=np.float32),
        content_names=(),
        labels=tuple((f"label {i % 5}",) for i in range(ITEMS)),
        seed=1,
    )
