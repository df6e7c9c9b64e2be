"""Two requests as a log of impressions in a file, and what is read of such a file in a plain form."""

from pathlib import Path
from typing import Any

from rerank_env.data.impressions import Impressions
from rerank_env.data.readers.impression_log import read_log

HEADER = "request_id,user_id,item_id,position,click,propensity\n"
ROWS = "r1,u1,b,2,1,0.5\nr1,u1,a,1,0,1\nr2,u2,a,1,0,1\nr2,u2,c,2,0,0.5\nr2,u2,b,3,1,0.25\n"


def file(folder: Path, text: str | bytes, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows_of(log: Impressions) -> list[tuple[Any, ...]]:
    """Every row in full, in the order of the log."""
    users = log.user_ids_B[log.requests_N].tolist()
    ids = log.request_ids_B[log.requests_N].tolist()
    items = log.item_ids_I[log.items_N].tolist()
    numbers = [log.positions_N, log.clicks_N, log.propensities_N, log.scores_N, log.relevance_N, log.timestamps_N]
    known = [values_N.tolist() for values_N in (*numbers, log.predictions_N) if values_N is not None]
    return list(zip(ids, users, items, *known, strict=True))


def read(path: Path, **options: Any) -> Impressions:
    return read_log(path, propensity="examination", **options).read()
