"""A recipe's run folder: what every stage was asked, what it left, and with which releases of what.

    RUN/run.json                      recipe, data, size, settings, versions, command
    RUN/STAGE/config.json             fingerprint, inputs and settings: written before the stage begins
    RUN/STAGE/...                     what the stage leaves for others
    RUN/STAGE/training/               what an interrupted training goes on from; nobody else reads it
    RUN/STAGE/metrics.json            what it measured
    RUN/STAGE/done.json               the record, written last: a stage without it is not finished

Each record is whole or absent (`rerank_env.durable`), and names every file the stage left with its size and SHA-256, so
that a run whose files were lost does not count as finished. May import the standard library and `rerank_env`.
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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError, InputError

RUN, CONFIG, METRICS, DONE = "run.json", "config.json", "metrics.json", "done.json"
TRAINING = "training"
"""A folder of this name, anywhere in a stage's, holds what its training goes on from, and is no result."""

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
        _write(self.directory / RUN, {**about, "versions": versions()})

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
        found = _read(self.stage(name) / DONE)
        if found is None:
            return None
        try:
            files = {path: File(**file) for path, file in found["files"].items()}
            record = Record(**{**found, "files": files})
        except (TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{self.stage(name) / DONE} is no record of a stage; restart {name}") from error
        for path, file in files.items():
            place = self.stage(name) / path
            if not place.is_file() or place.stat().st_size != file.bytes:
                return None
        return record

    def metrics(self, name: str) -> dict[str, Any]:
        """What a finished stage measured, empty where there is nothing."""
        return _read(self.stage(name) / METRICS) or {}

    def begin(self, name: str, fingerprint: str, *, inputs: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        """Write down what a stage is begun with, and that it is not finished."""
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
            versions=versions(),
        )
        _write(self.stage(name) / DONE, asdict(record))
        return record

    def forget(self, name: str) -> None:
        """Remove all that a stage left, its record first, so that a kill in between leaves it unfinished."""
        folder = self.stage(name)
        with durable.writing(folder):
            (folder / DONE).unlink(missing_ok=True)
            if folder.is_dir():
                shutil.rmtree(folder)


def left_in(folder: Path) -> dict[str, File]:
    """The files of a stage's folder that are its result, by their paths in it, sorted."""
    ours = {CONFIG, METRICS, DONE}
    found: dict[str, File] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (
            path.is_file()
            and name not in ours
            and path.name != durable.LOCK
            and TRAINING not in path.relative_to(folder).parts[:-1]
        ):
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


def versions() -> dict[str, str]:
    """Python, the platform and the `PACKAGES` that are installed, each with its version."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


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
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no mapping; restart that stage, or name another directory")
    return found
