"""A recipe's run folder: what every stage was asked, what it left, and with which releases of what.

    RUN/run.json                      recipe, data, size, settings, versions, command
    RUN/STAGE/config.json             fingerprint, inputs and settings: written before the stage begins
    RUN/STAGE/...                     what the stage leaves for others
    RUN/STAGE/training/               what an interrupted training goes on from; nobody else reads it
    RUN/STAGE/metrics.json            what it measured
    RUN/STAGE/done.json               the record, written last: a stage without it is not finished

Each record is whole or absent (`rerank_env.durable`), and names every file the stage left with its size and SHA-256, so
that a run whose files were lost does not count as finished. What a run did not make it neither works in nor removes:
a stage's folder is known by its own name in `config.json`. May import the standard library and `rerank_env`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.training.versions import versions

RUN, CONFIG, METRICS, DONE = "run.json", "config.json", "metrics.json", "done.json"
TRAINING = "training"
"""A folder of this name, anywhere in a stage's, holds what its training goes on from, and is no result."""

PARTIAL = ".partial"
"""What the name of a file ends in while it is written."""

PACKAGES = (
    "rerank-env", "numpy", "scipy", "torch", "transformers", "tokenizers", "trl", "peft", "accelerate", "datasets",
    "safetensors", "lightgbm", "scikit-learn", "pyarrow", "openai", "ray",
)  # fmt: skip
"""What is named with its version where it is installed."""

IDENTITY = ("recipe", "data", "size")
"""What must be the same for a run to be gone on with; settings may change, stage by stage."""

BLOCK = 1 << 20
"""Bytes that are hashed at once."""


@dataclass(frozen=True)
class File:
    """One file that a stage left."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """A finished stage. `result` is the hash of all its `files`, by their paths; `inputs` the results it was made from.

    `seconds` are those of the last attempt, the one that finished.
    """

    stage: str
    fingerprint: str
    inputs: Mapping[str, str]
    files: Mapping[str, File]
    result: str
    seconds: float
    finished: str
    versions: Mapping[str, str]


class RunFolder:
    """The folder of one run of a recipe; nothing is created or read before it is needed."""

    def __init__(self, directory: Path) -> None:
        """Raises `InputError` where `directory` is a file."""
        if directory.is_file():
            raise InputError(f"{directory} is a file; name a directory, which is made where needed")
        self.directory = directory

    def held(self) -> AbstractContextManager[None]:
        """Keep the run to this process; `CheckpointError` where another one holds it."""
        return durable.held(self.directory)

    def stage(self, name: str) -> Path:
        """The folder of a stage, there or not."""
        return self.directory / name

    def describe(self, about: Mapping[str, Any]) -> None:
        """Write `run.json`: `about` and the versions. `about` has the keys of `IDENTITY`.

        Raises `InputError` where the folder holds a run that differs in one of them.
        """
        before = self.described()
        for key in IDENTITY if before else ():
            if before.get(key) != about.get(key):
                raise InputError(
                    f"{self.directory} holds a run with {key} {before.get(key)!r}, not {about.get(key)!r}; name "
                    "another directory"
                )
        _write(self.directory / RUN, {**about, "versions": made_with()})

    def described(self) -> dict[str, Any]:
        """What `describe` wrote, empty where nothing did. Raises `CheckpointError` where it cannot be read."""
        return _read(self.directory / RUN) or {}

    def started(self, name: str) -> dict[str, Any] | None:
        """What the stage was begun with, `fingerprint`, `inputs` and `settings`; None where it was not."""
        return _read(self.stage(name) / CONFIG)

    def record(self, name: str) -> Record | None:
        """The record of a finished stage, None where it is not finished.

        A stage of which a file is gone or has another size is not. Raises `CheckpointError` for a damaged record.
        """
        record = self._recorded(name)
        return None if record is None or self._harmed(name, record) else record

    def harmed(self, name: str) -> Path | None:
        """The first file of a recorded stage that is gone or has another size, None where there is none."""
        record = self._recorded(name)
        return None if record is None else self._harmed(name, record)

    def _harmed(self, name: str, record: Record) -> Path | None:
        for path, file in record.files.items():
            place = self.stage(name) / path
            if not place.is_file() or place.stat().st_size != file.bytes:
                return place
        return None

    def _recorded(self, name: str) -> Record | None:
        found = _read(self.stage(name) / DONE)
        if found is None:
            return None
        try:
            files = {path: File(**file) for path, file in found["files"].items()}
            if found["stage"] != name or not all(map(_is_inside, files)):
                raise TypeError("it is of another stage, or names files that no stage leaves")
            return Record(**{**found, "files": files})
        except (TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{self.stage(name) / DONE} is no record of a stage; restart {name}") from error

    def metrics(self, name: str) -> dict[str, Any]:
        """What a finished stage measured, empty where there is nothing."""
        return _read(self.stage(name) / METRICS) or {}

    def begin(self, name: str, fingerprint: str, *, inputs: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        """Write down what a stage is begun with, and that it is not finished.

        Raises `InputError` where there are files in its folder that no stage of that name left.
        """
        if not self._ours(name):
            raise InputError(
                f"{self.stage(name)} has files that no stage {name!r} left; name another directory, or move them away"
            )
        (self.stage(name) / DONE).unlink(missing_ok=True)
        told = {"stage": name, "fingerprint": fingerprint, "inputs": dict(inputs), "settings": dict(settings)}
        _write(self.stage(name) / CONFIG, told)

    def finish(self, name: str, metrics: Mapping[str, Any], *, seconds: float) -> Record:
        """Write the metrics, then the record of what is in the stage's folder; `begin` came before."""
        begun = self.started(name)
        if begun is None:
            raise CheckpointError(f"{self.stage(name)} was removed while the stage ran; run it again")
        _write(self.stage(name) / METRICS, metrics)
        files = left_in(self.stage(name))
        record = Record(
            stage=name,
            fingerprint=begun["fingerprint"],
            inputs=begun["inputs"],
            files=files,
            result=hash_of({path: file.sha256 for path, file in files.items()}),
            seconds=round(seconds, 3),
            finished=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            versions=made_with(),
        )
        _write(self.stage(name) / DONE, asdict(record))
        return record

    def forget(self, name: str) -> None:
        """Remove what a stage left, what it was begun with last, lest a kill disown the rest; see `forgettable`."""
        self.forgettable(name)
        folder = self.stage(name)
        if not folder.is_dir():
            return
        with durable.writing(folder):
            (folder / DONE).unlink(missing_ok=True)
            for path in list(folder.iterdir()):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != CONFIG:
                    path.unlink()
            (folder / CONFIG).unlink(missing_ok=True)
            if not folder.is_symlink():  # else it was put on another disk by hand, and stays there
                folder.rmdir()

    def forgettable(self, name: str) -> None:
        """Raises `InputError` where there is something in the stage's folder and no run of ours made it."""
        if _is_filled(self.stage(name)) and not ((self.directory / RUN).is_file() and self._ours(name)):
            raise InputError(
                f"{self.stage(name)} was made by no stage {name!r} of a run, so it is not removed; name a run's "
                "directory, or move it away"
            )

    def intact(self, name: str) -> None:
        """Read every file that a finished stage left. Raises `CheckpointError` naming one that is no longer the same.

        That a file is there and has its size `record` says; this is for one that was harmed and kept it.
        """
        record = self.record(name)
        for path, file in record.files.items() if record else ():
            place = self.stage(name) / path
            try:
                same = _sha256(place) == file.sha256
            except OSError as error:
                raise CheckpointError(f"{place} cannot be read ({error}); restart {name}") from error
            if not same:
                raise CheckpointError(
                    f"{place} is not what stage {name!r} left, its SHA-256 differs; put the file back, or make it anew "
                    f"with --restart {name}"
                )

    def _ours(self, name: str) -> bool:
        """Whether the stage's folder is empty, or says that a stage of that name made it."""
        if not _is_filled(self.stage(name)):
            return True
        for path in (CONFIG, DONE):
            try:
                told = _read(self.stage(name) / path)
            except CheckpointError:  # a damaged record tells nothing, and the other may
                continue
            if told is not None and told.get("stage") == name and "fingerprint" in told:
                return True
        return False


