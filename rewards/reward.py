"""The reward protocol: what an answer to a request is worth, and conditions an answer may meet.

A reward is a pure function of (rankings, verdicts, slates) to one float a request. It is a frozen dataclass: equal by
structure, hashable, picklable, without state, and `str(reward)` parses back to an equal reward with `parse_reward`.
It declares the range of its scores over valid answers (`low`, `high`) and the one score of every invalid answer
(`invalid`). A condition is asked of valid answers only: on an invalid answer every condition is false, negations
included. May import numpy only; the operators build the classes of `algebra`, `shaping` and `logic`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import Answers, Failure, answers_of
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import BoolArray, FloatArray
from rerank_env.rewards.context import NOTHING, Context, check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import Expression
from rerank_env.rewards.slates import Slates

if TYPE_CHECKING:
    from rerank_env.rewards.shaping import Gate

Scale = Literal["none", "headroom"]

ROUNDING = 1e-12
"""Differences of quality up to this share of the quality's declared range are rounding."""


@dataclass(frozen=True, eq=False)
class Score:
    """What a batch of answers earned: `total_B` float64, and `parts`, the terms of the sum by the text of each term.

    The parts add up to the total. A reward that is no sum has itself as its only part. `failures` are the faults of
    functions that isolate them: such an answer is scored as if it were invalid.
    """

    total_B: FloatArray
    parts: Mapping[str, FloatArray]
    failures: tuple[Failure, ...] = ()


class Bounds(NamedTuple):
    """What a reward declares: the range of its scores over valid answers, the score of every invalid one, and the most
    that echoing the incoming order may earn (None: `high`).
    """

    low: float
    high: float
    invalid: float
    identity: float | None = None


class Condition(Expression, ABC):
    """Something a valid answer does or does not do; combine with `&`, `|` and `~`.

    To write one, make a frozen dataclass with a `name` and `evaluate`.
    """

    @property
    def always(self) -> bool:
        """True if every valid answer meets the condition, which narrows the range of what depends on it."""
        return False

    @property
    def for_identity(self) -> bool | None:
        """Whether echoing the incoming order meets the condition: always (True), never (False) or at times (None)."""
        return True if self.always else None

    @abstractmethod
    def evaluate(self, answers: Answers) -> BoolArray:
        """Bool [B] for answers that are all taken as valid."""

    def holds(
        self,
        rankings_BK: npt.ArrayLike,
        slates: Slates,
        *,
        verdicts_B: npt.ArrayLike | None = None,
        context: Context = NOTHING,
    ) -> BoolArray:
        """Bool [B]: is the answer valid, and does it meet the condition?

        Raises `RankingError` for a wrong shape, `InputError` where the condition needs what is not known.
        """
        check_met(self.needs, context.provides | slates.provides, self)
        answers = answers_of(rankings_BK, slates, verdicts_B, context)
        return answers.holds(self) & answers.valid_B

    def __bool__(self) -> bool:
        """A condition has no truth value: `and`, `or` and `not` would silently drop one side."""
        raise InputError(f"the condition {self} is neither true nor false by itself; combine conditions with & | ~")

    def __and__(self, other: Condition) -> Condition:
        """Both hold."""
        from rerank_env.rewards.logic import AllOf

        return AllOf((self, other)) if isinstance(other, Condition) else NotImplemented

    def __or__(self, other: Condition) -> Condition:
        """At least one holds."""
        from rerank_env.rewards.logic import AnyOf

        return AnyOf((self, other)) if isinstance(other, Condition) else NotImplemented

    def __invert__(self) -> Condition:
        """The answer is valid and the condition does not hold."""
        from rerank_env.rewards.logic import Not

        return Not(self)


