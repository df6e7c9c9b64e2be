"""Settings changed by lines such as "dapo.steps=200", as `rerank recipe --set` takes them.

May import `rerank_env.rewards` and its neighbour `settings`.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError
from rerank_env.training.recipes.settings import Gr2Settings

Settings = TypeVar("Settings", bound=Gr2Settings)


def changed(settings: Settings, changes: Sequence[str]) -> Settings:
    """`settings` with all of `changes`, "GROUP.FIELD=VALUE" or "FIELD=VALUE", the later where two change the same.

    They are made at once, so those that fit only together may come in any order. Values are read as what the field
    has: numbers, true or false, texts as they stand, and seeds as "0,1,2". Raises `UnknownNameError` for a group or a
    field that there is not, and `InputError` for what is no such value.

    >>> changed(Gr2Settings(), ["dapo.steps=20", "seeds=4,5"]).seeds
    (4, 5)
    """
    made: dict[str, Any] = {}
    for change in changes:
        name, sign, value = (part.strip() for part in change.partition("="))
        if not (name and sign):
            raise InputError(f"the change {change!r} is not NAME=VALUE, as in dapo.steps=200")
        group, _, setting = name.partition(".")
        one_of("setting", group, [known.name for known in fields(settings)])
        if not setting:
            made[group] = _read(name, value, type(settings), group)
            continue
        inner = made.get(group, getattr(settings, group))
        if not hasattr(inner, "__dataclass_fields__"):
            raise InputError(f"{group} has no parts; write {group}=VALUE")
        one_of(f"setting of {group}", setting, [known.name for known in fields(inner)])
        made[group] = replace(inner, **{setting: _read(name, value, type(inner), setting)})
    return replace(settings, **made)


def _read(name: str, text: str, owner: type, setting: str) -> Any:
    """The text of a value as the type that a field is declared with."""
    declared = typing.get_type_hints(owner)[setting]
    if declared is str:
        return text
    if isinstance(declared, types.GenericAlias):
        parts = [part.strip() for part in text.split(",")] if text else []
        return (
            tuple(parts) if typing.get_args(declared)[0] is str else tuple(_number(name, part, int) for part in parts)
        )
    if declared is bool:
        return text.lower() == one_of(name, text.lower(), ("true", "false")) == "true"
    if declared in (int, float):
        return _number(name, text, declared)
    raise InputError(f"{name} is a group of settings; name one of them, as in {name}.{fields(declared)[0].name}=VALUE")


def _number(name: str, text: str, kind: type) -> int | float:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return whole(name, value, least=0) if kind is int else finite(name, value)
