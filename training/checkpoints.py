"""Checkpoints that are complete or absent: safetensors and JSON, never a pickle.

May import torch, safetensors and `rerank_env`. On disk, under one run's directory:

    checkpoints/step-00000040/   tensors.safetensors, state.json     the last two are kept

A checkpoint, the best weights so far among its tensors, is written into a temporary folder, forced to disk file by
file, and renamed into place; only then are older ones removed. So a full disk, a crash or a kill at any moment leaves
the previous checkpoint as it was. Both files carry a checksum; a checkpoint that fails it is passed over, with a
warning, for the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_from_tensors
from torch import Tensor, nn

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError

FORMAT = 1
"""Raised whenever the meaning of a stored field changes; another number is refused."""

KEPT_STEPS = 2
TENSORS_NAME, STATE_NAME = "tensors.safetensors", "state.json"
TEMPORARY_PREFIX = ".writing-"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after `step` steps: named tensors, and a JSON-ready state."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run, under `directory`/checkpoints."""

    def __init__(self, directory: Path) -> None:
        """Nothing is created or read before it is needed."""
        self.folder = directory / "checkpoints"

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write `checkpoint` atomically, then remove the ones before the last; returns its folder.

        Raises `CheckpointError` in one sentence if the disk refuses; earlier checkpoints are then untouched.
        """
        place, temporary = self._place(checkpoint.step), None
        payload = bytes_from_tensors({name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()})
        state = json.dumps(checkpoint.state, sort_keys=True, allow_nan=False)
        envelope = {
            "format": FORMAT,
            "step": checkpoint.step,
            "tensors_sha256": hashlib.sha256(payload).hexdigest(),
            "state_sha256": hashlib.sha256(state.encode()).hexdigest(),
            "state": checkpoint.state,
        }
        try:
            with durable.writing(place):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._sweep()
                temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self.folder))
                durable.replace(temporary / TENSORS_NAME, payload)
                durable.replace(temporary / STATE_NAME, json.dumps(envelope, sort_keys=True, indent=1).encode())
                if place.exists():  # the same step of a run that was resumed from before it
                    place.rename(temporary.with_name(temporary.name + ".old"))
                temporary.rename(place)
                durable.sync_folder(self.folder)
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        for step in self.steps()[:-KEPT_STEPS]:
            shutil.rmtree(self._place(step), ignore_errors=True)
        self._sweep()
        return place

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, oldest first."""
        found = []
        for path in self.folder.glob("step-*"):
            with contextlib.suppress(ValueError):
                found.append(int(path.name.removeprefix("step-")))
        return sorted(found)

    def load_latest(self) -> Checkpoint | None:
        """The newest readable checkpoint; None if there is none at all.

        A torn or corrupt one is passed over with a warning. Raises `CheckpointError` if all are.
        """
        steps = self.steps()
        last: CheckpointError | None = None
        for step in reversed(steps):
            try:
                return read_checkpoint(self._place(step))
            except CheckpointError as error:
                logger.warning("%s; trying the checkpoint before it", error)
                last = error
        if last is not None:
            raise CheckpointError(
                f"none of the {len(steps)} checkpoints in {self.folder} can be read; move that folder away and start "
                "the run again"
            ) from last
        return None

    def remove_after(self, step: int) -> None:
        """Forget every checkpoint that is newer than `step`."""
        for newer in (s for s in self.steps() if s > step):
            shutil.rmtree(self._place(newer), ignore_errors=True)

    def _place(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _sweep(self) -> None:
        for path in self.folder.glob(f"{TEMPORARY_PREFIX}*"):  # left by a process that was killed while writing
            shutil.rmtree(path, ignore_errors=True)


def read_checkpoint(place: Path) -> Checkpoint:
    """Read and verify one checkpoint folder; raises `CheckpointError` naming it if anything is torn or altered."""
    try:
        envelope = json.loads((place / STATE_NAME).read_bytes())
        payload = (place / TENSORS_NAME).read_bytes()
        state = json.dumps(envelope["state"], sort_keys=True)
        intact = (
            hashlib.sha256(payload).hexdigest() == envelope["tensors_sha256"]
            and hashlib.sha256(state.encode()).hexdigest() == envelope["state_sha256"]
        )
        if not intact:
            raise CheckpointError(f"the checkpoint {place} is corrupt: its contents do not match their checksum")
        if envelope["format"] != FORMAT:
            raise CheckpointError(
                f"the checkpoint {place} has format {envelope['format']} but this version reads format {FORMAT}"
            )
        return Checkpoint(int(envelope["step"]), tensors_from_bytes(payload), envelope["state"])
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"the checkpoint {place} cannot be read ({type(error).__name__}: {error})") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[nn.Parameter, str]) -> dict[str, Tensor]:
    """The optimiser's moments and step counts as named tensors, `NAME.FIELD` with the parameter's name."""
    found: dict[str, Tensor] = {}
    for parameter, name in names.items():
        for field, value in optimizer.state.get(parameter, {}).items():
            found[f"{name}.{field}"] = torch.as_tensor(value)
    return found


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], names: Mapping[nn.Parameter, str]
) -> None:
    """Put back what `optimizer_tensors` took, bit for bit; parameters without a stored state start fresh."""
    by_name = {name: parameter for parameter, name in names.items()}
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, field = key.rpartition(".")
        parameter = by_name[name]
        device = "cpu" if field == "step" else parameter.device
        optimizer.state[parameter][field] = value.to(device).clone()
