"""Logs of impressions in files: written and read back, in every form, at any block size, in parts."""

import csv
import gzip
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the data extra")
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from impression_files import HEADER, ROWS, file, read, rows_of

from rerank_env.data.readers import impression_log
from rerank_env.data.readers.impression_log import read_log
from rerank_env.rewards.errors import DataError, InputError, MissingExtraError, UnknownNameError

FORMS = {
    "plain": HEADER + ROWS,
    "carriage returns": (HEADER + ROWS).replace("\n", "\r\n"),
    "byte-order mark": "\ufeff" + HEADER + ROWS,
    "tabs": (HEADER + ROWS).replace(",", "\t"),
    "semicolons": (HEADER + ROWS).replace(",", ";"),
    "quotes": "\n".join(",".join(f'"{f}"' for f in line.split(",")) for line in (HEADER + ROWS).splitlines()) + "\n",
    "empty lines": HEADER + "\n" + ROWS.replace("r2,u2,a", "\nr2,u2,a") + "\n\r\n",
    "numbers as floats": HEADER + ROWS.replace(",2,1,", ",2.0,1.0,").replace("a,1,0,1\n", "a,1e0,0.0,+1\n"),
    "spaces around numbers": HEADER + ROWS.replace(",2,1,", ", 2 ,1, "),
    "more columns": "page," + HEADER + "".join(f'"p\n{n}",{r}\n' for n, r in enumerate(ROWS.splitlines())),
    "other order": "propensity,click,position,item_id,user_id,request_id\n"
    + "".join(",".join(reversed(row.split(","))) + "\n" for row in ROWS.splitlines()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block_bytes", [1, 30, 1 << 20])
def test_every_form_of_text_gives_the_same_rows(tmp_path: Path, form: str, block_bytes: int) -> None:
    expected = [
        ("r1", "u1", "b", 2, 1, 0.5),
        ("r1", "u1", "a", 1, 0, 1),
        ("r2", "u2", "a", 1, 0, 1),
        ("r2", "u2", "c", 2, 0, 0.5),
        ("r2", "u2", "b", 3, 1, 0.25),
    ]
    assert rows_of(read(file(tmp_path, FORMS[form]), block_bytes=block_bytes)) == expected
    packed = file(tmp_path, gzip.compress(FORMS[form].encode()), "packed.csv")
    assert rows_of(read(packed, block_bytes=block_bytes)) == expected


def table(**changes: Any) -> pa.Table:
    columns: dict[str, Any] = {
        "request_id": pa.array([1, 1, 2, 2]),
        "user_id": pa.array(["u", "u", "v", "v"]).dictionary_encode(),
        "item_id": pa.array(["a", "b", "b", "c"], pa.large_string()),
        "position": pa.array([1, 2, 1, 2], pa.int8()),
        "click": pa.array([True, False, False, False]),
        "propensity": pa.array([1, 0.5, 1, 0.5], pa.float32()),
    }
    return pa.table(columns | changes)


def test_parquet_columns_may_be_of_any_fitting_type(tmp_path: Path) -> None:
    times = [datetime(2020, 1, 1, hour, tzinfo=UTC) for hour in range(4)]
    pq.write_table(table(timestamp=pa.array(times), score=pa.array(["1", "2", " 3", "4e0"])), tmp_path / "log.parquet")
    for block_bytes in (1, 300, 1 << 20):
        log = read(tmp_path / "log.parquet", block_bytes=block_bytes)
        assert rows_of(log) == [
            ("1", "u", "a", 1, 1, 1, 1, 1577836800),
            ("1", "u", "b", 2, 0, 0.5, 2, 1577840400),
            ("2", "v", "b", 1, 0, 1, 3, 1577844000),
            ("2", "v", "c", 2, 0, 0.5, 4, 1577847600),
        ]


def test_times_are_seconds_or_dates_and_dates_without_a_zone_are_in_utc(tmp_path: Path) -> None:
    times = ["2020-01-01", "2020-01-01 01:00:00", "2020-01-01T03:00:00+02:00", "1577836800.5", "2020-01-01T00:00:01Z"]
    rows = "".join(f"{row},{time}\n" for row, time in zip(ROWS.splitlines(), times, strict=True))
    log = read(file(tmp_path, HEADER.replace("\n", ",timestamp\n") + rows))
    assert log.timestamps_N is not None
    assert (log.timestamps_N - 1577836800).tolist() == [0, 3600, 3600, 0.5, 1]


def test_columns_are_renamed_by_a_mapping(tmp_path: Path) -> None:
    text = "session,user_id,sku,slot,click,p,item_id\n" + "".join(f"{row},x\n" for row in ROWS.splitlines())
    columns = {"request_id": "session", "item_id": "sku", "position": "slot", "propensity": "p"}
    path = file(tmp_path, text)
    assert rows_of(read(path, columns=columns)) == rows_of(read(file(tmp_path, HEADER + ROWS, "plain.csv")))
    with pytest.raises(DataError, match=r"line 1: column 'session_id' is missing; did you mean 'session'\? say which"):
        read(path, columns=columns | {"request_id": "session_id"})
    with pytest.raises(DataError, match="column 'rank' is missing"):
        read(path, columns=columns | {"score": "rank"})
    with pytest.raises(InputError, match="columns renames 'item'; the columns of the schema are"):
        read_log(path, propensity="examination", columns={"item": "sku"})
    with pytest.raises(InputError, match="a column of its own"):
        read_log(path, propensity="examination", columns={"item_id": "user_id"})


def test_a_folder_is_read_in_order_of_name_and_a_request_may_go_on_in_the_next_part(tmp_path: Path) -> None:
    lines = ROWS.splitlines(keepends=True)
    folder = tmp_path / "parts"
    (folder / "day=2").mkdir(parents=True)
    file(folder, HEADER + "".join(lines[:3]), "a.csv")
    file(folder, gzip.compress((HEADER + lines[3]).encode()), "b.csv.gz")
    file(folder, HEADER, "c.csv")
    file(folder / "day=2", HEADER + lines[4], "a.csv")
    file(folder, "no log", "_SUCCESS")
    file(folder, "no log", ".hidden.csv")
    whole = read(file(tmp_path, HEADER + ROWS))
    assert rows_of(read(folder)) == rows_of(whole)
    with pytest.raises(DataError, match="d.csv: not every file has the columns score"):
        file(folder, HEADER.replace("\n", ",score\n") + "r9,u1,b,2,1,0.5,7\n", "d.csv")
        read(folder)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="has no files"):
        read(tmp_path / "nothing")


def test_items_are_numbered_by_the_seed_and_not_by_their_order(tmp_path: Path) -> None:
    rows = "".join(f"r{n},u,{n},1,0,1\nr{n},u,x{n},2,0,1\n" for n in range(200))
    path = file(tmp_path, HEADER + rows)
    first = read_log(path, propensity="examination")
    (requests,) = first.requests(relevance="clicks")
    texts = [first.catalog.texts[item] for item in requests.candidates_BK[:, 0].tolist()]
    assert texts == [str(n) for n in range(200)]
    steps = np.diff(requests.candidates_BK[:, 0])
    assert (steps == 1).mean() < 0.05 and (steps == 2).mean() < 0.05
    assert first.catalog.texts == read_log(path, propensity="examination").catalog.texts
    assert first.catalog.texts != read_log(path, propensity="examination", seed=1).catalog.texts
    assert not first.catalog.popularity_I.any()


def test_one_long_request_does_not_widen_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impression_log, "MOST_CELLS", 100)
    sizes = [2] * 30 + [40] + [2] * 30
    rows = "".join(f"r{r},u,{i},{i + 1},0,1\n" for r, size in enumerate(sizes) for i in range(size))
    batches = list(read_log(file(tmp_path, HEADER + rows), propensity="examination").requests(relevance="none"))
    assert [size for batch in batches for size in batch.sizes_B.tolist()] == sizes
    assert all(batch.candidates_BK.size <= 100 for batch in batches)