def _is_inside(path: str) -> bool:
    """Whether a path of a record is of a file that a stage can leave in its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and ".." not in parts and parts[0] != "/" and path not in (CONFIG, METRICS, DONE)


def _is_filled(folder: Path) -> bool:
    """Whether there is anything but what a kill left of the first record."""
    return folder.is_dir() and any(path.name != f"{CONFIG}{PARTIAL}" for path in folder.iterdir())


def left_in(folder: Path) -> dict[str, File]:
    """The files of a stage's folder that are its result, by their paths in it, sorted.

    Locks and what a kill left half written, names that begin with a dot or end in `PARTIAL`, are none.
    """
    ours = {CONFIG, METRICS, DONE}
    found: dict[str, File] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        name = "/".join(parts)
        is_left_over = path.name.endswith(PARTIAL) or any(part.startswith(".") for part in parts)
        if path.is_file() and name not in ours and TRAINING not in parts[:-1] and not is_left_over:
            found[name] = File(path.stat().st_size, _sha256(path))
    return found


def hash_of(value: Any) -> str:
    """The SHA-256 of plain data, whatever the order of its keys. Raises `InputError` for what JSON does not have."""
    try:
        return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{value!r:.200} is no plain data ({error}); give numbers, texts, lists and mappings"
        ) from error


def made_with() -> dict[str, str]:
    """The platform, Python and the `PACKAGES` that are installed, each with its version."""
    return {"platform": platform.platform(), **versions(PACKAGES)}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(dict(content), indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise InputError(
            f"what goes into {path.name} is no plain data ({error}); give finite numbers and texts"
        ) from error
    durable.replace(path, text.encode())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); restart that stage, or name another directory"
        ) from error
    if isinstance(found, dict):
        return found
    raise CheckpointError(f"{path} holds no mapping; restart that stage, or name another directory")
