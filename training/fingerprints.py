"""What tells one set of requests from another: a hash of everything that prompts, policies, rewards and teachers read.

May import numpy and `rerank_env.data`. Runs, traces and recipes keep it, and go on with the same requests only.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import Any

import numpy as np

from rerank_env.data.requests import Requests

SHORT = 16
"""How many characters of the hash are enough where it is kept beside others."""

UNREAD = frozenset({"name", "notes"})
"""Fields that are for reports only."""


def requests_hash(requests: Requests) -> str:
    """The SHA-256 of every array of `requests`, its remarks, and its catalogue's texts, labels and numbers, in hex.

    Fields are taken as the record has them, so that one that is added is hashed too. Names and notes are left out, and
    rows that were taken from nowhere are their own origin, so copies of a record have the same hash.
    """
    digest = hashlib.sha256()
    for record, unread in ((requests, UNREAD | {"catalog"}), (requests.catalog, UNREAD)):
        for field in fields(record):
            if field.name not in unread:
                value = requests.origins if field.name == "origins_B" else getattr(record, field.name)
                _add(digest, field.name, value)
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    """Add one field, so that no two different values look the same."""
    if isinstance(value, np.ndarray) and value.dtype != np.dtype(object):
        digest.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
        return
    text = json.dumps(value.tolist() if isinstance(value, np.ndarray) else value)
    digest.update(f"{name} {len(text)} {text}\n".encode())
