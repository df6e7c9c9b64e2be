"""Text tables (CSV or TSV, gzipped or not) as runs of rows: pyarrow where all is well, line by line where it is not.

A file is read in blocks of whole lines. A block without a fault and without a line break inside quotes goes to pyarrow
at once; any other is read line by line by the standard library's csv, which finds each fault with its line. Both read
RFC 4180 with one line of header: fields may be quoted by ", doubled inside; there is no escape and no comment. Lines
end in LF or CRLF, the last too; empty lines are no rows. May import numpy and `rerank_env.data.readers`.
"""

from __future__ import annotations

import csv
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from rerank_env.data.readers.faults import LONGEST_LINE, MARK, NUL, TORN, CutShort, Skipped, chunks, not_utf8
from rerank_env.data.readers.rows import Faults, Rows, Wanted, pyarrow
from rerank_env.rewards.errors import DataError

LONGEST_ROW = 1_000
"""Over how many lines the quoted fields of one row may go; an opening quote without an end stops there."""

RAGGED = "the row has not as many fields as the header; correct it, or quote fields that hold the delimiter"
RETURN = "a carriage return without a line feed; end lines by LF or CRLF, or quote the field"
QUOTE = f"a quoted field has no end within {LONGEST_ROW:,} lines; double the quotes inside fields, or close it"
AFTER_QUOTE = "something follows the end of a quoted field; double the quotes inside fields"

EMPTY = "the file is empty; give a table that starts with the names of its columns"

_NO_LIMIT = 2**31 - 1
_LIMIT = threading.Lock()
"""Held while the standard library's csv reads fields of any length, as pyarrow does; its limit is one for all."""

_QUOTE, _LF, _CR = ord('"'), ord("\n"), ord("\r")


def read_delimited(
    path: Path,
    wanted: Wanted,
    *,
    delimiter: str | None = None,
    skipped: Skipped | None = None,
    at: Callable[[int], object] | None = None,
    block: int = 1 << 23,
) -> Iterator[Rows]:
    """The wanted columns of a text table as text, in runs of about `block` bytes.

    `delimiter` None: that of comma, tab and semicolon which the header has most of. With `skipped` a line that cannot
    be read is counted there and leaves a gap; `at` as in `faults.chunks`. A table of a header only has no rows.

    Raises `DataError` naming file and line: at the first fault without `skipped`, and always where the file is no text
    or its header cannot be read or lacks a column. An empty file is counted as one row where there is `skipped`.
    """
    faults = Faults(path, skipped)
    held, line, ended, table = b"", 1, "", None
    nothing = Rows(path, "line", {}, _places([]), (0,))
    source = chunks(path, size=block, at=at)
    while not ended:
        try:
            held += next(source)
        except StopIteration:
            ended = TORN
        except CutShort as error:
            ended = f"the file {error}"
        if table is None:
            if b"\n" not in held and not ended and len(held) <= LONGEST_LINE:
                continue
            if not held and ended == TORN:
                faults.found(EMPTY, 1)
                yield nothing
                return
            header, _, held = held.partition(b"\n")
            table, line = _Table(path, _header(path, header), wanted, delimiter, faults), 2
        rows, used = table.read(held, line, last=bool(ended))
        if rows is not None:
            yield rows
        line += held.count(b"\n", 0, used)
        held = held[used:]
        if len(held) > LONGEST_LINE and b"\n" not in held:
            raise DataError(f"{path} line {line} is longer than {LONGEST_LINE:,} bytes; give a text table")
    if held or ended != TORN:
        faults.found(ended, line)
        yield nothing


def _header(path: Path, header: bytes) -> str:
    if not header.strip():
        raise DataError(f"{path} line 1 is empty; give a table that starts with the names of its columns")
    try:
        return header.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} line 1: {not_utf8(error)}") from error


