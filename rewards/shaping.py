"""What the methods of a reward build: a reward under a condition, held in a range, or less what was there before.

The score of an invalid answer follows the structure here too: `when` gives 0, `gate` its `otherwise`, since no
condition holds for an invalid answer; `when(c).otherwise(b)` the lower of both branches, also where b is a number; a
clip clips, and `over_incoming` gives -(high - low). May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from rerank_env.rewards.algebra import Constant, check_bounds, owner_text
from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import finite, one_of
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import number_text
from rerank_env.rewards.reward import ROUNDING, Bounds, Condition, Reward, Scale, check_quality


@dataclass(frozen=True, repr=False)
class Gate(Reward):
    """A reward where a condition holds, else a number: 0 under `when`."""

    reward: Reward
    condition: Condition
    fallback: float

    def __post_init__(self) -> None:
        """Check condition and number."""
        _check_condition(self.condition)
        object.__setattr__(self, "fallback", finite("otherwise", self.fallback))

    def otherwise(self, alternative: Reward | float) -> Reward:
        """The same, with another reward or number where the condition does not hold.

        An invalid answer scores the lower of what both branches give it, unlike under `gate(c, otherwise=x)`, which
        gives it x. Raises `InputError` for what has such a number already.
        """
        if self.fallback != 0:
            raise InputError(f"{self} says already what it is otherwise; write when(...).otherwise(...)")
        if not isinstance(alternative, Reward):
            alternative = Constant(alternative)
        return Choice(self.reward, self.condition, alternative)

    def bounds(self) -> Bounds:
        """The reward's range, with the number in it unless every valid answer meets the condition."""
        inner, number = self.reward, self.fallback
        low, high = (inner.low, inner.high) if self.condition.always else _around(inner, number)
        return Bounds(low, high, number, _for_identity(self.condition, inner.identity, number))

    def evaluate(self, answers: Answers) -> FloatArray:
        """The value where the condition holds, else the number."""
        return np.where(answers.holds(self.condition), answers.values(self.reward), self.fallback)

    def __str__(self) -> str:
        """`a.when(c)`, or `a.gate(c, otherwise=x)` for an x other than 0."""
        owner = owner_text(self.reward)
        if self.fallback == 0:
            return f"{owner}.when({self.condition})"
        return f"{owner}.gate({self.condition}, otherwise={number_text(self.fallback)})"


@dataclass(frozen=True, repr=False)
class Choice(Reward):
    """One reward where a condition holds, and another where it does not."""

    reward: Reward
    condition: Condition
    alternative: Reward

    def __post_init__(self) -> None:
        """Check the condition."""
        _check_condition(self.condition)

    def bounds(self) -> Bounds:
        """Both ranges; of the two scores of an invalid answer the lower, so that no branch shelters it."""
        first, second = self.reward, self.alternative
        low, high = min(first.low, second.low), max(first.high, second.high)
        identity = _for_identity(self.condition, first.identity, second.identity)
        return Bounds(low, high, min(first.invalid, second.invalid), identity)

    def evaluate(self, answers: Answers) -> FloatArray:
        """Each answer's value under its branch."""
        return np.where(answers.holds(self.condition), answers.values(self.reward), answers.values(self.alternative))

    def __str__(self) -> str:
        """`a.when(c).otherwise(b)`."""
        return f"{owner_text(self.reward)}.when({self.condition}).otherwise({self.alternative})"


def _check_condition(condition: object) -> None:
    if not isinstance(condition, Condition):
        raise InputError(f"{condition!r} is no condition; give one such as Improved() or KeptFirst()")


def _around(reward: Reward, number: float) -> tuple[float, float]:
    return min(reward.low, number), max(reward.high, number)


def _for_identity(condition: Condition, where_it_holds: float, elsewhere: float) -> float:
    """The most that echoing the order may earn under a condition."""
    if condition.for_identity is None:
        return max(where_it_holds, elsewhere)
    return where_it_holds if condition.for_identity else elsewhere


@dataclass(frozen=True, repr=False)
class Clip(Reward):
    """A reward held between two numbers."""

    reward: Reward
    floor: float
    ceiling: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "floor", finite("the lower end of a clip", self.floor))
        object.__setattr__(self, "ceiling", finite("the upper end of a clip", self.ceiling))
        if self.floor > self.ceiling:
            raise InputError(f"cannot clip to {self.floor}..{self.ceiling}; give the lower end first")

    def bounds(self) -> Bounds:
        """Range and invalid score, each clipped."""
        values = (self.reward.low, self.reward.high, self.reward.invalid, self.reward.identity)
        return Bounds(*(min(max(value, self.floor), self.ceiling) for value in values))

    def evaluate(self, answers: Answers) -> FloatArray:
        """The clipped values."""
        return np.clip(answers.values(self.reward), self.floor, self.ceiling)

    def __str__(self) -> str:
        """`a.clip(low, high)`."""
        return f"{owner_text(self.reward)}.clip({number_text(self.floor)}, {number_text(self.ceiling)})"


@dataclass(frozen=True, repr=False)
class OverIncoming(Reward):
    """Q(answer) - Q(incoming order), exactly 0 for echoing the order whatever Q is. Ours.

    With `scale="headroom"` the difference is divided by Q(ideal order) - Q(incoming order), and held at -1: +1 is the
    ideal order, -1 a loss as large as the greatest possible gain. Where the incoming order is ideal already, keeping
    its quality earns 0 and losing it -1. Rises and falls share one scale: dividing a fall by what there was to lose
    instead makes losses cheap where much was there, and then even copying popularity is paid on lists that are good
    already. "Ideal" is by relevance, whatever Q looks at.

    Q must give an answer its worth by itself: of a reward of the whole group no part is the incoming order's own.
    """

    quality: Reward
    scale: Scale = "none"

    def __post_init__(self) -> None:
        """Check that the range does not overflow."""
        one_of("scale", self.scale, get_args(Scale))
        check_quality(self.quality)
        check_bounds(self)

    def bounds(self) -> Bounds:
        """At most high - low of the quality either way, or 1; an invalid answer counts as the largest loss."""
        span = self.quality.high - self.quality.low if self.scale == "none" else 1.0
        return Bounds(0.0 - span, span, 0.0 - span, 0.0)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The difference; for the incoming order both sides are the same float."""
        incoming_B = answers.incoming.values(self.quality)
        change_B: FloatArray = answers.values(self.quality) - incoming_B
        if self.scale == "none":
            return change_B
        room_B = answers.ideal.values(self.quality) - incoming_B
        rounding = ROUNDING * (self.quality.high - self.quality.low)
        scaled_B = np.divide(change_B, room_B, out=np.sign(change_B), where=room_B > rounding)
        scaled_B[np.abs(change_B) <= rounding] = 0.0
        return np.clip(scaled_B, -1.0, 1.0)

    def __str__(self) -> str:
        """`q.over_incoming()`, or `q.over_incoming(scale='headroom')`."""
        scale = "" if self.scale == "none" else f"scale={self.scale!r}"
        return f"{owner_text(self.quality)}.over_incoming({scale})"
