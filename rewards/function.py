"""A reward from a function of the user's, with every fault of the function attributed to it by name and row.

May import numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.errors import InputError, RewardError
from rerank_env.rewards.expression import finite
from rerank_env.rewards.reward import Bounds, Reward
from rerank_env.rewards.slates import FloatArray, IntArray, Slates

RewardFunction = Callable[[IntArray, Slates], npt.ArrayLike]


@dataclass(frozen=True, repr=False)
class FunctionReward(Reward):
    """`function(rankings_BK, slates)` -> one number a request, as a reward called `name`.

    The function is called with valid rankings only, whole batches at a time: the incoming order stands in for an
    invalid answer, whose value is thrown away. Rows are padded with -1. It must be pure, and the same row must always
    earn the same. `low` and `high` promise the range over valid answers; `invalid` is what any other answer earns.

    `str()` is the name, which `parse_reward` knows after `register_reward(name, reward)`; pickling needs a function
    that can be imported. Raises `InputError` for a useless declaration, and when scoring `RewardError`, naming reward
    and row, if the function raises, returns the wrong length or anything that is not finite.
    """

    function: RewardFunction
    name: str = field()  # type: ignore[misc]
    low: float = field()
    high: float = field()
    invalid: float = field()
    rowwise = False

    def __post_init__(self) -> None:
        """Check the declaration."""
        if not callable(self.function):
            raise InputError(f"{self.function!r} is no function; give one of (rankings_BK, slates)")
        if not (isinstance(self.name, str) and self.name.isascii() and self.name.isidentifier()):
            raise InputError(f"{self.name!r} cannot name a reward; use letters, digits and underscores, a letter first")
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
        rankings_BK = np.where(slates.mask_BK, answers.orders_BK, -1)
        try:
            given = np.asarray(self.function(rankings_BK, slates))
        except Exception as cause:
            raise RewardError(f"reward {self.name} raised {type(cause).__name__}: {cause}; see the cause") from cause
        if given.shape != (len(slates),):
            raise RewardError(
                f"reward {self.name} returned shape {given.shape} for {len(slates)} requests; return one number each"
            )
        if given.dtype.kind not in "fiub":
            raise RewardError(f"reward {self.name} returned dtype {given.dtype}; return one number a request")
        values_B = given.astype(np.float64)
        for row in np.flatnonzero(~np.isfinite(values_B))[:1]:
            raise RewardError(
                f"reward {self.name} returned {values_B[row]} for row {row}; return a finite number, "
                "and decide what such an answer is worth"
            )
        return values_B

    def __str__(self) -> str:
        """The name."""
        return self.name
