"""What every reader of a table hands on: runs of rows as Arrow columns, each row with its place in its file.

Also which columns are wanted of a file, and the late import of pyarrow. May import numpy and `rerank_env.rewards`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank_env.data.readers.faults import Skipped
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import DataError, InputError, MissingExtraError


@dataclass(frozen=True)
class Wanted:
    """The columns wanted of a table: `names` gives the file's name of each, those in `required` have to be there."""

    names: Mapping[str, str]
    required: frozenset[str]

    @classmethod
    def of(
        cls, required: Iterable[str], optional: Iterable[str] = (), renamed: Mapping[str, str] | None = None
    ) -> Wanted:
        """Columns under their own names, or the file's names that `renamed` gives; a renamed column has to be there.

        Raises `InputError` where `renamed` has a column that is not wanted, or names one of the file twice.
        """
        required = frozenset(required)
        names = {column: column for column in (*sorted(required), *optional)}
        for column, given in (renamed or {}).items():
            if column not in names:
                raise InputError(f"columns renames {column!r}; the columns of the schema are {', '.join(names)}")
            names[column] = given
        if len(set(names.values())) < len(names):
            raise InputError(f"columns are read as {names}; give each a column of its own in the file")
        return cls(names, required | set(renamed or {}))

    def found(self, given: Iterable[str], path: Path) -> dict[str, int]:
        """Where in `given`, the file's columns, each wanted column is; optional ones only where they are there.

        Raises `DataError` for one that is missing or there twice.
        """
        given = list(given)
        places: dict[str, int] = {}
        for column, name in self.names.items():
            times = given.count(name)
            if times == 1:
                places[column] = given.index(name)
            elif times > 1:
                raise DataError(f"{path} line 1: column {name!r} is there {times} times; keep one of them")
            elif column in self.required:
                near = difflib.get_close_matches(name, given, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise DataError(
                    f"{path} line 1: column {name!r} is missing; {hint}say which of "
                    f"{', '.join(map(repr, given))} it is by columns={{{column!r}: ...}}"
                )
        return places


@dataclass(frozen=True, eq=False)
class Rows:
    """A run of rows of one file, in its order: Arrow arrays by column, and the line (or row) that each begins at.

    `gaps` are the places between rows where something could not be read: n stands before row n, and the number of
    rows after the last. A run of no rows that only has a gap has no columns.
    """

    path: Path
    unit: str
    columns: Mapping[str, Any]
    places_N: IntArray
    gaps: tuple[int, ...] = ()

    def __len__(self) -> int:
        """How many rows."""
        return len(self.places_N)


@dataclass(frozen=True)
class Faults:
    """What becomes of a fault in `path`: an error where `skipped` is None, else one more row left out."""

    path: Path
    skipped: Skipped | None
    unit: str = "line"

    def found(self, reason: str, place: int, *, detail: str = "", rows: int = 1) -> None:
        """Raise `DataError` for the fault, or count it."""
        if self.skipped is None:
            raise DataError(f"{self.path} {self.unit} {place}: {reason}{f' ({detail})' if detail else ''}")
        self.skipped.add(reason, self.path, place, rows=rows, unit=self.unit)


def pyarrow() -> Any:
    """The pyarrow package, with the parts of it that readers use; `MissingExtraError` where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "logs of impressions are read and written by pyarrow, which is not installed; run: pip install "
            '"rerank-env[data]"'
        ) from error
    return pyarrow
