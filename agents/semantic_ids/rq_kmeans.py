"""RQ-k-means: the plain rival of the RQ-VAE, which clusters the embeddings themselves.

May import numpy, the layers below, and inside functions safetensors and scikit-learn. The first level's codes are the
nearest of the k-means centres, the next level's those of what is left over, and so on; an item is reconstructed as the
sum of its centres. Nothing is learned and nothing balanced. Suffixes: `_I` items, `_D` dimensions, `_C` codes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rerank_env import durable
from rerank_env.agents.semantic_ids.clustering import centres, nearest
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import Float32Array, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError

KIND, VERSION = "rq-kmeans", 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


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
                f"the rows have shape {rows_ID.shape} but the centres have {width} numbers; embed the items as those that "
                "were clustered"
            )
        codes, left = [], rows_ID
        for centres_CD in self.centres:
            codes.append(nearest(left, centres_CD))
            left = left - centres_CD[codes[-1]]
        return np.stack(codes, axis=1), rows_ID - left

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors` into `directory`; `CheckpointError` where that fails."""
        from safetensors.numpy import save

        text = json.dumps({"kind": KIND, "version": VERSION, "sizes": self.sizes, "levels": len(self.centres)}) + "\n"
        tensors = {f"centres.{level}": np.ascontiguousarray(found) for level, found in enumerate(self.centres)}
        durable.replace(Path(directory) / WEIGHTS, save(tensors, metadata={"config": text}))
        durable.replace(Path(directory) / CONFIG, text.encode())

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> RqKMeans:
        """What `save_pretrained` wrote; `CheckpointError` where a file is missing, torn or does not belong."""
        from safetensors import SafetensorError, safe_open

        folder = Path(directory)
        try:
            text = (folder / CONFIG).read_text(encoding="utf-8")
            with safe_open(folder / WEIGHTS, framework="numpy") as file:
                copy = (file.metadata() or {}).get("config")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            told = json.loads(text)
            if copy != text or (told["kind"], told["version"]) != (KIND, VERSION):
                raise InputError(f"its files are not both those of one {KIND} of version {VERSION}")
            found = tuple(tensors[f"centres.{level}"] for level in range(told["levels"]))
            if not found or len({part.shape[1:] for part in found}) > 1 or len(found) > len(told["sizes"]):
                raise InputError("its centres do not belong together")
            return cls(found, tuple(told["sizes"]))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"the RQ-k-means in {folder} cannot be read ({error}); save it again") from error
