"""Checks of arguments, each with one sentence that says what was given and what was expected.

Every layer checks at its public edge with these. May import numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from rerank_env.rewards.errors import InputError, UnknownNameError

Value = TypeVar("Value")


def whole(what: str, value: object, *, least: int) -> int:
    """`value` as an int of at least `least`; numpy integers will do, booleans and floats will not.

    Raises `InputError`.

    >>> whole("k", np.int64(3), least=1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{what} is {value!r}; give a whole number of at least {least}")
    return int(value)


def finite(what: str, value: object) -> float:
    """`value` as a finite float, with -0.0 as 0.0; numpy numbers will do, booleans and text will not.

    Raises `InputError`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InputError(f"{what} is {value!r}; expected a number")
    try:
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{what} is {number}; expected a finite number")
    return number


def one_of(kind: str, value: Value, known: Iterable[str]) -> Value:
    """`value`, which is one of the `known` names of a `kind` such as "text format".

    Raises `UnknownNameError`, which suggests the nearest name.
    """
    names = tuple(known)
    if not (isinstance(value, str) and value in names):
        raise UnknownNameError.of(kind, value, names)
    return value
