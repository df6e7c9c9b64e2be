"""Damaged logs of impressions in Parquet: file, row and remedy, or a count; and folders with a damaged part."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the data extra")
import pyarrow as pa
import pyarrow.parquet as pq

from rerank_env.data.readers.impression_log import read_log
from rerank_env.rewards.errors import DataError

HEADER = "request_id,user_id,item_id,position,click,propensity"
ROWS = [f"r{request},u{request % 3},i{place},{place},0,{1 / place}" for request in range(6) for place in (1, 2, 3)]
"""Six requests of three rows."""

LARGE = [(str(n // 2), "u", f"i{n}", 1 + n % 2, 0, 0.25 + n / 200) for n in range(100)]
"""Fifty requests of two rows."""


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
        (
            {"item_id": pa.array([b"i"] * 4 + [b"\xfc"] + [b"z"] * 13)},
            "row 5: item_id .*UTF-8 text or a whole number but b'.xfc'",
        ),
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
    with pytest.raises(
        DataError, match="row 5: item_id is missing or is not UTF-8 text or a whole number but 'no UTF-8'"
    ):
        read_log(path, propensity="examination").read()


@pytest.mark.parametrize("left", [0.3, 0.9, 0.999])
def test_a_torn_parquet_file_is_named(tmp_path: Path, left: float) -> None:
    path = parquet(tmp_path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * left)])
    with pytest.raises(DataError, match=r"log.parquet row 1: the file cannot be read as Parquet, so it may be torn"):
        read_log(path, propensity="examination").read()
    with pytest.raises(DataError, match="has no request to read: skipped 1 row: the file cannot be read as Parquet"):
        read_log(path, propensity="examination", on_fault="skip").read()


@pytest.mark.parametrize("block", [50, 1_000])
@pytest.mark.parametrize("group", [0, 6, 9])
def test_a_damaged_page_costs_its_row_group_and_what_is_beside_it_and_no_more(
    tmp_path: Path, group: int, block: int
) -> None:
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
    offset = pq.ParquetFile(path).metadata.row_group(group).column(0).data_page_offset
    damaged[offset : offset + 30] = b"\xff" * 30
    path.write_bytes(damaged)
    with pytest.raises(
        DataError, match=rf"log.parquet row {100 * group + 1}: the rest of the row group cannot be read"
    ) as caught:
        read_log(path, propensity="examination", block_bytes=128 * block).read()
    assert "\n" not in str(caught.value)
    log = read_log(path, propensity="examination", on_fault="skip", block_bytes=128 * block)
    beside = {0: 1, 6: 2, 9: 1}[group]  # the requests next to the gap, of two rows each
    assert log.survey.rows == 1_000 and log.survey.kept == 900 - 2 * beside
    lost = range(50 * group - 1, 50 * group + 51)
    assert log.read().request_ids_B.tolist() == [str(n) for n in range(500) if n not in lost]
    assert sum(log.survey.skipped.counts.values()) == 100 + 2 * beside


def test_several_damaged_row_groups_are_each_left_out(tmp_path: Path) -> None:
    rows = pa.table(dict(zip(HEADER.split(","), zip(*LARGE, strict=True), strict=True)))
    path = tmp_path / "log.parquet"
    pq.write_table(rows, path, row_group_size=10, use_dictionary=False, write_page_checksum=True)
    damaged = bytearray(path.read_bytes())
    for group in (1, 2, 7):
        offset = pq.ParquetFile(path).metadata.row_group(group).column(3).data_page_offset
        damaged[offset : offset + 20] = b"\xff" * 20
    path.write_bytes(damaged)
    log = read_log(path, propensity="examination", on_fault="skip")
    # of ten groups of five requests: 5 to 14 and 35 to 39 are lost, with 4, 15, 34 and 40 beside them
    gone = {*range(4, 16), *range(34, 41)}
    assert log.read().request_ids_B.tolist() == [str(n) for n in range(50) if n not in gone]
    assert log.survey.rows == 100 and log.survey.skipped.total == 2 * len(gone)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_ids_that_are_whole_floats_are_those_whole_numbers_and_others_are_missing(tmp_path: Path, kind: Any) -> None:
    ids = [float(n) for n in range(18)]
    values = np.array(ids, dtype=np.float16) if kind == pa.float16() else np.array(ids)
    whole = read_log(parquet(tmp_path, item_id=pa.array(values, kind)), propensity="examination").read()
    assert whole.item_ids_I[whole.items_N].tolist() == [str(n) for n in range(18)]
    for bad in (float("nan"), float("inf"), -float("inf"), 1.5, 1e-9, 2.0**53, -1e300):
        if kind == pa.float64():
            path = parquet(tmp_path, item_id=pa.array([*ids[:4], bad, *ids[5:]], from_pandas=False))
            with pytest.raises(DataError, match="row 5: item_id is missing or is not UTF-8 text or a whole number but"):
                read_log(path, propensity="examination").read()
            log = read_log(path, propensity="examination", on_fault="skip")
            assert log.survey.rows == 18 and "r1" not in log.read().request_ids_B.tolist()


@pytest.mark.parametrize("column", ["request_id", "user_id", "item_id"])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([True] * 18),
        pa.array([0] * 18, pa.date32()),
        pa.array([0] * 18, pa.timestamp("us")),
        pa.array([0] * 18, pa.timestamp("s", "UTC")),
        pa.array([0] * 18, pa.time32("s")),
        pa.array([0] * 18, pa.duration("s")),
        pa.array([1] * 18).cast(pa.decimal128(21, 2)),
        pa.array([True] * 18).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_a_column_of_a_type_that_no_id_has_is_refused(tmp_path: Path, column: str, values: Any) -> None:
    with pytest.raises(DataError, match=f"column '{column}' is of type .*; give text or whole numbers for ids"):
        read_log(parquet(tmp_path, **{column: values}), propensity="examination").read()


def test_a_damaged_part_does_not_hide_the_others(tmp_path: Path) -> None:
    parquet(tmp_path)
    (tmp_path / "a.csv").write_text(f"{HEADER}\nq,u,a,1,0,1\nq,u,b,2,0,1\n")
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    log = read_log(tmp_path, propensity="examination", on_fault="skip")
    assert log.survey.requests == 4  # q and r0 are beside the empty part, r5 beside the torn one
    assert log.survey.skipped.total == 1 + 1 + 2 + 3 + 3 and log.survey.rows == 20 + 2
