"""Rewards and conditions from functions of the user's, with every fault attributed by name and row.

May import numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import Answers, Failure
from rerank_env.rewards.arguments import finite, one_of
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import InputError, RewardError
from rerank_env.rewards.expression import check_name
from rerank_env.rewards.isolation import LONGEST_SECONDS, FaultError, RewardFunction, checked_values, values_or_failures
from rerank_env.rewards.reward import Bounds, Condition, Reward
from rerank_env.rewards.slates import Slates

OnError = Literal["raise", "isolate"]

RANGE_SLACK = 1e-9
"""What rounding may put a value outside its declared range by, relative to the range's ends or 1."""


@dataclass(frozen=True, repr=False)
class FunctionReward(Reward):
    """`function(rankings_BK, slates)` -> one number a request, as a reward called `name`.

    The function is called with valid rankings only, whole batches at a time: the incoming order stands in for an
    invalid answer, whose value is thrown away. Rows are padded with -1. It must be pure, and the same row must always
    earn the same. `low` and `high` promise the range over valid answers; `invalid` is what any other answer earns.

    A function is at fault if it raises, returns the wrong length or dtype, a value that is not finite or out of its
    range, or, where `seconds` are given, takes longer: then it runs in a process of its own, which is killed. With
    `on_error="raise"` a fault is a `RewardError` that names reward and, where there is one, row. With "isolate" the
    batch is asked again row by row, an answer that still fails is scored as if it were invalid and listed in
    `Score.failures`, and the others keep their scores.

    `identity` promises the most that echoing the incoming order may earn, `high` unless given: proofs and audits hold
    the function to it, scores do not depend on it.

    `str()` is the name, which `parse_reward` knows after `register_reward(name, reward)`; pickling needs a function
    that can be imported. Raises `InputError` for a useless declaration.
    """

    function: RewardFunction
    name: str = field()  # type: ignore[misc]
    low: float = field()
    high: float = field()
    invalid: float = field()
    on_error: OnError = "raise"
    seconds: float | None = None
    identity: float | None = None  # type: ignore[assignment]  # a number once constructed

    def __post_init__(self) -> None:
        """Check the declaration."""
        _check_function(self.function)
        check_name(self.name)
        for bound in ("low", "high", "invalid"):
            object.__setattr__(self, bound, finite(f"{bound} of {self.name}", getattr(self, bound)))
        if self.low > self.high:
            raise InputError(f"{self.name} has low {self.low} above high {self.high}; exchange them")
        identity = self.high if self.identity is None else finite(f"identity of {self.name}", self.identity)
        if not self.low <= identity <= self.high:
            raise InputError(
                f"identity of {self.name} is {identity}, the most that echoing the incoming order may earn; give a "
                f"number from low {self.low} to high {self.high}"
            )
        object.__setattr__(self, "identity", identity)
        one_of("way to handle errors", self.on_error, get_args(OnError))
        if self.seconds is not None and not 0 < finite(f"seconds of {self.name}", self.seconds) <= LONGEST_SECONDS:
            raise InputError(
                f"{self.name} may take {self.seconds} seconds; give a number above 0 and up to {LONGEST_SECONDS:g}, "
                "or None"
            )

    def bounds(self) -> Bounds:
        """As declared."""
        return Bounds(self.low, self.high, self.invalid, self.identity)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The function's values, checked."""
        slates = answers.slates
        rankings_BK = np.where(slates.mask_BK, answers.orders_BK, PAD)
        if self.on_error == "isolate":
            values_B, complaints = values_or_failures(self.function, rankings_BK, slates, seconds=self.seconds)
        else:
            try:
                values_B, complaints = checked_values(self.function, rankings_BK, slates, seconds=self.seconds), {}
            except FaultError as fault:
                raise RewardError(f"reward {self.name} {fault}", name=self.name) from (fault.__cause__ or fault)
        slack = RANGE_SLACK * max(1.0, abs(self.low), abs(self.high))
        stray_B = ~((values_B >= self.low - slack) & (values_B <= self.high + slack))
        for row in np.flatnonzero(stray_B).tolist():
            complaints.setdefault(row, self._complaint(row, float(values_B[row])))
        if complaints and self.on_error == "raise":
            row = min(complaints)
            raise RewardError(f"reward {self.name} {complaints[row]}", name=self.name, row=row)
        for row, complaint in sorted(complaints.items()):
            answers.failures.append(Failure(self.name, row, f"reward {self.name} {complaint}"))
        return np.where(stray_B, self.low, values_B)

    def _complaint(self, row: int, value: float) -> str:
        if not np.isfinite(value):
            return f"returned {value} for row {row}; return a finite number, and decide what such an answer is worth"
        return f"returned {value} for row {row} but declares {self.low} to {self.high}; declare all of it"

    def __str__(self) -> str:
        """The name."""
        return self.name


ConditionFunction = Callable[[IntArray, Slates], npt.ArrayLike]


@dataclass(frozen=True, repr=False)
class FunctionCondition(Condition):
    """`function(rankings_BK, slates)` -> one truth value a request, as a condition called `name`.

    Called like the function of a `FunctionReward`. `parse_reward` knows it after `register_condition(name, condition)`.
    Raises `InputError` for a useless declaration, and when asked `RewardError` naming the condition if the function
    raises or returns something else than one truth value a request.
    """

    function: ConditionFunction
    name: str = field()  # type: ignore[misc]

    def __post_init__(self) -> None:
        """Check the declaration."""
        _check_function(self.function)
        check_name(self.name)

    def evaluate(self, answers: Answers) -> BoolArray:
        """The function's truth values, checked."""
        rankings_BK = np.where(answers.slates.mask_BK, answers.orders_BK, PAD)
        try:
            given = np.asarray(self.function(rankings_BK, answers.slates))
        except Exception as cause:
            complaint = f"raised {type(cause).__name__}: {cause}; see the cause"
            raise RewardError(f"condition {self.name} {complaint}", name=self.name) from cause
        if given.shape != (len(answers.slates),) or given.dtype.kind != "b":
            raise RewardError(
                f"condition {self.name} returned shape {given.shape} and dtype {given.dtype} for "
                f"{len(answers.slates)} requests; return one truth value each",
                name=self.name,
            )
        return given

    def __str__(self) -> str:
        """The name."""
        return self.name


def _check_function(function: object) -> None:
    """Raise `InputError` unless `function` can be called, and hashed: scores are remembered by what they are of."""
    if not callable(function):
        raise InputError(f"{function!r} is no function; give one of (rankings_BK, slates)")
    try:
        hash(function)
    except TypeError as cause:
        raise InputError(
            f"a callable {type(function).__name__} cannot be hashed ({cause}); give a plain function, or make the "
            "class a dataclass with frozen=True and fields that can be hashed"
        ) from cause
