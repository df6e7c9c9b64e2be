"""Logs of impressions in files: written and read back, in every form, at any block size, in parts."""

import gzip
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data import Catalog, Requests, load
from rerank_env.data.impressions import Impressions
from rerank_env.data.readers import impression_log
from rerank_env.data.readers.impression_log import read_log
from rerank_env.data.readers.impression_writer import SUFFIXES, impressions_of_requests, write_impressions
from rerank_env.rewards.errors import DataError, InputError, MissingExtraError, UnknownNameError

HEADER = "request_id,user_id,item_id,position,click,propensity\n"
ROWS = "r1,u1,b,2,1,0.5\nr1,u1,a,1,0,1\nr2,u2,a,1,0,1\nr2,u2,c,2,0,0.5\nr2,u2,b,3,1,0.25\n"

FIELDS = ("users_B", "candidates_BK", "scores_BK", "relevance_BK", "sizes_B", "clicks_BK", "propensities_BK")


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


@st.composite
def clicked(draw: st.DrawFn) -> Requests:
    """Requests with clicks, over a catalogue of six."""
    count = draw(st.integers(1, 5))
    sizes = [draw(st.integers(2, 6)) for _ in range(count)]
    unit = st.floats(0, 1)
    above_0 = st.floats(0, 1, exclude_min=True)

    def lists(values: st.SearchStrategy[Any]) -> list[list[Any]]:
        return [draw(st.lists(values, min_size=size, max_size=size)) for size in sizes]

    return Requests.of(
        [draw(st.permutations(range(6)))[:size] for size in sizes],
        lists(st.floats(0, 1e100)),
        scores=lists(st.floats(width=32, allow_nan=False, allow_infinity=False)),
        users=[draw(st.integers(-(2**63), 2**63 - 1)) for _ in sizes],
        clicks=lists(st.sampled_from([0.0, 1.0])),
        propensities=lists(above_0),
        predictions=lists(unit) if draw(st.booleans()) else None,
        catalog=Catalog.of([f"text {item}" for item in range(6)]),
    )


@settings(max_examples=40)
@given(requests=clicked(), suffix=st.sampled_from(SUFFIXES))
def test_requests_with_clicks_are_written_and_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, requests: Requests, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("log") / f"log{suffix}"
    assert write_impressions(requests, path) == requests.sizes_B.sum()
    (again,) = read_log(path, propensity="examination").requests(relevance="column", catalog=requests.catalog)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(again, field), getattr(requests, field), err_msg=field)
    if requests.predictions_BK is None:
        assert again.predictions_BK is None
    else:
        np.testing.assert_array_equal(again.predictions_BK, requests.predictions_BK)
    assert [path.name for path in path.parent.iterdir()] == [path.name]


ID = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=5)


@settings(max_examples=40)
@given(
    ids=st.lists(ID, min_size=5, max_size=5, unique=True),
    suffix=st.sampled_from(SUFFIXES),
    block_bytes=st.integers(1, 200),
)
def test_any_text_is_an_id(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], suffix: str, block_bytes: int
) -> None:
    log = Impressions(
        request_ids_B=np.array(ids[:2], dtype=object),
        user_ids_B=np.array([ids[4]] * 2, dtype=object),
        sizes_B=np.array([2, 2]),
        item_ids_I=np.array(ids[1:4], dtype=object),
        items_N=np.array([0, 1, 2, 0]),
        positions_N=np.array([1, 2, 5, 3]),
        clicks_N=np.array([0.0, 1, 0, 0]),
        propensities_N=np.array([1, 0.1, 1 / 3, 5e-324]),
        propensity="examination",
        timestamps_N=np.array([0.0, -1.5, 1e18, 1.7e9]),
    )
    path = tmp_path_factory.mktemp("log") / f"log{suffix}"
    write_impressions(log, path)
    assert rows_of(read(path, block_bytes=block_bytes)) == rows_of(log)


