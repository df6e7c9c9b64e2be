"""Logged impressions: which item was shown to whom at which place, whether it was clicked, and how probable that was.

A log has one row a shown candidate; docs/logs.md has the form in files. `Impressions` is a run of whole requests as
columns; `requests` makes of it the record that everything else reads. May import numpy, `rerank_env.data` and
`rerank_env.rewards`. Suffixes: `_N` rows, `_B` requests, `_I` items, `_K` places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from rerank_env.data import rules
from rerank_env.data.catalog import Catalog
from rerank_env.data.ids import user_numbers, whole_number
from rerank_env.data.requests import Requests
from rerank_env.data.rules import Rule
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES

Propensity = Literal["examination", "selection"]
"""The probability that the place was looked at, or that the logging policy put the item there."""

Relevance = Literal["column", "clicks", "none"]
"""Where the gain of a candidate comes from: the log's own column, its clicks, or nowhere (0 for all)."""

Texts = npt.NDArray[np.object_]

EXAMINATION = "the probability that the place was looked at"

RULES: Mapping[str, Rule] = {
    "position": rules.POSITION,
    "click": rules.CLICK,
    "propensity": rules.PROPENSITY,
    "score": rules.SCORE,
    "relevance": rules.RELEVANCE,
    "timestamp": rules.TIMESTAMP,
    "prediction": rules.PREDICTION,
}
"""The columns of numbers, in the order of the schema."""

NAMES = ("request_id", "user_id", "item_id")
"""The columns of text."""

REQUIRED = (*NAMES, "position", "click", "propensity")

OPTIONAL = tuple(column for column in RULES if column not in REQUIRED)

FIELDS: Mapping[str, str] = {
    "position": "positions_N",
    "click": "clicks_N",
    "propensity": "propensities_N",
    "score": "scores_N",
    "relevance": "relevance_N",
    "timestamp": "timestamps_N",
    "prediction": "predictions_N",
}
"""The field of `Impressions` that holds each column of numbers."""


