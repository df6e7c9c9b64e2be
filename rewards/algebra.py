"""What the arithmetic of rewards builds: sums and products, in one canonical form.

Nested sums and products are flat and number factors are pulled to the front, so that two ways of writing the same
expression give equal objects; build them with the operators of `Reward`. The score of an invalid answer follows the
structure: a sum adds, and a product multiplies but never lets an invalid answer score above the worst valid one, since
the product of two penalties would be a prize. May import numpy only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import finite
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import number_text
from rerank_env.rewards.reward import Bounds, Reward


def added(left: Reward | float, right: Reward | float) -> Reward:
    """`left + right`."""
    return Sum((_lifted(left), _lifted(right)))


def multiplied(left: Reward | float, right: Reward | float) -> Reward:
    """`left * right`, with number factors folded into one at the front."""
    sides = (_lifted(left), _lifted(right))
    (left_factor, left_rest), (right_factor, right_rest) = (_split(side) for side in sides)
    factor = finite("a product of numbers", left_factor * right_factor)
    rests = tuple(rest for rest in (left_rest, right_rest) if rest is not None)
    if not rests:
        return Constant(factor)
    product = rests[0] if len(rests) == 1 else Product(rests)
    return Scaled(factor, product) if any(isinstance(side, (Constant, Scaled)) for side in sides) else product


def _lifted(value: Reward | float) -> Reward:
    return value if isinstance(value, Reward) else Constant(value)


def _split(reward: Reward) -> tuple[float, Reward | None]:
    if isinstance(reward, Constant):
        return reward.value, None
    if isinstance(reward, Scaled):
        return reward.factor, reward.reward
    return 1.0, reward


def _factor_text(reward: Reward) -> str:
    return f"({reward})" if isinstance(reward, Sum) else str(reward)


def owner_text(reward: Reward) -> str:
    """The reward as it stands before a dot."""
    return f"({reward})" if isinstance(reward, (Sum, Product, Scaled, Constant)) else str(reward)


def check_bounds(reward: Reward) -> None:
    """Raise `InputError` if what a reward declares overflows."""
    declared = (reward.low, reward.high, reward.invalid, reward.identity)
    for what, value in zip(Bounds._fields, declared, strict=True):
        if not math.isfinite(value):
            raise InputError(f"the {what} score of {reward} is {value}; use smaller numbers")


@dataclass(frozen=True, repr=False)
class Constant(Reward):
    """The same number for every answer, invalid ones included."""

    value: float

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "value", finite("a constant reward", self.value))

    def bounds(self) -> Bounds:
        """The number."""
        return Bounds(self.value, self.value, self.value)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The number for each."""
        return np.full(len(answers.slates), self.value)

    def __str__(self) -> str:
        """The number."""
        return number_text(self.value)


@dataclass(frozen=True, repr=False)
class Sum(Reward):
    """The sum of two or more rewards, added left to right."""

    addends: tuple[Reward, ...]

    def __post_init__(self) -> None:
        """Flatten sums of sums."""
        flat = [term for addend in self.addends for term in addend.terms()]
        object.__setattr__(self, "addends", tuple(flat))
        check_bounds(self)

    def bounds(self) -> Bounds:
        """The sums of the addends' own."""
        declared = [(addend.low, addend.high, addend.invalid, addend.identity) for addend in self.addends]
        # One by one, as `evaluate` adds: the built-in sum rounds otherwise since Python 3.12.
        return Bounds(*(reduce(add, values) for values in zip(*declared, strict=True)))

    def terms(self) -> tuple[Reward, ...]:
        """The addends."""
        return self.addends

    def evaluate(self, answers: Answers) -> FloatArray:
        """The addends, added left to right."""
        return reduce(np.add, [answers.values(addend) for addend in self.addends])

    def __str__(self) -> str:
        """`a + 0.2*b - c`."""
        text = str(self.addends[0])
        for addend in self.addends[1:]:
            factor, rest = _split(addend)
            if factor >= 0:
                text += f" + {addend}"
            elif rest is None:
                text += f" - {number_text(-factor)}"
            else:
                text += f" - {_factor_text(rest) if factor == -1 else Scaled(-factor, rest)}"
        return text


@dataclass(frozen=True, repr=False)
class Scaled(Reward):
    """A number times a reward."""

    factor: float
    reward: Reward

    def __post_init__(self) -> None:
        """Check the weight."""
        object.__setattr__(self, "factor", finite("a weight", self.factor))
        if isinstance(self.reward, (Constant, Scaled)):
            raise InputError(f"cannot weight {self.reward}, which is a number already or weighted; build it with *")
        check_bounds(self)

    def bounds(self) -> Bounds:
        """The scaled range; the scaled invalid score, but not above the range where the factor turns it round."""
        low, high = sorted((self.factor * self.reward.low, self.factor * self.reward.high))
        invalid = self.factor * self.reward.invalid
        identity = self.factor * (self.reward.identity if self.factor > 0 else self.reward.low)
        return Bounds(low + 0.0, high + 0.0, (invalid if self.factor > 0 else min(invalid, low)) + 0.0, identity + 0.0)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The factor times each value."""
        return self.factor * answers.values(self.reward)

    def __str__(self) -> str:
        """`0.2*a`."""
        return f"{number_text(self.factor)}*{_factor_text(self.reward)}"


@dataclass(frozen=True, repr=False)
class Product(Reward):
    """The product of two or more rewards, none of them a number."""

    factors: tuple[Reward, ...]

    def __post_init__(self) -> None:
        """Flatten products of products."""
        flat = [f for factor in self.factors for f in (factor.factors if isinstance(factor, Product) else (factor,))]
        if any(isinstance(factor, (Constant, Scaled)) for factor in flat):
            raise InputError("numbers stand in front of a product; build it with *")
        object.__setattr__(self, "factors", tuple(flat))
        check_bounds(self)

    def bounds(self) -> Bounds:
        """The product of the ranges; the product of the invalid scores, but never above the range."""
        low = high = invalid = least = identity = 1.0
        for factor in self.factors:
            corners = [a * b for a in (low, high) for b in (factor.low, factor.high)]
            echoes = [a * b for a in (least, identity) for b in (factor.low, factor.identity)]
            low, high, invalid = min(corners), max(corners), invalid * factor.invalid
            least, identity = min(echoes), max(echoes)
        return Bounds(low + 0.0, high + 0.0, min(invalid, low) + 0.0, identity + 0.0)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The factors, multiplied left to right."""
        return reduce(np.multiply, [answers.values(factor) for factor in self.factors])

    def __str__(self) -> str:
        """`a*b`."""
        return "*".join(_factor_text(factor) for factor in self.factors)
