"""The cells of a table, one value checked at a time; every fault is a `DataError` that names row, column and entry.

A table holds what its users put there: nulls of five kinds, text among numbers, arrays of numpy, pandas or Arrow among
lists. What passes is a plain Python value. May import numpy, `rerank_env.data.readers.named` and `rerank_env.rewards`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rerank_env.data.readers.named import Name
from rerank_env.rewards.errors import DataError
from rerank_env.rewards.slates import MAX_RELEVANCE

NULLS = ("None", "nan", "NaN", "<NA>", "NaT")
"""How the nulls of Python, numpy, pandas and polars print themselves."""


@dataclass(frozen=True)
class Cell:
    """Where a value stands: `row` from 0 in the table called `table`, `entry` where the cell holds a list."""

    table: str
    row: int
    column: str
    entry: int | None = None

    def fault(self, value: object, expected: str, remedy: str) -> DataError:
        """The error that says in one sentence what `value` is and what was expected here."""
        entry = "" if self.entry is None else f", entry {self.entry}"
        given = "null" if is_null(value) else f"{value!r:.60} of type {type(value).__name__}"
        return DataError(
            f"row {self.row} of {self.table}, column {self.column!r}{entry} is {given}, not {expected}; {remedy}"
        )

    def at(self, entry: int) -> Cell:
        """The place of one entry of the list in this cell."""
        return Cell(self.table, self.row, self.column, entry)


@dataclass(frozen=True)
class Range:
    """Which numbers a column may hold, from `low` to `high`, and what they are called."""

    low: float
    high: float
    called: str
    is_whole: bool = False
    is_above_low: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` is one of them; NaN never is."""
        inside = self.low < value <= self.high if self.is_above_low else self.low <= value <= self.high
        return inside and not (self.is_whole and value != math.floor(value))


_SINGLE = float(np.finfo(np.float32).max)

RANGES = {
    "relevance": Range(0, MAX_RELEVANCE, "a gain of 0 or more"),
    "scores": Range(-_SINGLE, _SINGLE, "a finite number"),
    "feedback": Range(-_SINGLE, _SINGLE, "a finite number"),
    "clicks": Range(0, 1, "0 or 1", is_whole=True),
    "propensities": Range(0, 1, "a probability above 0", is_above_low=True),
    "predictions": Range(0, 1, "a probability"),
    "input_order": Range(0, 2**53, "a place, a whole number from 0", is_whole=True),
    "position": Range(-(2**53), 2**53, "a whole number", is_whole=True),
}
"""The numbers of each field: single precision for scores and feedback, as `Requests` keeps them."""


def is_null(value: object) -> bool:
    """Whether `value` stands for nothing: None, a NaN, or a null of pandas."""
    return value is None or (not isinstance(value, str) and repr(value) in NULLS) or _is_nan(value)


def _is_nan(value: object) -> bool:
    return isinstance(value, (float, np.floating)) and math.isnan(value)


At = Callable[[int], Cell]
"""Where the values of a list or a column stand, by their place in it; asked only where one is at fault."""


def as_name(value: object, cell: Cell) -> Name:
    """A whole number or a text that is not empty; numpy's will do, floats and booleans will not."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value:
        return str(value)
    raise cell.fault(
        value, "a whole number or a text, as ids are", "fill it in, or convert the column, or drop the row"
    )


def as_names(values: Sequence[Any], at: At) -> list[Name]:
    """`as_name` of each."""
    types = set(map(type, values))
    if types <= {int} or (types == {str} and "" not in values):
        return list(values)
    return [as_name(value, at(place)) for place, value in enumerate(values)]


def as_number(value: object, cell: Cell, field: str) -> float:
    """A number in the range of the field; booleans are 0 and 1."""
    if isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if RANGES[field].holds(number):
            return number
    raise cell.fault(value, RANGES[field].called, "fill it in, or convert the column, or drop the row")


def as_numbers(values: Sequence[Any], at: At, field: str) -> list[float]:
    """`as_number` of each."""
    holds = RANGES[field].holds
    if set(map(type, values)) <= {float, int, bool} and all(map(holds, values)):
        return list(map(float, values))
    return [as_number(value, at(place), field) for place, value in enumerate(values)]


def as_texts(values: Sequence[Any], at: At) -> list[str]:
    """Texts, which may be empty."""
    if set(map(type, values)) <= {str}:
        return list(values)
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise at(place).fault(value, "a text", "fill it in, or convert the column")
    return [str(value) for value in values]


def as_list(value: object, cell: Cell) -> list[Any]:
    """The entries of a list, a tuple or a one-dimensional array or series."""
    if isinstance(value, str | bytes):
        raise cell.fault(value, "a list", "split the text into a list")
    if isinstance(value, Sequence):
        return list(value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()  # type: ignore[no-any-return]
    if callable(convert := getattr(value, "to_list", None)):  # a series within a series
        return list(convert())
    raise cell.fault(value, "a list", "give a list, empty where there is nothing")
