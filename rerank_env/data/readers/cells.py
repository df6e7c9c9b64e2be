"""The cells of a table, one value checked at a time; every fault is a `DataError` that names row, column and entry.

A table holds what its users put there: nulls of five kinds, text among numbers, arrays of numpy, pandas or Arrow among
lists. What passes is a plain Python value. May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rerank_env.data import rules
from rerank_env.data.ids import HALF, is_text
from rerank_env.data.readers.named import Name
from rerank_env.rewards.errors import DataError

NULLS = ("None", "nan", "NaN", "<NA>", "NaT")
"""How the nulls of Python, numpy, pandas and polars print themselves."""

MOST_DIGITS = 1_000
"""A whole number with more digits is no id; Python does not even print one of 4,300."""

_BEYOND = 10**MOST_DIGITS


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
        given = "null" if is_null(value) else f"{_shown(value):.60} of type {type(value).__name__}"
        return DataError(
            f"row {self.row} of {self.table}, column {self.column!r}{entry} is {given}, not {expected}; {remedy}"
        )

    def at(self, entry: int) -> Cell:
        """The place of one entry of the list in this cell."""
        return Cell(self.table, self.row, self.column, entry)


RULES = {
    "relevance": rules.RELEVANCE,
    "scores": rules.SCORE,
    "feedback": rules.SCORE,
    "clicks": rules.CLICK,
    "propensities": rules.PROPENSITY,
    "predictions": rules.PREDICTION,
    "input_order": rules.PLACE,
    "position": rules.ORDER,
}
"""The numbers of each field."""


def is_null(value: object) -> bool:
    """Whether `value` stands for nothing: None, a NaN, or a null of pandas."""
    return value is None or (not isinstance(value, (str, int)) and repr(value) in NULLS) or _is_nan(value)


def _is_nan(value: object) -> bool:
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def _shown(value: object) -> str:
    if isinstance(value, int) and not -_BEYOND < value < _BEYOND:
        return f"a number of more than {MOST_DIGITS:,} digits"
    return repr(value)


At = Callable[[int], Cell]
"""Where the values of a list or a column stand, by their place in it; asked only where one is at fault."""


def as_name(value: object, cell: Cell) -> Name:
    """A whole number or a text that is not empty; numpy's will do, floats and booleans will not."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and -_BEYOND < value < _BEYOND:
        return int(value)
    if isinstance(value, str) and value and is_text(value):
        return str(value)
    raise cell.fault(
        value, "a whole number or a text, as ids are", "fill it in, or convert the column, or drop the row"
    )


def as_names(values: Sequence[Any], at: At) -> list[Name]:
    """`as_name` of each."""
    types = set(map(type, values))
    if types == {str} and "" not in values and all(map(is_text, values)):
        return list(values)
    if types == {int} and min(values) > -_BEYOND and max(values) < _BEYOND:
        return list(values)
    return [as_name(value, at(place)) for place, value in enumerate(values)]


def as_number(value: object, cell: Cell, field: str) -> float:
    """A number in the range of the field; booleans are 0 and 1."""
    if isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if RULES[field].admits(number):
            return number
    raise cell.fault(value, RULES[field].expected, "fill it in, or convert the column, or drop the row")


def as_numbers(values: Sequence[Any], at: At, field: str) -> list[float]:
    """`as_number` of each."""
    admits = RULES[field].admits
    if set(map(type, values)) <= {float, int, bool} and all(map(admits, values)):
        return list(map(float, values))
    return [as_number(value, at(place), field) for place, value in enumerate(values)]


def as_texts(values: Sequence[Any], at: At) -> list[str]:
    """Texts, which may be empty."""
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise at(place).fault(value, "a text", "fill it in, or convert the column")
        if not is_text(value):
            raise at(place).fault(value, f"a text, as it holds {HALF}", "write it as UTF-8")
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