def test_simulated_data_of_any_length_is_read_back_in_batches(tmp_path: Path) -> None:
    data = load("synthetic", requests=400)
    rng = np.random.default_rng(0)
    real_BK = data.candidates_BK >= 0
    clicks_BK = np.where(real_BK, rng.integers(0, 2, real_BK.shape), 0)
    propensities_BK = np.where(real_BK, 1 / (1 + np.arange(real_BK.shape[1])), 0)
    made = Requests(**{name: getattr(data, name) for name in (*FIELDS[:5], "catalog", "history_BH", "feedback_BH")},
                    clicks_BK=clicks_BK, propensities_BK=propensities_BK, name="clicks")  # fmt: skip
    parts = [made.take(np.arange(start, start + 100)) for start in range(0, len(made) // 100 * 100, 100)]
    write_impressions(iter(parts), tmp_path / "log.csv.gz")
    log = read_log(tmp_path / "log.csv.gz", propensity="examination", block_bytes=5_000)
    batches = list(log.requests(relevance="column", catalog=data.catalog))
    assert len(batches) > 5 and sum(map(len, batches)) == len(parts) * 100
    read_back = [row[:size].tolist() for b in batches for row, size in zip(b.candidates_BK, b.sizes_B, strict=True)]
    assert read_back == [
        row[:size].tolist() for p in parts for row, size in zip(p.candidates_BK, p.sizes_B, strict=True)
    ]


def test_equal_logs_are_equal_files(tmp_path: Path) -> None:
    log = read(file(tmp_path, HEADER + ROWS))
    for suffix in SUFFIXES:
        write_impressions(log, tmp_path / f"one{suffix}")
        write_impressions([log], tmp_path / f"two{suffix}")
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


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


def test_what_cannot_be_written_is_refused_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = file(tmp_path, "old")
    log = read(file(tmp_path, HEADER + ROWS, "new.csv"))
    requests = Requests.of([[0, 1]], [[0, 1]], clicks=[[0, 1]], propensities=[[1, 0.5]])
    with pytest.raises(InputError, match=r"end its name in \.csv, \.csv\.gz, \.parquet"):
        write_impressions(log, tmp_path / "log.txt")
    with pytest.raises(InputError, match="has no clicks and propensities"):
        write_impressions(Requests.of([[0, 1]], [[0, 1]]), path)
    with pytest.raises(InputError, match="nothing to write"):
        write_impressions([], path)
    with pytest.raises(InputError, match="differ in columns"):
        write_impressions([log, requests], path)
    with pytest.raises(InputError, match="item_ids has 1 entries but the catalogue 2"):
        write_impressions(requests, path, item_ids=["a"])
    with pytest.raises(DataError, match="two items have the same item_id"):
        write_impressions(requests, path, item_ids=["a", "a"])
    for item in ("", "a\0"):
        with pytest.raises(DataError, match="item_id .* cannot be written"):
            write_impressions(requests, path, item_ids=["b", item])
    assert path.read_text() == "old" and sorted(p.name for p in tmp_path.iterdir()) == ["log.csv", "new.csv"]


def test_requests_are_numbered_through_and_items_called_as_asked() -> None:
    requests = Requests.of([[1, 0]], [[0, 1]], clicks=[[0, 1]], propensities=[[1, 0.5]])
    log = impressions_of_requests(requests, item_ids=["a", "b"], first=7)
    assert rows_of(log) == [("7", "0", "b", 1, 0, 1, 0, 0), ("7", "0", "a", 2, 1, 0.5, -1, 1)]


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
    monkeypatch.setattr("rerank_env.data.readers.progress.find_spec", lambda name: None)
    monkeypatch.setattr("rerank_env.data.readers.progress.SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    read(file(tmp_path, HEADER + ROWS * 1), block_bytes=20)
    told: Sequence[str] = capsys.readouterr().err.splitlines()
    assert told[0].startswith("reading (1 of 2) log.csv: ") and told[0].endswith(" s left")
    assert told[-1] == "reading (2 of 2) log.csv: 100 %"
