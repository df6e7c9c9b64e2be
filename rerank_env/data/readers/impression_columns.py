"""Columns of a log of impressions as they stand in a file, turned into text and numbers, each row with its first fault.

May import numpy, `rerank_env.data` and, late, pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.data.impressions import FIELDS, NAMES, RULES, Impressions, Propensity, Texts
from rerank_env.data.readers.rows import Rows, pyarrow
from rerank_env.data.rules import MOST_WHOLE
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import DataError

ROW_REASONS = (
    *(f"{column} is missing or is not UTF-8 text or a whole number" for column in NAMES),
    *(f"{column} is not {rule.expected}" for column, rule in RULES.items()),
)
"""What can be wrong with a row by itself, in the order in which it is looked for; a row's fault is the first."""

REQUEST_REASONS = (
    "the request's rows name more than one user",
    "another row of the request has the same position",
    "another row of the request shows the same item",
    "the request has one candidate, which cannot be re-ranked; rows of one request have to stand together",
    "the request comes back after others; sort the rows by request_id",
    "beside a row that could not be read, which may belong to the same request",
    "in a request with a fault",
)
"""What can be wrong with a row because of others."""

REASONS = ("", *ROW_REASONS, *REQUEST_REASONS)

USERS, SAME_PLACE, SAME_ITEM, ALONE, LATE, BESIDE, REST = (REASONS.index(reason) for reason in REQUEST_REASONS)


@dataclass(frozen=True, eq=False)
class Run:
    """Rows of a log in their order: Arrow text and float64 by column, file and place, and the number of a reason.

    `faults_N` are indices into `REASONS`, 0 where nothing is wrong. Numbers that could not be read are NaN.
    """

    texts: dict[str, Any]
    numbers: dict[str, FloatArray]
    files_N: IntArray
    places_N: IntArray
    faults_N: npt.NDArray[np.int16]

    def __len__(self) -> int:
        """How many rows."""
        return len(self.places_N)

    def part(self, rows: slice | BoolArray) -> Run:
        """The rows in a slice or under a mask, without a copy where it is a slice."""
        texts = {
            column: text[rows] if isinstance(rows, slice) else text.filter(pyarrow().array(rows))
            for column, text in self.texts.items()
        }
        numbers = {column: values_N[rows] for column, values_N in self.numbers.items()}
        return Run(texts, numbers, self.files_N[rows], self.places_N[rows], self.faults_N[rows])

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """One run after another."""
        if len(runs) == 1:
            return runs[0]
        return cls(
            {column: pyarrow().concat_arrays([run.texts[column] for run in runs]) for column in runs[0].texts},
            {column: np.concatenate([run.numbers[column] for run in runs]) for column in runs[0].numbers},
            np.concatenate([run.files_N for run in runs]),
            np.concatenate([run.places_N for run in runs]),
            np.concatenate([run.faults_N for run in runs]),
        )


def converted(rows: Rows, *, file: int) -> Run:
    """The rows of file number `file`, in which a row has the first fault of `ROW_REASONS` that holds for it.

    Raises `DataError` naming file and column for a column that can hold neither text nor numbers.
    """
    texts: dict[str, Any] = {}
    numbers: dict[str, FloatArray] = {}
    faults_N = np.zeros(len(rows), dtype=np.int16)
    for code, column in enumerate((*NAMES, *RULES), start=1):
        if column not in rows.columns:
            continue
        array = rows.columns[column]
        try:
            if column in NAMES:
                texts[column], bad_N = _as_text(array)
            else:
                numbers[column] = _as_numbers(array, dates=column == "timestamp")
                with np.errstate(invalid="ignore"):
                    bad_N = ~RULES[column].holds(numbers[column])
        except (pyarrow().ArrowNotImplementedError, pyarrow().ArrowTypeError) as error:
            raise DataError(
                f"{rows.path}: column {column!r} is of type {array.type}; give text or whole numbers for ids, and "
                "numbers for the others"
            ) from error
        faults_N[bad_N & (faults_N == 0)] = code
    return Run(texts, numbers, np.full(len(rows), file), rows.places_N, faults_N)


