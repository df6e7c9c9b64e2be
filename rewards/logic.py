"""What `when`, `gate`, `&`, `|` and `~` build: rewards that depend on a condition, and conditions on conditions.

No condition holds for an invalid answer: `when` gives it 0 and `gate` gives it `otherwise`. May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from rerank_env.rewards.algebra import owner_text
from rerank_env.rewards.answers import Answers
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import finite, number_text
from rerank_env.rewards.reward import Bounds, Condition, Reward
from rerank_env.rewards.slates import BoolArray, FloatArray


def _check_condition(condition: object) -> None:
    if not isinstance(condition, Condition):
        raise InputError(f"{condition!r} is no condition; give one such as Improved() or KeptFirst()")


def _with_default(reward: Reward, condition: Condition, default: float) -> Bounds:
    if condition.always:
        return Bounds(reward.low, reward.high, default)
    return Bounds(min(reward.low, default), max(reward.high, default), default)


@dataclass(frozen=True, repr=False)
class When(Reward):
    """A reward where a condition holds, else 0."""

    reward: Reward
    condition: Condition

    def __post_init__(self) -> None:
        """Check the condition."""
        _check_condition(self.condition)

    def bounds(self) -> Bounds:
        """The reward's range, with 0 in it unless every valid answer meets the condition."""
        return _with_default(self.reward, self.condition, 0.0)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The value where the condition holds, else 0."""
        return np.where(answers.holds(self.condition), answers.values(self.reward), 0.0)

    def __str__(self) -> str:
        """`a.when(c)`."""
        return f"{owner_text(self.reward)}.when({self.condition})"


@dataclass(frozen=True, repr=False)
class Gate(Reward):
    """A reward where a condition holds, else another number."""

    reward: Reward
    condition: Condition
    otherwise: float

    def __post_init__(self) -> None:
        """Check condition and number."""
        _check_condition(self.condition)
        object.__setattr__(self, "otherwise", finite("otherwise", self.otherwise))

    def bounds(self) -> Bounds:
        """The reward's range, with `otherwise` in it unless every valid answer meets the condition."""
        return _with_default(self.reward, self.condition, self.otherwise)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The value where the condition holds, else `otherwise`."""
        return np.where(answers.holds(self.condition), answers.values(self.reward), self.otherwise)

    def __str__(self) -> str:
        """`a.gate(c, otherwise=x)`."""
        return f"{owner_text(self.reward)}.gate({self.condition}, otherwise={number_text(self.otherwise)})"


@dataclass(frozen=True, repr=False)
class AllOf(Condition):
    """Every one of two or more conditions holds."""

    conditions: tuple[Condition, ...]

    def __post_init__(self) -> None:
        """Flatten nested conjunctions."""
        flat = [c for given in self.conditions for c in (given.conditions if isinstance(given, AllOf) else (given,))]
        object.__setattr__(self, "conditions", tuple(flat))

    @property
    def always(self) -> bool:
        """True if all of them always hold."""
        return all(condition.always for condition in self.conditions)

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where all hold."""
        return reduce(np.logical_and, [answers.holds(condition) for condition in self.conditions])

    def __str__(self) -> str:
        """`a & b`."""
        return " & ".join(f"({c})" if isinstance(c, AnyOf) else str(c) for c in self.conditions)


@dataclass(frozen=True, repr=False)
class AnyOf(Condition):
    """At least one of two or more conditions holds."""

    conditions: tuple[Condition, ...]

    def __post_init__(self) -> None:
        """Flatten nested disjunctions."""
        flat = [c for given in self.conditions for c in (given.conditions if isinstance(given, AnyOf) else (given,))]
        object.__setattr__(self, "conditions", tuple(flat))

    @property
    def always(self) -> bool:
        """True if one of them always holds."""
        return any(condition.always for condition in self.conditions)

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where any holds."""
        return reduce(np.logical_or, [answers.holds(condition) for condition in self.conditions])

    def __str__(self) -> str:
        """`a | b`."""
        return " | ".join(str(condition) for condition in self.conditions)


@dataclass(frozen=True, repr=False)
class Not(Condition):
    """The answer is valid and the condition does not hold."""

    condition: Condition

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where it does not hold."""
        return ~answers.holds(self.condition)

    def __str__(self) -> str:
        """`~a`."""
        return f"~({self.condition})" if isinstance(self.condition, (AllOf, AnyOf)) else f"~{self.condition}"
