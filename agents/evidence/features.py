"""What is known of every candidate of a request, as numbers that a ranking model can be fitted on.

May import numpy, scipy, `rerank_env.data`, `rerank_env.semantic_ids`, `rerank_env.rewards` and the modules of this
package. Suffixes: `_B` requests, `_K` candidates, `_F` features, `_N` rows of the log, `_I` items, `_D` dimensions.
Source: ours.

Three promises, each tested: a feature of a request is what it would be had the asking user never been in the counted
log (so training lists show what test lists show, and never the answer); it does not depend on the order in which the
candidates come; and neither relevance nor item numbers enter it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from rerank_env.agents.evidence import columns
from rerank_env.agents.evidence.grid import LATEST, Grid
from rerank_env.agents.evidence.pairs import PairCounts, Takers
from rerank_env.agents.evidence.similarity import ItemVectors
from rerank_env.data.catalog import Catalog
from rerank_env.data.interactions import Interactions
from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import BoolArray, Float32Array
from rerank_env.rewards.errors import InputError
from rerank_env.semantic_ids.record import catalogue_hash

KINDS = ("text", "label", "embedding")
"""The vectors that items can be compared by: words of their texts, their labels, and vectors that the caller gives."""

NUMBERS_AT_A_TIME = 2_000_000
"""Bounds the memory of one block of requests, in candidates x (history entries + candidates)."""

_HASHES: WeakKeyDictionary[Catalog, str] = WeakKeyDictionary()
"""The hash of every catalogue that was asked about and is still there."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Counts of a log and vectors of its items, from which `features` are read; `fit` makes it.

    `takers` and `pairs` as in `rerank_env.agents.evidence.pairs`; `vectors` by kind, those of `KINDS` that there are;
    `catalogue` is the `catalogue_hash` of the items' texts.
    """

    takers: Takers
    pairs: PairCounts
    vectors: Mapping[str, ItemVectors]
    catalogue: str

    @classmethod
    def fit(cls, log: Interactions, seen_N: BoolArray, *, embeddings: npt.ArrayLike | None = None) -> Evidence:
        """Count the rows of `log` where `seen_N` is true, and compare items by their texts and, where any, labels.

        `embeddings` [I, D], finite numbers, add a third kind of likeness. They have to know no more of the log than
        `seen_N`; those of a model that was trained on a user's own purchases still know them.
        Raises `InputError` for a mask or embeddings that do not fit the log.
        """
        takers, pairs = Takers.fit(log, seen_N)
        vectors = {"text": ItemVectors.of_texts(log.texts)}
        if any(log.labels):
            vectors["label"] = ItemVectors.of_terms(log.labels)
        if embeddings is not None:
            vectors["embedding"] = ItemVectors.of_embeddings(embeddings)
        for kind, rows in vectors.items():
            if len(rows) != log.item_count:
                raise InputError(f"the log has {log.item_count} items but {len(rows)} {kind} rows; give one an item")
        return cls(takers, pairs, vectors, catalogue_hash(log.texts))

    @cached_property
    def meanings(self) -> dict[str, str]:
        """What each feature says, in one line, by its name, in the order of `features`."""
        alike = {f"{kind}_{name}": f"{kind}: {said}" for kind in self._kinds for name, said in columns.LIKENESS.items()}
        return {**columns.FIRST_STAGE, **columns.POPULARITY, **columns.COUNTS, **alike}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features, [F]."""
        return tuple(self.meanings)

    @property
    def _kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if kind in self.vectors)

    def features(self, requests: Requests) -> Float32Array:
        """The features of every candidate, float32 [B, K, F], 0 where padded; the latest 50 history entries are read.

        `users_B` are the numbers of the log's users: what a user did in the counted rows is left out of the counts.
        Users that the log does not have are new, and nothing is left out. Feedback is not read.
        Raises `InputError` where the catalogue is not the one the evidence was fitted on, by its texts in their order.
        """
        self._check_catalogue(requests.catalog)
        rows, width = requests.candidates_BK.shape
        found_BKF = np.zeros((rows, width, len(self.names)), dtype=np.float32)
        step = max(NUMBERS_AT_A_TIME // (width * (LATEST + width)), 1)
        for start in range(0, rows, step):
            block = slice(start, start + step)
            grid = Grid.of(requests, block, self.takers)
            found = {
                **columns.first_stage(grid),
                **columns.popularity(grid, self.takers),
                **columns.co_purchases(grid, self.takers, self.pairs),
            }
            for kind in self._kinds:
                found |= columns.likeness(kind, grid, self.vectors[kind])
            for f, name in enumerate(self.names):
                found_BKF[block, :, f] = np.where(grid.real_BK, found[name], 0.0)
        return found_BKF

    def _check_catalogue(self, catalog: Catalog) -> None:
        items = len(self.takers.counts_I)
        if len(catalog) != items:
            raise InputError(
                f"the requests have a catalogue of {len(catalog)} items but the evidence was fitted on {items}; fit it "
                "on the log that the requests were cut from, or give the requests their own remarks (remarks=[[...]])"
            )
        if catalog not in _HASHES:
            _HASHES[catalog] = catalogue_hash(catalog.texts)
        if _HASHES[catalog] != self.catalogue:
            raise InputError(
                f"the {items} items of the requests' catalogue are not those that the evidence was fitted on, or stand "
                "in another order; fit it on the log that the requests were cut from, or load them with the seed they "
                "had then, or give the requests remarks of their own (remarks=[[...]])"
            )