def test_propensities_of_selection_are_read_but_not_as_those_of_examination(tmp_path: Path) -> None:
    log = read_log(file(tmp_path, HEADER + ROWS + "r3,u1,a,1,0,0.3\n"), propensity="selection")
    assert log.read().sizes_B.tolist() == [2, 3, 1]  # one candidate is no fault where lists are not wanted
    with pytest.raises(InputError, match="those of selection, but credit for clicks needs"):
        next(log.requests(relevance="clicks"))


def test_arguments_that_say_nothing_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, HEADER + ROWS)
    with pytest.raises(UnknownNameError, match="unknown propensity"):
        read_log(path, propensity="both")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="did you mean 'raise'"):
        read_log(path, propensity="examination", on_fault="rise")  # type: ignore[arg-type]
    for delimiter in ("", "||", '"', "\n", "ö"):
        with pytest.raises(InputError, match="give one ASCII character"):
            read_log(path, propensity="examination", delimiter=delimiter)
    with pytest.raises(DataError, match=r"absent\.csv does not exist"):
        read_log(tmp_path / "absent.csv", propensity="examination")
    with pytest.raises(InputError, match="item_numbers came without the catalogue"):
        next(read_log(path, propensity="examination").requests(relevance="none", item_numbers={"a": 0}))