class _Table:
    """How the rows of one file are read."""

    def __init__(self, path: Path, header: str, wanted: Wanted, delimiter: str | None, faults: Faults) -> None:
        self.path, self.faults = path, faults
        self.delimiter = max(",\t;", key=header.count) if delimiter is None else delimiter
        try:
            names = next(csv.reader([header], delimiter=self.delimiter, strict=True))
        except csv.Error as error:
            raise DataError(f"{path} line 1: the header cannot be read ({error}); quote each name in full") from error
        self.width = len(names)
        self.places = wanted.found([name.strip() for name in names], path)

    def read(self, data: bytes, line: int, *, last: bool) -> tuple[Rows | None, int]:
        """The rows of the whole lines in `data`, which begins a row at `line`, and how many bytes they are.

        Unless it is the last, a row that goes on beyond `data` is left for when there is more.
        """
        whole = data.rfind(b"\n") + 1
        if not whole:
            return None, 0
        block = data[:whole]
        return self._fast(block, line) or self._slow(block, line, last)

    def _fast(self, block: bytes, line: int) -> tuple[Rows, int] | None:
        """All rows by pyarrow, None where one of them needs a closer look."""
        if not _is_plain(block, self.delimiter):
            return None
        pa = pyarrow()
        names = [str(place) for place in range(self.width)]
        try:
            table = pa.csv.read_csv(
                pa.py_buffer(block),
                read_options=pa.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
                parse_options=pa.csv.ParseOptions(delimiter=self.delimiter, ignore_empty_lines=False),
                convert_options=pa.csv.ConvertOptions(
                    include_columns=[names[place] for place in self.places.values()],
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != block.count(b"\n"):
            return None
        columns = {column: table[names[place]].combine_chunks() for column, place in self.places.items()}
        return Rows(self.path, "line", columns, np.arange(line, line + table.num_rows)), len(block)

    def _slow(self, block: bytes, line: int, last: bool) -> tuple[Rows | None, int]:
        """The rows one by one, each fault with its line."""
        raw = block.split(b"\n")[:-1]
        texts = [text.decode("utf-8", errors="surrogateescape") for text in raw]
        rows: list[list[str]] = []
        places: list[int] = []
        gaps: list[int] = []
        index = 0
        while index < len(texts):
            text, reason, detail, used = texts[index], "", "", 1
            fields: list[str] = []
            if not text or text == "\r":
                index += 1
                continue
            if b"\0" in raw[index]:
                reason = NUL
            elif '"' in text:
                fields, used, reason = self._quoted(texts, index)
                if reason == QUOTE and not last and len(texts) - index < LONGEST_ROW:
                    break
            else:
                fields = text.removesuffix("\r").split(self.delimiter)
                reason = RETURN if "\r" in text[:-1] else ""
            reason = reason or _wrong_encoding(raw[index : index + used])
            if not reason and len(fields) != self.width:
                reason, detail = RAGGED, f"{len(fields)} fields, not {self.width}"
            if reason:
                self.faults.found(reason, line + index, detail=detail)
                gaps.append(len(rows))
                index += 1  # on a fault the next line is read as a row of its own
                continue
            rows.append([fields[place] for place in self.places.values()])
            places.append(line + index)
            index += used
        pa = pyarrow()
        table = zip(*rows, strict=True) if rows else [[]] * len(self.places)
        columns = {column: pa.array(values, pa.string()) for column, values in zip(self.places, table, strict=True)}
        return Rows(self.path, "line", columns, _places(places), tuple(gaps)), sum(
            len(text) + 1 for text in raw[:index]
        )

    def _quoted(self, texts: list[str], index: int) -> tuple[list[str], int, str]:
        """The fields of the row that begins at `index`, how many lines it has, and what is wrong with it."""
        lines = (f"{text}\n" for text in islice(texts, index, index + LONGEST_ROW))
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        try:
            with _LIMIT:
                limit = csv.field_size_limit(_NO_LIMIT)
                try:
                    return next(reader), reader.line_num, ""
                finally:
                    csv.field_size_limit(limit)
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                return [], 1, QUOTE
            if "new-line character" in str(error):
                return [], 1, RETURN
            return [], 1, AFTER_QUOTE if "expected after" in str(error) else f"the row cannot be read: {error}"


def _is_plain(block: bytes, delimiter: str) -> bool:
    """Whether every line is a row that is UTF-8, and quoted as it should be where it is.

    A byte-order mark at the start of a block is none, but pyarrow would drop it: a file's own is dropped before.
    """
    if block.startswith(MARK):
        return False
    empty = block.startswith((b"\n", b"\r\n")) or b"\n\n" in block or b"\n\r\n" in block
    if empty or b"\0" in block or block.count(b"\r") != block.count(b"\r\n"):
        return False
    if not block.isascii():
        try:
            block.decode("utf-8")
        except UnicodeDecodeError:
            return False
    if b'"' not in block:
        return True
    bytes_ = np.frombuffer(block, dtype=np.uint8)
    quotes, ends = np.flatnonzero(bytes_ == _QUOTE), np.flatnonzero(bytes_ == _LF)
    if (np.searchsorted(quotes, ends) % 2).any():
        return False  # a field goes on in the next line, or a quote stands alone
    opening, closing = quotes[::2], quotes[1::2]
    before = np.where(opening > 0, bytes_[opening - 1], _LF)
    outside = [ord(delimiter), _LF, _QUOTE]
    return bool(np.isin(before, outside).all() and np.isin(bytes_[closing + 1], [*outside, _CR]).all())


def _wrong_encoding(lines: list[bytes]) -> str:
    for text in lines:
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            return not_utf8(error)
    return ""


def _places(places: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(places, dtype=np.int64)
