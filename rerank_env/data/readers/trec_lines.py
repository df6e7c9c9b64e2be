"""The lines of TREC runs and judgements as columns, each line checked. See `trec` for the forms.

May import numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_N` lines of a run.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rerank_env.data.readers.faults import Skipped, lines
from rerank_env.data.rules import SINGLE
from rerank_env.rewards.arrays import BoolArray, Float32Array, IntArray
from rerank_env.rewards.errors import DataError

NOT_A_RUN = "it is not of the form `query Q0 document rank score tag` with a whole rank and a finite score"
NOT_QRELS = "it is not of the form `query 0 document relevance` with a finite relevance"
LISTED_TWICE = "the query has that document on an earlier line"
CONTRADICTED = "an earlier line has another relevance for that query and document"
REPEATED = "an earlier line is the same judgement"

LARGEST_RANK = 1 << 62
"""Ranks are kept in 64 bits."""


@dataclass(frozen=True, eq=False)
class RunLines:
    """The lines of a run as columns; queries and documents by number, `*_ids` in the order of first appearance.

    Scores are in single precision, as in `trec_eval`: what is a tie there is one here.
    """

    queries_N: IntArray
    documents_N: IntArray
    ranks_N: IntArray
    scores_N: Float32Array
    lines_N: IntArray
    query_ids: tuple[str, ...]
    document_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lines_N)

    def take(self, rows: IntArray | BoolArray) -> RunLines:
        """Those of the lines, in that order."""
        return RunLines(
            self.queries_N[rows], self.documents_N[rows], self.ranks_N[rows], self.scores_N[rows], self.lines_N[rows],
            self.query_ids, self.document_ids,
        )  # fmt: skip


def run_columns(path: Path, *, skipped: Skipped | None) -> RunLines:
    """All lines of the run at `path`, in the order of the file.

    Raises `DataError` naming file and line where one is of another form or names a document again; with `skipped` such
    lines are counted there and left out.
    """
    queries: dict[str, int] = {}
    documents: dict[str, int] = {}
    numbers, scores = array("q"), array("d")
    for line, text in lines(path, skipped=skipped):
        try:
            query, _, document, rank, score, _ = text.split()
            values = _whole(rank), _finite(score)
        except ValueError as error:
            _refuse(NOT_A_RUN, path, line, text, skipped, error)
            continue
        named = queries.setdefault(query, len(queries)), documents.setdefault(document, len(documents))
        numbers.extend((*named, values[0], line))
        scores.append(values[1])
    queries_N, documents_N, ranks_N, lines_N = np.array(numbers, dtype=np.int64).reshape(-1, 4).T
    scores_N = np.array(scores).astype(np.float32)
    read = RunLines(queries_N, documents_N, ranks_N, scores_N, lines_N, tuple(queries), tuple(documents))
    pairs = read.queries_N * len(documents) + read.documents_N
    first = np.unique(pairs, return_index=True)[1]
    again = np.setdiff1d(np.arange(len(read)), first)
    for row in again.tolist():
        pair = f"{read.query_ids[read.queries_N[row]]} {read.document_ids[read.documents_N[row]]}"
        _refuse(LISTED_TWICE, path, int(read.lines_N[row]), pair, skipped)
    return read.take(np.sort(first)) if len(again) else read


def judgements(path: Path, *, skipped: Skipped | None, left_out: Skipped) -> dict[str, dict[str, float]]:
    """The relevance of every judged document, by query; a judgement that is repeated is counted in `left_out`.

    Raises `DataError` naming file and line where one is of another form or contradicts an earlier one; with `skipped`
    such lines are counted there and left out.
    """
    judged: dict[str, dict[str, float]] = {}
    for line, text in lines(path, skipped=skipped):
        try:
            query, _, document, relevance = text.split()
            value = _finite(relevance)
        except ValueError as error:
            _refuse(NOT_QRELS, path, line, text, skipped, error)
            continue
        known = judged.setdefault(query, {})
        if document not in known:
            known[document] = value
        elif known[document] == value:
            left_out.add(REPEATED, path, line)
        else:
            _refuse(CONTRADICTED, path, line, text, skipped)
    return judged


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) > LARGEST_RANK or "_" in text:
        raise ValueError(f"{text} is no whole number of 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or abs(value) > SINGLE or "_" in text:  # Python reads 1_0 as 10
        raise ValueError(f"{text} is no finite number")
    return value


def _refuse(
    reason: str, path: Path, line: int, text: str, skipped: Skipped | None, cause: Exception | None = None
) -> None:
    if skipped is None:
        raise DataError(f"{path} line {line} reads {text[:80]!r}, but {reason}; correct or remove the line") from cause
    skipped.add(reason, path, line)
