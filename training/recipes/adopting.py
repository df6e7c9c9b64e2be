"""Stages that another run has finished, taken over instead of being run again.

A stage of another run is the same where it is finished there with the same fingerprint, which covers its settings, its
code and the results of all that it was made from. Its files are then linked into the run's own folder, or copied where
the disk does not link, compared with the hashes in the record there, and recorded as if the stage had been run. The
other run is only read. A take-over that was killed begins again, and what it left is never worked on: files that are
shared with another run are removed before a stage writes in their place. May import the standard library, its
neighbours `folder` and `stages`, and the layers below.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.training.recipes.folder import CONFIG, Record, RunFolder, left_in
from rerank_env.training.recipes.stages import FINISHED, OUTDATED, Plan, Work, unlike

NOWHERE = "none"
"""What is given for a run to take stages from where none are to be taken."""

TAKEN = ".taken"
"""The mark in a stage's folder that its files were taken over; no result, as its name begins with a dot."""

FROM = "taken from"
"""What tells in a stage's metrics which run it was taken from."""


def source_of(given: str, own: Path, *, usual: str) -> RunFolder | None:
    """The run to take stages from: the folder `given`, none for `NOWHERE`, and for "" the folder called `usual` beside
    a run in `own`, if it is there.

    Raises as `named` does, and `InputError` for the run's own folder.
    """
    place = named(given) if given else own.resolve().parent / usual
    if place is None or not place.is_dir():
        return None
    if place.resolve() == own.resolve():
        raise InputError(f"gr2 is {given!r}, which is the folder of this run; name the directory of another one")
    return RunFolder(place)


def named(given: str) -> Path | None:
    """The folder `given`, None for `NOWHERE`. Raises `InputError` for one that there is not."""
    if given == NOWHERE:
        return None
    if not Path(given).is_dir():
        raise InputError(
            f"gr2 is {given!r}, and there is no such folder; give that of a run of gr2, or {NOWHERE!r} to take nothing "
            "from one"
        )
    return Path(given)


def refusal(source: RunFolder, name: str, begun: Mapping[str, Any]) -> str:
    """Why a stage that would be `begun` so here is not taken from there, as the end of a sentence; "" where it is.

    Raises `CheckpointError` for a record that cannot be read.
    """
    there = source.started(name)
    if there is None:
        return "has none"
    if there.get("fingerprint") != begun["fingerprint"]:
        return f"made it from other {unlike(there, begun)}"
    return "" if source.record(name) else "has not finished it, or lost files of it"


@dataclass(frozen=True)
class Adopted:
    """A stage called `name` that is taken over from a run which has finished it, and is run as `stage` otherwise.

    `source`, given the folder of a run, says which other run that is. A stage itself.
    """

    name: str
    stage: Callable[[Work], Mapping[str, Any]]
    source: Callable[[Path], RunFolder | None]

    def __call__(self, work: Work) -> Mapping[str, Any]:
        """Take it over or run it, and say which.

        Raises `CheckpointError` where a file there is no longer what its record says, or cannot be written here.
        """
        source = self.source(work.folder.parent)
        begun = RunFolder(work.folder.parent).started(self.name)
        assert begun is not None, "a stage is begun before it runs"
        why = refusal(source, self.name, begun) if source else ""
        record = source.record(self.name) if source and not why else None
        if source and record:
            if work.crew.is_main:
                take(source, record, work.folder)
                work.say(f"{self.name}: taken from {source.directory}")
            work.crew.wait()
            return {**source.metrics(self.name), FROM: source.directory.resolve().name}
        if work.crew.is_main:
            if (work.folder / TAKEN).exists():
                _emptied(work.folder)
            if source:
                work.say(f"{self.name}: made anew, as {source.directory} {why}")
        work.crew.wait()
        return self.stage(work)


def take(source: RunFolder, record: Record, folder: Path) -> None:
    """Put the files of a finished stage into `folder`, in the place of what it holds but for `CONFIG`.

    Raises `CheckpointError` for one that is not what the record says, and where the disk refuses.
    """
    with durable.writing(folder):
        _emptied(folder)
        (folder / TAKEN).touch()
        for path in record.files:
            there, here = (source.stage(record.stage) / path).resolve(), folder / path
            here.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(there, here)
            except OSError:  # another disk, or one that has no links
                shutil.copyfile(there, here)
    found = left_in(folder)
    for path, file in record.files.items():
        if found.get(path) != file:
            raise CheckpointError(
                f"{source.stage(record.stage) / path} is not what stage {record.stage!r} left, its SHA-256 differs; "
                f"put the file back, make the stage anew there, or take nothing over with --set gr2={NOWHERE}"
            )


def _emptied(folder: Path) -> None:
    """Remove all but what the stage was begun with, the mark last, lest a kill leave shared files without it."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == TAKEN):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != CONFIG:
            with suppress(FileNotFoundError):
                path.unlink()


def foreseen(
    plan: Plan, names: Collection[str], folder: RunFolder, source: RunFolder | None, *, forgotten: Collection[str] = ()
) -> dict[str, str]:
    """Of the stages `names` of a plan that are still to be made in `folder`: "" for those that will be taken over, and
    why for the others, as `refusal` says it. Stages that other settings outdated are left out, as a run refuses them.

    Raises `CheckpointError` for records that cannot be read.
    """
    states = plan.states(folder, forgotten=forgotten)
    results: dict[str, str] = {}
    found: dict[str, str] = {}
    for name in [name for name in plan.stages if name in names]:
        stage = plan.stages[name]
        if states[name] == OUTDATED:
            continue
        record = folder.record(name) if states[name] == FINISHED else None
        if record is None:
            lacking = [need for need in stage.needs if need not in results]
            if source is None:
                found[name] = "is not there"
            elif lacking:
                found[name] = f"is compared with once {lacking[0]!r} is made"
            else:
                found[name] = refusal(source, name, stage.begun(results))
            record = source.record(name) if source and not found[name] else None
        if record is not None:
            results[name] = record.result
    return found
