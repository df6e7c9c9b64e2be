"""Schedules: numbers that follow the training step, to weight a reward with, and the step as a condition.

    0.2 * ValidFormat() * Linear(1, 0, steps=500)     # the format bonus fades out
    gain().gate(Since(100), otherwise=-1.1)           # the first 100 updates are paid by the rest of the sum

`gain().when(Since(100))` would pay every invalid answer 0, from then on more than a valid one that is worse than the
incoming order. May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import BoolArray, FloatArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.reward import Bounds, Condition, Reward


@dataclass(frozen=True, repr=False)
class Linear(Reward):
    """`start` up to the step `begin`, `end` from `begin + steps` on, a straight line between; a number a valid answer.

    A schedule scales what valid answers earn: an invalid answer always meets the larger of both ends, so that its score
    stays one number and never falls to 0 with the weight.
    """

    start: float
    end: float
    steps: int
    begin: int = 0
    name = "linear"
    own_needs = frozenset({"step"})

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "start", finite("start", self.start))
        object.__setattr__(self, "end", finite("end", self.end))
        object.__setattr__(self, "steps", whole("steps", self.steps, least=1))
        object.__setattr__(self, "begin", whole("begin", self.begin, least=0))
        if min(self.start, self.end) < 0:
            raise InputError(f"{self} has a negative end; weight with numbers of at least 0 and put the sign in front")

    def bounds(self) -> Bounds:
        """Both ends."""
        return Bounds(min(self.start, self.end), max(self.start, self.end), max(self.start, self.end))

    def evaluate(self, answers: Answers) -> FloatArray:
        """The number of the step for each."""
        step = answers.context.step
        assert step is not None, "the need was checked"
        done = min(max(step - self.begin, 0) / self.steps, 1.0)
        return np.full(len(answers.slates), (1.0 - done) * self.start + done * self.end)


@dataclass(frozen=True, repr=False)
class Since(Condition):
    """At least `step` updates of the policy have been done: a schedule that switches."""

    step: int
    name = "since"
    own_needs = frozenset({"step"})

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "step", whole("step", self.step, least=0))

    def evaluate(self, answers: Answers) -> BoolArray:
        """Everywhere or nowhere."""
        step = answers.context.step
        assert step is not None, "the need was checked"
        return np.full(len(answers.slates), step >= self.step)
