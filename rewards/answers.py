"""Answers made safe to evaluate: the public edge of every reward, where shapes and validity are checked once.

May import numpy only.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.context import NOTHING, Context
from rerank_env.rewards.errors import RankingError
from rerank_env.rewards.rankings import Verdict, completed, legal, verdicts_unchecked
from rerank_env.rewards.slates import Slates, ideal_rankings

if TYPE_CHECKING:
    from rerank_env.rewards.reward import Condition, Reward

OK = int(Verdict.OK)
"""Comparing an array with an enumeration member takes five times as long as with a number."""


@dataclass(frozen=True)
class Failure:
    """A fault of a user's function that was kept to one answer: the reward's `name`, the `row`, and what happened."""

    name: str
    row: int
    message: str


@dataclass(frozen=True, eq=False)
class Answers:
    """One answer a request: `orders_BK` int64, every row a permutation of 0..K-1; `valid_B` which are rankings at all.

    Padding stands in place behind each ranking, and the incoming order stands in for an invalid answer, whose values
    are thrown away afterwards. `context` is what else is known: whoever evaluates may rely on what its `needs` name.
    `failures` collects faults of isolated functions. An object lives for one call and remembers what was evaluated in
    it: rewards are pure.
    """

    orders_BK: IntArray
    slates: Slates
    valid_B: BoolArray
    context: Context = NOTHING
    failures: list[Failure] = field(default_factory=list)
    _memo: dict[Hashable, npt.NDArray[Any]] = field(default_factory=dict, init=False, repr=False)

    def values(self, reward: Reward) -> FloatArray:
        """What `reward` gives these answers, float64 [B], each taken as valid. Callers must not change it."""
        if reward not in self._memo:
            self._memo[reward] = reward.evaluate(self)
        return self._memo[reward]

    def holds(self, condition: Condition) -> BoolArray:
        """Where these answers, each taken as valid, meet `condition`, bool [B]. Callers must not change it."""
        if condition not in self._memo:
            self._memo[condition] = condition.evaluate(self)
        return self._memo[condition]

    @cached_property
    def incoming(self) -> Answers:
        """The answers that echo the incoming order of the same slates."""
        shape = (len(self.slates), self.slates.width)
        return self._instead(np.broadcast_to(np.arange(self.slates.width), shape))

    @cached_property
    def ideal(self) -> Answers:
        """The answers that put the most relevant candidate of the same slates first."""
        return self._instead(completed(ideal_rankings(self.slates), self.slates.sizes_B))

    def _instead(self, orders_BK: IntArray) -> Answers:
        """Other answers to the same slates in the same context."""
        return Answers(orders_BK, self.slates, self.valid_B, self.context, self.failures)

    def scored(self) -> tuple[BoolArray, tuple[Failure, ...]]:
        """Which answers are valid and met no failure, bool [B], and the first failure of each function and answer."""
        first = {(f.name, f.row): f for f in reversed(self.failures) if self.valid_B[f.row]}
        scored_B = self.valid_B.copy()
        scored_B[[failure.row for failure in first.values()]] = False
        return scored_B, tuple(sorted(first.values(), key=lambda failure: (failure.row, failure.name)))


def answers_of(
    rankings_BK: npt.ArrayLike, slates: Slates, verdicts_B: npt.ArrayLike | None, context: Context = NOTHING
) -> Answers:
    """Check shapes, find which answers are valid, and make the others safe.

    A given verdict can make an answer invalid but never valid: the array is checked all the same. Raises
    `RankingError` where rankings or verdicts have another shape than the slates need.
    """
    rankings = checked_rankings(rankings_BK, slates)
    context.check_rows(len(slates))
    valid_B: BoolArray = verdicts_unchecked(rankings, slates.sizes_B) == OK
    if verdicts_B is not None:
        given = np.asarray(verdicts_B)
        if given.shape != valid_B.shape:
            raise RankingError(
                f"verdicts have shape {given.shape} but there are {len(valid_B)} rankings; give one verdict a ranking"
            )
        valid_B &= given == OK
    if not (slates.is_full and valid_B.all()):
        rankings = np.where(slates.mask_BK & valid_B[:, None], rankings, np.arange(slates.width))
    return Answers(rankings, slates, valid_B, context)


def legal_orders(rankings_BK: npt.ArrayLike, slates: Slates) -> IntArray:
    """Rankings as permutations of 0..K-1 int64 [B, K], padding in place behind each.

    Raises `RankingError` for another shape than the slates need, and naming the first row that is no ranking.
    """
    return completed(*legal(checked_rankings(rankings_BK, slates), slates.sizes_B))


def checked_rankings(rankings_BK: npt.ArrayLike, slates: Slates) -> IntArray:
    """Rankings as int64 of the slates' shape, or `RankingError`; whether they are legal is not looked at."""
    try:
        rankings = np.asarray(rankings_BK)
    except ValueError as cause:
        raise RankingError("rankings have rows of unequal length; pad the tails with -1") from cause
    if rankings.shape != slates.relevance_BK.shape or (rankings.size and rankings.dtype.kind not in "iu"):
        raise RankingError(
            f"rankings have shape {rankings.shape} and dtype {rankings.dtype}, but the slates need integers of shape "
            f"{slates.relevance_BK.shape}; give one ranking a request, padded to the same width"
        )
    return rankings.astype(np.int64, copy=False)
