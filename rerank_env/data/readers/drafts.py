"""Requests under way: what a table says of each, by name and checked, and all of them put into the record at the end.

May import numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_B` requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rerank_env.data.catalog import Catalog
from rerank_env.data.fields import padded_field
from rerank_env.data.ids import is_text, user_numbers, whole_number
from rerank_env.data.readers.cells import Cell
from rerank_env.data.readers.documents import NO_TEXT
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.named import Name, NamedRequests, permuted
from rerank_env.data.requests import Requests
from rerank_env.data.rules import TOO_FEW
from rerank_env.rewards.arrays import PAD
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES

BESIDE_CANDIDATES = ("relevance", "scores", "clicks", "propensities", "predictions", "input_order")
"""The fields with a number for each candidate."""

LARGEST = int(np.iinfo(np.int64).max)
"""Requests are kept in 64 bits."""


@dataclass
class Draft:
    """One request: where it stands, its names, and `numbers` by field, each with one a candidate or history entry.

    Candidates are distinct, lists of one length where they stand beside another, and each number in its range.
    `rows` is how many rows of the table the request takes.
    """

    cell: Cell
    request: Name
    user: Name
    candidates: list[Name]
    history: list[Name]
    numbers: dict[str, list[float]]
    rows: int = 1


@dataclass
class Drafts:
    """All requests of one table, and the texts that it has for items (the first text of each item is kept)."""

    table: str
    skipped: Skipped
    has_request_ids: bool
    drafts: list[Draft] = field(default_factory=list)
    texts: dict[Name, str] = field(default_factory=dict)
    retold: set[Name] = field(default_factory=set)

    def add(self, draft: Draft) -> None:
        """One more request; one with too few candidates is counted and left out."""
        if len(draft.candidates) < MIN_CANDIDATES:
            self.skipped.add(TOO_FEW, self.table, draft.cell.row, rows=draft.rows, unit="row")
        else:
            self.drafts.append(draft)

    def tell(self, names: Sequence[Name], texts: Sequence[str]) -> None:
        """The texts of items by name."""
        for name, text in zip(names, texts, strict=True):
            if self.texts.setdefault(name, text) != text:
                self.retold.add(name)

    def requests(
        self, *, texts: Mapping[Any, str] | None, catalog: Catalog | None, seed: int, name: str, notes: Iterable[str]
    ) -> NamedRequests:
        """The record. Items are numbered at random with `seed`, or are those of `catalog` by number.

        Users that are texts are numbered as in `ids`, the same in every table.

        Raises `DataError` where no request is left, where ids of one kind are numbers and texts, where the catalogue
        has no item of that number, and for a text that is none; `InputError` where texts come with a catalogue.
        """
        if not self.drafts:
            raise DataError(f"{self.table} has no request with {MIN_CANDIDATES} candidates; give at least one")
        if catalog is not None and texts is not None:
            raise InputError("catalog came with texts; a catalogue holds them, so give one or the other")
        self._check_kinds()
        numbers, item_ids = self._numbered(catalog, seed)
        said: list[str] = []
        if catalog is None:
            catalog = self._catalog(item_ids, texts, said)
        columns: dict[str, Any] = {
            field: [draft.numbers[field] for draft in self.drafts]
            for field in self.drafts[0].numbers
            if field != "input_order"
        }
        requests = Requests.of(
            [[numbers[name] for name in draft.candidates] for draft in self.drafts],
            columns.pop("relevance"),
            history=[[numbers[name] for name in draft.history] for draft in self.drafts],
            users=user_numbers(str(draft.user) for draft in self.drafts).tolist(),
            catalog=catalog,
            name=name,
            **columns,
        )
        return NamedRequests(
            replace(requests, notes=(*notes, *said, *self.skipped.notes()), **self._copies(requests)),
            tuple(draft.request for draft in self.drafts),
            tuple(draft.user for draft in self.drafts),
            item_ids,
            self.skipped,
        )

    def _catalog(self, item_ids: Sequence[Name], texts: Mapping[Any, str] | None, said: list[str]) -> Catalog:
        """The items with their texts; what has none says so, and how many have none is said."""
        for name, text in (texts or {}).items():
            if not isinstance(text, str) or not is_text(text):
                raise DataError(f"the text of the item {name!r} is {text!r}; give a text for each id")
        known = {**self.texts, **(texts or {})}
        if self.retold:
            said.append(f"{len(self.retold):,} items have several texts, of which the first is kept")
        if not known:
            return Catalog.of([f"item {number}" for number in range(len(item_ids))])
        shown = [known.get(name, "").strip() or NO_TEXT for name in item_ids]
        if unknown := shown.count(NO_TEXT):
            said.append(f"{unknown:,} of {len(item_ids):,} items have no text")
        return Catalog.of(shown)

    def _check_kinds(self) -> None:
        """All ids of requests are numbers or all are texts, and so are those of users and of items."""
        kinds: dict[str, type] = {}
        for draft in self.drafts:
            for what, names in (
                ("request", [draft.request]),
                ("user", [draft.user]),
                ("item", draft.candidates + draft.history),
            ):
                for name in names:
                    if kinds.setdefault(what, type(name)) is not type(name):
                        raise DataError(
                            f"row {draft.cell.row} of {self.table} has the {what} id {name!r} of type "
                            f"{type(name).__name__} where earlier ones are of type {kinds[what].__name__}; convert "
                            "all to one type"
                        )

    def _numbered(self, catalog: Catalog | None, seed: int) -> tuple[dict[Name, int], tuple[Name, ...]]:
        """The number of each item by name, and the names by number."""
        first_seen = dict.fromkeys(name for draft in self.drafts for name in (*draft.candidates, *draft.history))
        if catalog is None:
            drawn, item_ids = permuted(tuple(first_seen), seed=seed)
            return dict(zip(first_seen, drawn.tolist(), strict=True)), item_ids
        numbers = {name: _item_number(name) for name in first_seen}
        for draft in self.drafts:
            for name in (*draft.candidates, *draft.history):
                if not 0 <= numbers[name] < len(catalog):
                    raise DataError(
                        f"row {draft.cell.row} of {self.table} has the item {name!r} but the catalogue has items "
                        f"0..{len(catalog) - 1}; give their numbers, or leave the catalogue out"
                    )
        return numbers, tuple(range(len(catalog)))

    def _copies(self, requests: Requests) -> dict[str, Any]:
        """What tells shuffled copies of a request apart, where the table says it."""
        found: dict[str, Any] = {}
        if "input_order" in self.drafts[0].numbers:
            places = [[int(place) for place in draft.numbers["input_order"]] for draft in self.drafts]
            width = requests.candidates_BK.shape[1]
            found["canonical_BK"] = padded_field("input_order", places, np.int64, fill=PAD, width=width)
        if self.has_request_ids:
            found["origins_B"] = np.array(_as_numbers([draft.request for draft in self.drafts]))
        return found


def _as_numbers(names: Sequence[Name]) -> list[int]:
    """Whole numbers of 64 bits as they are; other names by the place where each is first met."""
    whole = [name for name in names if isinstance(name, int) and abs(name) <= LARGEST]
    if len(whole) == len(names):
        return whole
    first: dict[Name, int] = {}
    return [first.setdefault(name, place) for place, name in enumerate(names)]


def _item_number(name: Name) -> int:
    """The whole number that a name is, or is when written plainly, -1 where it is none of 64 bits."""
    number = name if isinstance(name, int) else whole_number(name)
    return -1 if number is None else number
