"""Items as parts of a line: what stands between their parts, shortened texts, and the IDs that items go by.

May import `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rerank_env.data.catalog import Catalog
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import names

MARK = "\N{HORIZONTAL ELLIPSIS}"
"""What a shortened text ends with."""

SEPARATOR = " | "
"""What stands between the ID, the text and the labels of an item."""

LEVEL = " > "
"""What stands between one label and the next."""


def labels_of(catalog: Catalog) -> Sequence[Sequence[str]]:
    """The labels of every item, general to special; empty where a catalogue has none."""
    labels: Sequence[Sequence[str]] = getattr(catalog, "labels", ())
    return labels


def shortened(text: str, limit: int) -> str:
    """`text` with at most `limit` characters, at least 1, and behind them a mark where something is missing.

    Cut after a word; inside one only where the first word is longer than `limit`, and then not between a letter and
    what is drawn on it. Never longer than `text`.

    >>> shortened("The Big Sleep", 10), shortened("The Big Sleep", 13)
    ('The Big…', 'The Big Sleep')
    """
    if len(text) <= limit:
        return text
    head = text[:limit] if text[limit].isspace() else text[:limit].rpartition(" ")[0]
    if not (head := head.rstrip(" >|")):
        end = limit
        while end > 1 and (unicodedata.category(text[end])[0] == "M" or "\u200d" in text[end - 1 : end + 1]):
            end -= 1
        head = text[:end]
    return head + MARK


@runtime_checkable
class TextTable(Protocol):
    """Whatever knows the ID of an item as text."""

    def text(self, item: int) -> str:
        """The ID of the item with that number."""


IdTable = TextTable | Sequence[str]
"""The IDs of the items of a catalogue, by item number."""


class ItemIds:
    """The IDs of items as they stand in text, checked when first used.

    Raises `InputError` for a table that is none, for an item that it does not hold, and for an ID that could be taken
    for a part of an answer, see `rerank_env.rewards.formats.names`. What a table with `check_catalogue(texts)` raises
    is raised by `check`.
    """

    def __init__(self, table: IdTable) -> None:
        if isinstance(table, str) or not isinstance(table, TextTable | Sequence):
            raise InputError(
                f"semantic_ids is of type {type(table).__name__}; give one text an item, or an object with text(item)"
            )
        self._table = table
        self._known: dict[int, str] = {}
        self._checked: Catalog | None = None

    @property
    def table(self) -> IdTable:
        """The IDs as they were given."""
        return self._table

    def __deepcopy__(self, memo: dict[int, object]) -> ItemIds:
        """Itself: the IDs of items do not change."""
        return self

    def check(self, catalog: Catalog) -> None:
        """Have the table look at the catalogue, where it can tell its own; once for each that comes in turn."""
        if catalog is self._checked:
            return
        check = getattr(self._table, "check_catalogue", None)
        if check is not None:
            check(catalog.texts)
        self._checked = catalog

    def of(self, item: int) -> str:
        """The ID of the item with that number, from 0."""
        if item not in self._known:
            try:
                found = self._table.text(item) if isinstance(self._table, TextTable) else self._table[item]
            except (LookupError, ValueError) as cause:
                raise InputError(f"item {item} has no semantic ID; give the IDs of the whole catalogue") from cause
            names([found], 1)
            self._known[item] = str(found)
        return self._known[item]
