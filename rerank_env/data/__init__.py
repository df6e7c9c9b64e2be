"""Requests to re-rank: where they come from and how they are split. Needs numpy and scipy only.

`load` names a data set; `Requests` is the record everything else reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rerank_env.data import movielens
from rerank_env.data.building import graded_slates, next_item_lists
from rerank_env.data.requests import KINDS, Catalog, Requests
from rerank_env.data.split import SPLITS
from rerank_env.data.synthetic import synthetic
from rerank_env.rewards.errors import UnknownNameError

__all__ = ["DATASETS", "KINDS", "SPLITS", "Catalog", "Requests", "load"]


def _movielens_100k(*, split: str, kind: str, slate_size: int = 10, history: int = 30) -> Requests:
    build = graded_slates if kind == "graded" else next_item_lists
    return build(movielens.read(), split=split, name="MovieLens-100K", slate_size=slate_size, history=history)


DATASETS: dict[str, Callable[..., Requests]] = {"movielens-100k": _movielens_100k, "synthetic": synthetic}


def load(name: str, *, split: str = "train", kind: str = "graded", **options: Any) -> Requests:
    """The requests of one split of a data set; loaded once a process for the same arguments.

    `name`: `synthetic` (options `requests`, `slate_size`, `min_slate_size`, `history`, `seed`) or `movielens-100k`
    (options `slate_size`, `history`; fetched and cached at first use). `split`: train, validation or test. `kind`:
    `graded` (several candidates with a gain) or `next_item` (one relevant candidate).

    Raises `UnknownNameError` with the nearest name (of an option, too), `InputError` for sizes that cannot be built,
    `FetchError` without network and cache, `DataError` for a damaged file.
    """
    for what, given, known in (("data set", name, DATASETS), ("split", split, SPLITS), ("kind", kind, KINDS)):
        if given not in known:
            raise UnknownNameError.of(what, given, known)
    accepted = set(inspect.signature(DATASETS[name]).parameters) - {"split", "kind"}
    for option in options:
        if option not in accepted:
            raise UnknownNameError.of(f"option of data set {name!r}", option, accepted)
    return _loaded(name, split, kind, tuple(sorted(options.items())))


@lru_cache(maxsize=16)
def _loaded(name: str, split: str, kind: str, options: tuple[tuple[str, Any], ...]) -> Requests:
    return DATASETS[name](split=split, kind=kind, **dict(options))
