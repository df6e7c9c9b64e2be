"""What the methods of a reward build: a reward under a condition, held in a range, or less what was there before.

The score of an invalid answer follows the structure here too: `when` gives 0, `gate` its `otherwise`, since no
condition holds for an invalid answer; a clip clips, and `over_incoming` gives -(high - low). May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.algebra import check_bounds, owner_text
from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import finite
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import number_text
from rerank_env.rewards.reward import Bounds, Condition, Reward


@dataclass(frozen=True, repr=False)
class Gate(Reward):
    """A reward where a condition holds, else a number: 0 under `when`."""

    reward: Reward
    condition: Condition
    otherwise: float

    def __post_init__(self) -> None:
        """Check condition and number."""
        if not isinstance(self.condition, Condition):
            raise InputError(f"{self.condition!r} is no condition; give one such as Improved() or KeptFirst()")
        object.__setattr__(self, "otherwise", finite("otherwise", self.otherwise))

    def bounds(self) -> Bounds:
        """The reward's range, with `otherwise` in it unless every valid answer meets the condition."""
        if self.condition.always:
            return Bounds(self.reward.low, self.reward.high, self.otherwise)
        return Bounds(min(self.reward.low, self.otherwise), max(self.reward.high, self.otherwise), self.otherwise)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The value where the condition holds, else `otherwise`."""
        return np.where(answers.holds(self.condition), answers.values(self.reward), self.otherwise)

    def __str__(self) -> str:
        """`a.when(c)`, or `a.gate(c, otherwise=x)` for an x other than 0."""
        owner = owner_text(self.reward)
        if self.otherwise == 0:
            return f"{owner}.when({self.condition})"
        return f"{owner}.gate({self.condition}, otherwise={number_text(self.otherwise)})"


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
        values = (self.reward.low, self.reward.high, self.reward.invalid)
        return Bounds(*(min(max(value, self.floor), self.ceiling) for value in values))

    def evaluate(self, answers: Answers) -> FloatArray:
        """The clipped values."""
        return np.clip(answers.values(self.reward), self.floor, self.ceiling)

    def __str__(self) -> str:
        """`a.clip(low, high)`."""
        return f"{owner_text(self.reward)}.clip({number_text(self.floor)}, {number_text(self.ceiling)})"


@dataclass(frozen=True, repr=False)
class OverIncoming(Reward):
    """Q(answer) - Q(incoming order), exactly 0 for echoing the order whatever Q is. Ours."""

    quality: Reward

    def __post_init__(self) -> None:
        """Check that the range does not overflow."""
        check_bounds(self)

    def bounds(self) -> Bounds:
        """At most high - low of the quality either way; an invalid answer counts as the largest loss."""
        span = self.quality.high - self.quality.low
        return Bounds(0.0 - span, span, 0.0 - span)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The difference; for the incoming order both sides are the same float."""
        return answers.values(self.quality) - answers.incoming.values(self.quality)

    def __str__(self) -> str:
        """`q.over_incoming()`."""
        return f"{owner_text(self.quality)}.over_incoming()"
