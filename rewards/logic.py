"""What `&`, `|` and `~` build: conditions on conditions. None of them holds for an invalid answer.

May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arrays import BoolArray
from rerank_env.rewards.reward import Condition


@dataclass(frozen=True, repr=False)
class _Joined(Condition):
    """Two or more conditions, joined by one operator; nested ones of the same kind are flat."""

    conditions: tuple[Condition, ...]

    def __post_init__(self) -> None:
        """Flatten."""
        kind = type(self)
        flat = [c for given in self.conditions for c in (given.conditions if isinstance(given, kind) else (given,))]
        object.__setattr__(self, "conditions", tuple(flat))


class AllOf(_Joined):
    """Every one of the conditions holds."""

    @property
    def always(self) -> bool:
        """True if all of them always hold."""
        return all(condition.always for condition in self.conditions)

    @property
    def for_identity(self) -> bool | None:
        """False if one never holds for the incoming order, True if all always do."""
        known = [condition.for_identity for condition in self.conditions]
        return False if False in known else True if None not in known else None

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where all hold."""
        return reduce(np.logical_and, [answers.holds(condition) for condition in self.conditions])

    def __str__(self) -> str:
        """`a & b`."""
        return " & ".join(f"({c})" if isinstance(c, AnyOf) else str(c) for c in self.conditions)


class AnyOf(_Joined):
    """At least one of the conditions holds."""

    @property
    def always(self) -> bool:
        """True if one of them always holds."""
        return any(condition.always for condition in self.conditions)

    @property
    def for_identity(self) -> bool | None:
        """True if one always holds for the incoming order, False if none ever does."""
        known = [condition.for_identity for condition in self.conditions]
        return True if True in known else False if None not in known else None

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

    @property
    def for_identity(self) -> bool | None:
        """The opposite, where it is known."""
        known = self.condition.for_identity
        return None if known is None else not known

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where it does not hold."""
        return ~answers.holds(self.condition)

    def __str__(self) -> str:
        """`~a`."""
        return f"~({self.condition})" if isinstance(self.condition, _Joined) else f"~{self.condition}"
