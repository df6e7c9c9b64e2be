"""A reward from a function of the user's, with every fault of the function attributed to it by name and row.

May import numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import finite
from rerank_env.rewards.arrays import PAD, FloatArray, IntArray
from rerank_env.rewards.errors import InputError, RewardError
from rerank_env.rewards.expression import check_name
from rerank_env.rewards.reward import Bounds, Reward
from rerank_env.rewards.slates import Slates

RewardFunction = Callable[[IntArray, Slates], npt.ArrayLike]

RANGE_SLACK = 1e-9
"""What rounding may put a value outside its declared range by, relative to the range's ends or 1."""


@dataclass(frozen=True, repr=False)
class FunctionReward(Reward):
    """`function(rankings_BK, slates)` -> one number a request, as a reward called `name`.

    The function is called with valid rankings only, whole batches at a time: the incoming order stands in for an
    invalid answer, whose value is thrown away. Rows are padded with -1. It must be pure, and the same row must always
    earn the same. `low` and `high` promise the range over valid answers; `invalid` is what any other answer earns.

    `str()` is the name, which `parse_reward` knows after `register_reward(name, reward)`; pickling needs a function
    that can be imported. Raises `InputError` for a useless declaration, and when scoring `RewardError`, naming reward
    and row, if the function raises, returns the wrong length, anything that is not finite, or a value out of its range.
    """

    function: RewardFunction
    name: str = field()  # type: ignore[misc]
    low: float = field()
    high: float = field()
    invalid: float = field()

    def __post_init__(self) -> None:
        """Check the declaration."""
        if not callable(self.function):
            raise InputError(f"{self.function!r} is no function; give one of (rankings_BK, slates)")
        check_name(self.name)
        for bound in ("low", "high", "invalid"):
            object.__setattr__(self, bound, finite(f"{bound} of {self.name}", getattr(self, bound)))
        if self.low > self.high:
            raise InputError(f"{self.name} has low {self.low} above high {self.high}; exchange them")

    def bounds(self) -> Bounds:
        """As declared."""
        return Bounds(self.low, self.high, self.invalid)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The function's values, checked."""
        slates = answers.slates
        rankings_BK = np.where(slates.mask_BK, answers.orders_BK, PAD)
        try:
            given = np.asarray(self.function(rankings_BK, slates))
        except Exception as cause:
            raise self._fault(f"raised {type(cause).__name__}: {cause}; see the cause") from cause
        if given.shape != (len(slates),):
            raise self._fault(f"returned shape {given.shape} for {len(slates)} requests; return one number each")
        if given.dtype.kind not in "fiub":
            raise self._fault(f"returned dtype {given.dtype}; return one number a request")
        values_B = given.astype(np.float64)
        for row in np.flatnonzero(~np.isfinite(values_B))[:1].tolist():
            raise self._fault(
                f"returned {values_B[row]} for row {row}; return a finite number, and decide what such an answer is "
                "worth",
                row,
            )
        slack = RANGE_SLACK * max(1.0, abs(self.low), abs(self.high))
        for row in np.flatnonzero((values_B < self.low - slack) | (values_B > self.high + slack))[:1].tolist():
            raise self._fault(
                f"returned {values_B[row]} for row {row} but declares {self.low} to {self.high}; declare all of it",
                row,
            )
        return values_B

    def _fault(self, complaint: str, row: int | None = None) -> RewardError:
        return RewardError(f"reward {self.name} {complaint}", name=self.name, row=row)

    def __str__(self) -> str:
        """The name."""
        return self.name
