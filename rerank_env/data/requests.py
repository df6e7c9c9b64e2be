"""Re-ranking requests: the one record that environments, prompts, policies and trainers all read.

May import numpy, `rerank_env.data.catalog` and `rerank_env.rewards`. Suffixes: `_B` requests, `_K` candidates, `_H`
history entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.data import padding
from rerank_env.data.catalog import Catalog
from rerank_env.data.fields import as_field, as_lists, padded_field, paired
from rerank_env.data.remarks import Texts, as_remarks, padded_remarks
from rerank_env.rewards.arrays import PAD, Float32Array, FloatArray, IntArray
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES, completed, identity_rankings
from rerank_env.rewards.slates import Slates

KINDS = ("graded", "next_item")
"""Several candidates with a gain each, or one relevant candidate among K."""

Items = Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]]
Numbers = Sequence[Sequence[float] | npt.NDArray[Any]]

_Form = tuple[type[np.number[Any]], tuple[str, ...]]

_FIELDS: Mapping[str, _Form] = {
    "users_B": (np.int64, ("requests",)),
    "history_BH": (np.int64, ("requests", "entries")),
    "feedback_BH": (np.float32, ("requests", "entries")),
    "candidates_BK": (np.int64, ("requests", "candidates")),
    "scores_BK": (np.float32, ("requests", "candidates")),
    "relevance_BK": (np.float64, ("requests", "candidates")),
    "sizes_B": (np.int64, ("requests",)),
}
"""The fields with one entry or row a request: their dtypes and axes."""

_OPTIONAL: Mapping[str, _Form] = {
    "clicks_BK": (np.float64, ("requests", "candidates")),
    "propensities_BK": (np.float64, ("requests", "candidates")),
    "predictions_BK": (np.float64, ("requests", "candidates")),
    "canonical_BK": (np.int64, ("requests", "candidates")),
    "origins_B": (np.int64, ("requests",)),
}
"""Those that may be None."""


@dataclass(frozen=True, eq=False)
class Requests:
    """A set of re-ranking requests over one catalogue, as padded arrays; `Requests.of` builds it from lists.

    Row b is one request: `users_B` who asks; `history_BH` item numbers, oldest first, tail padded with -1;
    `feedback_BH` float32, what the user thought of each (a rating, a click), 0 where padded; `candidates_BK` item
    numbers in the order the earlier stage left them, tail padded with -1; `scores_BK` float32, that stage's score of
    each candidate, 0 where padded; `relevance_BK` float64 >= 0, the gain of each candidate (what a reward may see and
    a policy may not); `sizes_B` how many candidates are real, at least 2. `name` says what the rows are and `notes` how
    they came to be (what was left out and why), for reports.

    A log of clicks on the order that was shown is for rewards too, None where there is none: `clicks_BK`,
    `propensities_BK` and `predictions_BK` float64, as in `Slates`. So is what tells shuffled copies of a request apart,
    which `take` and `reordered` keep: `origins_B` is the row of the request that each was taken from, and
    `canonical_BK` which of its candidates stands in each place, padded with -1; None where nothing was taken, or moved.
    `remarks_BK` are texts, "" where padded, None where there are none: what is known of each candidate in words, for
    prompts that show it. They move with their candidates; whoever changes what they were made of makes them anew.

    Item numbers, users and sizes are int64; other integers are converted, and so are other numbers where floats are
    asked for. Arrays of the right dtype are stored as given, without a copy, and are never written to: copies of the
    record are the record itself. Item numbers carry no meaning: loaders permute them with a fixed seed.
    Raises `DataError` or `SlateError`, naming the row, where the arrays disagree or hold something else.
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
    clicks_BK: FloatArray | None = None
    propensities_BK: FloatArray | None = None
    predictions_BK: FloatArray | None = None
    canonical_BK: IntArray | None = None
    origins_B: IntArray | None = None
    remarks_BK: Texts | None = None

    def __post_init__(self) -> None:
        """Convert and check the fields."""
        if not isinstance(self.catalog, Catalog):
            raise DataError(f"the catalogue is of type {type(self.catalog).__name__}; give a Catalog")
        for field, (dtype, axes) in {**_FIELDS, **_OPTIONAL}.items():
            given = getattr(self, field)
            if given is not None or field in _FIELDS:
                object.__setattr__(self, field, as_field(field.split("_")[0], given, dtype, axes=axes))
        self._check_shapes()
        self.slates  # noqa: B018 - checks relevance, sizes and the log now rather than at first use
        real_BK = np.arange(self.candidates_BK.shape[1]) < self.sizes_B[:, None]
        real_BH = np.arange(self.history_BH.shape[1]) < (self.history_BH != PAD).sum(axis=1, keepdims=True)
        padding.check_items("candidates", self.candidates_BK, real_BK, len(self.catalog))
        padding.check_items("history", self.history_BH, real_BH, len(self.catalog))
        padding.check_distinct(self.candidates_BK, real_BK)
        padding.check_numbers("scores", self.scores_BK, real_BK)
        padding.check_numbers("feedback", self.feedback_BH, real_BH)
        object.__setattr__(self, "remarks_BK", as_remarks(self.remarks_BK, real_BK))

    def _check_shapes(self) -> None:
        rows, width = self.candidates_BK.shape
        expected: dict[str, tuple[npt.NDArray[Any], tuple[int, ...]]] = {
            "users": (self.users_B, (rows,)),
            "history": (self.history_BH, (rows, self.history_BH.shape[1])),
            "feedback": (self.feedback_BH, self.history_BH.shape),
            "scores": (self.scores_BK, (rows, width)),
            "relevance": (self.relevance_BK, (rows, width)),
            "sizes": (self.sizes_B, (rows,)),
            "origins": (self.origins, (rows,)),
        }
        for field, (values, shape) in expected.items():
            if values.shape != shape:
                raise DataError(
                    f"{field} has shape {values.shape} but the candidates need {shape}; pad every row to the same "
                    "length"
                )

    @classmethod
    def of(
        cls,
        candidates: Items,
        relevance: Numbers,
        scores: Numbers | None = None,
        *,
        history: Items | None = None,
        feedback: Numbers | None = None,
        users: Sequence[int] | None = None,
        catalog: Catalog | None = None,
        texts: Sequence[str] | None = None,
        features: npt.ArrayLike | None = None,
        clicks: Numbers | None = None,
        propensities: Numbers | None = None,
        predictions: Numbers | None = None,
        remarks: Sequence[Sequence[str]] | None = None,
        name: str = "own data",
    ) -> Requests:
        """Requests from lists (or arrays) that may differ in length, one a request.

        Left out, `scores` are 0, -1, -2, ... (the order is all that is known of the earlier stage), `history` is empty,
        `feedback` 1 for every item of it, `users` 0, 1, 2, ..., one a request. Items are those of `catalog`, or else
        have the `texts` and `features` given, which are "item 0", "item 1", ... and none where left out. A log gives
        `clicks` and `propensities`, one a candidate, and `predictions` if a model of the clicks has any; `remarks` are
        texts, one a candidate.

        Raises `DataError` or `SlateError`, naming the row, where lists do not fit together, and `InputError` where
        `catalog` comes with `texts` or `features`.

        >>> requests = Requests.of([[0, 1, 2], [2, 0]], [[0, 0, 1], [1, 0]], history=[[3], []])
        >>> requests.candidates_BK.tolist(), requests.sizes_B.tolist()
        ([[0, 1, 2], [2, 0, -1]], [3, 2])
        """
        offered = as_lists("candidates", candidates)
        sizes = [len(items) for items in offered]
        gains = paired("relevance", relevance, "candidates", offered)
        places = [[-place for place in range(size)] for size in sizes]
        earlier = places if scores is None else paired("scores", scores, "candidates", offered)
        seen = as_lists("history", [[]] * len(sizes) if history is None else history, count=len(sizes))
        liked = [[1.0] * len(items) for items in seen] if feedback is None else feedback
        opinions = paired("feedback", liked, "history", seen)
        width, length = max([MIN_CANDIDATES, *sizes]), max([1, *map(len, seen)])
        candidates_BK = padded_field("candidates", offered, np.int64, fill=PAD, width=width)
        history_BH = padded_field("history", seen, np.int64, fill=PAD, width=length)
        if catalog is None:
            largest = max(int(candidates_BK.max(initial=PAD)), int(history_BH.max(initial=PAD)))
            items = largest + 1 if features is None else len(np.asarray(features))
            catalog = Catalog.of([f"item {i}" for i in range(items)] if texts is None else texts, features)
        elif texts is not None or features is not None:
            raise InputError("catalog came with texts or features; a catalogue holds both, so give one or the other")
        logged: dict[str, Any] = {
            f"{field}_BK": padded_field(
                field, paired(field, lists, "candidates", offered), np.float64, fill=0.0, width=width
            )
            for field, lists in (("clicks", clicks), ("propensities", propensities), ("predictions", predictions))
            if lists is not None
        }
        if remarks is not None:
            logged["remarks_BK"] = padded_remarks(paired("remarks", remarks, "candidates", offered), width)
        return cls(
            catalog=catalog,
            users_B=np.arange(len(sizes)) if users is None else np.asarray(users),
            history_BH=history_BH,
            feedback_BH=padded_field("feedback", opinions, np.float32, fill=0.0, width=length),
            candidates_BK=candidates_BK,
            scores_BK=padded_field("scores", earlier, np.float32, fill=0.0, width=width),
            relevance_BK=padded_field("relevance", gains, np.float64, fill=0.0, width=width),
            sizes_B=np.array(sizes, dtype=np.int64),
            name=name,
            **logged,
        )

    def __len__(self) -> int:
        """How many requests."""
        return len(self.users_B)

    @cached_property
    def slates(self) -> Slates:
        """What a reward may look at, row for row."""
        log = self.clicks_BK, self.propensities_BK, self.predictions_BK
        return Slates(self.relevance_BK, self.sizes_B, *log, self.canonical_BK)

    @property
    def origins(self) -> IntArray:
        """The row each request was taken from, int64 [B], its own where none was: copies of a request have the same."""
        return np.arange(len(self)) if self.origins_B is None else self.origins_B

    @cached_property
    def popularity_BK(self) -> FloatArray:
        """How often the catalogue counts each candidate, float64 [B, K], 0 where padded."""
        real_BK = self.candidates_BK != PAD
        popularity_BK = np.zeros(real_BK.shape)
        popularity_BK[real_BK] = self.catalog.popularity_I[self.candidates_BK[real_BK]]
        return popularity_BK

    def take(self, rows_B: npt.ArrayLike) -> Requests:
        """The requests at `rows_B` (any integer or boolean index), in that order; rows may repeat, and keep `origins`.

        Raises `InputError` where a row does not exist.
        """
        rows = np.asarray(rows_B)
        if not rows.size:
            rows = rows.astype(np.int64)  # an empty list has no type of its own
        try:
            fields = (*_FIELDS, *_OPTIONAL, "remarks_BK")
            known = {field: getattr(self, field) for field in fields} | {"origins_B": self.origins}
            taken = {field: values[rows] for field, values in known.items() if values is not None}
        except IndexError as cause:
            raise InputError(f"cannot take rows from {len(self)} requests: {cause}") from cause
        return replace(self, **taken)

    def reordered(self, rankings_BK: IntArray) -> Requests:
        """The same requests with each candidate list put in the order `rankings_BK`, valid rankings padded with -1.

        All that is known of a candidate moves along, and `canonical_BK` says where it came from. The answer to the new
        request, read through `rankings_BK`, is an answer to the old one. Raises `InputError` for what is no ranking.
        """
        slates = self.slates
        if slates.canonical_BK is None:
            slates = replace(slates, canonical_BK=identity_rankings(self.sizes_B, slates.width))
        moved: dict[str, Any] = slates.reordered(rankings_BK).by_candidate
        order_BK = completed(np.asarray(rankings_BK), self.sizes_B)
        if self.remarks_BK is not None:
            moved["remarks_BK"] = np.take_along_axis(self.remarks_BK, order_BK, axis=1)
        return replace(
            self,
            candidates_BK=np.take_along_axis(self.candidates_BK, order_BK, axis=1),
            scores_BK=np.take_along_axis(self.scores_BK, order_BK, axis=1),
            **moved,
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
