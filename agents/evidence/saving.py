"""A fitted ranking model on disk: `config.json`, the evidence as `evidence.npz`, and the model's own files; no pickle.

The configuration has the SHA-256 of every other file, so that a torn or foreign file is noticed. May import numpy,
`rerank_env.durable`, `rerank_env.rewards` and the modules of this package.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env import durable
from rerank_env.agents.evidence.features import KINDS, Evidence
from rerank_env.agents.evidence.pairs import GAPS, PairCounts, Takers
from rerank_env.agents.evidence.similarity import ItemVectors
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import CheckpointError

CONFIG, EVIDENCE = "config.json", "evidence.npz"
VERSION = 1


def write(
    directory: str | os.PathLike[str],
    kind: str,
    config: Mapping[str, Any],
    evidence: Evidence,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model of `kind`; the folder is made where needed. `CheckpointError` where the disk refuses."""
    folder = Path(directory)
    parts = {**(files or {}), EVIDENCE: _packed(evidence)}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    record = {"kind": kind, "version": VERSION, "config": dict(config), "sha256": digests}
    for name, data in parts.items():
        durable.replace(folder / name, data)
    durable.replace(folder / CONFIG, (json.dumps(record, indent=2) + "\n").encode())


def read(directory: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], Evidence, dict[str, bytes]]:
    """The configuration, the evidence and the other files that `write` left.

    Raises `CheckpointError` where a file is missing, torn, of another kind or version, or from another model.
    """
    folder = Path(directory)
    try:
        record = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        found, version, config, digests = (record[key] for key in ("kind", "version", "config", "sha256"))
        if not (isinstance(config, dict) and isinstance(digests, dict)):
            raise ValueError("the settings and the digests are no objects")
        parts = {name: (folder / name).read_bytes() for name in digests}
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise CheckpointError(f"{folder} has no {missing}; pass a folder that save_pretrained wrote") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the model in {folder} cannot be read ({error}); save it again") from error
    if found != kind or version != VERSION or type(version) is not int:
        raise CheckpointError(
            f"{folder} holds a {found!r} model of version {version}, not a {kind!r} model of version {VERSION}; use "
            "the class and the release that saved it"
        )
    for name, data in parts.items():
        if hashlib.sha256(data).hexdigest() != digests[name]:
            raise CheckpointError(f"{CONFIG} and {name} in {folder} were not saved together; save the model again")
    try:
        evidence = _unpacked(parts.pop(EVIDENCE))
    except Exception as error:  # zip, zlib and npy readers have a dozen ways to say that bytes are not theirs
        raise CheckpointError(f"the evidence in {folder} cannot be read ({error}); save the model again") from error
    return config, evidence, parts


def _packed(evidence: Evidence) -> bytes:
    """The same bytes for the same evidence."""
    takers, pairs = evidence.takers, evidence.pairs
    arrays = {
        **{f"takers_{name}": getattr(takers, name) for name in ("users_U", "keys_N", "places_N", "counts_I")},
        "catalogue": np.array(evidence.catalogue),
        "pairs_keys_P": pairs.keys_P,
        "pairs_counts_PG": pairs.counts_PG.astype(np.int32),  # counts of users, of which there are fewer than 2^31
    }
    for kind, vectors in evidence.vectors.items():
        arrays |= {f"{kind}_{name}": values for name, values in vectors.arrays().items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Evidence:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = dict(file.items())
    takers = Takers(*(_whole(arrays[f"takers_{name}"]) for name in ("users_U", "keys_N", "places_N", "counts_I")))
    keys_P, counts_PG = _whole(arrays["pairs_keys_P"]), _whole(arrays["pairs_counts_PG"], axes=2)
    items = len(takers.counts_I)
    vectors = {}
    for kind in KINDS:
        found = {
            name.removeprefix(f"{kind}_"): values for name, values in arrays.items() if name.startswith(f"{kind}_")
        }
        if found:
            vectors[kind] = ItemVectors.of_arrays(found)
    if len(takers.keys_N) != len(takers.places_N) or counts_PG.shape != (len(keys_P), len(GAPS)):
        raise ValueError("its counts do not fit each other")
    if any(len(rows) != items for rows in vectors.values()):
        raise ValueError(f"its vectors are not those of {items} items")
    if takers.keys_N.max(initial=-1) >= len(takers.users_U) * items:
        raise ValueError(f"it has counts of more than {len(takers.users_U)} users")
    if arrays["catalogue"].dtype.kind != "U" or arrays["catalogue"].shape:
        raise ValueError("its catalogue's hash is no text")
    return Evidence(takers, PairCounts(keys_P, counts_PG, items), vectors, str(arrays["catalogue"].item()))


def _whole(values: npt.NDArray[np.generic], *, axes: int = 1) -> IntArray:
    """The same as int64; `ValueError` for other than whole numbers along so many axes."""
    if values.dtype.kind not in "iu" or values.ndim != axes:
        raise ValueError(f"it has counts of shape {values.shape} and dtype {values.dtype}")
    return values.astype(np.int64)
