"""Requests to re-rank: where they come from and how they are split. Needs numpy and scipy only.

`load` names a data set; `Requests` is the record everything else reads, and `Requests.of` makes one of your own lists.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from rerank_env.data import amazon, building, synthetic
from rerank_env.data.catalog import Catalog
from rerank_env.data.fetch import WheelFiles, fetch
from rerank_env.data.readers import movielens
from rerank_env.data.requests import KINDS, Requests
from rerank_env.data.split import SPLITS
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.errors import InputError

__all__ = ["DATASETS", "KINDS", "SPLITS", "Catalog", "Dataset", "Requests", "fetch_dataset", "load", "read_options"]


@dataclass(frozen=True)
class Dataset:
    """A data set by name.

    `build(kind=..., **options)` makes the requests of every split over one catalogue; its options are whole numbers or
    names, or None where that is the default. `kinds` it can make, the usual one first. `source` is what has to be
    fetched first, None where nothing has.
    """

    build: Callable[..., dict[str, Requests]]
    kinds: tuple[str, ...] = KINDS
    source: WheelFiles | None = None


def _movielens_100k(*, kind: str, slate_size: int = 10, history: int = 30) -> dict[str, Requests]:
    return building.build(movielens.read(), name="MovieLens-100K", kind=kind, slate_size=slate_size, history=history)


DATASETS: dict[str, Dataset] = {
    "movielens-100k": Dataset(_movielens_100k, source=movielens.SOURCE),
    "synthetic": Dataset(synthetic.build),
    **{name: Dataset(partial(amazon.build, name), kinds=("next_item",)) for name in amazon.NAMES},
}


def load(name: str, *, split: str = "train", kind: str | None = None, **options: Any) -> Requests:
    """The requests of one split of a data set; all splits are made together, once a process for the same arguments.

    `name`: `synthetic` (options `requests`, `slate_size`, `min_slate_size`, `history`, `seed`), `movielens-100k`
    (options `slate_size`, `history`; fetched and cached at first use), or `amazon-beauty`, `amazon-sports` and
    `amazon-toys` (options `first_stage`, `slate_size`, `history`, `seed`, `variant`, `latest`; read from
    `$RERANK_DATA`, with candidates that `rerank data build` made). `split`: train, validation or test. `kind`:
    `graded` (several candidates with a gain) or `next_item` (one relevant candidate); None is `graded` where the data
    set has it.

    Raises `UnknownNameError` with the nearest name (of an option, too), `InputError` for sizes that cannot be built,
    `FetchError` without network and cache, `DataError` for a damaged or missing file.
    """
    found = DATASETS[one_of("data set", name, DATASETS)]
    one_of("split", split, SPLITS)
    kind = found.kinds[0] if kind is None else one_of(f"kind of data set {name!r}", kind, found.kinds)
    known = {key: p.default for key, p in inspect.signature(found.build).parameters.items() if p.kind is p.KEYWORD_ONLY}
    known.pop("kind", None)
    for option, value in options.items():
        one_of(f"option of data set {name!r}", option, known)
        if not isinstance(known[option], str) and (value is not None or known[option] is not None):
            options[option] = whole(option, value, least=0)
    return _splits(name, kind, tuple(sorted({**known, **options}.items())))[split]


def read_options(text: str | None) -> dict[str, Any]:
    """The options of a data set from a line: `first_stage=bm25,slate_size=20`; whole numbers become numbers.

    Nothing gives none. Raises `InputError` for what is not NAME=VALUE, or names an option twice.
    """
    options: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not (name and sign and value) or name in options:
            raise InputError(
                f"the option {part!r} is not NAME=VALUE, each name once, as in first_stage=bm25,slate_size=20"
            )
        options[name] = int(value) if value.isdecimal() else value
    return options


def fetch_dataset(name: str, *, progress: bool | None = None) -> Path | None:
    """The folder that holds the files of a data set, downloaded if need be; None for one that is made, not fetched.

    `progress` as in `rerank_env.data.fetch.fetch`. Raises `UnknownNameError`, `FetchError` and `DataError`.
    """
    source = DATASETS[one_of("data set", name, DATASETS)].source
    return None if source is None else fetch(source, progress=progress)


@lru_cache(maxsize=8)
def _splits(name: str, kind: str, options: tuple[tuple[str, Any], ...]) -> dict[str, Requests]:
    return DATASETS[name].build(kind=kind, **dict(options))
