"""Cut every user's log into windows of equal length, and the windows into train, validation and test.

A window holds the next `size` interactions of one user; it lies in one split whole, and a user's windows of an
earlier split come before those of a later one. May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES

SPLITS = ("train", "validation", "test")
TEST_SHARE = 0.25
VALIDATION_SHARE = 0.10
MIN_HISTORY = 5


@dataclass(frozen=True, eq=False)
class Windows:
    """Consecutive interactions: window w is rows `starts_W[w] : starts_W[w] + size` of the log.

    `split_W` holds indices into `SPLITS`. `first_W` is the row at which the window's user begins, so that rows
    `first_W[w] : starts_W[w]` are what that user did before.
    """

    starts_W: IntArray
    first_W: IntArray
    split_W: IntArray
    size: int

    def of(self, split: str) -> IntArray:
        """The numbers of the windows in `split`; raises `UnknownNameError`."""
        return np.flatnonzero(self.split_W == SPLITS.index(one_of("split", split, SPLITS)))

    def rows(self, windows: IntArray) -> IntArray:
        """Rows of the log in each of `windows`, shape [len(windows), size]."""
        return self.starts_W[windows][:, None] + np.arange(self.size)

    def seen_in_training(self, log: Interactions) -> BoolArray:
        """Which interactions [N] a model may be fitted on: all that lie in no validation or test window."""
        seen = np.ones(len(log), dtype=bool)
        seen[self.rows(np.flatnonzero(self.split_W > 0)).ravel()] = False
        return seen


def user_windows(log: Interactions, *, size: int) -> Windows:
    """Time-ordered split by user: the last quarter of a user's windows is test, the tenth before it validation.

    A user's first interactions (at least `MIN_HISTORY`, and what is left over when the rest is cut into windows) are
    history only. Shares are rounded to the nearest whole window, so a user with one window has it in train.
    Raises `InputError` where `size` is below 2 or longer than every user's log.
    """
    size = whole("slate_size", size, least=MIN_CANDIDATES)
    users, first_U, lengths_U = np.unique(log.users_N, return_index=True, return_counts=True)
    starts: list[IntArray] = []
    firsts: list[IntArray] = []
    splits: list[IntArray] = []
    for first, length in zip(first_U, lengths_U, strict=True):
        lead = length % size
        lead += size * -(-max(MIN_HISTORY - lead, 0) // size)
        count = (length - lead) // size
        if count <= 0:
            continue
        test, validation = round(count * TEST_SHARE), round(count * VALIDATION_SHARE)
        starts.append(first + lead + size * np.arange(count))
        firsts.append(np.full(count, first))
        splits.append(np.repeat([0, 1, 2], [count - validation - test, validation, test]))
    if not starts:
        raise InputError(
            f"slate_size is {size} but none of the {len(users)} users has {size + MIN_HISTORY} interactions; choose "
            "a smaller one"
        )
    return Windows(np.concatenate(starts), np.concatenate(firsts), np.concatenate(splits), size)
