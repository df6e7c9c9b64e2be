"""Rows of a log put together to whole requests in bounded memory; requests with a fault are left out and counted.

A request is kept only if all of its rows could be read: one with a row missing is not what was shown. May import numpy
and `rerank_env.data`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rerank_env.data.impressions import repeated
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.impression_columns import (
    ALONE,
    BESIDE,
    LATE,
    REASONS,
    REST,
    SAME_ITEM,
    SAME_PLACE,
    USERS,
    Run,
    begins,
    converted,
    value_of,
)
from rerank_env.data.readers.rows import Rows, pyarrow
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.errors import DataError

MOST_ROWS = 100_000
"""A request of more rows than this is taken for a wrong column of request_id."""

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Judged:
    """A run of whole requests: the row at which each begins, its size, and whether it can be used."""

    run: Run
    starts_B: IntArray
    sizes_B: IntArray
    good_B: BoolArray


def whole_requests(files: Iterable[tuple[Path, Iterable[Rows]]], *, skips: bool) -> Iterator[Run]:
    """The rows of all files in runs that hold whole requests, with the faults of rows and what stands beside gaps.

    Unless it `skips`, the first fault is a `DataError` naming file, line and value. A request may go on from one file
    to the next.
    """
    held: list[Run] = []  # the last request, which may go on
    ready: list[Run] = []  # what is before it, so that a log of one block is one run
    gap = False
    for file, (path, runs) in enumerate(files):
        for rows in runs:
            if not len(rows):
                gap = gap or bool(rows.gaps)
                if gap and held:
                    held[-1] = _beside(held[-1], [len(held[-1])])
                continue
            run = converted(rows, file=file)
            if not skips:
                for row in np.flatnonzero(run.faults_N)[:1].tolist():
                    code = int(run.faults_N[row])
                    raise DataError(
                        f"{path} {rows.unit} {rows.places_N[row]}: {REASONS[code]} but {value_of(rows, row, code)}; "
                        'correct it, or pass on_fault="skip" to leave its request out'
                    )
            if held and set(run.numbers) != set(held[-1].numbers):
                only = ", ".join(sorted(set(run.numbers) ^ set(held[-1].numbers)))
                raise DataError(f"{path}: not every file has the columns {only}; give them to all files or to none")
            unnamed = np.flatnonzero(run.faults_N == 1)  # their request is not known, so it may be a neighbour's
            gaps = [*rows.gaps, *([0] if gap else []), *unnamed.tolist(), *(unnamed + 1).tolist()]
            if held and 0 in gaps:
                held[-1] = _beside(held[-1], [len(held[-1])])
            run = _beside(run, gaps)
            gap = len(run) in gaps
            ids = run.texts["request_id"]
            last = int(np.flatnonzero(begins(ids))[-1])
            if last == 0 and held and ids[0].as_py() == held[-1].texts["request_id"][0].as_py():
                held.append(run)  # all of it goes on with what is held
            elif last == 0 and not held:
                held = [run]
            else:
                yield from ready
                ready = [Run.joined([*held, run.part(slice(0, last))])]
                held = [run.part(slice(last, len(run)))]
            if sum(map(len, held)) > MOST_ROWS:
                raise DataError(
                    f"{path} {rows.unit} {held[-1].places_N[-1]}: request {ids[len(ids) - 1].as_py()!r} has more than "
                    f"{MOST_ROWS:,} rows; name the column that tells requests apart by columns={{'request_id': ...}}"
                )
    if held:
        yield Run.joined([*ready, *held])


def _beside(run: Run, gaps: Sequence[int]) -> Run:
    """The run with the rows on both sides of each gap marked, where nothing else is wrong with them."""
    if not gaps or not len(run):
        return run
    faults_N = run.faults_N.copy()
    for row in (*gaps, *(gap - 1 for gap in gaps)):
        if 0 <= row < len(run) and not faults_N[row]:
            faults_N[row] = BESIDE
    return replace(run, faults_N=faults_N)


def judged(run: Run, *, least: int) -> Judged:
    """The run with what is wrong with its requests; one of fewer rows than `least` is."""
    begins_N = begins(run.texts["request_id"])
    starts_B = np.flatnonzero(begins_N)
    sizes_B = np.diff(np.append(starts_B, len(run)))
    requests_N = np.cumsum(begins_N) - 1
    faults_N = run.faults_N.copy()
    users = run.texts["user_id"]
    items_N = run.texts["item_id"].dictionary_encode().indices.to_numpy(zero_copy_only=False)
    first_N = pyarrow().array(np.repeat(starts_B, sizes_B))
    found: list[tuple[int, BoolArray]] = [
        (USERS, pyarrow().compute.not_equal(users, users.take(first_N)).to_numpy(zero_copy_only=False)),
        (SAME_PLACE, repeated(requests_N, run.numbers["position"])),
        (SAME_ITEM, repeated(requests_N, items_N)),
        (ALONE, np.repeat(sizes_B < least, sizes_B)),
    ]
    for code, bad_N in found:
        faults_N[bad_N & (faults_N == 0)] = code
    good_B: BoolArray = np.ones(len(sizes_B), dtype=np.bool_)
    if faults_N.any():
        good_B = ~np.logical_or.reduceat(faults_N != 0, starts_B)
    return Judged(replace(run, faults_N=faults_N), starts_B, sizes_B, good_B)


def refuse_faults(judged: Judged, paths: Sequence[tuple[Path, str]]) -> None:
    """Raise `DataError` naming file and line for the first row at fault because of others; nothing where none is."""
    run = judged.run
    for row in np.flatnonzero(run.faults_N)[:1].tolist():
        path, unit = paths[int(run.files_N[row])]
        raise DataError(
            f"{path} {unit} {run.places_N[row]}: request {run.texts['request_id'][row].as_py()!r:.60}: "
            f"{REASONS[run.faults_N[row]]}; "
            'correct the file, or pass on_fault="skip" to leave the request out'
        )


class Seen:
    """Which requests have gone by and how many rows of each were kept, in 16 bytes a request.

    Requests are told apart by 64 bits of a hash: among ten million, two are taken for one with a probability of about
    one in 400,000.
    """

    def __init__(self) -> None:
        self._levels: list[tuple[Hashes, IntArray]] = []

    def late(self, judged: Judged, hashes_B: Hashes) -> tuple[BoolArray, list[tuple[int, int]]]:
        """Whether each request has gone by before, and what of it had been kept; from now on all of these have.

        For each that comes back and of which rows had been kept: its first row here, and how many those are.
        """
        _, first = np.unique(hashes_B, return_index=True)
        late_B: BoolArray = np.ones(len(hashes_B), dtype=np.bool_)
        late_B[first] = False
        for known, _ in self._levels:
            late_B |= _among(hashes_B, known)
        new_B = ~late_B
        order = np.argsort(hashes_B[new_B])
        kept_B = np.where(judged.good_B, judged.sizes_B, 0)
        self._levels.append((hashes_B[new_B][order], kept_B[new_B][order]))
        while len(self._levels) > 1 and len(self._levels[-1][0]) * 2 >= len(self._levels[-2][0]):
            (one, one_kept), (two, two_kept) = self._levels.pop(), self._levels.pop()
            hashes, kept = np.concatenate([one, two]), np.concatenate([one_kept, two_kept])
            order = np.argsort(hashes)
            self._levels.append((hashes[order], kept[order]))
        forgotten = [(int(judged.starts_B[row]), self._forget(hashes_B[row])) for row in np.flatnonzero(late_B)]
        return late_B, [(row, rows) for row, rows in forgotten if rows]

    def _forget(self, value: np.uint64) -> int:
        """How many rows of a request were kept; none from now on, and it is known to have come back."""
        for hashes, kept in self._levels:
            place = int(np.searchsorted(hashes, value))
            if place < len(hashes) and hashes[place] == value:
                rows, kept[place] = int(kept[place]), -1
                return max(rows, 0)
        raise AssertionError("a late request has gone by before")

    def came_back(self) -> Hashes:
        """The hashes of the requests that came back, sorted."""
        parts = [hashes[kept < 0] for hashes, kept in self._levels]
        return np.sort(np.concatenate([*parts, np.zeros(0, dtype=np.uint64)]))


def _among(values: Hashes, known: Hashes) -> BoolArray:
    """Whether each value is in the sorted array `known`."""
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    found: BoolArray = known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values
    return found


def without_late(judged: Judged, late_B: BoolArray) -> Judged:
    """The same requests, those that came back at another place not to be used."""
    if not late_B.any():
        return judged
    faults_N = judged.run.faults_N.copy()
    faults_N[np.repeat(late_B, judged.sizes_B) & np.isin(faults_N, (0, ALONE))] = LATE
    return replace(judged, run=replace(judged.run, faults_N=faults_N), good_B=judged.good_B & ~late_B)


def hashes_of(judged: Judged) -> Hashes:
    """64 bits of a hash of each request's id, uint64 [B]."""
    ids = judged.run.texts["request_id"].take(pyarrow().array(judged.starts_B)).to_pylist()
    return np.frombuffer(b"".join(hashlib.blake2b(i.encode(), digest_size=8).digest() for i in ids), dtype="<u8")


def good_rows(judged: Judged) -> Run:
    """The rows of the requests that can be used."""
    return judged.run if judged.good_B.all() else judged.run.part(np.repeat(judged.good_B, judged.sizes_B))


def came_back(judged: Judged, late: Hashes) -> BoolArray:
    """Whether each request is among those that came back at another place."""
    return _among(hashes_of(judged), late) if len(late) else np.zeros(len(judged.sizes_B), dtype=np.bool_)


def count_faults(judged: Judged, skipped: Skipped, paths: Sequence[tuple[Path, str]]) -> None:
    """Count every row of the requests that cannot be used in `skipped`, by reason."""
    if judged.good_B.all():
        return
    faults_N = judged.run.faults_N.copy()
    faults_N[np.repeat(~judged.good_B, judged.sizes_B) & (faults_N == 0)] = REST
    codes, first, counts = np.unique(faults_N, return_index=True, return_counts=True)
    for code, row, count in zip(codes.tolist(), first.tolist(), counts.tolist(), strict=True):
        if code:
            path, unit = paths[int(judged.run.files_N[row])]
            skipped.add(REASONS[code], path, int(judged.run.places_N[row]), rows=count, unit=unit)
