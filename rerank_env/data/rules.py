"""Which numbers a column may hold, and what they are called: the same in logs, tables and files of every form.

May import numpy and `rerank_env.rewards`. Suffix: `_N` rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.arrays import BoolArray, FloatArray
from rerank_env.rewards.rankings import MIN_CANDIDATES
from rerank_env.rewards.slates import MAX_RELEVANCE

SINGLE = float(np.finfo(np.float32).max)
"""The largest number of single precision, in which `Requests` keeps scores and feedback, and `trec_eval` scores."""

MOST_WHOLE = 2.0**53
"""Up to here every whole number is a float64 of its own."""

TOO_FEW = f"the request has fewer than {MIN_CANDIDATES} candidates, which cannot be re-ranked"


@dataclass(frozen=True)
class Rule:
    """The numbers from `low` to `high`, of which `expected` says in words what they are; NaN never is one of them."""

    expected: str
    low: float
    high: float
    is_whole: bool = False
    is_above_low: bool = False

    def holds(self, values_N: FloatArray) -> BoolArray:
        """Whether each value is one of them, bool [N]."""
        held_N: BoolArray = (values_N <= self.high) & (
            values_N > self.low if self.is_above_low else values_N >= self.low
        )
        return held_N & (values_N == np.floor(values_N)) if self.is_whole else held_N

    def admits(self, value: float) -> bool:
        """Whether one value is one of them."""
        inside = self.low < value <= self.high if self.is_above_low else self.low <= value <= self.high
        return inside and not (self.is_whole and value != math.floor(value))


POSITION = Rule("a whole number from 1", 1, MOST_WHOLE, is_whole=True)
ORDER = Rule("a whole number", -MOST_WHOLE, MOST_WHOLE, is_whole=True)
"""The position of a table that is read for its order only, so it may count from 0, or from anywhere."""

PLACE = Rule("a place, a whole number from 0", 0, MOST_WHOLE, is_whole=True)
CLICK = Rule("0 or 1", 0, 1, is_whole=True)
PROPENSITY = Rule("a probability above 0 and at most 1", 0, 1, is_above_low=True)
PREDICTION = Rule("a probability", 0, 1)
SCORE = Rule("a number that a float32 can hold", -SINGLE, SINGLE)
RELEVANCE = Rule(f"a gain from 0 to {MAX_RELEVANCE:g}", 0, MAX_RELEVANCE)
TIMESTAMP = Rule("seconds or a date as ISO 8601", -float(np.finfo(np.float64).max), float(np.finfo(np.float64).max))