@dataclass(frozen=True, eq=False)
class Impressions:
    """Whole requests of a log as columns, the rows of each request together and in any order.

    `request_ids_B` and `user_ids_B` text, `sizes_B` how many rows each request has, at least 1; `items_N` the item of
    each row as an index into `item_ids_I`, distinct texts; `positions_N` int64 from 1, the place it was shown at, no
    place and no item twice in a request; `clicks_N` 0 or 1; `propensities_N` in (0, 1], meaning what `propensity` says.
    None where the log has none: `scores_N` of the logging policy, `relevance_N` >= 0, `timestamps_N` in seconds,
    `predictions_N` in [0, 1]. `row_columns` [N, ...] and `item_columns` [I, ...] have whatever else is known, by name;
    `notes` how the rows came to be, for reports.

    Raises `DataError`, naming request and row, where the columns disagree or hold something else.
    """

    request_ids_B: Texts
    user_ids_B: Texts
    sizes_B: IntArray
    item_ids_I: Texts
    items_N: IntArray
    positions_N: IntArray
    clicks_N: FloatArray
    propensities_N: FloatArray
    propensity: Propensity
    scores_N: FloatArray | None = None
    relevance_N: FloatArray | None = None
    timestamps_N: FloatArray | None = None
    predictions_N: FloatArray | None = None
    row_columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    item_columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that the columns are a log."""
        one_of("propensity", self.propensity, get_args(Propensity))
        rows, requests, items = len(self.items_N), len(self.sizes_B), len(self.item_ids_I)
        lengths: dict[str, tuple[object, int]] = {
            "request_ids": (self.request_ids_B, requests),
            "user_ids": (self.user_ids_B, requests),
            "the sizes' sum": (range(int(self.sizes_B.sum())), rows),
            **{column: (getattr(self, name), rows) for column, name in FIELDS.items()},
            **{f"row column {name!r}": (values, rows) for name, values in self.row_columns.items()},
            **{f"item column {name!r}": (values, items) for name, values in self.item_columns.items()},
        }
        for name, (values, length) in lengths.items():
            if values is not None and len(values) != length:  # type: ignore[arg-type]
                raise DataError(f"{name} has {len(values)} entries, expected {length}; give one for each")  # type: ignore[arg-type]
        if requests and self.sizes_B.min() < 1:
            raise DataError("a request of no rows is no request; give sizes of 1 and more")
        if rows and not (self.items_N.min() >= 0 and self.items_N.max() < items):
            raise DataError(f"items are numbered outside 0..{items - 1}; give indices into item_ids")
        if len(set(self.item_ids_I.tolist())) < items:
            raise DataError("two items have the same item_id; give each item one")
        for column in RULES:
            values_N = getattr(self, FIELDS[column])
            if values_N is not None:
                self._refuse(~RULES[column].holds(values_N), f"{column} is not {RULES[column].expected}")
        self._refuse(repeated(self.requests_N, self.positions_N), "another row of the request has the same position")
        self._refuse(repeated(self.requests_N, self.items_N), "another row of the request shows the same item")

    def _refuse(self, bad_N: BoolArray, reason: str) -> None:
        for row in np.flatnonzero(bad_N)[:1].tolist():
            request = self.request_ids_B[self.requests_N[row]]
            raise DataError(f"request {request!r}, row {row}: {reason}; correct the row or leave its request out")

    @cached_property
    def requests_N(self) -> IntArray:
        """The request of each row, int64 [N], as a number from 0."""
        return np.repeat(np.arange(len(self.sizes_B)), self.sizes_B)

    def __len__(self) -> int:
        """How many requests."""
        return len(self.sizes_B)

    def __repr__(self) -> str:
        """The counts, not the columns."""
        known = ", ".join(column for column, name in FIELDS.items() if getattr(self, name) is not None)
        return (
            f"Impressions({len(self):,} requests, {len(self.items_N):,} rows, {len(self.item_ids_I):,} items, "
            f"{known} (of {self.propensity}))"
        )

    def take(self, start: int, stop: int) -> Impressions:
        """The requests from `start` up to `stop`, with the same vocabulary of items."""
        ends_B = np.concatenate([[0], np.cumsum(self.sizes_B)])
        rows = slice(int(ends_B[start]), int(ends_B[stop]))
        made = object.__new__(Impressions)  # a part of what was checked is not checked again
        made.__dict__.update({name: value for name, value in self.__dict__.items() if name != "requests_N"})
        for name, value in self.__dict__.items():
            if name.endswith("_N") and value is not None and name != "requests_N":
                made.__dict__[name] = value[rows]
            elif name.endswith("_B"):
                made.__dict__[name] = value[start:stop]
        made.__dict__["row_columns"] = {name: values[rows] for name, values in self.row_columns.items()}
        return made

    def requests(
        self,
        catalog: Catalog,
        *,
        relevance: Relevance,
        item_numbers: Mapping[str, int] | None = None,
        logged: bool = True,
        name: str = "impressions",
    ) -> Requests:
        """The requests over `catalog`, candidates in order of position, without a history.

        `relevance` says where the gains come from and has no default: "column", "clicks" or "none". `item_numbers`
        gives the row of the catalogue for an item_id; None: the item_id is that row's number, as `write_impressions`
        writes it. `users_B` are `user_numbers`. Scores are the log's, or 0, -1, -2, ... by place where it has none.
        `logged` False leaves clicks, propensities and predictions out.

        Raises `InputError` for a missing relevance column and for propensities of selection where `logged`,
        `DataError` for an item that the catalogue does not have and for a request of one candidate.
        """
        one_of("relevance", relevance, get_args(Relevance))
        if relevance == "column" and self.relevance_N is None:
            raise InputError(
                'the log has no column of relevance; pass relevance="clicks" to count clicks as gain, or "none" for 0'
            )
        if logged and self.propensity != "examination":
            raise InputError(
                f"the propensities of this log are those of selection, but credit for clicks needs {EXAMINATION}; "
                "estimate that, or pass logged=False to leave the log out"
            )
        for row in np.flatnonzero(self.sizes_B < MIN_CANDIDATES)[:1].tolist():
            raise DataError(
                f"request {self.request_ids_B[row]!r} has one candidate, which cannot be re-ranked; leave it out"
            )
        order_N = np.lexsort((self.positions_N, self.requests_N))
        width = int(self.sizes_B.max(initial=MIN_CANDIDATES))
        real_BK = np.arange(width) < self.sizes_B[:, None]
        places_BK = np.broadcast_to(-np.arange(width, dtype=np.float64), real_BK.shape)

        def padded(values_N: npt.NDArray[Any], *, fill: float = 0.0) -> npt.NDArray[Any]:
            table_BK = np.full(real_BK.shape, fill, dtype=values_N.dtype)
            table_BK[real_BK] = values_N[order_N]
            return table_BK

        gains_N = {"column": self.relevance_N, "clicks": self.clicks_N, "none": np.zeros(len(self.items_N))}[relevance]
        assert gains_N is not None
        scores_BK = np.where(real_BK, places_BK, 0.0) if self.scores_N is None else padded(self.scores_N)
        known = {"clicks_BK": self.clicks_N, "propensities_BK": self.propensities_N}
        known |= {} if self.predictions_N is None else {"predictions_BK": self.predictions_N}
        log = {name: padded(values_N) for name, values_N in known.items()} if logged else {}
        return Requests(
            catalog=catalog,
            users_B=user_numbers(self.user_ids_B.tolist()),
            history_BH=np.full((len(self), 1), PAD),
            feedback_BH=np.zeros((len(self), 1), dtype=np.float32),
            candidates_BK=padded(self._numbers(catalog, item_numbers)[self.items_N], fill=PAD),
            scores_BK=scores_BK.astype(np.float32),
            relevance_BK=padded(gains_N),
            sizes_B=self.sizes_B,
            name=name,
            notes=self.notes,
            **log,
        )

    def _numbers(self, catalog: Catalog, item_numbers: Mapping[str, int] | None) -> IntArray:
        """The row of the catalogue for each item of the vocabulary, int64 [I]; -1 where no row shows it and none is."""
        ids, items = self.item_ids_I.tolist(), len(catalog)
        given = map(whole_number, ids) if item_numbers is None else map(item_numbers.get, ids)
        number_I = np.array([n if n is not None and 0 <= n < items else PAD for n in given], dtype=np.int64)
        for row in np.flatnonzero(number_I[self.items_N] == PAD)[:1].tolist():
            raise DataError(
                f"item {ids[int(self.items_N[row])]!r} of the log is not in the catalogue, which has items "
                f"0..{items - 1}; add it, or pass item_numbers to say which row of the catalogue it is"
            )
        return number_I


def joined(parts: Sequence[Impressions]) -> Impressions:
    """Runs of one log, one after another, over one vocabulary of items; the notes are those of the first.

    Raises `InputError` where there are none or they differ in what they know, and `DataError` as `Impressions` does.
    """
    if not parts:
        raise InputError("there are no impressions to join; give at least one run of them")
    first = parts[0]
    for part in parts:
        known = [set(_known(run)) | {*run.row_columns, run.propensity} for run in (first, part)]
        if known[0] != known[1] or first.item_columns or part.item_columns:
            raise InputError(
                "the runs to join differ in columns or in the meaning of propensity, or have columns of items; join "
                "what one reader gave"
            )
    number: dict[str, int] = {}
    for part in parts:
        for item in part.item_ids_I.tolist():
            number.setdefault(item, len(number))
    places = [np.array([number[item] for item in part.item_ids_I.tolist()], dtype=np.int64) for part in parts]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("request_ids_B", "user_ids_B", "sizes_B", *_known(first))
    }
    return Impressions(
        item_ids_I=np.array(list(number), dtype=object),
        items_N=np.concatenate([place_I[part.items_N] for place_I, part in zip(places, parts, strict=True)]),
        propensity=first.propensity,
        row_columns={name: np.concatenate([part.row_columns[name] for part in parts]) for name in first.row_columns},
        notes=first.notes,
        **columns,
    )


def _known(impressions: Impressions) -> list[str]:
    return [name for name in FIELDS.values() if getattr(impressions, name) is not None]


def repeated(requests_N: IntArray, values_N: npt.NDArray[Any]) -> BoolArray:
    """Whether an earlier row of the same request has the same value, bool [N]; `requests_N` is ascending."""
    order_N = np.lexsort((values_N, requests_N))
    same = (np.diff(requests_N[order_N]) == 0) & (np.diff(values_N[order_N]) == 0)
    repeated_N: BoolArray = np.zeros(len(values_N), dtype=np.bool_)
    repeated_N[order_N[1:][same]] = True
    return repeated_N
