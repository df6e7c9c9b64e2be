"""What rewards and conditions share: they are values, written as text that parses back to an equal object.

May import the standard library only.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from functools import cached_property
from typing import Any, ClassVar

from rerank_env.rewards.errors import InputError


class Expression:
    """A node of a reward or condition; every subclass is a frozen dataclass, so equal fields make equal nodes."""

    name: ClassVar[str] = ""
    """The word that `parse_reward` knows the node by."""

    own_needs: ClassVar[frozenset[str]] = frozenset()
    """What the node itself needs besides rankings and relevance: names of `context.HINTS`."""

    @cached_property
    def needs(self) -> frozenset[str]:
        """What the node and all below it need besides rankings and relevance."""
        return self.own_needs.union(*(child.needs for child in self.children()))

    def children(self) -> Iterator[Expression]:
        """The nodes this one is made of, in the order of its fields."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            for child in value if isinstance(value, tuple) else (value,):
                if isinstance(child, Expression):
                    yield child

    def walk(self) -> Iterator[Expression]:
        """The node and all below it, parents first."""
        yield self
        for child in self.children():
            yield from child.walk()

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


def check_name(name: object) -> None:
    """Raise `InputError` unless `name` is a word that can stand in the text of a reward."""
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise InputError(f"{name!r} cannot name a reward; use letters, digits and underscores, a letter first")
