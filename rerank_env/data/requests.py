"""Re-ranking requests: the one record that environments, prompts, policies and trainers all read.

May import numpy and `rerank_env.rewards` only. Suffixes: `_B` requests, `_K` candidates, `_H` history entries,
`_I` items of the catalogue, `_F` item features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.errors import DataError
from rerank_env.rewards.slates import Slates

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]

PAD = -1
"""What fills the tail of a row of item or candidate numbers."""

KINDS = ("graded", "next_item")
"""Several candidates with a gain each, or one relevant candidate among K."""


@dataclass(frozen=True, eq=False)
class Catalog:
    """The items that requests point into.

    `texts` [I]: one line an item, shown in prompts and renderings. `features_IF` [I, F] float32, finite, known before
    any request is answered (statistics come from the training split only). `feature_names` [F]. `popularity_I` [I]:
    how often the training split holds the item, a count >= 0.
    """

    texts: tuple[str, ...]
    features_IF: Float32Array
    feature_names: tuple[str, ...]
    popularity_I: FloatArray

    def __post_init__(self) -> None:
        items = len(self.texts)
        if self.features_IF.shape != (items, len(self.feature_names)):
            raise DataError(
                f"features have shape {self.features_IF.shape} but the catalogue has {items} texts and "
                f"{len(self.feature_names)} feature names; give one row an item and one column a name"
            )
        if self.popularity_I.shape != (items,):
            raise DataError(
                f"popularity has shape {self.popularity_I.shape} but the catalogue has {items} items; give one count "
                "an item"
            )
        if not np.isfinite(self.features_IF).all():
            item = int(np.argwhere(~np.isfinite(self.features_IF))[0, 0])
            raise DataError(f"features of item {item} are not finite; fill the gaps before building a catalogue")

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class Requests:
    """A set of re-ranking requests over one catalogue, as padded arrays.

    Row b is one request: `users_B` who asks; `history_BH` item numbers, oldest first, tail padded with -1;
    `feedback_BH` float32, what the user thought of each (a rating, a click), 0 where padded; `candidates_BK` item
    numbers in the order the earlier stage left them, tail padded with -1; `scores_BK` float32, that stage's score of
    each candidate, 0 where padded; `relevance_BK` float64 >= 0, the gain of each candidate (what a reward may see and
    a policy may not); `sizes_B` how many candidates are real, at least 2. `name` says
    what the rows are and `notes` how they came to be (what was left out and why), for reports.

    Item numbers carry no meaning: loaders permute them with a fixed seed.
    Raises `DataError` or `SlateError`, naming the row, where the arrays disagree.
    """

    catalog: Catalog
    users_B: IntArray
    history_BH: IntArray
    feedback_BH: Float32Array
    candidates_BK: IntArray
    scores_BK: Float32Array
    relevance_BK: FloatArray
    sizes_B: IntArray
    name: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows, width = self.candidates_BK.shape
        shapes = {
            "users": (self.users_B.shape, (rows,)),
            "feedback": (self.feedback_BH.shape, self.history_BH.shape),
            "history": (self.history_BH.shape[:1], (rows,)),
            "scores": (self.scores_BK.shape, (rows, width)),
            "relevance": (self.relevance_BK.shape, (rows, width)),
            "sizes": (self.sizes_B.shape, (rows,)),
        }
        for field, (given, expected) in shapes.items():
            if given != expected:
                raise DataError(
                    f"{field} has shape {given} but the candidates need {expected}; pad every row to the same length"
                )
        real_BK = np.arange(width) < self.sizes_B[:, None]
        self._check_items("candidates", self.candidates_BK, real_BK)
        self._check_items("history", self.history_BH, self.history_BH != PAD)
        self._check_no_duplicates(real_BK)
        for field, values in (("scores", self.scores_BK), ("feedback", self.feedback_BH)):
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                raise DataError(f"{field} of request {int(bad[0, 0])} are not finite; drop the request or fill them in")
        self.slates  # noqa: B018 - checks relevance and sizes now rather than at first use

    def _check_items(self, field: str, items: IntArray, real: npt.NDArray[np.bool_]) -> None:
        bad = np.argwhere(real & ((items < 0) | (items >= len(self.catalog))))
        if len(bad):
            row, column = (int(x) for x in bad[0])
            raise DataError(
                f"request {row} has {field} item {int(items[row, column])} but the "
                f"catalogue has items 0..{len(self.catalog) - 1}; build the catalogue from the same data"
            )
        stray = np.argwhere(~real & (items != PAD))
        if len(stray):
            raise DataError(
                f"request {int(stray[0, 0])} has {field} beyond its size; fill the tail of the row with {PAD}"
            )

    def _check_no_duplicates(self, real_BK: npt.NDArray[np.bool_]) -> None:
        width = self.candidates_BK.shape[1]
        distinct_BK = np.where(real_BK, self.candidates_BK, -1 - np.arange(width))
        ordered_BK = np.sort(distinct_BK, axis=1)
        rows = np.flatnonzero((ordered_BK[:, 1:] == ordered_BK[:, :-1]).any(axis=1))
        if len(rows):
            raise DataError(
                f"request {int(rows[0])} lists the same candidate twice; keep the first of each before building "
                "requests"
            )

    def __len__(self) -> int:
        return len(self.users_B)

    @cached_property
    def slates(self) -> Slates:
        """What a reward may look at, row for row."""
        return Slates(relevance_BK=self.relevance_BK, sizes_B=self.sizes_B)

    def take(self, rows_B: npt.ArrayLike) -> Requests:
        """The requests at `rows_B` (any integer or boolean index), in that order; rows may repeat."""
        rows = np.asarray(rows_B)
        if not rows.size:
            rows = rows.astype(np.int64)  # an empty list has no type of its own
        fields = ("users_B", "history_BH", "feedback_BH", "candidates_BK", "scores_BK", "relevance_BK", "sizes_B")
        return replace(self, **{field: getattr(self, field)[rows] for field in fields})

    def reordered(self, rankings_BK: IntArray) -> Requests:
        """The same requests with each candidate list put in the order `rankings_BK`, valid rankings padded with -1.

        Scores and relevance move with their candidates. Used for shuffled-input tests: the answer to the new request,
        read through `rankings_BK`, is an answer to the old one.
        """
        order = np.where(rankings_BK >= 0, rankings_BK, np.arange(rankings_BK.shape[1]))
        return replace(
            self,
            candidates_BK=np.take_along_axis(self.candidates_BK, order, axis=1),
            scores_BK=np.take_along_axis(self.scores_BK, order, axis=1),
            relevance_BK=np.take_along_axis(self.relevance_BK, order, axis=1),
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Requests:
        """Itself: requests are never written to, and environments are copied with what they were made from."""
        return self

    def observation(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """What a policy may look at, as the environment's observation with a leading axis of requests.

        Keys: `candidates` int64 [B, K], `scores` float32 [B, K], `history` int64 [B, H], `feedback` float32 [B, H].
        """
        return {
            "candidates": self.candidates_BK,
            "scores": self.scores_BK,
            "history": self.history_BH,
            "feedback": self.feedback_BH,
        }
