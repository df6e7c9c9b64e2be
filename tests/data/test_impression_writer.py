"""Logs of impressions that are written, read back and compared: from requests, from any text, in parts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the data extra")
from hypothesis import given, settings
from hypothesis import strategies as st
from impression_files import HEADER, ROWS, file, read, rows_of

from rerank_env.data import Catalog, Requests, load
from rerank_env.data.impressions import Impressions
from rerank_env.data.readers.impression_log import read_log
from rerank_env.data.readers.impression_writer import SUFFIXES, impressions_of_requests, write_impressions
from rerank_env.rewards.errors import CheckpointError, DataError, InputError

FIELDS = ("users_B", "candidates_BK", "scores_BK", "relevance_BK", "sizes_B", "clicks_BK", "propensities_BK")


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
    for item in ("", "a\0", "a\ud83d"):
        with pytest.raises(DataError, match="item_id .* cannot be written"):
            write_impressions(requests, path, item_ids=["b", item])
    assert path.read_text() == "old" and sorted(p.name for p in tmp_path.iterdir()) == ["log.csv", "new.csv"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_log_is_written_with_its_folder_or_refused_in_one_sentence(tmp_path: Path, suffix: str) -> None:
    log = read(file(tmp_path, HEADER + ROWS))
    path = tmp_path / "deep" / "down" / f"log{suffix}"
    assert write_impressions(log, path) == 5 and rows_of(read(path)) == rows_of(log)
    (tmp_path / f"folder{suffix}").mkdir()
    for refused in (
        tmp_path / "log.csv" / f"a{suffix}",
        tmp_path / f"folder{suffix}",
        tmp_path / f"{'a' * 300}{suffix}",
    ):
        with pytest.raises(CheckpointError, match="could not be written") as caught:
            write_impressions(log, refused)
        assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", f"folder{suffix}", "log.csv"]


def test_requests_are_numbered_through_and_items_called_as_asked() -> None:
    requests = Requests.of([[1, 0]], [[0, 1]], clicks=[[0, 1]], propensities=[[1, 0.5]])
    log = impressions_of_requests(requests, item_ids=["a", "b"], first=7)
    assert rows_of(log) == [("7", "0", "b", 1, 0, 1, 0, 0), ("7", "0", "a", 2, 1, 0.5, -1, 1)]
