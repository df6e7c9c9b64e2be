"""RQ-k-means: the plain rival of the RQ-VAE, which clusters the embeddings themselves.

May import numpy, torch (to save), the layers below, and inside functions scikit-learn. The first level's codes are the
nearest of the k-means centres, the next level's those of what is left over, and so on; an item is reconstructed as the
sum of its centres. Nothing is learned and nothing balanced. Suffixes: `_I` items, `_D` dimensions, `_C` codes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rerank_env.agents import pretrained
from rerank_env.agents.semantic_ids.clustering import centres, nearest
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import Float32Array, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError

KIND = "rq-kmeans"


@dataclass(frozen=True, eq=False)
class RqKMeans:
    """The centres of every learned level, [C, D] float32 each, and the size of every level's codebook.

    A level has fewer centres than its codebook has codes where fewer different residuals were left. `sizes` may have
    more levels than there are centres: those are drawn at random when IDs are assigned.
    """

    centres: tuple[Float32Array, ...]
    sizes: tuple[int, ...]

    @classmethod
    def fit(
        cls,
        rows_ID: Float32Array,
        *,
        rng: np.random.Generator,
        sizes: Sequence[int] = (256, 256, 256, 256),
        random_levels: int = 1,
    ) -> RqKMeans:
        """Cluster the rows, for all of `sizes` but the last `random_levels`.

        Raises `InputError` for no rows, rows that are not finite and no learned level; `MissingExtraError` without
        scikit-learn.
        """
        rows_ID = np.asarray(rows_ID, dtype=np.float32)
        if rows_ID.ndim != 2 or not len(rows_ID) or not np.isfinite(rows_ID).all():
            raise InputError(f"the embeddings have shape {rows_ID.shape}; give at least one row, of finite numbers")
        if not 0 <= whole("random_levels", random_levels, least=0) < len(sizes):
            raise InputError(f"{random_levels} of {len(sizes)} levels would be random; leave at least one that is not")
        left, found = rows_ID, []
        for size in sizes[: len(sizes) - random_levels]:
            found.append(centres(left, whole("a codebook's size", size, least=1), rng=rng))
            left = left - found[-1][nearest(left, found[-1])]
        return cls(tuple(found), tuple(int(size) for size in sizes))

    def codes(self, rows_ID: Float32Array) -> IntArray:
        """The clustered codes of each row, [I, M] int64, without random levels. Raises `InputError` on other widths."""
        return self._each(rows_ID)[0]

    def reconstructed(self, rows_ID: Float32Array) -> Float32Array:
        """The sum of each row's centres, [I, D] float32."""
        return self._each(rows_ID)[1]

    def _each(self, rows_ID: Float32Array) -> tuple[IntArray, Float32Array]:
        rows_ID = np.asarray(rows_ID, dtype=np.float32)
        width = self.centres[0].shape[1]
        if rows_ID.ndim != 2 or rows_ID.shape[1] != width:
            raise InputError(
                f"the rows have shape {rows_ID.shape} but the centres have {width} numbers; embed the items as those "
                "that were clustered"
            )
        codes, left = [], rows_ID
        for centres_CD in self.centres:
            codes.append(nearest(left, centres_CD))
            left = left - centres_CD[codes[-1]]
        return np.stack(codes, axis=1), rows_ID - left

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors` into `directory`; `CheckpointError` where that fails."""
        tensors = {f"centres.{level}": torch.from_numpy(found) for level, found in enumerate(self.centres)}
        pretrained.write(directory, KIND, {"sizes": self.sizes}, tensors)

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> RqKMeans:
        """What `save_pretrained` wrote; `CheckpointError` where a file is missing, torn or does not belong."""
        config, tensors = pretrained.read(directory, KIND)
        found = [tensors.get(f"centres.{level}") for level in range(len(tensors))]
        kept = [part.numpy() for part in found if part is not None and part.ndim == 2]
        sizes = tuple(config.get("sizes", ()))
        if not 1 <= len(kept) == len(found) <= len(sizes) or len({part.shape[1] for part in kept}) > 1:
            raise CheckpointError(f"the centres in {directory} do not belong together; save them again")
        return cls(tuple(kept), sizes)
