"""What traces were made of and by whom: the file that a directory of them cannot be gone on with without.

May import `rerank_env.data`, `rerank_env.durable` and `rerank_env.training.fingerprints`. Everything in it that traces
depend on has to be the same when collecting goes on; the versions of packages are there to be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rerank_env import durable
from rerank_env.data.requests import Requests
from rerank_env.rewards.errors import CheckpointError, DataError, InputError
from rerank_env.training.fingerprints import SHORT, requests_hash

MANIFEST = "manifest.json"
FORMAT = 1
"""Goes up when a reader of the older form would read the newer one wrongly."""

VERSIONS = "versions"
"""The field that may change."""


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest, None where there is none. Raises `DataError` where it cannot be read or is of another form."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as cause:
        raise DataError(f"{folder / MANIFEST} cannot be read ({cause}); name another directory") from cause
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{folder / MANIFEST} is of another release; name another directory")
    return found


def agree(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, or check that the one there says the same of everything that traces depend on.

    Versions may differ. Raises `InputError` naming the first field that does not agree, and `CheckpointError` where the
    disk refuses, or where there are parts without a manifest.
    """
    there = read(folder)
    now = json.loads(json.dumps(manifest))
    if there is None:
        if any(folder.glob("*.parquet")):
            raise CheckpointError(f"{folder} has traces but no {MANIFEST}; name another directory")
        write(folder, now)
        return
    for field in dict.fromkeys([*now, *there]):
        if field != VERSIONS and there.get(field) != now.get(field):
            raise InputError(
                f"{field} is {now.get(field)!r} but the traces in {folder} were begun with {there.get(field)!r}; "
                "restore it, or name another directory"
            )


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest. Raises `CheckpointError` where the disk refuses."""
    durable.replace(folder / MANIFEST, (json.dumps(dict(manifest), indent=2) + "\n").encode())


def fingerprint(requests: Requests) -> str:
    """A short hash of everything that prompts and targets depend on; see `requests_hash`."""
    return requests_hash(requests)[:SHORT]
