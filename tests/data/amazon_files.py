"""Amazon reviews and metadata in the three public forms, as the tests write them, and a log in a plain form."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rerank_env.data.readers.named import NamedLog
from rerank_env.rewards.errors import DataError

Row = tuple[str, str, float, int]
"""User, item, stars, seconds."""


def old(row: Row) -> str:
    user, item, stars, seconds = row
    return json.dumps(
        {"reviewerID": user, "asin": item, "overall": stars, "unixReviewTime": seconds, "reviewText": 'It\'s "fine"'}
    )


def new(row: Row) -> str:
    user, item, stars, seconds = row
    entry = {"user_id": user, "parent_asin": item, "asin": "variant", "rating": stars, "timestamp": seconds * 1000}
    return json.dumps({**entry, "text": "ok", "verified_purchase": True})


def meta_2014(item: str, title: str, path: list[str], brand: str) -> str:
    entry: dict[str, Any] = {
        "asin": item,
        "categories": [path, ["Other", *path[:1]]],
        "related": {"also_bought": ["X"]},
    }
    return repr({**entry, **({"title": title} if title else {}), **({"brand": brand} if brand else {})})


def meta_2018(item: str, title: str, path: list[str], brand: str) -> str:
    return json.dumps({"category": path, "title": title, "brand": brand, "description": ["long"], "asin": item})


def meta_2023(item: str, title: str, path: list[str], brand: str) -> str:
    return json.dumps({"parent_asin": item, "title": title, "categories": path, "store": brand or None})


FORMS: dict[str, tuple[Callable[[Row], str], Callable[[str, str, list[str], str], str]]] = {
    "2014": (old, meta_2014),
    "2018": (old, meta_2018),
    "2023": (new, meta_2023),
}


def write(path: Path, rows: list[str]) -> Path:
    data = "".join(f"{row}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def by_name(named: NamedLog) -> list[tuple[str, str, float, float]]:
    """The log as user, item, stars and time, user by user in its order, by the names of the file."""
    log = named.log
    return [
        (str(named.user_ids[user]), str(named.item_ids[item]), rating, time)
        for user, item, rating, time in zip(
            log.users_N.tolist(), log.items_N.tolist(), log.ratings_N.tolist(), log.times_N.tolist(), strict=True
        )
    ]


def says(text: str) -> Any:
    return pytest.raises(DataError, match=text)
