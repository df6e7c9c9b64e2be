"""Which interaction is asked for in which split, when the next item is to be found: leave-one-out and by time.

Leave-one-out is the protocol of the Amazon benchmarks (last interaction of a user = test, second-last = validation,
the rest = train). It lets a model learn from what others did later; the global split by time does not. May import
numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_N` interactions, `_T` targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.errors import InputError

SHARES = {"validation": 0.1, "test": 0.1}
"""Of all interactions, how many lie in each part of the split by time."""


@dataclass(frozen=True, eq=False)
class Targets:
    """`rows_T` by split: the rows of the log that are asked for; the history is all that the user did before.

    `seen_N` marks what a model may be fitted on, which is neither a validation nor a test target. `first_N` is the row
    at which the user of each interaction begins. `notes` say what is asked of nobody, and why.
    """

    rows: Mapping[str, IntArray]
    seen_N: BoolArray
    first_N: IntArray
    notes: tuple[str, ...] = ()


def leave_one_out(log: Interactions) -> Targets:
    """The last interaction of every user is test, the one before validation, each earlier one but the first train.

    Users with fewer than three interactions are in train only. Raises `InputError` where no user has three.
    """
    first_N, left_N = _places(log)
    long_N = _lengths(log) >= len(SHARES) + 1
    if not long_N.any():
        raise InputError("no user has three interactions; leave-one-out needs one for each split")
    short = len(np.unique(log.users_N[~long_N]))
    validation_N, test_N = long_N & (left_N == 1), long_N & (left_N == 0)
    return _targets(
        first_N,
        validation_N,
        test_N,
        notes=(f"{short} users with fewer than 3 interactions are in train only",) if short else (),
    )


def global_time(log: Interactions) -> Targets:
    """All interactions after one moment are test, those after an earlier one validation, the rest train.

    The moments are those that leave at least `SHARES` of the interactions behind them; equal times are never parted. A
    later interaction is asked for where its user has an earlier one. Raises `InputError` where a part would be empty,
    and where the times are no moments but places in the users' sequences.
    """
    first_N, _ = _places(log)
    if (log.times_N == np.arange(len(log)) - first_N).all():
        raise InputError(
            "the times are places in each user's sequence; a split by time needs the moments of the interactions, so "
            "use leave_one_out"
        )
    times = np.sort(log.times_N)
    latest = math.ceil(len(times) * SHARES["test"])
    test_from = times[len(times) - latest]
    validation_from = times[max(0, len(times) - latest - math.ceil(len(times) * SHARES["validation"]))]
    test_N = log.times_N >= test_from
    validation_N = (log.times_N >= validation_from) & ~test_N
    if not validation_N.any() or (test_N | validation_N).all():
        raise InputError(
            f"the times from {times[0]:g} to {times[-1]:g} cannot be cut into three, because too many are equal; use "
            "leave_one_out"
        )
    asked_N = np.arange(len(log)) > first_N
    alone = int(((validation_N | test_N) & ~asked_N).sum())
    return _targets(
        first_N,
        validation_N,
        test_N,
        notes=(
            f"validation from time {validation_from:g}, test from {test_from:g}",
            f"{alone} interactions after train begin their user's history and are not asked for",
        ),
    )


SPLITTERS: Mapping[str, Callable[[Interactions], Targets]] = {
    "leave_one_out": leave_one_out,
    "global_time": global_time,
}
"""The protocols by name."""


def _targets(first_N: IntArray, validation_N: BoolArray, test_N: BoolArray, *, notes: tuple[str, ...]) -> Targets:
    asked_N = np.arange(len(first_N)) > first_N
    seen_N = ~(validation_N | test_N)
    masks = {"train": seen_N, "validation": validation_N, "test": test_N}
    return Targets({split: np.flatnonzero(mask_N & asked_N) for split, mask_N in masks.items()}, seen_N, first_N, notes)


def _places(log: Interactions) -> tuple[IntArray, IntArray]:
    """For every row: the first row of its user, and how many rows of the user follow it."""
    _, first_U, lengths_U = np.unique(log.users_N, return_index=True, return_counts=True)
    first_N, lengths_N = np.repeat(first_U, lengths_U), np.repeat(lengths_U, lengths_U)
    return first_N, first_N + lengths_N - 1 - np.arange(len(log))


def _lengths(log: Interactions) -> IntArray:
    return np.repeat(*[np.unique(log.users_N, return_counts=True)[1]] * 2)
