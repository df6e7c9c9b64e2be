"""What a trainer of transformers or TRL leaves in a folder, made safe: whole checkpoints, and what they belong to.

May import `rerank_env`, and transformers where a trainer is one. On disk, under one run's directory:

    run.json                    what the run was started with
    checkpoint-N/, .../whole    what the trainer saved after N updates, and the sign that all of it is on the disk

Trainers write a checkpoint file by file. The sign is written last, after every file was forced to the disk, so one that
a kill or a full disk cut short has none, and is passed over for the one before. Trainers that save so must keep two.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rerank_env import durable
from rerank_env.rewards.errors import InputError

WHOLE = "whole"
"""The file that says that the checkpoint beside it is whole."""

RUN_NAME = "run.json"

KEPT = 2
"""How many checkpoints a trainer must keep: the one that is whole while it writes another."""

_FOLDER = re.compile(r"checkpoint-([0-9]+)")


class DurableCheckpoints:
    """For trainers to inherit from, before the class of transformers: their checkpoints get the sign of being whole.

    Model cards are left to whoever knows what was trained.
    """

    accelerator: Any
    args: Any
    state: Any

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write nothing."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")


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
    run. Only the process that is `main` writes. Raises `InputError`, naming the field, where the checkpoints are of a
    run with another identity, and `CheckpointError` where the disk refuses.
    """
    wanted = json.loads(json.dumps(identity))
    record = directory / RUN_NAME
    found = checkpoints(directory) if resume else []
    if found:
        _check_same(_read(record), wanted, directory)
    if main:
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


def _read(record: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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
