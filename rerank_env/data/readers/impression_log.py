"""A log of impressions in files, read in bounded memory: Parquet or CSV, gzipped or not, one file or a folder of parts.

    log = read_log("clicks.csv.gz", propensity="examination")
    for requests in log.requests(relevance="clicks"):
        ...

The files are read twice: once for their faults and their items, once for the rows. What is held is a block of rows, the
distinct items, and 16 bytes a request. docs/logs.md has the form of the files. May import numpy and `rerank_env.data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from rerank_env.data.catalog import Catalog
from rerank_env.data.impressions import OPTIONAL, REQUIRED, Impressions, Propensity, Relevance, joined
from rerank_env.data.readers.delimited import read_delimited
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.impression_columns import LATE, REASONS, impressions_of
from rerank_env.data.readers.impression_requests import (
    Hashes,
    Judged,
    Seen,
    came_back,
    count_faults,
    good_rows,
    hashes_of,
    judged,
    refuse_faults,
    whole_requests,
    without_late,
)
from rerank_env.data.readers.parquet import read_parquet
from rerank_env.data.readers.rows import Rows, Wanted, pyarrow
from rerank_env.data.requests import Requests
from rerank_env.progress import shown
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES

OnFault = Literal["raise", "skip"]

MOST_CELLS = 1 << 21
"""Requests times the widest of them, in one batch; a few long requests do not make a batch of short ones large."""

BYTES_A_ROW = 128
"""About how long a row is, to read Parquet in runs of the same size as text."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What the first reading of a log found: `rows` in its files, of which `kept` are in `requests` without a fault.

    `items` are the distinct ids in order of appearance, and `skipped` says what became of the other rows:
    `kept + skipped.total == rows`. The rest is what the second reading needs: which requests came back at another
    place, and the sizes and times of the files.
    """

    rows: int
    kept: int
    requests: int
    items: tuple[str, ...] = field(repr=False)
    skipped: Skipped
    late: Hashes = field(repr=False)
    stamps: tuple[tuple[int, int], ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class ImpressionLog:
    """A log of impressions, as `read_log` opens it. Nothing is read before it is asked for."""

    path: Path
    propensity: Propensity
    columns: Mapping[str, str]
    on_fault: OnFault
    delimiter: str | None
    seed: int
    progress: bool | None
    block_bytes: int

    @cached_property
    def survey(self) -> Survey:
        """The counts, items and faults of the log, from one reading of it.

        Raises `DataError`, naming file, line and remedy, at the first fault unless faults are skipped, and where no
        request is left.
        """
        stamps, skipped, seen, items = self._stamps(), Skipped(), Seen(), dict[str, None]()
        kept = requests = 0
        for found in self._judged(skipped, "reading (1 of 2)"):
            late_B, taken_back = seen.late(found, hashes_of(found))
            for row, rows in taken_back:
                kept, requests = kept - rows, requests - 1
                path, unit = self._places[int(found.run.files_N[row])]
                skipped.add(REASONS[LATE], path, int(found.run.places_N[row]), rows=rows, unit=unit)
            found = without_late(found, late_B)
            if not self._skips:
                refuse_faults(found, self._places)
            count_faults(found, skipped, self._places)
            good = good_rows(found)
            kept, requests = kept + len(good), requests + int(found.good_B.sum())
            items.update(dict.fromkeys(good.texts["item_id"].unique().to_pylist()))
        if not requests:
            what = "; ".join(skipped.notes()) or "there are no rows below the header"
            raise DataError(f"{self.path} has no request to read: {what}; correct the file")
        return Survey(kept + skipped.total, kept, requests, tuple(items), skipped, seen.came_back(), stamps)

    @cached_property
    def catalog(self) -> Catalog:
        """The items of the log, numbered at random with the seed; nothing is known of one but its id, as its text."""
        return Catalog.of([self.survey.items[index] for index in self._order])

    @cached_property
    def item_numbers(self) -> Mapping[str, int]:
        """The row of `catalog` for each item_id."""
        return {self.survey.items[index]: number for number, index in enumerate(self._order)}

    @cached_property
    def _order(self) -> list[int]:
        order: list[int] = np.random.default_rng(self.seed).permutation(len(self.survey.items)).tolist()
        return order

    def impressions(self) -> Iterator[Impressions]:
        """The requests without a fault in the order of the log, in runs of about `block_bytes` of text.

        Raises as `survey` does, and `DataError` where a file has changed since then.
        """
        survey = self.survey
        changed = DataError(f"{self.path} has changed while it was read; open it again with read_log")
        if self._stamps() != survey.stamps:
            raise changed
        notes, kept = survey.skipped.notes(), 0
        for found in self._judged(Skipped(), "reading (2 of 2)"):
            run = good_rows(without_late(found, came_back(found, survey.late)))
            if len(run):
                kept += len(run)
                yield impressions_of(run, propensity=self.propensity, notes=notes)
        if kept != survey.kept:
            raise changed

    def read(self) -> Impressions:
        """All requests at once, for logs that fit into memory; raises as `impressions` does."""
        return joined(list(self.impressions()))

    def requests(
        self,
        *,
        relevance: Relevance,
        catalog: Catalog | None = None,
        item_numbers: Mapping[str, int] | None = None,
        logged: bool = True,
    ) -> Iterator[Requests]:
        """The log as `Requests`, batch by batch; `Impressions.requests` says what the arguments mean and raise.

        `catalog` None: that of the log itself. `notes` say what was left out of the whole log.
        """
        name = self.path.name
        if catalog is None:
            if item_numbers is not None:
                raise InputError("item_numbers came without the catalogue whose rows they are; give both")
            catalog, item_numbers = self.catalog, self.item_numbers
        for impressions in self.impressions():
            for start, stop in _batches(impressions.sizes_B, 0, len(impressions)):
                yield impressions.take(start, stop).requests(
                    catalog, relevance=relevance, item_numbers=item_numbers, logged=logged, name=name
                )

    @property
    def _skips(self) -> bool:
        return self.on_fault == "skip"

    @cached_property
    def _files(self) -> list[tuple[Path, bool]]:
        """The files by name, and whether each is Parquet; in a folder, names that start with . or _ are left out."""
        if not self.path.is_dir():
            files = [self.path]
        else:
            inside = [path for path in sorted(self.path.rglob("*")) if path.is_file()]
            files = [p for p in inside if not any(n.startswith((".", "_")) for n in p.relative_to(self.path).parts)]
        if not files:
            raise DataError(f"{self.path} has no files; give a file or a folder of Parquet or CSV files")
        return [(path, _is_parquet(path)) for path in files]

    @cached_property
    def _places(self) -> list[tuple[Path, str]]:
        return [(path, "row" if parquet else "line") for path, parquet in self._files]

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        return tuple((stat.st_size, stat.st_mtime_ns) for stat in (path.stat() for path, _ in self._files))

    def _judged(self, skipped: Skipped, label: str) -> Iterator[Judged]:
        """One reading of all files, whole requests at a time; what cannot be read at all is counted in `skipped`."""
        least = MIN_CANDIDATES if self.propensity == "examination" else 1
        total = sum(size for size, _ in self._stamps())
        with shown(f"{label} {self.path.name}", total, progress=self.progress) as told:
            for run in whole_requests(self._rows(skipped, told), skips=self._skips):
                yield judged(run, least=least)

    def _rows(self, skipped: Skipped, told: Callable[[int], None]) -> Iterator[tuple[Path, Iterator[Rows]]]:
        wanted, before = Wanted.of(REQUIRED, OPTIONAL, self.columns), 0
        counted = skipped if self._skips else None
        for path, parquet in self._files:

            def at(done: int, before: int = before) -> None:
                told(before + done)

            if parquet:
                rows = max(self.block_bytes // BYTES_A_ROW, 1)
                yield path, read_parquet(path, wanted, skipped=counted, at=at, rows=rows)
            else:
                block, delimiter = self.block_bytes, self.delimiter
                yield path, read_delimited(path, wanted, delimiter=delimiter, skipped=counted, at=at, block=block)
            before += path.stat().st_size


def read_log(
    path: Path | str,
    *,
    propensity: Propensity,
    columns: Mapping[str, str] | None = None,
    on_fault: OnFault = "raise",
    delimiter: str | None = None,
    seed: int = 0,
    progress: bool | None = None,
    block_bytes: int = 1 << 23,
) -> ImpressionLog:
    """A log of impressions in a Parquet or CSV file (gzipped or not) or a folder of them, read by name.

    `propensity` says what that column means and has no default: "examination", the probability that the place was
    looked at, or "selection", the probability that the logging policy put the item there. `columns` gives the file's
    names where they differ from the schema's, as `{"request_id": "session"}`. `on_fault` "skip" leaves out every
    request that has a fault and counts its rows in `survey.skipped` and the notes. `delimiter` is found in the header
    where it is None. `seed` numbers the items. `progress` shows a bar on standard error, by default on a terminal.

    Raises `InputError` or `UnknownNameError` for such an argument, `DataError` where there is no such file, and
    `MissingExtraError` without pyarrow.
    """
    one_of("propensity", propensity, get_args(Propensity))
    one_of("on_fault", on_fault, get_args(OnFault))
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
        raise InputError(f"delimiter is {delimiter!r}; give one ASCII character, such as ',' or a tab")
    pyarrow()
    Wanted.of(REQUIRED, OPTIONAL, columns)
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"{path} does not exist; give a Parquet or CSV file, or a folder of them")
    return ImpressionLog(
        path,
        propensity,
        dict(columns or {}),
        on_fault,
        delimiter,
        whole("seed", seed, least=0),
        progress,
        whole("block_bytes", block_bytes, least=1),
    )


def _batches(sizes_B: IntArray, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The requests from `start` to `stop` cut where they would make a batch of more than `MOST_CELLS`."""
    if stop - start < 2 or (stop - start) * int(sizes_B[start:stop].max()) <= MOST_CELLS:
        yield start, stop
        return
    middle = (start + stop) // 2
    yield from _batches(sizes_B, start, middle)
    yield from _batches(sizes_B, middle, stop)


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1" or path.suffix == ".parquet"
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); check the path and its rights") from error
