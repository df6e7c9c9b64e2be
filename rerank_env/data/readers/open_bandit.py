"""The Open Bandit sample: what a fashion shop showed under two logging policies, with true propensities of selection.

Saito et al., "Open Bandit Dataset and Pipeline", NeurIPS Datasets and Benchmarks 2021 (2008.07146). 10,000 impressions
for each of two policies ("random", and "bts" for Bernoulli Thompson sampling) and three campaigns, out of the released
wheel of `obp` 0.4.1; nothing of that package is installed or imported. 60,000 rows have 287 clicks: enough to test
arithmetic on, too few to learn from. May import the standard library, numpy and `rerank_env.data`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.data.fetch import WheelFiles, fetch
from rerank_env.data.impressions import RULES, Impressions
from rerank_env.data.readers.faults import lines
from rerank_env.data.readers.impression_columns import seconds_of
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import DataError

POLICIES = ("random", "bts")

CAMPAIGNS = ("all", "men", "women")

CONTEXT = "item_context.csv"

_SIZES: Mapping[tuple[str, str], tuple[int, int]] = {
    ("random", "all"): (5_039_451, 10_041),
    ("random", "men"): (3_336_811, 4_287),
    ("random", "women"): (3_817_771, 5_792),
    ("bts", "all"): (5_084_456, 10_041),
    ("bts", "men"): (3_240_432, 4_287),
    ("bts", "women"): (3_722_697, 5_792),
}
"""The bytes of the impressions and of the items."""

SOURCES: Mapping[tuple[str, str], WheelFiles] = {
    (policy, campaign): WheelFiles(
        name=f"open-bandit-{policy}-{campaign}",
        requirement="obp==0.4.1",
        filename="obp-0.4.1-py3-none-any.whl",
        sha256="87dec9caf4283c25ab13036532e0a24566f1c7bdcad1653a8ded43b2f5ef8208",
        members={
            f"obp/dataset/obd/{policy}/{campaign}/{campaign}.csv": rows,
            f"obp/dataset/obd/{policy}/{campaign}/{CONTEXT}": items,
        },
    )
    for (policy, campaign), (rows, items) in _SIZES.items()
}

_ROW = ("", "timestamp", "item_id", "position", "click", "propensity_score")
_FEATURES = 4
_USER = tuple(f"user_feature_{number}" for number in range(_FEATURES))
_ITEM = ("", "item_id", *(f"item_feature_{number}" for number in range(_FEATURES)))


def read_open_bandit(policy: str = "random", campaign: str = "all", *, folder: Path | None = None) -> Impressions:
    """The impressions of one policy in one campaign, each a request of one candidate, with propensities of selection.

    The shop shows three places at a time but the log does not say which rows were shown together, so no lists can be
    re-ranked from it and it has no user ids: a `user_id` is the four hashed features, which several people may share.
    `row_columns` has `user_feature_0` to `_3` (text [N]) and `affinity` (float64 [N, I], the user's for each item, in
    the order of `item_ids_I`); `item_columns` has `item_feature_0` (a number) and `item_feature_1` to `_3` (text [I]).

    `folder` holds `CAMPAIGN.csv` and `item_context.csv` (default: fetched and cached). Raises `UnknownNameError` for
    another policy or campaign, `DataError` naming file and line for a damaged file, and `FetchError`.
    """
    one_of("Open Bandit policy", policy, POLICIES)
    one_of("Open Bandit campaign", campaign, CAMPAIGNS)
    folder = fetch(SOURCES[policy, campaign]) if folder is None else folder
    items = _items(folder / CONTEXT)
    path, count = folder / f"{campaign}.csv", len(items)
    header = (*_ROW, *_USER, *(f"user-item_affinity_{number}" for number in range(count)))
    numbers: list[tuple[float, ...]] = []
    users: list[list[str]] = []
    affinities: list[list[float]] = []
    for line, fields in _table(path, header):
        try:
            row = (seconds_of(fields[1]), float(int(fields[2])), *map(float, fields[3:6]))
            affinity = [float(text) for text in fields[6 + _FEATURES :]]
        except (ValueError, OverflowError) as error:
            raise _damaged(path, line, f"has a field that is no number or time ({error})") from error
        if not 0 <= row[1] < count or not np.isfinite(affinity).all():
            raise _damaged(path, line, f"has an item outside 0..{count - 1} or an affinity that is not finite")
        for column, value in zip(("position", "click", "propensity"), row[2:], strict=True):
            if not RULES[column].holds(np.array([value]))[0]:
                raise _damaged(path, line, f"has {column} {value:g}, not {RULES[column].expected}")
        numbers.append(row)
        users.append(fields[6 : 6 + _FEATURES])
        affinities.append(affinity)
    times_N, items_N, positions_N, clicks_N, propensities_N = np.array(numbers).reshape(-1, 5).T
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.array([user[number] for user in users], dtype=object) for number, name in enumerate(_USER)
    }
    columns["affinity"] = np.array(affinities).reshape(-1, count)
    features = {name: [item[number] for item in items] for number, name in enumerate(_ITEM[2:])}
    return Impressions(
        request_ids_B=np.array([f"{policy}/{campaign}/{row}" for row in range(len(users))], dtype=object),
        user_ids_B=np.array(["/".join(user) for user in users], dtype=object),
        sizes_B=np.ones(len(users), dtype=np.int64),
        item_ids_I=np.array([str(item) for item in range(count)], dtype=object),
        items_N=items_N.astype(np.int64),
        positions_N=positions_N.astype(np.int64),
        clicks_N=clicks_N,
        propensities_N=propensities_N,
        propensity="selection",
        timestamps_N=times_N,
        row_columns=columns,
        item_columns={
            name: np.array(values, dtype=np.float64 if name == "item_feature_0" else object)
            for name, values in features.items()
        },
    )


def _items(path: Path) -> list[list[Any]]:
    """The features of each item; the items are numbered from 0 in the order of the file."""
    items: list[list[Any]] = []
    for line, (_, item, number, *texts) in _table(path, _ITEM):
        try:
            if int(item) != len(items):
                raise ValueError(f"item {item}, expected {len(items)}")
            items.append([float(number), *texts])
        except ValueError as error:
            raise _damaged(path, line, f"is not the next item with a number ({error})") from error
    return items


def _table(path: Path, header: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """The rows below the expected header with their line numbers, none of which has a quote in it."""
    found = False
    for line, text in lines(path):
        try:
            fields = next(csv.reader([text]), [])
        except csv.Error as error:
            raise _damaged(path, line, f"is no row of CSV ({error})") from error
        if line == 1:
            found = True
            if tuple(fields) != header:
                raise _damaged(path, line, f"is {text[:80]!r}, not the header {','.join(header)[:80]!r}")
        elif len(fields) != len(header):
            raise _damaged(path, line, f"has {len(fields)} fields, not {len(header)}")
        else:
            yield line, fields
    if not found:
        raise _damaged(path, 1, "is missing, the file is empty")


def _damaged(path: Path, line: int, what: str) -> DataError:
    return DataError(f"{path} line {line} {what}; delete its folder and fetch it again")
