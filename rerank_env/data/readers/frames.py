"""Frames of pandas or polars as requests: one row a request with lists in its cells, or one row a candidate.

A frame is what has `columns` by name, each with a `to_list`; neither library is imported. May import `rerank_env.data`
and `rerank_env.rewards`.

    named = read_rows(frame, RowColumns(request="query", candidate="sku", relevance="grade", scores="bm25"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rerank_env.data.catalog import Catalog
from rerank_env.data.readers.cells import At, Cell, as_names, as_numbers, as_texts, is_null
from rerank_env.data.readers.columns import ListColumns, RowColumns, add_row, found, notes_on
from rerank_env.data.readers.drafts import BESIDE_CANDIDATES, Drafts
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.named import Name, NamedRequests
from rerank_env.rewards.errors import DataError

TABLE = "the frame"

_CONSTANT = ("user", "history", "feedback", "history_texts")
"""The fields that are the same in all rows of a request."""


def read_lists(
    frame: Any,
    columns: ListColumns | None = None,
    *,
    texts: Mapping[Any, str] | None = None,
    catalog: Catalog | None = None,
    seed: int = 0,
    name: str = "own data",
) -> NamedRequests:
    """The requests of a frame with one row each; see `ListColumns`.

    Ids are whole numbers or texts. Items are numbered at random with `seed` and have the `texts` given by id, else
    those of the text columns; with `catalog`, ids are item numbers of it and stay what they are. What columns were read
    is in the notes, and so are requests with fewer than two candidates, which are counted and left out.

    Raises `DataError`, naming row (from 0) and column, for nulls, values of another type or range, a candidate that
    stands twice and lists that do not fit together, and where a column is missing; `SlateError` where clicks come
    without propensities.
    """
    present = _columns_of(frame)
    names = found(ListColumns() if columns is None else columns, present, TABLE)
    cells = {field: _cells(frame, column) for field, column in names.items()}
    drafts = Drafts(TABLE, Skipped(), has_request_ids="request" in names)
    for number, row in enumerate(zip(*cells.values(), strict=True)):
        add_row(dict(zip(cells, row, strict=True)), number, names, drafts)
    return drafts.requests(texts=texts, catalog=catalog, seed=seed, name=name, notes=notes_on(names, present, TABLE))


def read_rows(
    frame: Any,
    columns: RowColumns | None = None,
    *,
    texts: Mapping[Any, str] | None = None,
    catalog: Catalog | None = None,
    seed: int = 0,
    name: str = "own data",
) -> NamedRequests:
    """The requests of a frame with one row a candidate, in the order in which it first names them; see `RowColumns`.

    All else is as in `read_lists`. Raises `DataError` also where `user`, `history`, `feedback` or `history_texts`
    differ between rows of one request.
    """
    present = _columns_of(frame)
    names = found(RowColumns() if columns is None else columns, present, TABLE)
    cells = {field: _cells(frame, column) for field, column in names.items()}
    drafts = Drafts(TABLE, Skipped(), has_request_ids=True)
    requests = as_names(cells["request"], _at(names["request"]))
    checked: dict[str, Sequence[Any]] = {"candidate": as_names(cells["candidate"], _at(names["candidate"]))}
    for field in ("position", *BESIDE_CANDIDATES):
        if field in names:
            checked[field] = as_numbers(cells[field], _at(names[field]), field)
    if "text" in names:
        checked["text"] = as_texts(cells["text"], _at(names["text"]))
    rows_of: dict[Name, list[int]] = {}
    for row, request in enumerate(requests):
        rows_of.setdefault(request, []).append(row)
    against = sum(_add_request(request, rows, cells | checked, names, drafts) for request, rows in rows_of.items())
    notes = notes_on(names, present, TABLE)
    if against:
        notes += (f"{against:,} requests have scores that contradict their positions; the positions are followed",)
    return drafts.requests(texts=texts, catalog=catalog, seed=seed, name=name, notes=notes)


def _add_request(
    request: Name, rows: list[int], cells: Mapping[str, Sequence[Any]], names: Mapping[str, str], drafts: Drafts
) -> bool:
    """One more request out of its rows; whether its scores contradict its positions."""

    first = rows[0]
    constant = {field: cells[field][first] for field in _CONSTANT if field in names}
    for field, value in constant.items():
        for row in rows:
            if not _same(cells[field][row], value):
                raise DataError(
                    f"row {row} of {TABLE}, column {names[field]!r} differs from row {first}, which is of the same "
                    f"request {request!r}; give all rows of a request the same"
                )
    candidates = cells["candidate"]
    seen: dict[Name, int] = {}
    for row in rows:
        if seen.setdefault(candidates[row], row) != row:
            raise DataError(
                f"row {row} of {TABLE}, column {names['candidate']!r} has the candidate {candidates[row]!r}, as row "
                f"{seen[candidates[row]]} of the same request {request!r} has; keep one of them"
            )
    positions, scores = cells.get("position"), cells.get("scores")
    if positions is not None:
        rows = sorted(rows, key=positions.__getitem__)
    elif scores is not None:
        rows = sorted(rows, key=lambda row: -scores[row])
    listed = {"candidates": [candidates[row] for row in rows]}
    columns = {**names, "candidates": names["candidate"]}
    for field, there in (*((field, field) for field in BESIDE_CANDIDATES), ("text", "texts")):
        if field in names:
            columns[there] = names[field]
            listed[there] = [cells[field][row] for row in rows]
    add_row({"request": request, **constant, **listed}, first, columns, drafts, rows=len(rows))
    return scores is not None and any(scores[a] < scores[b] for a, b in pairwise(rows))


def _at(column: str) -> At:
    return lambda row: Cell(TABLE, row, column)


def _same(value: Any, other: Any) -> bool:
    """Whether two cells hold the same, be they lists, arrays or values; nulls are the same."""
    if value is other or (type(value) is type(other) and isinstance(value, (str, int, list)) and value == other):
        return True
    if is_null(value) or is_null(other):
        return is_null(value) and is_null(other)
    return bool(np.array_equal(np.asarray(value, dtype=object), np.asarray(other, dtype=object)))


def _columns_of(frame: Any) -> list[str]:
    """The names of the columns of a frame."""
    if callable(getattr(frame, "collect", None)):
        raise DataError("the frame is lazy, so it has no rows yet; give what its collect() returns")
    if not hasattr(frame, "columns") or not hasattr(frame, "__getitem__"):
        raise DataError(f"{type(frame).__name__} is no frame; give one of pandas or polars")
    names = list(frame.columns)
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            raise DataError(f"the frame has a column named {name!r}, by no text or not alone; give each a name")
    return names


def _cells(frame: Any, column: str) -> list[Any]:
    """The cells of a column as a list."""
    return list(frame[column].to_list())