class Reward(Expression, ABC):
    """What answers are worth; combine with `+`, `-`, `*`, `when`, `gate`, `clip` and `over_incoming`.

    To write one, make a frozen dataclass with a `name`, `bounds` and `evaluate`; derive from `Leaf` where the range is
    fixed, or give a plain function to `FunctionReward`.
    """

    @abstractmethod
    def bounds(self) -> Bounds:
        """The declared scores, from which `low`, `high` and `invalid` are read."""

    @cached_property
    def low(self) -> float:
        """No valid answer scores less."""
        return self.bounds().low

    @cached_property
    def high(self) -> float:
        """No valid answer scores more."""
        return self.bounds().high

    @cached_property
    def invalid(self) -> float:
        """What every invalid answer scores."""
        return self.bounds().invalid

    @cached_property
    def identity(self) -> float:
        """Echoing the incoming order scores no more."""
        declared = self.bounds().identity
        return self.high if declared is None else declared

    @abstractmethod
    def evaluate(self, answers: Answers) -> FloatArray:
        """Float64 [B] for answers that are all taken as valid; never NaN or infinite."""

    def terms(self) -> tuple[Reward, ...]:
        """The parts that `score` reports."""
        return (self,)

    def score(
        self,
        rankings_BK: npt.ArrayLike,
        slates: Slates,
        *,
        verdicts_B: npt.ArrayLike | None = None,
        context: Context = NOTHING,
    ) -> Score:
        """Total and parts, float64 [B] each.

        `verdicts_B` [B], when given, marks answers as invalid that the array cannot show, such as texts that did not
        parse; what it calls OK is checked all the same. `context` is what else is known of the answers. Raises
        `RankingError` for a wrong shape, `InputError` where the reward `needs` what is not known.
        """
        check_met(self.needs, context.provides | slates.provides, self)
        answers = answers_of(rankings_BK, slates, verdicts_B, context)
        terms = self.terms()
        for reward in (self, *terms):
            answers.values(reward)
        scored_B, failures = answers.scored()
        all_scored = bool(scored_B.all())

        def settled(reward: Reward) -> FloatArray:
            values_B = answers.values(reward)
            return values_B.copy() if all_scored else np.where(scored_B, values_B, reward.invalid)

        parts: dict[str, FloatArray] = {}
        for term in terms:
            text, values_B = str(term), settled(term)
            parts[text] = parts[text] + values_B if text in parts else values_B
        return Score(settled(self), parts, failures)

    def __call__(
        self,
        rankings_BK: npt.ArrayLike,
        slates: Slates,
        *,
        verdicts_B: npt.ArrayLike | None = None,
        context: Context = NOTHING,
    ) -> FloatArray:
        """The totals of `score`, float64 [B]."""
        return self.score(rankings_BK, slates, verdicts_B=verdicts_B, context=context).total_B

    def __add__(self, other: Reward | float) -> Reward:
        """Score both and add."""
        from rerank_env.rewards import algebra

        return algebra.added(self, other)

    def __radd__(self, other: float) -> Reward:
        """Add a number; the integer 0 adds nothing, so that `sum` works."""
        from rerank_env.rewards import algebra

        return self if type(other) is int and other == 0 else algebra.added(other, self)

    def __sub__(self, other: Reward | float) -> Reward:
        """Score both and subtract."""
        from rerank_env.rewards import algebra

        return algebra.added(self, algebra.multiplied(-1.0, other))

    def __rsub__(self, other: float) -> Reward:
        """A number less this reward."""
        from rerank_env.rewards import algebra

        return algebra.added(other, algebra.multiplied(-1.0, self))

    def __mul__(self, other: Reward | float) -> Reward:
        """Score both and multiply."""
        from rerank_env.rewards import algebra

        return algebra.multiplied(self, other)

    def __rmul__(self, other: float) -> Reward:
        """Weight by a number."""
        from rerank_env.rewards import algebra

        return algebra.multiplied(other, self)

    def __neg__(self) -> Reward:
        """The same with the sign turned."""
        return -1.0 * self

    def when(self, condition: Condition) -> Gate:
        """This reward where the condition holds, else 0, or what `.otherwise` adds; an invalid answer scores 0."""
        return self.gate(condition, otherwise=0.0)

    def gate(self, condition: Condition, *, otherwise: float) -> Gate:
        """This reward where the condition holds, else `otherwise`; an invalid answer scores `otherwise`."""
        from rerank_env.rewards.shaping import Gate

        return Gate(self, condition, otherwise)

    def clip(self, low: float, high: float) -> Reward:
        """This reward, no less than `low` and no more than `high`."""
        from rerank_env.rewards.shaping import Clip

        return Clip(self, low, high)

    def over_incoming(self, scale: Scale = "none") -> Reward:
        """This reward of the answer minus this reward of the incoming order: exactly 0 for echoing it.

        `scale="headroom"` divides it by the most that could be gained, and holds it at -1: +1 is the ideal order.
        """
        from rerank_env.rewards.shaping import OverIncoming

        return OverIncoming(self, scale)


class Leaf(Reward):
    """A reward that is not made of others: a frozen dataclass with a field `invalid: float` and a fixed range.

    Where it has a cut-off, the field is called `k`: a whole number of at least 1, or None for the whole list.
    """

    valid_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The least and the most that valid answers score."""
    identity_at_most: ClassVar[float | None] = None
    """The most that the incoming order may earn, None for the end of the range."""

    def __post_init__(self) -> None:
        """Check the invalid score and, where there is one, the cut-off."""
        object.__setattr__(self, "invalid", finite("invalid", self.invalid))
        k = getattr(self, "k", None)
        if k is not None:
            object.__setattr__(self, "k", whole("k", k, least=1))

    def bounds(self) -> Bounds:
        """The fixed range, and the declared score of an invalid answer."""
        return Bounds(*self.valid_range, self.invalid, self.identity_at_most)


def check_quality(quality: object) -> None:
    """Raise `InputError` unless `quality` is a reward that gives each answer its worth by itself."""
    if not isinstance(quality, Reward):
        raise InputError(f"quality is {quality!r}; expected a reward such as Ndcg(k=10) or Auc()")
    if "groups" in quality.needs:
        raise InputError(
            f"{quality} looks at the whole rollout group, so the incoming order has no worth of its own under it; add "
            "it beside what compares with the incoming order"
        )
