"""Candidate lists: what a first stage proposed for every target of a log, on disk and as requests.

They are made once, by `rerank data build`, because it takes a training; whoever reads them needs numpy only. May import
numpy, `rerank_env.data`, `rerank_env.durable` and `rerank_env.rewards`. Suffixes: `_T` targets, `_K` places.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env import durable
from rerank_env.data.catalog import Catalog
from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import Targets
from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import Float32Array, IntArray
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES

FORMAT = 1


@dataclass(frozen=True, eq=False)
class CandidateLists:
    """The lists of one split: `rows_T` rows of the log asked for, `items_TK` proposed, best first, with `scores_TK`.

    No item of the user's history is among them; the item asked for may or may not be.
    """

    rows_T: IntArray
    items_TK: IntArray
    scores_TK: Float32Array

    def target_places(self, log: Interactions) -> IntArray:
        """The place of the item asked for, from 0, int64 [T]; K where it is not listed."""
        hit_TK = self.items_TK == log.items_N[self.rows_T][:, None]
        place_T: IntArray = np.where(hit_TK.any(axis=1), hit_TK.argmax(axis=1), self.items_TK.shape[1])
        return place_T

    def latest(self, log: Interactions, count: int) -> CandidateLists:
        """The lists of the last `count` targets of each user; all where a user has fewer. `InputError` below 1."""
        whole("latest", count, least=1)
        order_T = np.argsort(self.rows_T)
        users_T = log.users_N[self.rows_T[order_T]]
        _, first_U, lengths_U = np.unique(users_T, return_index=True, return_counts=True)
        left_T = np.repeat(first_U + lengths_U, lengths_U) - np.arange(len(users_T))  # 1 for the last of a user
        kept_T = np.sort(order_T[left_T <= count])
        return CandidateLists(self.rows_T[kept_T], self.items_TK[kept_T], self.scores_TK[kept_T])

    def requests(
        self, log: Interactions, targets: Targets, catalog: Catalog, *, slate_size: int, history: int, name: str
    ) -> Requests:
        """A next-item request for every target that is among the first `slate_size`; `notes` count the others.

        Raises `InputError` for a slate longer than the lists or a history below 1.
        """
        depth = self.items_TK.shape[1]
        if not MIN_CANDIDATES <= whole("slate_size", slate_size, least=1) <= depth:
            raise InputError(f"slate_size is {slate_size}; the lists can give {MIN_CANDIDATES} to {depth} candidates")
        listed_T = self.target_places(log) < slate_size
        rows_T, items_TK = self.rows_T[listed_T], self.items_TK[listed_T, :slate_size]
        history_BH, feedback_BH = log.histories(targets.first_N[rows_T], rows_T, history)
        recall = listed_T.mean() if len(listed_T) else 0.0
        return Requests(
            catalog=catalog,
            users_B=log.users_N[rows_T],
            history_BH=history_BH,
            feedback_BH=feedback_BH,
            candidates_BK=items_TK,
            scores_BK=self.scores_TK[listed_T, :slate_size],
            relevance_BK=(items_TK == log.items_N[rows_T][:, None]).astype(np.float64),
            sizes_B=np.full(len(rows_T), slate_size, dtype=np.int64),
            name=name,
            notes=(
                f"{int((~listed_T).sum())} of {len(listed_T)} requests left out: target not in the first stage's top "
                f"{slate_size} (recall@{slate_size} {recall:.4f}, the ceiling of any re-ranker)",
                *targets.notes,
            ),
        )


def fingerprint(log: Interactions) -> str:
    """A hash of everything of a log that lists depend on: who did what in which order, texts and labels."""
    digest = hashlib.sha256()
    for array in (log.users_N, log.items_N, log.ratings_N, log.times_N):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(json.dumps([log.texts, log.labels]).encode())
    return digest.hexdigest()


def save(path: Path, lists: Mapping[str, CandidateLists], log: Interactions, settings: Mapping[str, Any]) -> None:
    """Write the lists of every split and what made them to one `.npz` file, whole or not at all.

    `settings` is plain data for JSON. Raises `CheckpointError` where the disk refuses.
    """
    about = {"format": FORMAT, "log": fingerprint(log), "settings": dict(settings)}
    arrays: dict[str, npt.NDArray[Any]] = {"about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    for split, found in lists.items():
        arrays[f"{split}.rows"] = found.rows_T
        arrays[f"{split}.items"] = found.items_TK.astype(np.int32)
        arrays[f"{split}.scores"] = found.scores_TK
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy's own stub knows no mapping here
    durable.replace(path, buffer.getvalue())


def load(path: Path, log: Interactions) -> tuple[dict[str, CandidateLists], dict[str, Any]]:
    """The lists of every split and the settings that `save` was given.

    Raises `DataError` where the file is missing, torn or of another form, or was made from another log.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            splits = [name.removesuffix(".rows") for name in arrays.files if name.endswith(".rows")]
            lists = {
                split: CandidateLists(
                    arrays[f"{split}.rows"], arrays[f"{split}.items"].astype(np.int64), arrays[f"{split}.scores"]
                )
                for split in splits
            }
    except FileNotFoundError as error:
        raise DataError(f"there are no candidate lists in {path}; make them with `rerank data build`") from error
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} holds no candidate lists ({error}); make it anew with `rerank data build`") from error
    if about.get("format") != FORMAT or about.get("log") != fingerprint(log):
        raise DataError(f"{path} was made from other data or another release; make it anew with `rerank data build`")
    return lists, about["settings"]
