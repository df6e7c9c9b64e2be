"""Who rated what and when: the log that requests are cut from.

May import numpy and `rerank_env.rewards`. Suffixes: `_N` interactions, `_I` items, `_C` content features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import PAD, BoolArray, Float32Array, FloatArray, IntArray
from rerank_env.rewards.errors import DataError, InputError


@dataclass(frozen=True, eq=False)
class Interactions:
    """A log in chronological order, user by user, over items whose numbers carry no meaning.

    `users_N`, `items_N` int64 from 0; `ratings_N`, `times_N` float64. `texts` [I] one line an item, `content_IC`
    float32 what is known of an item without the log (genres, year), `content_names` [C]. `labels` [I] the categories
    and brands of each item as text, or empty where none are known of any.
    """

    users_N: IntArray
    items_N: IntArray
    ratings_N: FloatArray
    times_N: FloatArray
    texts: tuple[str, ...]
    content_IC: Float32Array
    content_names: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def arranged(
        cls,
        users_N: IntArray,
        items_N: IntArray,
        ratings_N: FloatArray,
        times_N: FloatArray,
        *,
        texts: tuple[str, ...],
        content_IC: Float32Array,
        content_names: tuple[str, ...],
        labels: tuple[tuple[str, ...], ...] = (),
        seed: int,
    ) -> Interactions:
        """Sort by user and time and renumber the items at random, both with `seed`.

        Interactions of one user in the same second come in random order: neither the file's order nor a catalogue
        number may decide. Item numbers are permuted because numbering by first appearance leaks what comes next.
        Raises `DataError` where a user has one item twice.
        """
        rng = np.random.default_rng(seed)
        renumbered = rng.permutation(len(texts))
        order = np.lexsort((rng.random(len(users_N)), times_N, users_N))
        users, items = users_N[order], renumbered[items_N[order]]
        pairs, counts = np.unique(users * len(texts) + items, return_counts=True)
        if (counts > 1).any():
            user = int(pairs[counts > 1][0]) // len(texts)
            raise DataError(f"user {user} has the same item twice; keep one interaction of each user and item")
        back = np.argsort(renumbered)
        return cls(
            users, items, ratings_N[order], times_N[order],
            tuple(texts[old] for old in back), content_IC[back], content_names,
            tuple(labels[old] for old in back) if labels else (),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.users_N)

    @property
    def item_count(self) -> int:
        """How many items the catalogue has, seen in the log or not."""
        return len(self.texts)

    def histories(self, first_B: IntArray, end_B: IntArray, length: int) -> tuple[IntArray, Float32Array]:
        """The last `length` items in rows `first_B[b] : end_B[b]` and their ratings, oldest first, [B, length].

        Tails are padded, items with -1 and ratings with 0. Raises `InputError` for a length below 1.
        """
        whole("history", length, least=1)
        rows_BH = np.maximum(first_B, end_B - length)[:, None] + np.arange(length)
        real_BH: BoolArray = rows_BH < end_B[:, None]
        rows_BH = np.where(real_BH, rows_BH, 0)
        ratings_BH: Float32Array = np.where(real_BH, self.ratings_N[rows_BH], 0.0).astype(np.float32)
        return np.where(real_BH, self.items_N[rows_BH], PAD), ratings_BH

    def check_mask(self, what: str, mask_N: BoolArray) -> None:
        """Raise `InputError` where `mask_N`, called `what`, does not hold one truth value an interaction."""
        if mask_N.shape != (len(self),) or mask_N.dtype != np.bool_:
            raise InputError(
                f"{what} has shape {mask_N.shape} and dtype {mask_N.dtype} but the log has {len(self)} interactions; "
                "give one truth value an interaction, such as Targets.seen_N"
            )

    def counts_I(self, among: BoolArray) -> FloatArray:
        """How often each item occurs among the interactions where `among` [N] is true."""
        return np.bincount(self.items_N[among], minlength=self.item_count).astype(np.float64)
