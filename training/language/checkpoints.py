"""What a trainer of transformers or TRL leaves in a folder, made safe: whole checkpoints, and what they belong to.

May import safetensors, `rerank_env`, and transformers where a trainer is one. On disk, under one run's directory:

    run.json                    what the run was started with
    finished.json               what it ended with, where a trainer writes that and it has ended
    checkpoint-N/, .../whole    what the trainer saved after N updates, and the sign that all of it is on the disk

Trainers write a checkpoint file by file. The sign is written last, after every file was forced to the disk, so one that
a kill or a full disk cut short has none, and is passed over for the one before. Trainers that save so must keep two.
What is not finite never gets into them: a trainer stops before such an update.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError, DivergedError, InputError

WHOLE = "whole"
"""The file that says that the checkpoint beside it is whole."""

RUN_NAME = "run.json"

FINISHED = "finished.json"
"""Written once a run has ended, with what it ended with; one that ended early may have no checkpoint."""

KEPT = 2
"""How many checkpoints a trainer must keep: the one that is whole while it writes another."""

_FOLDER = re.compile(r"checkpoint-([0-9]+)")


class DurableCheckpoints:
    """For trainers to inherit from, before the class of transformers: their checkpoints get the sign of being whole.

    One that cannot be written raises `CheckpointError`, and those before it stay. Model cards are left to whoever knows
    what was trained.
    """

    accelerator: Any
    args: Any
    state: Any

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write nothing."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with saving(f"checkpoint {self.state.global_step} in {self.args.output_dir}"):
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")


class FiniteUpdates:
    """For trainers to inherit from, before the class of transformers: no update is made of what is not finite.

    The norm of every gradient is checked here; a loss by the trainer that has it, with `check_finite`.
    """

    state: Any

    def check_finite(self, what: str, value: Any) -> None:
        """Raise `DivergedError` where a number of the update at hand is not finite; `what` names it."""
        if not math.isfinite(number := float(value.detach() if hasattr(value, "detach") else value)):
            raise DivergedError(
                f"{what} of update {self.state.global_step + 1} is {number}; nothing of it is in the weights or in a "
                "checkpoint, so start again with a lower learning rate, in another directory or with resume=False"
            )

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[misc]
        self.check_finite("the norm of the gradient", norm)
        return norm


@contextmanager
def saving(what: str | Path) -> Iterator[None]:
    """Turn whatever keeps `what` from being written into one `CheckpointError`, which names it.

    As `durable.writing` does for the system's own refusals; PyTorch and safetensors have others for files.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{what} could not be written ({error}); what was whole before is untouched, so free some space, or name "
            "a directory that can be written, and run it again"
        ) from error


def seal(folder: Path) -> None:
    """Force every file in `folder` to the disk, then say that it is whole. Raises `CheckpointError` where it cannot."""
    with durable.writing(folder):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        durable.sync_folder(folder)
    durable.replace(folder / WHOLE, b"")


def begin(directory: Path, identity: Mapping[str, Any], *, resume: bool, main: bool = True) -> Path | None:
    """The newest whole checkpoint to go on from, None where there is none; what is torn, or not wanted, is removed.

    `identity` is what decides the outcome, JSON-ready; it is kept in the directory. `resume=False` forgets an earlier
    run. Only the process that is `main` writes. Raises `InputError`, naming the field, where a finished run or the
    checkpoints are of another identity, and `CheckpointError` where the disk refuses.
    """
    wanted = json.loads(json.dumps(identity))
    record = directory / RUN_NAME
    found = checkpoints(directory) if resume else []
    if found or (resume and (directory / FINISHED).is_file()):
        _check_same(read_record(record) or {}, wanted, directory)
    if main:
        if not resume:  # before the new identity: what another run ended with is never taken for this one's end
            with durable.writing(directory):
                (directory / FINISHED).unlink(missing_ok=True)
        for folder in directory.glob("checkpoint-*"):
            if folder not in found:
                shutil.rmtree(folder, ignore_errors=True)
        durable.replace(record, json.dumps(wanted, indent=1, sort_keys=True).encode())
    return found[-1] if found else None


def train(trainer: Any, start: Path | None) -> None:
    """Train to the end, from the checkpoint `start` where there is one, which may be the end already.

    Transformers would do one more update on a run that `max_steps` ended in the middle of an epoch.
    """
    if start is not None:
        state = type(trainer.state).load_from_json(str(start / "trainer_state.json"))
        if state.global_step >= state.max_steps:
            trainer._load_from_checkpoint(str(start))
            trainer.state = state
            return
    trainer.train(resume_from_checkpoint=None if start is None else str(start))


def checkpoints(directory: Path) -> list[Path]:
    """The whole checkpoints in a directory, oldest first."""
    numbers = {int(match[1]): path for path in directory.glob("*") if (match := _FOLDER.fullmatch(path.name))}
    return [numbers[number] for number in sorted(numbers) if (numbers[number] / WHOLE).is_file()]


def read_record(path: Path) -> dict[str, Any] | None:
    """What a run wrote of itself; None where the file is missing or torn."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _check_same(found: Mapping[str, Any], wanted: Mapping[str, Any], directory: Path, where: str = "") -> None:
    for name in sorted({*found, *wanted}):
        before, now = found.get(name), wanted.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            _check_same(before, now, directory, f"{where}{name}.")
        elif before != now:
            raise InputError(
                f"the run in {directory} was started with {where}{name} {before!r:.80} but now it is {now!r:.80}; go "
                "on with the same, name another directory, or start again with resume=False"
            )
