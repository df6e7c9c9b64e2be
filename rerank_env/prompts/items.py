"""Items as parts of a line: texts that cannot break out of it, shortened texts, and the IDs that items go by.

May import numpy and `rerank_env.data`, `rerank_env.rewards`. What is done to a text is done character by character, and
no character becomes more than one, so that bounds on length and alphabet follow from the catalogue's.

A guarded text: `<`, `>` and `|` become the look-alikes U+2039, U+203A and U+00A6, so that no title can hold a tag, a
special token of a chat template such as `<|im_end|>`, a semantic ID in angle brackets, or this library's own separator;
control characters become U+FFFD; invisible format characters (bidirectional overrides, zero-width blanks, the tag
characters that smuggle text) are left out, but for the joiners that scripts and emoji need. Special tokens in square
brackets, `[INST]`, are not touched: brackets are common in titles. Half a surrogate pair, which no tokenizer can
encode, becomes U+FFFD in guarded and plain texts alike. Line breaks of every kind are gone already: a catalogue makes
white space single.
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

RULES = 1
"""Goes up when texts are cleaned or shortened in another way, so that templates get another hash."""

_LOOKALIKES = {"<": "\u2039", ">": "\u203a", "|": "\u00a6"}
_UNREADABLE = "\ufffd"
_JOINERS = "\u200c\u200d"
_VISIBLE_FORMATS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
"""Format characters that are drawn: signs in front of Arabic and Syriac numbers."""


class _Plain(dict[int, str]):
    """A table for `str.translate` that is filled as it is asked: halves of surrogate pairs are replaced."""

    def __missing__(self, code: int) -> str:
        self[code] = self.of(chr(code))
        return self[code]

    @staticmethod
    def of(character: str) -> str:
        return _UNREADABLE if unicodedata.category(character) == "Cs" else character


class _Guarded(_Plain):
    """The same for guarded texts."""

    @staticmethod
    def of(character: str) -> str:
        category = unicodedata.category(character)
        if category in ("Cc", "Cs"):
            return _UNREADABLE
        if category == "Cf":
            return character if character in _JOINERS or character in _VISIBLE_FORMATS else ""
        return _LOOKALIKES.get(character, character)


_PLAIN, _GUARDED = _Plain(), _Guarded()


def cleaned(text: str, *, guarded: bool) -> str:
    """The text as it may stand in a line, see the module; blanks that are left at an end or doubled are taken out."""
    if not guarded:
        return text.translate(_PLAIN)
    return " ".join(text.translate(_GUARDED).split())


def alphabet(characters: str, *, guarded: bool) -> str:
    """Every character that texts made of `characters` can hold once they are `cleaned`."""
    return characters.translate(_GUARDED if guarded else _PLAIN)


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
    for a part of an answer, see `rerank_env.rewards.formats.names`.
    """

    def __init__(self, table: IdTable) -> None:
        if isinstance(table, str) or not isinstance(table, TextTable | Sequence):
            raise InputError(
                f"semantic_ids is of type {type(table).__name__}; give one text an item, or an object with text(item)"
            )
        self._table = table
        self._known: dict[int, str] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> ItemIds:
        """Itself: the IDs of items do not change."""
        return self

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
