"""Semantic IDs on disk: `semantic_ids.json` and `semantic_ids.safetensors` in one folder, no pickle.

May import the standard library, numpy, `rerank_env.durable` and, inside functions, safetensors. The table carries a
copy of the description, so that files of two different makings are noticed; each file is replaced in one step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError, InputError, MissingExtraError
from rerank_env.semantic_ids.record import SemanticIds

DESCRIPTION, TABLE = "semantic_ids.json", "semantic_ids.safetensors"
VERSION = 1


def save(ids: SemanticIds, directory: str | os.PathLike[str]) -> None:
    """Write the IDs into `directory`, which is made where needed.

    Raises `CheckpointError` where the disk refuses, `MissingExtraError` without safetensors.
    """
    try:
        from safetensors.numpy import save as packed
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    described = {
        "kind": "semantic-ids",
        "version": VERSION,
        "items": len(ids),
        "sizes": list(ids.sizes),
        "catalogue": ids.catalogue,
        "method": ids.method,
    }
    text = json.dumps(described, indent=2) + "\n"
    tensors: dict[str, np.ndarray] = {
        "codes": ids.codes_IL.astype(np.int32),
        "drawn_from": ids.drawn_from_I.astype(np.int8),
    }
    durable.replace(Path(directory) / TABLE, packed(tensors, metadata={"description": text}))
    durable.replace(Path(directory) / DESCRIPTION, text.encode())


def load(directory: str | os.PathLike[str], *, texts: Sequence[str]) -> SemanticIds:
    """The IDs that `save` left, of the catalogue whose items have these `texts`, in order.

    Raises `CheckpointError` where a file is missing, torn, of another version or from another making, `DataError` where
    the catalogue is another one, and `MissingExtraError` without safetensors.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    folder = Path(directory)
    for name in (DESCRIPTION, TABLE):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} has no {name}; give a folder that semantic IDs were saved in")
    try:
        text = (folder / DESCRIPTION).read_text(encoding="utf-8")
        with safe_open(folder / TABLE, framework="numpy") as file:
            copy = (file.metadata() or {}).get("description")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, UnicodeDecodeError, SafetensorError) as error:
        raise CheckpointError(f"the semantic IDs in {folder} cannot be read ({error}); save them again") from error
    if copy != text:
        raise CheckpointError(f"{DESCRIPTION} and {TABLE} in {folder} were not saved together; save the IDs again")
    try:
        told = json.loads(text)
        version = told["version"]
        if (told["kind"], version) != ("semantic-ids", VERSION) or type(version) is not int:
            raise InputError(f"they are {told['kind']!r} of version {version}, not of version {VERSION}")
        if not (isinstance(told["catalogue"], str) and isinstance(told["method"], str)):
            raise InputError("the catalogue's hash and the method are no text")
        ids = SemanticIds(
            tensors["codes"], tuple(told["sizes"]), tensors["drawn_from"], told["catalogue"], told["method"]
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the semantic IDs in {folder} do not make sense: {error}; save them again") from error
    ids.check_catalogue(texts)
    return ids


def _missing(error: ModuleNotFoundError) -> MissingExtraError:
    return MissingExtraError(
        f'saved semantic IDs need {error.name}, which is not installed; run: pip install "rerank-env[agents]"'
    )
