"""TREC run and judgements (qrels) as requests, and rankings as a run that any evaluation tool reads.

A line of a run is `query Q0 document rank score tag`, one of the judgements `query 0 document relevance`, parted by
white space; both may be gzipped, and the lines of a query need not be together. Incoming order is by score in single
precision, higher first; ties by the rank column, then by the order of the file. `trec_eval` goes by the same score,
then by document id, later in the alphabet first, and never reads the rank: it and these requests differ on ties, which
`notes` count. May import numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_N` lines of a run, `_B`
requests, `_K` candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env import durable
from rerank_env.data.catalog import Catalog
from rerank_env.data.ids import is_text
from rerank_env.data.readers.documents import NO_TEXT, texts_of
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.named import Name, NamedRequests, permuted
from rerank_env.data.readers.trec_lines import RunLines, judgements, run_columns
from rerank_env.data.requests import Requests
from rerank_env.data.rules import TOO_FEW
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES

UNJUDGED = "the query has no judgements, so nothing is known of its documents"

Judgements = Mapping[str, Mapping[str, float]]
Texts = Mapping[str, str] | Path | str


def read(
    run: Path | str,
    qrels: Path | str,
    *,
    top: int | None = None,
    documents: Texts | None = None,
    queries: Texts | None = None,
    seed: int = 0,
    skipped: Skipped | None = None,
) -> NamedRequests:
    """The lists of `run` with the gains that `qrels` give them; only the first `top` of each where that is a number.

    A gain is the relevance, and 0 where a document is not judged or its relevance is negative. Requests come in the
    order in which the run first names their queries, one user each. `documents` and `queries` give texts by id, as a
    mapping or a file (see `documents`); a query is then the one entry of its request's history, an item of the
    catalogue behind all documents. Documents are numbered at random with `seed`.

    Raises `DataError` naming file and line of what is no line of such a file, of a document that a query has twice and
    of a judgement that contradicts an earlier one; with `skipped` given, such lines are counted there and left out. It
    is raised too where no request is left, and `InputError` for a `top` below 2.
    """
    if top is not None:
        whole("top", top, least=MIN_CANDIDATES)
    left_out = Skipped() if skipped is None else skipped
    judged = judgements(Path(qrels), skipped=skipped, left_out=left_out)
    ordered, notes = _ordered(run_columns(Path(run), skipped=skipped))
    notes += _query_notes(ordered, judged)
    kept = _kept(ordered, judged, Path(run), top, left_out)
    gains_N, gain_notes = _gains(kept, judged)
    asked, sizes = np.unique(kept.queries_N, return_counts=True)
    listed, documents_N = np.unique(kept.documents_N, return_inverse=True)
    request_ids = tuple(kept.query_ids[query] for query in asked.tolist())
    numbers, item_ids = permuted([kept.document_ids[document] for document in listed.tolist()], seed=seed)
    texts, text_notes = _texts("documents", item_ids, documents, left_out)
    history_BH = np.full((len(asked), 1), PAD)
    if queries is not None:
        history_BH[:, 0] = len(item_ids) + np.arange(len(asked))
        query_texts, query_notes = _texts("queries", request_ids, queries, left_out)
        texts, text_notes, item_ids = texts + query_texts, text_notes + query_notes, item_ids + request_ids
    real_BK = np.arange(sizes.max()) < sizes[:, None]
    requests = Requests(
        catalog=Catalog.of(texts),
        users_B=np.arange(len(asked)),
        history_BH=history_BH,
        feedback_BH=(history_BH != PAD).astype(np.float32),
        candidates_BK=_spread(numbers[documents_N], real_BK, fill=PAD),
        scores_BK=_spread(kept.scores_N, real_BK, fill=0),
        relevance_BK=_spread(gains_N, real_BK, fill=0),
        sizes_B=sizes,
        name=f"TREC run {Path(run).name}",
        notes=(*notes, *gain_notes, *text_notes, *left_out.notes()),
    )
    return NamedRequests(requests, request_ids, request_ids, item_ids, left_out)


def run_lines(named: NamedRequests, rankings_BK: npt.ArrayLike, *, tag: str = "rerank_env") -> Iterator[str]:
    """The lines of a run that ranks each request's candidates as `rankings_BK` does, without line ends.

    Ranks count from 1, and scores are whole numbers that fall by 1, so that no tool sees a tie. Raises `RankingError`
    naming the first row that is no ranking, and `InputError` where a name or the tag is no single word.
    """
    words = [tag, *map(str, named.request_ids), *map(str, named.item_ids)]
    for word in words:
        if word.split() != [word] or not is_text(word):
            raise InputError(f"{word!r} is no single word of UTF-8, as names and tags of a TREC run are; rename it")
    for query, ranked in zip(named.request_ids, named.ranked(rankings_BK), strict=True):
        for place, document in enumerate(ranked):
            yield f"{query} Q0 {document} {place + 1} {len(ranked) - place} {tag}"


def write_run(path: Path | str, named: NamedRequests, rankings_BK: npt.ArrayLike, *, tag: str = "rerank_env") -> Path:
    """Write `run_lines` to `path`, which appears whole or not at all, with its folder, and return it.

    Raises as `run_lines` does, and `CheckpointError` where the disk refuses.
    """
    path = Path(path).expanduser()
    durable.replace(path, "".join(f"{line}\n" for line in run_lines(named, rankings_BK, tag=tag)).encode())
    return path


def _ordered(run: RunLines) -> tuple[RunLines, tuple[str, ...]]:
    """The lines query by query in incoming order, and what is to be said of ties and ranks."""
    ordered = run.take(np.lexsort((run.ranks_N, -run.scores_N, run.queries_N)))
    together_N = ordered.queries_N[1:] == ordered.queries_N[:-1]
    tied_N = together_N & (ordered.scores_N[1:] == ordered.scores_N[:-1])
    against_N = together_N & (ordered.ranks_N[1:] <= ordered.ranks_N[:-1])
    notes = []
    if tied_N.any():
        notes.append(
            f"{_queries(ordered, tied_N)} have equal scores, ordered by the rank column here and by document id in "
            "trec_eval"
        )
    if against_N.any():
        notes.append(f"{_queries(ordered, against_N)} have ranks that contradict their scores; the scores are followed")
    return ordered, tuple(notes)


def _queries(ordered: RunLines, here_N: BoolArray) -> str:
    """How many queries are marked, with the line that the first mark is on."""
    count = len(np.unique(ordered.queries_N[1:][here_N]))
    return f"{count:,} queries (the first on line {ordered.lines_N[1:][here_N][0]})"


def _query_notes(ordered: RunLines, judged: Judgements) -> tuple[str, ...]:
    """How many queries are in one of the two files only."""
    shown = {ordered.query_ids[query] for query in np.unique(ordered.queries_N).tolist()}
    only_run, only_qrels = len(shown - judged.keys()), len(judged.keys() - shown)
    notes = []
    if only_run:
        notes.append(f"{only_run:,} of {len(shown):,} queries of the run have no judgements and are left out")
    if only_qrels:
        notes.append(
            f"{only_qrels:,} of {len(judged):,} judged queries are not in the run and are no requests; trec_eval -c "
            "counts them as 0"
        )
    return tuple(notes)


def _kept(ordered: RunLines, judged: Judgements, path: Path, top: int | None, left_out: Skipped) -> RunLines:
    """What of the ordered lines becomes candidates."""

    def without(rows: RunLines, dropped_N: BoolArray, reason: str) -> RunLines:
        if dropped_N.any():
            left_out.add(reason, path, int(rows.lines_N[dropped_N].min()), rows=int(dropped_N.sum()))
        return rows.take(~dropped_N)

    is_judged = np.array([query in judged for query in ordered.query_ids], dtype=bool)
    kept = without(ordered, ~is_judged[ordered.queries_N], UNJUDGED)
    _, starts, counts = np.unique(kept.queries_N, return_index=True, return_counts=True)
    kept = without(kept, np.repeat(counts < MIN_CANDIDATES, counts), TOO_FEW)
    if top is not None:
        _, starts, counts = np.unique(kept.queries_N, return_index=True, return_counts=True)
        places_N = np.arange(len(kept)) - np.repeat(starts, counts)
        kept = without(kept, places_N >= top, f"the document is below the first {top} of its query, as was asked for")
    if not len(kept):
        raise DataError(
            f"{path} has no judged query with {MIN_CANDIDATES} documents, so there is nothing to re-rank; give the "
            "judgements that belong to the run"
        )
    return kept


def _gains(kept: RunLines, judged: Judgements) -> tuple[FloatArray, tuple[str, ...]]:
    """The gain of every candidate, and what is to be said of judgements."""
    gains: list[float] = []
    unjudged = negative = 0
    for query, document in zip(kept.queries_N.tolist(), kept.documents_N.tolist(), strict=True):
        relevance = judged[kept.query_ids[query]].get(kept.document_ids[document])
        unjudged += relevance is None
        negative += relevance is not None and relevance < 0
        gains.append(max(relevance or 0.0, 0.0))
    asked = {kept.query_ids[query] for query in kept.queries_N.tolist()}
    relevant = sum(relevance > 0 for query in asked for relevance in judged[query].values())
    notes = [f"{sum(gain > 0 for gain in gains):,} of {relevant:,} relevant documents of the requests are candidates"]
    if unjudged:
        notes.append(f"{unjudged:,} of {len(gains):,} candidates are not judged, which counts as a gain of 0")
    if negative:
        notes.append(f"{negative:,} of {len(gains):,} candidates have negative relevance, which counts as a gain of 0")
    return np.array(gains), tuple(notes)


def _texts(
    what: str, names: Sequence[Name], source: Texts | None, left_out: Skipped
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A text for each of `names`, and how many had none."""
    if source is None:
        return tuple(f"item {number}" for number in range(len(names))), ()
    known = texts_of(source, frozenset(map(str, names)), skipped=left_out)
    texts = tuple(known.get(str(name), "").strip() or NO_TEXT for name in names)
    missing = sum(text == NO_TEXT for text in texts)
    return texts, (f"{missing:,} of {len(names):,} {what} have no text",) if missing else ()


def _spread(values_N: npt.NDArray[Any], real_BK: BoolArray, *, fill: float) -> npt.NDArray[Any]:
    """The values request by request in a padded table."""
    table_BK = np.full(real_BK.shape, fill, dtype=values_N.dtype)
    table_BK[real_BK] = values_N
    return table_BK
