"""TREC runs and judgements that the tests write, and what is read of them in a plain form."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from rerank_env.data.readers.named import NamedRequests
from rerank_env.rewards.errors import DataError

Lists = dict[str, list[tuple[str, float, float]]]
"""Documents with score and gain in incoming order, by query."""


def write(path: Path, *rows: str) -> Path:
    data = "".join(f"{row}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def lists_of(named: NamedRequests) -> Lists:
    requests = named.requests
    return {
        str(query): [
            (str(named.item_ids[item]), score, gain)
            for item, score, gain in zip(items[:size], scores, gains, strict=False)
        ]
        for query, items, scores, gains, size in zip(
            named.request_ids, requests.candidates_BK.tolist(), requests.scores_BK.tolist(),
            requests.relevance_BK.tolist(), requests.sizes_B.tolist(), strict=True,
        )
    }  # fmt: skip


def says(text: str) -> Any:
    return pytest.raises(DataError, match=text)


RUN = (
    "q2 Q0 d1 2 0.5 bm25",
    "q1 Q0 d3 2 7.0 bm25",
    "q2\tQ0\td9 1 0.75\tbm25",
    "q1 Q0 d1 1 9.5 bm25",
    "q1 Q0 d2 3 -1e1 bm25",
)
QRELS = ("q1 0 d2 2", "q1 0 d1 0", "q2 0 d9 1", "q2 0 d5 3")
