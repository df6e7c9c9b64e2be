"""Amazon 5-core reviews (2014) as sequences: who bought what in which order, without ratings and times.

The split that TIGER, S3-Rec, OneRec-Think and GR2 report on (He and McAuley 2016; McAuley et al. 2015): one folder a
domain with `sequences.txt.gz`, one user a line, `user item item ...`, oldest first, no item twice; and
`items.jsonl.gz`, one item a line with `item_id`, `title` (may be empty), `keywords` and `attr_ids`, which are numbers
of categories and brands. May import the standard library, numpy and `rerank_env.data`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from operator import index
from pathlib import Path

import numpy as np

from rerank_env.data.ids import HALF, is_text
from rerank_env.data.interactions import Interactions
from rerank_env.data.readers.amazon_fields import NO_TITLE
from rerank_env.data.readers.faults import lines
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import DataError

DOMAINS = ("beauty", "sports", "toys")

SEQUENCES, ITEMS = "sequences.txt.gz", "items.jsonl.gz"


def folder_of(domain: str) -> Path:
    """Where the files of a domain are: `$RERANK_DATA/amazon_DOMAIN`.

    Raises `UnknownNameError` for another domain and `DataError` where the variable or the folder is missing.
    """
    one_of("Amazon domain", domain, DOMAINS)
    root = os.environ.get("RERANK_DATA")
    if not root:
        raise DataError(
            f"the Amazon reviews are not downloaded; set RERANK_DATA to the folder that holds amazon_{domain}, with "
            f"{SEQUENCES} and {ITEMS} in it"
        )
    folder = Path(root).expanduser() / f"amazon_{domain}"
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; set RERANK_DATA to the folder that holds amazon_{domain}")
    return folder


def read(folder: Path, *, seed: int = 0) -> Interactions:
    """The purchases in `folder` as a log; items are renumbered at random with `seed`, because their numbers leak.

    The time of a purchase is its place in the user's sequence, and every rating is 1. Users are numbered by line. The
    text of an item is its title or, without one, its keywords. Raises `DataError` naming file and line where a line is
    not of the form above, names an item without an entry, or repeats an item or a user, and where there is no line.
    """
    texts, labels = _items(folder / ITEMS)
    users: list[int] = []
    items: list[int] = []
    times: list[int] = []
    first_line: dict[int, int] = {}
    for line, words in _numbers(folder / SEQUENCES):
        bought = words[1:]
        if not bought or len(set(bought)) < len(bought) or not all(1 <= item <= len(texts) for item in bought):
            raise DataError(
                f"{folder / SEQUENCES} line {line} is not a user and items from 1 to {len(texts)}, each once; fetch "
                "the file again"
            )
        if first_line.setdefault(words[0], line) != line:
            raise DataError(
                f"{folder / SEQUENCES} line {line} is of user {words[0]}, as line {first_line[words[0]]} is; put all "
                "of a user on one line"
            )
        users.extend([line - 1] * len(bought))
        items.extend(item - 1 for item in bought)
        times.extend(range(len(bought)))
    if not users:
        raise DataError(f"{folder / SEQUENCES} holds no line; fetch the file again")
    return Interactions.arranged(
        np.array(users, dtype=np.int64),
        np.array(items, dtype=np.int64),
        np.ones(len(users)),
        np.array(times, dtype=np.float64),
        texts=tuple(texts),
        content_IC=np.zeros((len(texts), 0), dtype=np.float32),
        content_names=(),
        labels=tuple(labels),
        seed=seed,
    )


def _items(path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    texts: list[str] = []
    labels: list[tuple[str, ...]] = []
    for line, text in lines(path):
        try:
            entry = json.loads(text)
            number, title, keywords, marks = (entry[key] for key in ("item_id", "title", "keywords", "attr_ids"))
            labels.append(tuple(f"label {index(mark)}" for mark in marks))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} line {line} is not an item as JSON ({error}); fetch the file again") from error
        if number != line or not isinstance(title, str) or not isinstance(keywords, str):
            raise DataError(f"{path} line {line} is not item {line} with a title and keywords; fetch the file again")
        if not is_text(title + keywords):
            raise DataError(f"{path} line {line} holds {HALF} in its title or keywords; fetch the file again")
        texts.append(title.strip() or keywords.strip() or NO_TITLE)
    return texts, labels


def _numbers(path: Path) -> Iterator[tuple[int, list[int]]]:
    for line, text in lines(path):
        try:
            yield line, [int(word) for word in text.split()]
        except ValueError as error:
            raise DataError(f"{path} line {line} holds something else than numbers; fetch the file again") from error
