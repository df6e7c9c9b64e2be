"""Traces on the disk: a manifest that says how they were made, and Parquet parts, each whole or absent.

Needs pyarrow. One row a request that is settled, accepted or not:

- `request`: the row of the requests; `incoming`: the place of the target in the order the first stage left, from 1, 0
  where there is no target; `target`: that candidate's number in the requests, -1 where there is none
- `order`: the candidate of the requests in each shown place; `ranking`: the answer in *shown* places, as the completion
  says it, from 0, empty where nothing was accepted; `completion`: what a student is taught to write; `reasoning` in it
- `tail`: "own" where the ranking is the teacher's, "random" where only its first place is, and "" without a ranking
- `accepted`; `verdict`: of the answer that settled it, by name, or "NO_TARGET"; `tries`: how often the teacher was
  asked; `tokens_in`, `tokens_out`: what all tries took; `teacher`, `mode`
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.data.fields import padded_field
from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, PromptWriter
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import DataError, InputError, MissingExtraError
from rerank_env.training.language.traces import manifest as manifests
from rerank_env.training.language.traces.prompting import shown
from rerank_env.training.language.traces.statistics import Statistics

try:
    import pyarrow
    from pyarrow import compute, parquet
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'traces need {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

PART = "part-{number:05d}.parquet"
PARTS = "part-*.parquet"
NO_TARGET = "NO_TARGET"
"""The verdict on a request whose candidates are all worth the same."""

OWN, RANDOM = "own", "random"
"""Whose the places behind the first are."""

_PLACES = pyarrow.list_(pyarrow.int32())
SCHEMA = pyarrow.schema(
    {
        "request": pyarrow.int64(),
        "target": pyarrow.int64(),
        "incoming": pyarrow.int64(),
        "order": _PLACES,
        "completion": pyarrow.string(),
        "reasoning": pyarrow.string(),
        "ranking": _PLACES,
        "tail": pyarrow.string(),
        "accepted": pyarrow.bool_(),
        "verdict": pyarrow.string(),
        "tries": pyarrow.int64(),
        "tokens_in": pyarrow.int64(),
        "tokens_out": pyarrow.int64(),
        "teacher": pyarrow.string(),
        "mode": pyarrow.string(),
    }
)


@dataclass(frozen=True)
class Trace:
    """One row; see the module."""

    request: int
    target: int
    incoming: int
    order: tuple[int, ...]
    completion: str
    reasoning: str
    ranking: tuple[int, ...]
    tail: str
    accepted: bool
    verdict: str
    tries: int
    tokens_in: int
    tokens_out: int
    teacher: str
    mode: str


@dataclass(frozen=True, eq=False)
class Traces:
    """Rows in the order of the requests, and the `manifest` that they were made under."""

    table: Any
    manifest: Mapping[str, Any]

    @classmethod
    def load(cls, directory: str | Path) -> Traces:
        """What `collect` left in a directory, finished or not.

        Raises `DataError` where there are no traces, where a part is damaged, or where two parts have the same request.
        """
        folder = Path(directory)
        manifest = manifests.read(folder)
        if manifest is None:
            raise DataError(f"there are no traces in {folder}; make them with collect")
        tables = [SCHEMA.empty_table()]
        for path in parts(folder):
            try:
                tables.append(parquet.read_table(path).cast(SCHEMA))
            except (OSError, ValueError, pyarrow.ArrowException) as cause:
                raise DataError(
                    f"{path} cannot be read as a part of traces ({cause}); remove it and collect again"
                ) from cause
        table = pyarrow.concat_tables(tables).sort_by("request").combine_chunks()
        rows_T = table["request"].to_numpy()
        for again in np.flatnonzero(rows_T[1:] == rows_T[:-1])[:1]:
            raise DataError(f"request {int(rows_T[again])} is in {folder} twice; remove one of the parts that have it")
        return cls(table, manifest)

    def save(self, directory: str | Path) -> None:
        """Write all rows into one part, and the manifest without versions: equal traces leave equal files.

        What traces the directory held before are gone, and until all is written there are none. Raises
        `CheckpointError` where the disk refuses.
        """
        folder = Path(directory)
        with durable.writing(folder):
            for stale in (folder / manifests.MANIFEST, *parts(folder)):
                stale.unlink(missing_ok=True)
        _write(folder / PART.format(number=0), self.table)
        manifests.write(folder, {name: told for name, told in self.manifest.items() if name != manifests.VERSIONS})

    def __len__(self) -> int:
        """How many rows."""
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every row as a dictionary of its columns."""
        return iter(self.table.to_pylist())

    @property
    def requests_T(self) -> IntArray:
        """The request of each row, int64 [T]."""
        return np.asarray(self.table["request"].to_numpy(), dtype=np.int64)

    def accepted(self) -> Traces:
        """Those that have a trace."""
        return replace(self, table=self.table.filter(compute.field("accepted")))

    def column(self, name: str) -> list[Any]:
        """One column, in plain Python. Raises `InputError` for one that there is not."""
        if name not in SCHEMA.names:
            raise InputError(f"traces have no column {name!r}; they have {', '.join(SCHEMA.names)}")
        found: list[Any] = self.table[name].to_pylist()
        return found

    def statistics(self) -> Statistics:
        """How collecting went; of all rows, so to be asked before those that were not accepted are left out."""
        return Statistics.of(self)

    def order_TK(self, width: int | None = None) -> IntArray:
        """The shown orders as int64 [T, width], padded with -1; the longest decides the width where it is None."""
        return self._padded("order", width)

    def rankings_TK(self, width: int | None = None) -> IntArray:
        """The answers in the numbering of the requests, int64 [T, width], padded with -1, all -1 without an answer."""
        order_TK, places_TK = self.order_TK(width), self._padded("ranking", width)
        width = max(order_TK.shape[1], places_TK.shape[1])
        order_TK, places_TK = (
            np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=PAD) for a in (order_TK, places_TK)
        )
        return np.where(places_TK == PAD, PAD, np.take_along_axis(order_TK, np.maximum(places_TK, 0), axis=1))

    def asked(self, requests: Requests, writer: PromptWriter) -> Asked:
        """The prompts of all rows as a student sees them, without a hint, in the orders that the teacher saw.

        `requests` are those that the traces are of; raises `InputError` for others.
        """
        if manifests.fingerprint(requests) != self.manifest["requests"]:
            raise InputError(f"these traces are of other requests than {requests.name!r}; give those they were made of")
        return shown(requests.take(self.requests_T), self.order_TK(requests.candidates_BK.shape[1]), writer)

    def _padded(self, name: str, width: int | None) -> IntArray:
        lists = self.column(name)
        longest = max([1, *map(len, lists)])
        return np.asarray(padded_field(name, lists, np.int64, fill=PAD, width=width or longest))


def parts(folder: Path) -> list[Path]:
    """The parts of a directory, in the order they were written."""
    return sorted(folder.glob(PARTS))


def write_part(folder: Path, rows: Iterable[Trace]) -> Path:
    """Write the next part, whole or not at all. Raises `CheckpointError` where the disk refuses."""
    found = parts(folder)
    number = int(found[-1].stem.split("-")[1]) + 1 if found else 0
    path = folder / PART.format(number=number)
    _write(path, pyarrow.Table.from_pylist([vars(row) for row in rows], schema=SCHEMA))
    return path


def _write(path: Path, table: Any) -> None:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    durable.replace(path, buffer.getvalue())


def settled_rows(folder: Path) -> IntArray:
    """The requests that have a row, int64. Raises `DataError` as `Traces.load` does."""
    return Traces.load(folder).requests_T
