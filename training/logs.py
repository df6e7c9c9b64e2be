"""metrics.jsonl: one line of JSON a training step, appended, cut back when a run resumes.

May import the standard library and `rerank_env`. A line holds `step` and named values: a finite number, a text such as
why an update was skipped, or null where a step has none. A run killed in the middle of a line leaves a torn tail, which
resuming cuts off, so that the log of a resumed run equals that of an uninterrupted one in everything but `seconds`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rerank_env import durable
from rerank_env.rewards.errors import DataError

LOG_NAME = "metrics.jsonl"

UNEQUAL_FIELDS = ("seconds",)
"""Fields in which two runs of the same seed differ."""


class MetricsLog:
    """Appends lines to one file and cuts it back to a step."""

    def __init__(self, path: Path) -> None:
        """The file is created by the first line."""
        self.path = path

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one step's line and hand it to the operating system; `line` needs a `step`.

        Raises `CheckpointError` if the disk refuses it, ValueError for NaN or infinity (a bug of the trainer).
        """
        text = json.dumps(dict(line), allow_nan=False) + "\n"
        with durable.writing(self.path), self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(text)

    def sync(self) -> None:
        """Force what was appended to the disk, so that the log never lags behind a checkpoint.

        Raises `CheckpointError` if the disk refuses, as `cut_after` does.
        """
        if self.path.exists():
            with durable.writing(self.path), self.path.open("r+b") as file:  # Windows syncs what is open for writing
                os.fsync(file.fileno())

    def cut_after(self, step: int) -> None:
        """Drop every line after `step`, and a torn last line, in one atomic replacement; no file, nothing to do."""
        if not self.path.exists():
            return
        with durable.writing(self.path):
            text = self.path.read_text(encoding="utf-8", errors="replace")
        whole, _, torn = text.rpartition("\n")
        lines = whole.split("\n") if whole else []
        kept = [line for line in lines if _step_of(line) <= step]
        if torn or len(kept) < len(lines):
            durable.replace(self.path, "".join(f"{line}\n" for line in kept).encode())


def read_log(path: Path) -> list[dict[str, Any]]:
    """All lines of a log; a torn last line, of a run that was killed, is left out.

    Raises `DataError`, naming the line, if any other line is not a JSON object.
    """
    whole = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(whole.split("\n") if whole else [], start=1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number} is not JSON ({error.msg}); remove that line") from error
        if not isinstance(line, dict):
            raise DataError(f"{path} line {number} is not a JSON object; remove that line")
        lines.append(line)
    return lines


def _step_of(text: str) -> float:
    try:
        return float(json.loads(text)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # unreadable: it is dropped and its step, if it was one, is run again
