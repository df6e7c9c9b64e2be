"""The texts that belong to ids: documents and queries from a mapping, a TSV file or a JSONL file.

A TSV line is `id TAB text`; further tabs are white space, so `id TAB title TAB body` does as well. A JSONL line is an
object with an id (`_id`, `id`, `docid`, `doc_id`, `qid` or `query_id`) and a text (`text`, `contents` or `query`, after
`title` if it has one), which are the forms of BEIR, Pyserini and ir_datasets. Files may be gzipped. May import the
standard library, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rerank_env.data.ids import HALF, is_text
from rerank_env.data.readers.faults import Skipped, lines
from rerank_env.rewards.errors import DataError

IDS = ("_id", "id", "docid", "doc_id", "qid", "query_id")
TEXTS = ("text", "contents", "query")
TITLE = "title"

NO_TEXT = "an item without a text"

TWICE = "its id has a text already, and the first is kept"


def texts_of(source: Mapping[str, str] | Path | str, wanted: Collection[str], *, skipped: Skipped) -> dict[str, str]:
    """The texts of the `wanted` ids that `source` has; those of others are read past, so a collection may be any size.

    A file named `*.jsonl` or `*.json` (or so and `.gz`) is read as JSONL, any other as TSV. A second text for a wanted
    id is counted in `skipped`.

    Raises `DataError` naming file and line for a line of another form, or one that holds half a surrogate pair, or the
    id whose text in a mapping is no text.
    """
    if isinstance(source, Mapping):
        given = {name: source[name] for name in wanted if name in source}
        for name, text in given.items():
            if not isinstance(text, str) or not is_text(text):
                raise DataError(f"the text of {name!r} is {text!r}; give a text for each id")
        return given
    is_json = Path(source).name.removesuffix(".gz").endswith((".jsonl", ".json"))
    found: dict[str, str] = {}
    for line, name, text in _json_lines(Path(source)) if is_json else _tab_lines(Path(source)):
        if name in found:
            skipped.add(TWICE, source, line)
        elif name in wanted:
            found[name] = text
    return found


def _tab_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    for line, row in lines(path):
        name, tab, text = row.partition("\t")
        if not tab or not name:
            raise DataError(f"{path} line {line} reads {row[:80]!r}, not an id, a tab and a text; write it so")
        yield line, name, text


def _json_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    for line, row in lines(path):
        try:
            entry = json.loads(row)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} line {line} is no JSON object ({error}); write one object a line") from error
        name, text = _first(entry, IDS), _first(entry, TEXTS)
        title = entry.get(TITLE) if isinstance(entry, dict) else None
        if isinstance(name, bool) or not isinstance(name, str | int) or not isinstance(text, str):
            raise DataError(
                f"{path} line {line} reads {row[:80]!r}, not an object with one of {', '.join(IDS)} and one of "
                f"{', '.join(TEXTS)}; rename its fields"
            )
        name, text = str(name), f"{title} {text}" if isinstance(title, str) and title.strip() else text
        if not is_text(name + text):
            raise DataError(f"{path} line {line} holds {HALF} in its id, title or text; write it as UTF-8")
        yield line, name, text


def _first(entry: object, keys: Collection[str]) -> Any:
    """What `entry` has under the first of `keys` that it has, None where it has none of them or is no object."""
    return next((entry[key] for key in keys if key in entry), None) if isinstance(entry, dict) else None
