"""Write impressions, or requests with simulated clicks, to the files that `read_log` reads; docs/logs.md has the form.

May import numpy, `rerank_env.data` and, late, pyarrow.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env.data.ids import is_text
from rerank_env.data.impressions import FIELDS, Impressions
from rerank_env.data.readers.rows import pyarrow
from rerank_env.data.requests import Requests
from rerank_env.durable import writing
from rerank_env.rewards.arrays import PAD
from rerank_env.rewards.errors import DataError, InputError

SUFFIXES = (".csv", ".csv.gz", ".parquet")

GZIP_LEVEL = 6
"""What gzip does by default."""


def impressions_of_requests(
    requests: Requests, *, item_ids: Sequence[str] | None = None, first: int = 0
) -> Impressions:
    """Requests with clicks as impressions, one request a number from `first`.

    Users are called by their number, items by `item_ids` [I], by default their number in the catalogue. History,
    feedback and catalogue are no part of a log.

    Raises `InputError` where there are no clicks and propensities or not one id an item, `DataError` where two items
    that are shown have the same.
    """
    if requests.clicks_BK is None or requests.propensities_BK is None:
        raise InputError(f"{requests.name!r} has no clicks and propensities; a log of impressions needs both")
    names = range(len(requests.catalog)) if item_ids is None else item_ids
    if len(names) != len(requests.catalog):
        raise InputError(f"item_ids has {len(names)} entries but the catalogue {len(requests.catalog)}; give one each")
    real_BK = requests.candidates_BK != PAD
    shown_I, items_N = np.unique(requests.candidates_BK[real_BK], return_inverse=True)
    return Impressions(
        request_ids_B=np.array([str(first + row) for row in range(len(requests))], dtype=object),
        user_ids_B=np.array([str(user) for user in requests.users_B.tolist()], dtype=object),
        sizes_B=requests.sizes_B,
        item_ids_I=np.array([str(names[item]) for item in shown_I.tolist()], dtype=object),
        items_N=items_N.astype(np.int64),
        positions_N=np.broadcast_to(np.arange(1, real_BK.shape[1] + 1), real_BK.shape)[real_BK],
        clicks_N=requests.clicks_BK[real_BK],
        propensities_N=requests.propensities_BK[real_BK],
        propensity="examination",
        scores_N=requests.scores_BK[real_BK].astype(np.float64),
        relevance_N=requests.relevance_BK[real_BK],
        predictions_N=None if requests.predictions_BK is None else requests.predictions_BK[real_BK],
        notes=requests.notes,
    )


def write_impressions(
    runs: Requests | Impressions | Iterable[Requests | Impressions],
    path: Path | str,
    *,
    item_ids: Sequence[str] | None = None,
) -> int:
    """Write a log to `path`, which ends in .csv, .csv.gz or .parquet, and return how many rows it has.

    Given one record or any number of them, one after another, all with the same columns. Requests are numbered through
    and their items called by `item_ids`, by default by number, so that reading them over the same catalogue gives back
    users, candidates, scores, relevance, clicks, propensities and predictions. A file is replaced by a whole one only,
    and its folder is made where needed.

    Raises `InputError` for another suffix, for records without clicks or with other columns than the first, `DataError`
    for an id that the form cannot hold (empty, or with a NUL or half a surrogate pair), `CheckpointError` where the
    disk refuses, and `MissingExtraError` without pyarrow.
    """
    path = Path(path).expanduser()
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
    if suffix is None:
        raise InputError(f"{path.name!r} does not say what to write; end its name in {', '.join(SUFFIXES)}")
    unfinished = path.with_name(f".{path.name}.part")
    rows, schema = 0, None
    try:
        with ExitStack() as stack:
            writer = None
            for table in _tables([runs] if isinstance(runs, Requests | Impressions) else runs, item_ids):
                if writer is None or schema is None:
                    schema = table.schema
                    with writing(path):
                        path.parent.mkdir(parents=True, exist_ok=True)
                        writer = _writer(unfinished, suffix, schema, stack)
                if table.schema != schema:
                    raise InputError(
                        f"the records differ in columns, {', '.join(schema.names)} and then "
                        f"{', '.join(table.schema.names)}; write those with the same columns to one file"
                    )
                with writing(path):
                    writer.write_table(table)
                rows += table.num_rows
            if writer is None:
                raise InputError("there is nothing to write; give at least one record")
            with writing(path):
                stack.close()
                os.replace(unfinished, path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return rows


def _writer(path: Path, suffix: str, schema: Any, stack: ExitStack) -> Any:
    pa = pyarrow()
    if suffix == ".parquet":
        return stack.enter_context(pa.parquet.ParquetWriter(path, schema))
    if suffix == ".csv":
        return stack.enter_context(pa.csv.CSVWriter(path, schema))
    file = stack.enter_context(path.open("wb"))  # without the file's name in it, so that equal logs are equal files
    packed = stack.enter_context(gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0))
    return stack.enter_context(pa.csv.CSVWriter(packed, schema))


def _tables(runs: Iterable[Requests | Impressions], item_ids: Sequence[str] | None) -> Iterator[Any]:
    pa, first = pyarrow(), 0
    for run in runs:
        log = impressions_of_requests(run, item_ids=item_ids, first=first) if isinstance(run, Requests) else run
        first += len(log)
        texts = {
            "request_id": log.request_ids_B[log.requests_N],
            "user_id": log.user_ids_B[log.requests_N],
            "item_id": log.item_ids_I[log.items_N],
        }
        for column, ids in (
            ("request_id", log.request_ids_B),
            ("user_id", log.user_ids_B),
            ("item_id", log.item_ids_I),
        ):
            for text in ids.tolist():
                if not text or "\0" in text or not is_text(text):
                    raise DataError(
                        f"{column} {text!r} cannot be written; give a text that is not empty and has no NUL, as UTF-8"
                    )
        known = {column: getattr(log, name) for column, name in FIELDS.items()}
        columns = {column: pa.array(ids, pa.string()) for column, ids in texts.items()}
        columns |= {column: pa.array(values) for column, values in known.items() if values is not None}
        columns["click"] = columns["click"].cast(pa.int8())
        yield pa.table(columns)
