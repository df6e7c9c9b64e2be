"""What a teacher has said and is in no part yet: one line a proposal, written the moment it comes.

May import the standard library and `proposals`. A process that is killed between two parts has paid for what the
journal holds; the next one reads it instead of asking again. A line that was cut off is one proposal that is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from types import TracebackType

from rerank_env.durable import writing
from rerank_env.rewards.rankings import Verdict
from rerank_env.training.language.traces.proposals import Proposal

JOURNAL = "paid.jsonl"


class Journal:
    """Proposals by request and try; a context manager that keeps the file open."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.known: dict[tuple[int, int], Proposal] = {}
        self._file: FileIO | None = None

    def __enter__(self) -> Journal:
        """Read what is there, and go on behind it. Raises `CheckpointError` where the disk refuses."""
        with writing(self.path):
            if self.path.exists():
                self._read(self.path.read_bytes())
            self._rewrite()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file and leave it; an empty one is removed."""
        if self._file is not None:
            self._file.close()
        if not self.known:
            self.path.unlink(missing_ok=True)

    def add(self, row: int, tries: int, proposal: Proposal) -> None:
        """Keep a proposal, which survives the process once this returns.

        Raises `CheckpointError` where the disk refuses.
        """
        assert self._file is not None, "the journal is open"
        with writing(self.path):
            _put(self._file, _line(row, tries, proposal))
        self.known[row, tries] = proposal

    def settle(self, rows: Iterable[int]) -> None:
        """Forget the rows, which are in a part now. Raises `CheckpointError` where the disk refuses."""
        gone = set(rows)
        self.known = {key: proposal for key, proposal in self.known.items() if key[0] not in gone}
        with writing(self.path):
            self._rewrite()

    def _rewrite(self) -> None:
        """Start the file anew with what is known, in one step."""
        if self._file is not None:
            self._file.close()
        fresh = self.path.with_name(self.path.name + ".partial")
        self._file = fresh.open("wb", buffering=0)
        _put(self._file, b"".join(_line(*key, proposal) for key, proposal in self.known.items()))
        fresh.replace(self.path)

    def _read(self, data: bytes) -> None:
        for line in data.split(b"\n")[:-1]:
            try:
                row, tries, said = json.loads(line)
                proposal = Proposal(**{**said, "ranking": tuple(said["ranking"]), "verdict": Verdict(said["verdict"])})
            except (ValueError, TypeError, KeyError):
                continue  # half a line, and what was written behind it
            self.known[row, tries] = proposal


def _line(row: int, tries: int, proposal: Proposal) -> bytes:
    return json.dumps([row, tries, {**vars(proposal), "verdict": int(proposal.verdict)}]).encode() + b"\n"


def _put(file: FileIO, data: bytes) -> None:
    """Hand all of it to the system, which may take a part at a time; nothing stays in a buffer of this process."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]
