"""Parquet files as runs of rows, in bounded memory however large their row groups are.

May import numpy and `rerank_env.data.readers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.rows import Faults, Rows, Wanted, pyarrow

UNREADABLE = "the file cannot be read as Parquet, so it may be torn; write it again"
DAMAGED = "the file cannot be read from here on, so it may be damaged; write it again"


def read_parquet(
    path: Path,
    wanted: Wanted,
    *,
    skipped: Skipped | None = None,
    at: Callable[[int], object] | None = None,
    rows: int = 1 << 16,
) -> Iterator[Rows]:
    """The wanted columns of a Parquet file in their own types, in runs of `rows` rows, numbered from 1.

    `at` is told how many bytes have been read, by the share of the rows. With `skipped` the rows that a damaged file
    still says it has are counted there, or one where it does not even say that.

    Raises `DataError` naming file and row, where the file is damaged and nothing is to be skipped, or lacks a column.
    """
    pa, faults, done, total = pyarrow(), Faults(path, skipped, "row"), 0, 0
    try:
        size = path.stat().st_size
        with pa.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            total, names = file.metadata.num_rows, file.schema_arrow.names
            places = wanted.found(names, path)
            chosen = [names[place] for place in places.values()]
            for batch in file.iter_batches(rows, columns=chosen, use_threads=False):
                columns = {column: batch.column(names[place]) for column, place in places.items()}
                yield Rows(path, "row", columns, np.arange(done + 1, done + 1 + batch.num_rows))
                done += batch.num_rows
                if at is not None:
                    at(size * done // total)
    except (pa.ArrowException, OSError) as error:
        reason = DAMAGED if total else UNREADABLE
        faults.found(reason, done + 1, detail=" ".join(str(error).split()), rows=max(total - done, 1))
        yield Rows(path, "row", {}, np.zeros(0, dtype=np.int64), (0,))
