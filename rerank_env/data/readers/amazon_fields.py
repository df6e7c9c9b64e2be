"""The fields of Amazon reviews and product metadata in the three public forms, and what is read of each line.

- 2014: reviews `reviewerID`, `asin`, `overall`, `unixReviewTime` in seconds; metadata `asin`, `title`, `categories`
  (several paths), `brand`. The metadata lines are Python literals, not JSON: they are read with `ast.literal_eval`,
  which runs no code.
- 2018: reviews as in 2014; metadata `asin`, `title`, `category` (one path), `brand`, as JSON.
- 2023: reviews `user_id`, `parent_asin`, `rating`, `timestamp` in milliseconds; metadata `parent_asin`, `title`,
  `categories` (one path), `store`, as JSON.

McAuley et al. 2015; Ni, Li and McAuley 2019; Hou et al. 2024. May import the standard library, `rerank_env.data` and
`rerank_env.rewards`.
"""

from __future__ import annotations

import ast
import html
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank_env.data.ids import HALF, is_text
from rerank_env.data.readers.faults import Skipped
from rerank_env.rewards.errors import DataError

RATINGS = (0.0, 5.0)
"""The lowest and the highest rating; 1 to 5 stars, and 0 in a few old reviews."""

LARGEST = 2.0**63
"""No rating or time is as large."""

NO_TITLE = "an item without a title"

NOT_FORMATTED = "getTime"
"""What titles of 2018 contain that are a piece of the web page's script: they are no titles."""

NO_ENTRY = "it is neither a JSON object nor a Python dictionary"


@dataclass(frozen=True)
class Fields:
    """How one form calls what is read, and how many units of its time make a second."""

    user: str
    item: str
    rating: str
    time: str
    ticks_per_second: int


OLD = Fields("reviewerID", "asin", "overall", "unixReviewTime", 1)
NEW = Fields("user_id", "parent_asin", "rating", "timestamp", 1000)


@dataclass(frozen=True)
class Product:
    """What the metadata say of an item: `title` (may be empty), its first category path, and all its labels."""

    title: str
    path: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line for a prompt: the title, then the category path."""
        return "; ".join([self.title or NO_TITLE, *([" > ".join(self.path)] if self.path else [])])


class Fault(Exception):  # noqa: N818  what is wrong with a line, turned into a DataError by whoever knows the line
    """The message says what the line is, or is not."""


def entry_of(text: str) -> dict[str, Any]:
    """The fields of one line, JSON or a Python literal. Raises `Fault`."""
    try:
        if text.startswith("{'"):  # how Python writes a dictionary, and JSON cannot begin
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about escapes in somebody's title
                entry = ast.literal_eval(text)
        else:
            entry = json.loads(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise Fault(NO_ENTRY) from error
    if not isinstance(entry, dict):
        raise Fault(NO_ENTRY)
    return entry


def fields_of(entry: dict[str, Any]) -> Fields:
    """Which form an entry of the reviews is of."""
    return NEW if NEW.user in entry else OLD


def review_of(entry: dict[str, Any], fields: Fields) -> tuple[str, str, float, float]:
    """User, item, rating and time in seconds. Raises `Fault`."""
    user, item = _name(entry, fields.user), _name(entry, fields.item)
    rating, time = _number(entry, fields.rating), _number(entry, fields.time)
    if not RATINGS[0] <= rating <= RATINGS[1]:
        raise Fault(f"{fields.rating} is no number from {RATINGS[0]:g} to {RATINGS[1]:g}")
    return user, item, rating, time / fields.ticks_per_second


def item_of(entry: dict[str, Any]) -> str:
    """Whose metadata an entry is. Raises `Fault`."""
    return _name(entry, NEW.item if NEW.item in entry else OLD.item)


def product_of(entry: dict[str, Any]) -> Product:
    """What an entry of the metadata says, without markup, runs of white space, and titles that are none.

    Raises `Fault` for categories that are no list, and for half a surrogate pair in what is read.
    """
    listed = entry.get("categories") or entry.get("category") or entry.get("main_category") or []
    if isinstance(listed, str):
        listed = [listed]
    if not isinstance(listed, list):
        raise Fault("its categories are no list")
    paths = listed if listed and all(isinstance(part, list) for part in listed) else [listed]
    cleaned = [tuple(name for part in path if (name := _clean(part))) for path in paths]
    title = _clean(entry.get("title"))
    brand = _clean(entry.get("brand") or entry.get("store"))
    labels = dict.fromkeys(name for path in cleaned for name in path)
    return Product(
        title="" if NOT_FORMATTED in title else title,
        path=next((path for path in cleaned if path), ()),
        labels=(*labels, *([f"brand {brand}"] if brand else [])),
    )


def refuse(fault: Fault, path: Path, line: int, text: str, skipped: Skipped | None) -> None:
    """Count the line in `skipped`, or raise `DataError` naming file and line where there is none."""
    if skipped is None:
        raise DataError(
            f"{path} line {line} reads {text[:80]!r}, but {fault}; correct or remove the line"
        ) from fault.__cause__
    skipped.add(str(fault), path, line)


def _clean(text: object) -> str:
    """One line without HTML entities; empty for what is no text. Raises `Fault`."""
    if not isinstance(text, str):
        return ""
    if not is_text(text):
        raise Fault(f"a text in it holds {HALF}")
    return " ".join(html.unescape(text).split())


def _name(entry: dict[str, Any], field: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value.strip():
        raise Fault(f"{field} is no text" if field in entry else f"it has no {field}")
    if not is_text(value):
        raise Fault(f"{field} holds {HALF}")
    return value.strip()


def _number(entry: dict[str, Any], field: str) -> float:
    value = entry.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise Fault(f"{field} is no number" if field in entry else f"it has no {field}")
    return float(value)