def begins(ids: Any) -> BoolArray:
    """Whether a request begins at a row."""
    begins_N: BoolArray = np.ones(len(ids), dtype=np.bool_)
    if len(ids) > 1:
        begins_N[1:] = pyarrow().compute.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return begins_N


def impressions_of(run: Run, *, propensity: Propensity, notes: tuple[str, ...] = ()) -> Impressions:
    """Rows without a fault, those of each request together, as the record."""
    pa = pyarrow()
    starts_B = np.flatnonzero(begins(run.texts["request_id"]))
    items = run.texts["item_id"].dictionary_encode()

    def text(array: Any) -> Texts:
        objects: Texts = array.to_numpy(zero_copy_only=False)
        return objects.astype(object)

    numbers: dict[str, Any] = {FIELDS[column]: values_N for column, values_N in run.numbers.items()}
    numbers["positions_N"] = numbers["positions_N"].astype(np.int64)
    return Impressions(
        request_ids_B=text(run.texts["request_id"].take(pa.array(starts_B))),
        user_ids_B=text(run.texts["user_id"].take(pa.array(starts_B))),
        sizes_B=np.diff(np.append(starts_B, len(run))),
        item_ids_I=text(items.dictionary),
        items_N=items.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        propensity=propensity,
        notes=notes,
        **numbers,
    )


def value_of(rows: Rows, row: int, code: int) -> str:
    """The value that is at fault in a row, as text of at most 60 characters."""
    try:
        value = rows.columns[(*NAMES, *RULES)[code - 1]][row].as_py()
    except UnicodeDecodeError:
        value = "no UTF-8"
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."


def _as_text(array: Any) -> tuple[Any, BoolArray]:
    """The array as Arrow strings, "" where one is missing or no UTF-8, and where that is.

    Floats are ids where they are whole and told apart: a column of whole numbers with a null in it often becomes one.
    """
    pa = pyarrow()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_boolean(kind) or pa.types.is_temporal(kind) or (pa.types.is_decimal(kind) and kind.scale):
        raise pa.ArrowTypeError("text or whole numbers were expected")
    if pa.types.is_floating(kind):
        values_N = _plain(array.cast(pa.float64()))
        whole_N = (np.abs(values_N) < MOST_WHOLE) & (values_N == np.floor(values_N))
        array = pa.array(np.where(whole_N, values_N, 0).astype(np.int64), mask=~whole_N)
    try:
        text = array.cast(pa.string())
        text.validate(full=True)
    except pa.ArrowInvalid:
        text = pa.array([_decoded(value) for value in array.cast(pa.binary()).to_pylist()], pa.string())
    text = text.fill_null("") if text.null_count else text
    missing: BoolArray = pa.compute.equal(pa.compute.binary_length(text), 0).to_numpy(zero_copy_only=False)
    return text, missing


def _decoded(value: bytes | None) -> str:
    try:
        return (value or b"").decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _as_numbers(array: Any, *, dates: bool) -> FloatArray:
    """The array as float64, NaN where there is no number; times as seconds since 1970, those without a zone in UTC."""
    pa = pyarrow()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        if not dates:
            raise pa.ArrowTypeError("a number was expected")
        array = array.cast(pa.timestamp("us", array.type.tz if pa.types.is_timestamp(array.type) else None), safe=False)
        return _plain(array.cast(pa.int64()).cast(pa.float64(), safe=False)) / 1e6
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan)
    try:
        return _plain(array.cast(pa.float64(), safe=pa.types.is_string(array.type)))
    except pa.ArrowInvalid:
        return np.array([_number(value, dates) for value in _as_text(array)[0].to_pylist()], dtype=np.float64)


def _plain(array: Any) -> FloatArray:
    values: FloatArray = array.to_numpy(zero_copy_only=False)  # null becomes NaN
    return values


def _number(text: str, dates: bool) -> float:
    """What Python reads as a number, but for underscores and other scripts' digits; a date where those may be."""
    if text.isascii() and "_" not in text:
        try:
            return float(text)
        except ValueError:
            pass
        if dates:
            try:
                return seconds_of(text.strip())
            except ValueError:
                pass
    return float("nan")


def seconds_of(text: str) -> float:
    """The seconds since 1970 at a time as ISO 8601, in UTC where it has no zone. Raises `ValueError`."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
