"""Damaged logs of impressions in Parquet: file, row and remedy, or a count; and folders with a damaged part."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rerank_env.data.readers.impression_log import read_log
from rerank_env.rewards.errors import DataError

HEADER = "request_id,user_id,item_id,position,click,propensity"
ROWS = [f"r{request},u{request % 3},i{place},{place},0,{1 / place}" for request in range(6) for place in (1, 2, 3)]
"""Six requests of three rows."""


def parquet(folder: Path, **changes: Any) -> Path:
    columns: dict[str, Any] = dict(
        zip(HEADER.split(","), zip(*(row.split(",") for row in ROWS), strict=True), strict=True)
    )
    columns |= {name: [float(v) for v in columns[name]] for name in ("position", "click", "propensity")}
    pq.write_table(pa.table(columns | changes), folder / "log.parquet", row_group_size=7)
    return folder / "log.parquet"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"position": [*range(1, 5), None, *range(6, 19)]}, "row 5: position is not a whole number from 1 but None"),
        ({"position": ["1"] * 4 + ["abc"] + ["1"] * 13}, "row 5: position is not a whole number from 1 but 'abc'"),
        ({"propensity": [1.0] * 4 + [float("nan")] + [1.0] * 13}, "row 5: propensity .* but nan"),
        ({"item_id": [f"i{n}" for n in range(4)] + [None] + ["z"] * 13}, "row 5: item_id is missing .* but None"),
        ({"item_id": pa.array([b"i"] * 4 + [b"\xfc"] + [b"z"] * 13)}, "row 5: item_id .*UTF-8 but b'.xfc'"),
        ({"item_id": [[1]] * 18}, "column 'item_id' is of type list"),
        ({"click": [{"a": 1}] * 18}, "column 'click' is of type struct"),
        ({"click": [None] * 18}, "row 1: click is not 0 or 1 but None"),
    ],
)
def test_a_wrong_value_in_parquet_is_refused_with_its_row(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=f"log.parquet.*{says}"):
        read_log(parquet(tmp_path, **changes), propensity="examination").read()


def test_text_that_parquet_wrongly_calls_utf_8_is_found(tmp_path: Path) -> None:
    raw = pa.array([b"i1", b"i2", b"i3", b"i1", b"\xfc"] + [b"i9"] * 13)
    claimed = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    path = parquet(tmp_path, item_id=claimed)
    with pytest.raises(DataError, match="row 5: item_id is missing or is not UTF-8 but 'no UTF-8'"):
        read_log(path, propensity="examination").read()


@pytest.mark.parametrize("left", [0.3, 0.9, 0.999])
def test_a_torn_parquet_file_is_named(tmp_path: Path, left: float) -> None:
    path = parquet(tmp_path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * left)])
    with pytest.raises(DataError, match=r"log.parquet row 1: the file cannot be read as Parquet, so it may be torn"):
        read_log(path, propensity="examination").read()
    with pytest.raises(DataError, match="has no request to read: skipped 1 row: the file cannot be read as Parquet"):
        read_log(path, propensity="examination", on_fault="skip").read()


def test_the_rows_after_a_damaged_page_are_counted(tmp_path: Path) -> None:
    rows = {
        "request_id": np.repeat(np.arange(500), 2),
        "user_id": ["u"] * 1_000,
        "item_id": np.arange(1_000),
        "position": [1, 2] * 500,
        "click": [0] * 1_000,
        "propensity": np.random.default_rng(0).random(1_000),
    }
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(rows), path, row_group_size=100, use_dictionary=False, write_page_checksum=True)
    damaged = bytearray(path.read_bytes())
    offset = pq.ParquetFile(path).metadata.row_group(6).column(0).data_page_offset
    damaged[offset : offset + 30] = b"\xff" * 30
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"log.parquet row \d+: the file cannot be read from here on") as caught:
        read_log(path, propensity="examination", block_bytes=128 * 50).read()
    assert "\n" not in str(caught.value)
    log = read_log(path, propensity="examination", on_fault="skip", block_bytes=128 * 50)
    assert log.survey.rows == 1_000 and 500 <= log.survey.kept < 600
    assert len(log.read()) == log.survey.requests == log.survey.kept // 2


def test_a_damaged_part_does_not_hide_the_others(tmp_path: Path) -> None:
    parquet(tmp_path)
    (tmp_path / "a.csv").write_text(f"{HEADER}\nq,u,a,1,0,1\nq,u,b,2,0,1\n")
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    log = read_log(tmp_path, propensity="examination", on_fault="skip")
    assert log.survey.requests == 4  # q and r0 are beside the empty part, r5 beside the torn one
    assert log.survey.skipped.total == 1 + 1 + 2 + 3 + 3 and log.survey.rows == 20 + 2
