"""The log of 20 million impressions that is measured, here of some thousands."""

import gzip
from pathlib import Path
from typing import Any

import log_reader
import pytest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, dict[str, int]]]]:
    """Two thousand requests and the planted ones."""
    folder = tmp_path_factory.mktemp("log")
    return folder, log_reader.write(folder, 10 * (log_reader.BLOCK // 10))


def found_by(reader: str, path: Path) -> dict[str, Any]:
    read = {"ours": log_reader.ours, "scan": log_reader.scan}[reader]
    return read(path) | {"seconds": 1.0, "peak_mib": 100.0}


@pytest.mark.parametrize("name", ["log.csv.gz", "log.parquet"])
def test_every_row_is_kept_or_skipped_and_every_planted_fault_counted(made: Any, name: str) -> None:
    folder, files = made
    written, expected = files[name]
    found = {reader: found_by(reader, folder / name) for reader in ("ours", "scan")}
    rows, met = log_reader.report(folder / name, written, expected, found)
    assert met
    metrics = rows[0]["metrics"]
    assert rows[0]["name"] == f"{name}: ours" and metrics["rows_unaccounted"]["value"] == 0
    assert metrics["rows"]["value"] + metrics["rows_skipped"]["value"] == metrics["rows_written"]["value"] == written
    planted = {row["name"]: row["metrics"] for row in rows[2:]}
    assert len(planted) == len(expected) and all(m["planted"] == m["skipped"] for m in planted.values())
    assert found["ours"]["skipped"]["another row of the request shows the same item"] == log_reader.PLANTED
    assert 0.03 < metrics["clicks"]["value"] / metrics["rows"]["value"] < 0.09  # 0.2 of the mean of 1 / place, 0.29


def test_the_rows_that_are_written_are_those_in_the_files(made: Any) -> None:
    folder, files = made
    with gzip.open(folder / "log.csv.gz", "rb") as text:
        lines = text.read().count(b"\n") + 1  # the torn line has no end
    assert lines == files["log.csv.gz"][0] + 1  # and the header
    assert log_reader.scan(folder / "log.parquet")["rows"] == files["log.parquet"][0]


@pytest.mark.parametrize("change", ["a row lost", "a fault not found", "too much memory"])
def test_what_is_lost_or_too_large_is_no_success(made: Any, change: str) -> None:
    folder, files = made
    written, expected = files["log.parquet"]
    ours = {"rows": written - sum(expected.values()), "clicks": 9, "skipped": dict(expected), "seconds": 1.0}
    ours |= {"peak_mib": 3_000.0 if change == "too much memory" else 100.0}
    if change == "a row lost":
        ours["rows"] -= 1
    if change == "a fault not found":
        ours["skipped"] = {**expected, log_reader.WRONG: 6}
        ours["rows"] += 1
    rows, met = log_reader.report(folder / "log.parquet", written, expected, {"ours": ours})
    assert not met and rows[0]["metrics"]["rows_unaccounted"]["value"] == (change == "a row lost")


def test_a_log_is_the_same_every_time() -> None:
    one, again = (list(log_reader.log(50)) for _ in range(2))
    assert one == again and sum(map(len, one)) == 500
