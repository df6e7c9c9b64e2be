"""A policy on disk: `config.json` and `model.safetensors` in one folder, no pickle.

May import safetensors, torch and the layers below. The weights carry a copy of the configuration, so that files of
two different policies in one folder are noticed; each file is replaced in one step, so that a full disk or a killed
process leaves the old file whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
VERSION = 1


def write(
    directory: str | os.PathLike[str], kind: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Write a policy of `kind`; the folder is made where needed. `CheckpointError` where the disk refuses."""
    folder = Path(directory)
    text = json.dumps({"kind": kind, "version": VERSION, "config": dict(config)}, indent=2) + "\n"
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    durable.replace(folder / WEIGHTS, save(on_cpu, metadata={"config": text}))
    durable.replace(folder / CONFIG, text.encode())


def read(directory: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the weights that `write` left, on the CPU.

    Raises `CheckpointError` where a file is missing, torn, of another kind or version, or from another policy.
    """
    folder = Path(directory)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} has no {name}; pass a folder that save_pretrained wrote")
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            metadata = file.metadata() or {}
            weights: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, UnicodeDecodeError, SafetensorError) as error:
        raise CheckpointError(f"the policy in {folder} cannot be read ({error}); save it again") from error
    if metadata.get("config") != text:
        raise CheckpointError(f"{CONFIG} and {WEIGHTS} in {folder} were not saved together; save the policy again")
    record = json.loads(text)  # equal to what `write` put into the weights, so it is JSON
    if record.get("kind") != kind or record.get("version") != VERSION:
        raise CheckpointError(
            f"{folder} holds a {record.get('kind')!r} policy of version {record.get('version')}, not a {kind!r} policy "
            f"of version {VERSION}; use the class and the release that saved it"
        )
    return record["config"], weights


def kind_of(directory: str | os.PathLike[str]) -> str:
    """The kind of policy that a directory says it holds. Raises `CheckpointError` where it says nothing of the kind."""
    path = Path(directory) / CONFIG
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory} has no {CONFIG}; pass a folder that save_pretrained wrote") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); save the policy again") from error
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(kind, str):
        raise CheckpointError(f"{path} names no kind of policy; pass a folder that save_pretrained wrote")
    return kind


def remove(directory: str | os.PathLike[str]) -> None:
    """Forget the policy that `write` left, if there is one; other files stay. `CheckpointError` where that fails."""
    folder = Path(directory)
    if not folder.is_dir():
        return
    with durable.writing(folder):
        for name in (CONFIG, WEIGHTS):
            (folder / name).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def check_weights(module: torch.nn.Module, weights: Mapping[str, Tensor], directory: str | os.PathLike[str]) -> None:
    """Raise `CheckpointError`, naming a tensor, where `weights` are not exactly those of `module`."""
    expected = module.state_dict()
    for name in sorted(expected.keys() | weights.keys()):
        given, wanted = weights.get(name), expected.get(name)
        if given is None or wanted is None or given.shape != wanted.shape:
            shapes = ["none" if tensor is None else f"one of shape {tuple(tensor.shape)}" for tensor in (given, wanted)]
            raise CheckpointError(
                f"the policy in {directory} has {shapes[0]} for tensor {name}, but its configuration needs "
                f"{shapes[1]}; save it again"
            )
