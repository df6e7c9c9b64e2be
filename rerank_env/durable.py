"""Files that are whole or absent, whatever happens while they are written.

May import the standard library and the errors. The data goes to a file beside the old one, is forced to the disk, and
takes the old one's place in one step: a reader, a crash or a full disk sees the old file or the new one, never a part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rerank_env.rewards.errors import CheckpointError

LOCK = ".lock"
"""The file whose lock says that a process works in a folder."""


def replace(path: Path, data: bytes) -> None:
    """Put `data` at `path`, making the folder where needed; on the disk when this returns.

    Raises `CheckpointError` in one sentence if the disk refuses; what was there before is then untouched.
    """
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep `folder` to this process until the block ends, however it ends; the folder is made where needed.

    Raises `CheckpointError` where another process holds it. Where the system has no file locks, nothing is held.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{folder} is in use by another run; wait for it, stop it, or name another directory"
            ) from error
        yield


def sync_folder(folder: Path) -> None:
    """Force the names in `folder` to the disk; Windows keeps them safe by itself and cannot be asked to."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a refusal to write `path` into one `CheckpointError`; one that is raised inside is left as it is."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written ({error.strerror or error}); what was there before is untouched, so free "
            "some space, or name a place that can be written, and run it again"
        ) from error
