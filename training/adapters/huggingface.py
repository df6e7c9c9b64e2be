"""Requests as a Hugging Face data set: messages, and flat columns of fixed type. Needs the `datasets` package.

Every column has a declared type and no field is an optional struct, because Arrow would fill those with None and
trainers would pass the None on. See `records` for the columns.

    dataset = to_dataset(rerank_env.load("movielens-100k"), text_format="list")
    save(dataset, "train.parquet")
    dataset = load("train.parquet")
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

from rerank_env import durable
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter, Wording
from rerank_env.rewards.errors import DataError, MissingExtraError
from rerank_env.training.adapters.records import ANSWER_IDS, LOGGED, request_rows

try:
    import pyarrow
    from datasets import Dataset, Features, List, Value
    from datasets.table import InMemoryTable
    from pyarrow import parquet
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'data sets need {error.name}, which is not installed; run: pip install "rerank-env[datasets]"'
    ) from error

_MESSAGES = List({"role": Value("string"), "content": Value("string")})
_NUMBERS = List(Value("float64"))
_PLACES = List(Value("int64"))

_TYPES = {
    "request": Value("int64"),
    "data": Value("string"),
    "size": Value("int64"),
    "text_format": Value("string"),
    "prompt_version": Value("string"),
    "prompt_hash": Value("string"),
    "prompt_dropped": Value("int64"),
    "prompt_shortened": Value("int64"),
    "candidate_ids": List(Value("string")),
    "input_order": _PLACES,
    "relevance": _NUMBERS,
}


_SOME = {ANSWER_IDS: List(Value("string")), **dict.fromkeys(LOGGED, _NUMBERS)}
"""The columns that only some data sets have."""


def columns_of(requests: Requests, *, conversational: bool = True, **wording: Unpack[Wording]) -> Features:
    """The columns of a data set of `requests`, with their types; `wording` as in `request_rows`."""
    logged = [name for name in LOGGED if getattr(requests.slates, f"{name}_BK") is not None]
    return _columns(conversational, [ANSWER_IDS] * PromptWriter(**wording).cites_ids + logged)


def _columns(conversational: bool, some: Iterable[str]) -> Features:
    prompt = _MESSAGES if conversational else Value("string")
    return Features({"prompt": prompt, **_TYPES, **{name: _SOME[name] for name in some}})


def to_dataset(
    requests: Requests, *, text_format: str = "list", conversational: bool = True, **wording: Unpack[Wording]
) -> Dataset:
    """One row a request, in order; arguments, and what is raised, are those of `request_rows`."""
    rows = request_rows(requests, text_format=text_format, conversational=conversational, **wording)
    return Dataset.from_list(rows, features=columns_of(requests, conversational=conversational, **wording))


def save(dataset: Dataset, path: str | Path) -> Path:
    """Write `dataset` as one parquet file, whole or not at all. Raises `CheckpointError` where it cannot be written."""
    buffer = io.BytesIO()
    dataset.to_parquet(buffer)
    durable.replace(Path(path), buffer.getvalue())
    return Path(path)


def load(path: str | Path) -> Dataset:
    """What `save` wrote, with the same types, read into memory.

    Raises `DataError` where there is no such file, or where it is no parquet file of requests.
    """
    try:
        dataset = Dataset(InMemoryTable(parquet.read_table(path)))
    except (OSError, pyarrow.ArrowException) as cause:
        raise DataError(f"{path} cannot be read as a parquet file ({cause}); write it with save") from cause
    conversational = dataset.features.get("prompt") != Value("string")
    for name, type_ in _columns(conversational, [name for name in _SOME if name in dataset.features]).items():
        found = dataset.features.get(name, "missing")
        if found != type_:
            raise DataError(f"column {name!r} of {path} is {found} but {type_} was expected; write it with save")
    return dataset
