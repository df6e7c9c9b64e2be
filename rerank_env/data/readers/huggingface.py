"""A Hugging Face data set as requests, one row each: a `Dataset`, or an `IterableDataset` that is read row by row.

The package `datasets` is not imported: any object will do that yields rows as dictionaries and knows `column_names`.
The data sets that `rerank_env.training.adapters.huggingface` makes are read with `PREPARED`. May import
`rerank_env.data` and `rerank_env.rewards`.

    named = read(datasets.load_dataset("parquet", data_files="lists.parquet", split="train"))
    again = read(to_dataset(requests), PREPARED, catalog=requests.catalog)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rerank_env.data.catalog import Catalog
from rerank_env.data.readers.columns import PREPARED, ListColumns, add_row, found, notes_on
from rerank_env.data.readers.drafts import Drafts
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.named import NamedRequests
from rerank_env.rewards.errors import DataError

__all__ = ["PREPARED", "ListColumns", "read"]

TABLE = "the data set"


def read(
    dataset: Any,
    columns: ListColumns | None = None,
    *,
    texts: Mapping[Any, str] | None = None,
    catalog: Catalog | None = None,
    seed: int = 0,
    name: str = "own data",
) -> NamedRequests:
    """The requests of one split of a data set; see `ListColumns`, and `frames.read_lists` for all that is the same.

    Only the columns that are read are decoded. A stream is read to its end: `take` from it first where it has none.
    Raises `DataError`, naming row (from 0) and column, as `read_lists` does, and where several splits are given.
    """
    if isinstance(dataset, Mapping):
        raise DataError(
            f"the data set has the splits {', '.join(map(repr, dataset))}; give one of them, as in "
            f"dataset[{next(iter(dataset), 'train')!r}]"
        )
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "__iter__"):
        raise DataError(f"{type(dataset).__name__} is no data set of the datasets package; give a Dataset")
    asked = ListColumns() if columns is None else columns
    present = dataset.column_names
    if present is None:  # a stream that does not know its columns before it is read
        present = list(next(iter(dataset), {}))
    names = found(asked, present, TABLE)
    plain = dataset.with_format(None).select_columns(list(dict.fromkeys(names.values())))
    drafts = Drafts(TABLE, Skipped(), has_request_ids="request" in names)
    for number, row in enumerate(plain):
        add_row({field: row.get(column) for field, column in names.items()}, number, names, drafts)
    return drafts.requests(texts=texts, catalog=catalog, seed=seed, name=name, notes=notes_on(names, present, TABLE))
