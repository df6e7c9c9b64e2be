"""How the fields of a record are read: as arrays of one dtype, or padded from lists of different lengths.

May import numpy and `rerank_env.rewards`. Every failure is a `DataError` that names the field, and the row if one row
is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.errors import DataError

_KINDS = {"i": ("iu", "whole numbers"), "f": ("fiub", "numbers")}
"""For each kind of dtype a field is stored as: the kinds it may be given as, and what to call them."""


def as_field(
    field: str, values: object, dtype: type[np.number[Any]], *, axes: Sequence[str] = ("requests",)
) -> npt.NDArray[Any]:
    """`values` as an array of `dtype` with the named axes: itself where it is one already, else a copy.

    Integer fields take integers of any width and no floats, float fields any real numbers. An array without entries
    may be of any dtype. Numbers too large for `dtype` come out as infinite.
    """
    accepted, called = _KINDS[np.dtype(dtype).kind]
    try:
        array = np.asarray(values)
    except ValueError as cause:
        raise DataError(f"{field} has parts of different lengths; pad them, as Requests.of does") from cause
    if array.ndim != len(axes):
        raise DataError(f"{field} has shape {array.shape}, expected [{', '.join(axes)}]; give an array of {called}")
    if array.size and array.dtype.kind not in accepted:
        raise DataError(f"{field} has dtype {array.dtype}, expected {called}; convert it to {np.dtype(dtype)}")
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def padded_field(
    field: str, rows: Sequence[Sequence[float]], dtype: type[np.number[Any]], *, fill: float, width: int
) -> npt.NDArray[Any]:
    """Lists of at most `width` numbers, one a request, as an array [requests, width] with `fill` in the tails."""
    table = np.full((len(rows), width), fill, dtype=dtype)
    for row, values in enumerate(rows):
        table[row, : len(values)] = as_field(f"{field} of request {row}", values, dtype, axes=("entries",))
    return table


def as_lists(field: str, rows: object, *, count: int | None = None) -> list[list[Any]]:
    """`rows` as a list of lists, of which there must be `count`."""
    try:
        outer = list(rows)  # type: ignore[call-overload]
    except TypeError as cause:
        raise DataError(f"{field} is {rows!r}; give a list with one list a request") from cause
    if count is not None and len(outer) != count:
        raise DataError(f"{field} has {len(outer)} lists for {count} requests; give one list a request")
    for row, values in enumerate(outer):
        is_list = bool(values.ndim) if isinstance(values, np.ndarray) else isinstance(values, Sequence)
        if isinstance(values, str | bytes) or not is_list:
            raise DataError(f"{field} of request {row} is {values!r}; give a list of numbers")
    return [list(values) for values in outer]


def paired(field: str, rows: object, other: str, others: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """`rows` as lists with an entry for each entry of `others`, the lists of the field `other`."""
    lists = as_lists(field, rows, count=len(others))
    for row, (values, beside) in enumerate(zip(lists, others, strict=True)):
        if len(values) != len(beside):
            raise DataError(
                f"{field} of request {row} has {len(values)} entries but {other} has {len(beside)}; give one for each"
            )
    return lists
