"""Which column of a table holds what, for tables with one row a request and for those with one row a candidate.

A field that is left out is read from the column of its own name where the table has one, and is absent otherwise; one
that names a column needs that column. May import `rerank_env.data.readers` and `rerank_env.rewards`.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rerank_env.data.readers.cells import Cell, as_list, as_name, as_names, as_numbers, as_texts
from rerank_env.data.readers.drafts import BESIDE_CANDIDATES, Draft, Drafts
from rerank_env.rewards.errors import DataError


@dataclass(frozen=True)
class ListColumns:
    """One row a request. `candidates` and `relevance` have to be there; each but `request` and `user` is a list.

    `candidates` are ids in incoming order with the gains `relevance`; `scores`, `clicks`, `propensities`, `predictions`
    and `texts` stand beside them, `input_order` gives the place of each in the unshuffled request. `history` are ids,
    oldest first, `feedback` and `history_texts` beside them. `request` tells copies of a request, `user` who asks.
    """

    candidates: str = "candidates"
    relevance: str = "relevance"
    scores: str | None = None
    history: str | None = None
    feedback: str | None = None
    request: str | None = None
    user: str | None = None
    clicks: str | None = None
    propensities: str | None = None
    predictions: str | None = None
    input_order: str | None = None
    texts: str | None = None
    history_texts: str | None = None


@dataclass(frozen=True)
class RowColumns:
    """One row a candidate. `request`, `candidate` and `relevance` have to be there.

    Rows of a request need not be together. Its incoming order is by `position`, lowest first (whole numbers, from
    anywhere, as they say nothing but the order), where there is one, else
    by `scores`, highest first, else that of the table, which also parts ties. `text` is that of the candidate. The
    same in all rows of a request are `user` and the lists `history`, `feedback` and `history_texts`.
    """

    request: str = "request"
    candidate: str = "candidate"
    relevance: str = "relevance"
    position: str | None = None
    scores: str | None = None
    user: str | None = None
    history: str | None = None
    feedback: str | None = None
    clicks: str | None = None
    propensities: str | None = None
    predictions: str | None = None
    text: str | None = None
    history_texts: str | None = None


PREPARED = ListColumns(candidates="candidate_ids")
"""The columns of the data sets that `rerank_env.training.adapters.huggingface` makes."""


def found(columns: ListColumns | RowColumns, present: Sequence[str], table: str) -> dict[str, str]:
    """The column of each field that the table has. Raises `DataError` naming a column that it should have.

    >>> found(ListColumns(scores="bm25"), ["candidates", "relevance", "bm25", "user", "day"], "the frame")
    {'candidates': 'candidates', 'relevance': 'relevance', 'scores': 'bm25', 'user': 'user'}
    """
    names: dict[str, str] = {}
    for field in fields(columns):
        asked = getattr(columns, field.name)
        name = field.name if asked is None else asked
        if name in present:
            names[field.name] = name
        elif asked is not None:
            near = next(iter(difflib.get_close_matches(name, present, n=1)), None)
            hint = "" if near is None else f"did you mean {near!r}? "
            known = ", ".join(map(repr, present)) or "it has none"
            raise DataError(
                f"{table} has no column {name!r}, which is to hold the {field.name}; {hint}say which of its columns "
                f"does ({known}): pass {type(columns).__name__}({field.name}={'...' if near is None else repr(near)})"
            )
    return names


def notes_on(names: dict[str, str], present: Sequence[str], table: str) -> tuple[str, ...]:
    """Which columns were read, and which were not."""
    unread = [name for name in present if name not in names.values()]
    read = ", ".join(field if field == name else f"{field} from {name}" for field, name in names.items())
    return (f"read of {table}: {read}" + (f"; not read: {', '.join(unread)}" if unread else ""),)


def add_row(row: Mapping[str, Any], number: int, names: Mapping[str, str], drafts: Drafts, *, rows: int = 1) -> None:
    """Check what row `number` of a table says of one request, by field, and add it to `drafts`.

    `names` gives the column of each field, and `rows` how many rows of the table the request takes. Raises `DataError`.
    """

    def cell(field: str) -> Cell:
        return Cell(drafts.table, number, names[field])

    def listed(field: str) -> list[Any]:
        return as_list(row[field], cell(field)) if field in names else []

    def beside(field: str, others: Sequence[Any]) -> list[Any]:
        """The list of a field that has an entry for each of `others`."""
        values = listed(field)
        if len(values) != len(others):
            raise DataError(
                f"row {number} of {drafts.table}, column {names[field]!r} has {len(values)} entries for {len(others)} "
                f"{'candidates' if others is candidates else 'entries of the history'}; give one for each"
            )
        return values

    candidates = as_names(listed("candidates"), cell("candidates").at)
    history = as_names(listed("history"), lambda entry: cell("history").at(entry))
    if len(set(candidates)) < len(candidates):
        twice = Counter(candidates).most_common(1)[0][0]
        raise DataError(
            f"row {number} of {drafts.table}, column {names['candidates']!r} has {twice!r} twice; keep one of each"
        )
    numbers = {
        field: as_numbers(
            beside(field, history if field == "feedback" else candidates),
            cell(field).at,
            field,
        )
        for field in (*BESIDE_CANDIDATES, "feedback")
        if field in names
    }
    order = numbers.get("input_order", [])
    if sorted(order) != list(range(len(order))):
        raise DataError(
            f"row {number} of {drafts.table}, column {names['input_order']!r} is {[int(place) for place in order]}; "
            "name each place from 0 once"
        )
    for field, known in (("texts", candidates), ("history_texts", history)):
        if field in names:
            drafts.tell(known, as_texts(beside(field, known), cell(field).at))
    request = as_name(row["request"], cell("request")) if "request" in names else number
    user = as_name(row["user"], cell("user")) if "user" in names else number
    drafts.add(Draft(cell("candidates"), request, user, candidates, history, numbers, rows))
