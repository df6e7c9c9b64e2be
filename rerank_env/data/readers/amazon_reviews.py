"""Amazon reviews as they are published: `reviews_*.json.gz` and `meta_*.json.gz` of 2014, 2018 or 2023, as a log.

One line a review, one line an item; the forms are told apart by their fields (see `amazon_fields`). Files are read
line by line and of a review only user, item, rating, time and line number are kept, never its text. Memory is about
32 bytes a review, and what the distinct ids of users and items take. May import the standard library, numpy,
`rerank_env.data` and `rerank_env.rewards`. Suffixes: `_N` interactions, `_U` users, `_I` items.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rerank_env.data.interactions import Interactions
from rerank_env.data.readers.amazon_fields import (
    NOT_FORMATTED,
    Fault,
    Fields,
    Product,
    entry_of,
    fields_of,
    item_of,
    product_of,
    refuse,
    review_of,
)
from rerank_env.data.readers.faults import Skipped, lines
from rerank_env.data.readers.k_core import k_core
from rerank_env.data.readers.named import NamedLog
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import DataError

NO_METADATA = "an item without an entry in the metadata"

REPEATED = "the user has an earlier review of the same item, which is kept"
TWICE = "the item has an earlier entry, which is kept"

IN_METADATA = "metadata: "
"""With this begins each reason for which a line of the metadata is left out; all others are those of reviews."""


@dataclass(frozen=True, eq=False)
class _Reviews:
    """The reviews as columns, in the order of the file, with the names of users and items by number."""

    users_N: IntArray
    items_N: IntArray
    ratings_N: FloatArray
    times_N: FloatArray
    lines_N: IntArray
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lines_N)

    def take(self, kept_N: BoolArray) -> _Reviews:
        """Those that are kept, and the users and items that have one, numbered anew in the same order."""
        users, users_N = np.unique(self.users_N[kept_N], return_inverse=True)
        items, items_N = np.unique(self.items_N[kept_N], return_inverse=True)
        return _Reviews(
            users_N, items_N, self.ratings_N[kept_N], self.times_N[kept_N], self.lines_N[kept_N],
            tuple(self.user_ids[user] for user in users.tolist()),
            tuple(self.item_ids[item] for item in items.tolist()),
        )  # fmt: skip


def read(
    reviews: Path | str,
    metadata: Path | str | None = None,
    *,
    core: int = 5,
    seed: int = 0,
    skipped: Skipped | None = None,
) -> NamedLog:
    """The reviews of a file as a log, with texts and labels of the items out of `metadata`.

    A user's first review of an item is kept, by time and then by line. Then users and items with fewer than `core`
    reviews are taken out until none is left (1 keeps all). What is left out is counted by reason in `skipped`. Items
    are renumbered at random with `seed`, and reviews of one user in the same second (one day, in 2014 and 2018) come
    in random order. Ratings are stars, times seconds since 1970.

    The text of an item is `title; category > category > ...`, its labels are its categories and `brand NAME`. Without
    `metadata` texts are `item 0`, `item 1`, ... and there are no labels.

    The reviews of the log and those in `skipped` are all lines of `reviews`; lines of the metadata that are left out
    are counted there too, under reasons that begin with `IN_METADATA`.

    Raises `DataError` naming file and line for a line that is no review or no entry; with `skipped` given, such lines
    are counted there and left out. It is raised too where no review is left, and `InputError` for a `core` below 1.
    """
    core = whole("core", core, least=1)
    left_out = Skipped() if skipped is None else skipped
    read_all = _reviews(Path(reviews), skipped)
    distinct = _first_of_each(read_all, Path(reviews), left_out)
    kept, notes = _core_of(distinct, Path(reviews), core, left_out)
    named = Interactions.arranged(
        kept.users_N, kept.items_N, kept.ratings_N, kept.times_N, texts=kept.item_ids,
        content_IC=np.zeros((len(kept.item_ids), 0), dtype=np.float32), content_names=(), seed=seed,
    )  # fmt: skip
    item_ids = named.texts  # the names, in the order of the numbers that were drawn
    if metadata is None:
        log = replace(named, texts=tuple(f"item {number}" for number in range(len(item_ids))))
    else:
        products, said = _products(Path(metadata), frozenset(item_ids), skipped, left_out)
        known = [products.get(name) for name in item_ids]
        labels = tuple(() if product is None else product.labels for product in known)
        log = replace(
            named,
            texts=tuple(NO_METADATA if product is None else product.text for product in known),
            labels=labels if any(labels) else (),
        )
        notes += said
    return NamedLog(log, kept.user_ids, item_ids, left_out, (*notes, *left_out.notes()))


def _reviews(path: Path, skipped: Skipped | None) -> _Reviews:
    """All reviews of the file."""
    fields: Fields | None = None
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    who, what, ratings, times, numbers = array("i"), array("i"), array("d"), array("d"), array("q")
    for line, text in lines(path, skipped=skipped):
        try:
            entry = entry_of(text)
            form = fields_of(entry) if fields is None else fields
            user, item, rating, time = review_of(entry, form)
        except Fault as fault:
            refuse(fault, path, line, text, skipped)
            continue
        fields = form
        who.append(users.setdefault(user, len(users)))
        what.append(items.setdefault(item, len(items)))
        ratings.append(rating)
        times.append(time)
        numbers.append(line)
    return _Reviews(
        np.array(who, dtype=np.int64), np.array(what, dtype=np.int64), np.array(ratings), np.array(times),
        np.array(numbers), tuple(users), tuple(items),
    )  # fmt: skip


def _first_of_each(read_all: _Reviews, path: Path, left_out: Skipped) -> _Reviews:
    """The first review of each pair of user and item, by time and then by line."""
    pairs_N = read_all.users_N * len(read_all.item_ids) + read_all.items_N
    by_time = np.lexsort((read_all.lines_N, read_all.times_N))
    first = by_time[np.unique(pairs_N[by_time], return_index=True)[1]]
    kept_N = np.zeros(len(read_all), dtype=bool)
    kept_N[first] = True
    return _without(read_all, kept_N, REPEATED, path, left_out)


def _core_of(distinct: _Reviews, path: Path, core: int, left_out: Skipped) -> tuple[_Reviews, tuple[str, ...]]:
    """The k-core, and how much of the log it is."""
    kept_N, rounds = k_core(distinct.users_N, distinct.items_N, core=core)
    reason = f"the user or the item has fewer than {core} reviews (the {core}-core, after {rounds} rounds)"
    kept = _without(distinct, kept_N, reason, path, left_out)
    if not len(kept):
        raise DataError(
            f"{path} has {len(distinct):,} reviews but none whose user and item have {core} each; give a lower core"
        )
    return kept, (
        f"{len(kept):,} of {len(distinct):,} reviews, {len(kept.user_ids):,} of {len(distinct.user_ids):,} users and "
        f"{len(kept.item_ids):,} of {len(distinct.item_ids):,} items are in the {core}-core",
    )


def _without(rows: _Reviews, kept_N: BoolArray, reason: str, path: Path, left_out: Skipped) -> _Reviews:
    if kept_N.all():
        return rows
    left_out.add(reason, path, int(rows.lines_N[~kept_N].min()), rows=int((~kept_N).sum()))
    return rows.take(kept_N)


def _products(
    path: Path, wanted: frozenset[str], skipped: Skipped | None, left_out: Skipped
) -> tuple[dict[str, Product], tuple[str, ...]]:
    """What the metadata say of the `wanted` items; those of other items are read past."""
    products: dict[str, Product] = {}
    others = 0
    mine = Skipped()
    faults = None if skipped is None else mine
    for line, text in lines(path, skipped=faults):
        try:
            entry = entry_of(text)
            name = item_of(entry)
            if name not in wanted:
                others += 1
            elif name in products:
                mine.add(TWICE, path, line)
            else:
                products[name] = product_of(entry)
        except Fault as fault:
            refuse(fault, path, line, text, faults)
    left_out.include(mine, IN_METADATA)
    untitled = sum(not product.title for product in products.values())
    notes = {
        f"items have no entry in {path.name}": len(wanted) - len(products),
        f"items have an entry without a title (or with a script for one, known by {NOT_FORMATTED!r})": untitled,
        f"entries of {path.name} are of items that are not in the log": others,
    }
    return products, tuple(f"{count:,} {what}" for what, count in notes.items() if count)
