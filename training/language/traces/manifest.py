"""What traces were made of and by whom: the file that a directory of them cannot be gone on with without.

May import numpy, `rerank_env.data` and `rerank_env.durable`. Everything in it that traces depend on has to be the same
when collecting goes on; the versions of packages are there to be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.data.requests import Requests
from rerank_env.rewards.errors import CheckpointError, DataError, InputError

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
        durable.replace(folder / MANIFEST, (json.dumps(now, indent=2) + "\n").encode())
        return
    for field in dict.fromkeys([*now, *there]):
        if field != VERSIONS and there.get(field) != now.get(field):
            raise InputError(
                f"{field} is {now.get(field)!r} but the traces in {folder} were begun with {there.get(field)!r}; "
                "restore it, or name another directory"
            )


def fingerprint(requests: Requests) -> str:
    """A short hash of everything that prompts and targets depend on: arrays, texts, labels and remarks."""
    digest = hashlib.sha256()
    for array in (
        requests.candidates_BK,
        requests.scores_BK,
        requests.history_BH,
        requests.feedback_BH,
        requests.relevance_BK,
        requests.sizes_B,
    ):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    remarks = None if requests.remarks_BK is None else requests.remarks_BK.tolist()
    texts = [requests.catalog.texts, requests.catalog.labels, remarks]
    digest.update(json.dumps(texts).encode())
    return digest.hexdigest()[:16]
