"""What a reader returns: the record, with the names its rows and items have in the source, and what was left out.

Records number users and items, and item numbers are drawn at random, because those of a source leak (by date of birth,
by popularity). The names lead back. May import numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_B`
requests, `_K` candidates, `_U` users, `_I` items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rerank_env.data.interactions import Interactions
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import legal

Name = int | str
"""How a source calls a request, a user or an item; all of one kind are whole numbers, or all texts."""

NamedT = TypeVar("NamedT", bound=Name)


@dataclass(frozen=True, eq=False)
class NamedLog:
    """`log`, where user u is `user_ids[u]` and item i is `item_ids[i]` of the source.

    `skipped` counts what the log does not hold, by reason; `notes` say it in words, with what else was done.
    """

    log: Interactions = field(repr=False)
    user_ids: tuple[Name, ...] = field(repr=False)
    item_ids: tuple[Name, ...] = field(repr=False)
    skipped: Skipped
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class NamedRequests:
    """`requests`, where row b is `request_ids[b]`, asked by `user_ids[b]`, and item i is `item_ids[i]` of the source.

    `skipped` counts what the requests do not hold, by reason; `requests.notes` say it in words. Parts of one catalogue
    (train and test, say) are read together and parted with `requests.take`.
    """

    requests: Requests = field(repr=False)
    request_ids: tuple[Name, ...] = field(repr=False)
    user_ids: tuple[Name, ...] = field(repr=False)
    item_ids: tuple[Name, ...] = field(repr=False)
    skipped: Skipped

    def ranked(self, rankings_BK: npt.ArrayLike) -> list[list[Name]]:
        """The candidates of every request by name, best first, for an answer to all of `requests`.

        Raises `RankingError` naming the first row that is no ranking, and `InputError` where there are more or fewer
        rows than requests.
        """
        given = np.asarray(rankings_BK)
        if given.ndim == 2 and len(given) != len(self.requests):
            raise InputError(f"{len(given)} rankings were given for {len(self.requests)} requests; answer each of them")
        rankings, sizes = legal(given, self.requests.sizes_B)
        return [
            [self.item_ids[item] for item in items[ranking[:size]].tolist()]
            for items, ranking, size in zip(self.requests.candidates_BK, rankings, sizes, strict=True)
        ]


def permuted(names: Sequence[NamedT], *, seed: int) -> tuple[IntArray, tuple[NamedT, ...]]:
    """A number for each of `names`, drawn with `seed`, and the names in the order of those numbers.

    >>> numbers, names = permuted(["a", "b", "c"], seed=0)
    >>> [names[number] for number in numbers]
    ['a', 'b', 'c']
    """
    numbers = np.random.default_rng(seed).permutation(len(names))
    return numbers, tuple(names[old] for old in np.argsort(numbers).tolist())
