"""What rewards and conditions share: they are values, written as text that parses back to an equal object.

May import numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from rerank_env.rewards.errors import InputError


class Expression:
    """A node of a reward or condition; every subclass is a frozen dataclass, so equal fields make equal nodes."""

    name: ClassVar[str] = ""
    """The word that `parse_reward` knows the node by."""

    def children(self) -> Iterator[Expression]:
        """The nodes directly below this one."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            for child in value if isinstance(value, tuple) else (value,):
                if isinstance(child, Expression):
                    yield child

    @cached_property
    def rowwise(self) -> bool:
        """True if the outcome of a request depends on its own row only, to the last bit, so that it may be remembered.

        True for everything in this library but functions of the user's.
        """
        return all(child.rowwise for child in self.children())

    def __str__(self) -> str:
        """The text that parses back: `name`, `name@10` or `name(field=value)` with the fields that are not default."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self) if _is_given(self, field)]  # type: ignore[arg-type]
        if not given:
            return self.name
        if len(given) == 1 and given[0][0] == "k":
            return f"{self.name}@{given[0][1]}"
        return f"{self.name}({', '.join(f'{key}={value_text(value)}' for key, value in given)})"

    def __repr__(self) -> str:
        """The text, marked as an object."""
        return f"<{self}>"


def _is_given(node: Expression, field: Field[Any]) -> bool:
    """Whether a field holds something other than its default."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return bool(getattr(node, field.name) != default)


def value_text(value: object) -> str:
    """A keyword's value: numbers short, strings quoted, rewards and conditions as they print."""
    if isinstance(value, float):
        return number_text(value)
    return repr(value) if isinstance(value, str) else str(value)


def number_text(value: float) -> str:
    """The shortest text that reads back as `value`, without a trailing `.0`."""
    return repr(float(value)).removesuffix(".0")


def finite(what: str, value: object) -> float:
    """`value` as a finite float, with -0.0 as 0.0. Raises `InputError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InputError(f"{what} is {value!r}; expected a number")
    try:
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{what} is {number}; expected a finite number")
    return number


def cut_off(value: object) -> int:
    """`value` as a cut-off k, a whole number of places. Raises `InputError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f"k is {value!r}; expected a whole number of places, at least 1")
    return int(value)
