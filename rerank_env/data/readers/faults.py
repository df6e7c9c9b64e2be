"""Files as they come: text or gzip read in bounded memory, every fault with its file and line, every skip counted.

A reader stops at the first fault with one sentence, or is given a `Skipped` and goes on; nothing is left out without
being counted there. May import the standard library and `rerank_env.rewards.errors` only.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from rerank_env.rewards.errors import DataError

CHUNK = 1 << 22
"""How many bytes are held at a time, packed or plain."""

LONGEST_LINE = 1 << 26
"""A text line longer than these bytes is taken for a file that is no text."""

_GZIP = b"\x1f\x8b"
MARK = b"\xef\xbb\xbf"
"""The byte-order mark of UTF-8."""

_FOREIGN = {
    b"\xff\xfe": "UTF-16 text; convert it with: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it with: iconv -f UTF-16 -t UTF-8",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it, or pack it with gzip",
    b"\xfd7zXZ\x00": "packed by xz; unpack it, or pack it with gzip",
    b"BZh": "packed by bzip2; unpack it, or pack it with gzip",
    b"PAR1": "Parquet; name it *.parquet where that is expected, and export it as text elsewhere",
}


class CutShort(Exception):  # noqa: N818  what happened to a file, turned into a DataError by whoever knows the line
    """The bytes of a file end or cannot be unpacked before its end; the message says which and what to do."""


class Skipped:
    """What a reader left out: rows by reason, each reason with the file and line where it was first met.

    >>> skipped = Skipped()
    >>> skipped.add("click is neither 0 nor 1", "log.csv", 7)
    >>> skipped.add("click is neither 0 nor 1", "log.csv", 9)
    >>> skipped.total, skipped.notes()
    (2, ('skipped 2 rows: click is neither 0 nor 1 (first: log.csv line 7)',))
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, tuple[str, int, str]] = {}

    def add(self, reason: str, path: Path | str, line: int, *, rows: int = 1, unit: str = "line") -> None:
        """Count `rows` more rows under `reason`; `line` is that of the first, a row number where `unit` is "row"."""
        self._counts[reason] = self._counts.get(reason, 0) + rows
        place = (str(path), line, unit)
        self._first[reason] = min(self._first.get(reason, place), place)

    def include(self, other: Skipped, prefix: str) -> None:
        """Count here what `other` counts, each reason after `prefix`, so that it is told from those of other rows."""
        for reason, count in other._counts.items():
            path, line, unit = other._first[reason]
            self.add(prefix + reason, path, line, rows=count, unit=unit)

    @property
    def total(self) -> int:
        """How many rows were left out, for whatever reason."""
        return sum(self._counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """How many rows were left out by reason, ordered by the file and line where each reason is met first."""
        ordered = sorted(self._counts, key=lambda reason: (self._first[reason], reason))
        return {reason: self._counts[reason] for reason in ordered}

    @property
    def first(self) -> dict[str, str]:
        """File and line of the first row left out by reason, in the same order."""
        return {reason: "{0} {2} {1}".format(*self._first[reason]) for reason in self.counts}

    def notes(self) -> tuple[str, ...]:
        """One sentence a reason, for `Requests.notes` and reports; empty where nothing was left out."""
        first = self.first
        return tuple(
            f"skipped {count:,} row{'s' * (count != 1)}: {reason} (first: {first[reason]})"
            for reason, count in self.counts.items()
        )

    def __repr__(self) -> str:
        """The counts."""
        return f"Skipped({self.counts})"


def lines(path: Path | str, *, skipped: Skipped | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file, gzipped or not, numbered from 1 and without their ends (LF or CRLF).

    A byte-order mark is dropped; an empty file has no lines. A fault is a last line without an end (which may be torn),
    a byte that is not UTF-8, a NUL, a gzip stream that ends early or is damaged, and a line of more than `LONGEST_LINE`
    bytes. With `skipped` a line with a fault is counted there and left out; a stream that ends early is counted as one
    row, at the line where it ends, because how many are missing cannot be known.

    Raises `DataError` naming file and line at the first fault, and where the file cannot be opened or is no such text.
    """
    number, rest = 0, b""
    try:
        for chunk in chunks(path):
            held = (rest + chunk).split(b"\n")
            rest = held.pop()
            if len(rest) > LONGEST_LINE:
                raise DataError(
                    f"{path} line {number + 1 + len(held)} is longer than {LONGEST_LINE:,} bytes; give text"
                )
            for line in held:
                number += 1
                text = _text(line, path, number, skipped)
                if text is not None:
                    yield number, text
    except CutShort as error:
        _fault(f"the file {error}", path, number + 1, skipped, error)
        return
    if rest:
        _fault(TORN, path, number + 1, skipped)


TORN = "the last line has no line end, so it may be torn; write the file again, or end that line if it is whole"
NUL = "a NUL byte, as in UTF-16 text or after a crash; write the line again as UTF-8"


def _text(line: bytes, path: Path | str, number: int, skipped: Skipped | None) -> str | None:
    if b"\0" in line:
        _fault(NUL, path, number, skipped)
        return None
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        _fault(not_utf8(error), path, number, skipped, error)
        return None


def not_utf8(error: UnicodeDecodeError) -> str:
    """The sentence on a line that is not UTF-8, naming the first byte that is not."""
    return f"byte 0x{error.object[error.start]:02x} is not UTF-8; convert the file, e.g. iconv -f LATIN1 -t UTF-8"


def _fault(reason: str, path: Path | str, line: int, skipped: Skipped | None, cause: Exception | None = None) -> None:
    if skipped is None:
        raise DataError(f"{path} line {line}: {reason}") from cause
    skipped.add(reason, path, line)


def chunks(path: Path | str, *, size: int = CHUNK, at: Callable[[int], object] | None = None) -> Iterator[bytes]:
    """The bytes of a text file, unpacked where it is gzipped (by its first bytes, not its name), without a UTF-8 mark.

    At most `size` bytes a chunk, none empty. `at` is told after each how many bytes of the file have been read, which
    is what a progress bar needs. Raises `CutShort` after the last byte that could be had where there should be more,
    and `DataError` where the file cannot be opened or is something else than text.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(6)
            file.seek(0)
            for mark, what in _FOREIGN.items():
                if head.startswith(mark):
                    raise DataError(f"{path} is {what}")
            start: bytes | None = b""
            for chunk in _unpacked(file, size) if head.startswith(_GZIP) else iter(lambda: file.read(size), b""):
                plain = chunk
                if start is not None:
                    start += chunk
                    if len(start) < len(MARK):
                        continue
                    plain, start = _text_begun(start, path), None
                if plain:
                    yield plain
                if at is not None:
                    at(file.tell())
            if start:
                yield start
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); check the path and its rights") from error


def _text_begun(start: bytes, path: Path | str) -> bytes:
    if start[:2] in _FOREIGN:
        raise DataError(f"{path} is {_FOREIGN[start[:2]]}")
    return start.removeprefix(MARK)


def _unpacked(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The plain bytes of a gzip file of one or more members, all that can be had before the place of a fault."""
    unpack, inside = zlib.decompressobj(wbits=31), False
    try:
        while packed := file.read(size):
            while packed:
                inside = True
                if plain := unpack.decompress(packed, size):
                    yield plain
                packed = unpack.unconsumed_tail
                if unpack.eof:
                    packed = unpack.unused_data.lstrip(b"\0")  # members may be padded with zeros
                    unpack, inside = zlib.decompressobj(wbits=31), False
    except zlib.error as error:
        raise CutShort(f"cannot be unpacked from here on ({error}); write it again") from error
    if inside:
        raise CutShort("ends inside its gzip stream, so the rest is missing; write it again")