def test_a_file_that_changes_between_the_readings_is_noticed(tmp_path: Path) -> None:
    path = file(tmp_path, HEADER + ROWS)
    log = read_log(path, propensity="examination")
    assert log.survey.requests == 2
    file(tmp_path, HEADER + ROWS + ROWS.replace("r", "s"))
    with pytest.raises(DataError, match="has changed while it was read"):
        log.read()


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rerank-env\[data\]"'):
        read_log(file(tmp_path, HEADER + ROWS), propensity="examination")


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_shown_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    path = file(tmp_path, HEADER + ROWS)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    read(path, progress=False)
    assert capsys.readouterr() == ("", "")
    read(path)
    assert bool(capsys.readouterr().err) == terminal
    read(path, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "reading (1 of 2) log.csv" in err and "reading (2 of 2)" in err and "100" in err


def test_progress_needs_no_rich(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rerank_env.progress.find_spec", lambda name: None)
    monkeypatch.setattr("rerank_env.progress.SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    read(file(tmp_path, HEADER + ROWS * 1), block_bytes=20)
    told: Sequence[str] = capsys.readouterr().err.splitlines()
    assert told[0].startswith("reading (1 of 2) log.csv: ") and told[0].endswith(" s left")
    assert told[-1] == "reading (2 of 2) log.csv: 100 %"


@settings(max_examples=40)
@given(
    starts=st.lists(st.sampled_from(["", "\ufeff", "\ufeff\ufeff"]), min_size=4, max_size=4),
    quoted=st.booleans(),
    block_bytes=st.integers(1, 200),
)
def test_a_byte_order_mark_inside_a_file_is_a_part_of_its_id_wherever_a_block_begins(
    starts: list[str], quoted: bool, block_bytes: int
) -> None:
    ids = [f"{start}{number}" for number, start in enumerate(starts)]
    shown = [f'"{name}"' if quoted else name for name in ids]
    rows = [f"{name},u,i{place},{place},0,1" for name in shown for place in (1, 2)]
    with tempfile.TemporaryDirectory() as folder:
        for mark in ("", "\ufeff"):
            path = file(Path(folder), mark + HEADER + "".join(f"{row}\n" for row in rows))
            assert read(path, block_bytes=block_bytes).request_ids_B.tolist() == ids


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("after", ["", "\n"])  # an empty line sends the block to the slower reader
@pytest.mark.parametrize("within", ["", "\n"])
def test_a_field_may_be_as_long_as_it_is_by_either_reader(tmp_path: Path, quote: str, after: str, within: str) -> None:
    name = "x" * 200_000 + (within if quote else "")
    before = csv.field_size_limit()
    log = read(file(tmp_path, f"{HEADER}r,u,{quote}{name}{quote},1,0,1\nr,u,b,2,0,1\n{after}"))
    assert log.item_ids_I.tolist() == [name, "b"]
    assert csv.field_size_limit() == before


def test_a_survey_prints_its_counts_and_not_its_items(tmp_path: Path) -> None:
    survey = read_log(file(tmp_path, HEADER + ROWS), propensity="examination").survey
    assert repr(survey) == "Survey(rows=5, kept=5, requests=2, skipped=Skipped({}))"
