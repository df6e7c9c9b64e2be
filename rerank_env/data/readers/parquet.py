"""Parquet files as runs of rows, row group by row group, in bounded memory however large those are.

May import numpy and `rerank_env.data.readers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.rows import Faults, Rows, Wanted, pyarrow

UNREADABLE = "the file cannot be read as Parquet, so it may be torn; write it again"
DAMAGED = "the rest of the row group cannot be read, so the file may be damaged; write it again"


def read_parquet(
    path: Path,
    wanted: Wanted,
    *,
    skipped: Skipped | None = None,
    at: Callable[[int], object] | None = None,
    rows: int = 1 << 16,
) -> Iterator[Rows]:
    """The wanted columns of a Parquet file in their own types, in runs of at most `rows` rows, numbered from 1.

    `at` is told how many bytes have been read, by the share of the rows. No run has rows of two row groups. With
    `skipped`, a group that is damaged is read up to the run with the damage: that and what is after it in the group are
    counted there and leave a gap, and the next group is read. A file that does not even say what it has counts as one.

    Raises `DataError` naming file and row, where the file is damaged and nothing is to be skipped, or lacks a column.
    """
    pa, faults, done, total = pyarrow(), Faults(path, skipped, "row"), 0, 0
    gap = Rows(path, "row", {}, np.zeros(0, dtype=np.int64), (0,))
    try:
        size = path.stat().st_size
        with pa.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            total, names = file.metadata.num_rows, file.schema_arrow.names
            places = wanted.found(names, path)
            chosen = [names[place] for place in places.values()]
            for group in range(file.metadata.num_row_groups):
                end = done + file.metadata.row_group(group).num_rows
                try:
                    for batch in file.iter_batches(rows, row_groups=[group], columns=chosen, use_threads=False):
                        columns = {column: batch.column(names[place]) for column, place in places.items()}
                        yield Rows(path, "row", columns, np.arange(done + 1, done + 1 + batch.num_rows))
                        done += batch.num_rows
                        if at is not None:
                            at(size * done // total)
                    if done < end:
                        raise pa.ArrowInvalid(f"{end - done} rows are missing")
                except (pa.ArrowException, OSError) as error:
                    faults.found(DAMAGED, done + 1, detail=_told(error), rows=max(end - done, 1))
                    yield gap
                    done = end
    except (pa.ArrowException, OSError) as error:
        faults.found(UNREADABLE, done + 1, detail=_told(error), rows=max(total - done, 1))
        yield gap


def _told(error: Exception) -> str:
    return " ".join(str(error).split())
