"""The log can be cut back to a checkpoint, and the order of requests can be taken up again."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rerank_env.rewards.errors import CheckpointError, DataError, InputError
from rerank_env.training.epochs import RequestEpochs
from rerank_env.training.logs import MetricsLog, read_log

SETTINGS = hypothesis_settings(max_examples=40, deadline=None)


def written(path: Path, steps: int) -> MetricsLog:
    log = MetricsLog(path)
    for step in range(1, steps + 1):
        log.append({"step": step, "loss": step / 10, "validation": None})
    return log


def test_lines_come_back_as_written(tmp_path: Path) -> None:
    log = written(tmp_path / "metrics.jsonl", 2)
    assert read_log(log.path) == [
        {"step": 1, "loss": 0.1, "validation": None},
        {"step": 2, "loss": 0.2, "validation": None},
    ]


def test_cutting_drops_later_steps_and_a_torn_last_line(tmp_path: Path) -> None:
    log = written(tmp_path / "metrics.jsonl", 4)
    before = log.path.read_text().splitlines(keepends=True)
    with log.path.open("a") as file:
        file.write('{"step": 5, "lo')
    log.cut_after(3)
    assert log.path.read_text() == "".join(before[:3])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_cutting_after_the_last_step_changes_nothing(tmp_path: Path) -> None:
    log = written(tmp_path / "metrics.jsonl", 2)
    before = log.path.read_bytes()
    log.cut_after(2)
    assert log.path.read_bytes() == before


def test_a_torn_last_line_is_left_out_when_reading_and_any_other_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2')
    assert read_log(path) == [{"step": 1}]
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        read_log(path)
    path.write_text("7\n")
    with pytest.raises(DataError, match="line 1 is not a JSON object"):
        read_log(path)


def test_a_full_disk_while_logging_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(CheckpointError, match=r"metrics.jsonl could not be written .*No space left on device"):
        MetricsLog(tmp_path / "metrics.jsonl").append({"step": 3})


def test_nan_never_reaches_the_log(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        MetricsLog(tmp_path / "metrics.jsonl").append({"step": 1, "loss": float("nan")})


@SETTINGS
@given(st.integers(1, 12), st.lists(st.integers(0, 9), max_size=8), st.integers(0, 9999))
def test_every_request_is_visited_once_before_any_is_visited_again(requests, draws, seed) -> None:
    epochs = RequestEpochs(requests, seed)
    rows = np.concatenate([epochs.draw(n) for n in [*draws, 2 * requests]])
    for start in range(0, len(rows) - requests + 1, requests):
        assert sorted(rows[start : start + requests]) == list(range(requests))


@SETTINGS
@given(st.integers(1, 12), st.lists(st.integers(0, 9), max_size=6), st.integers(0, 9999))
def test_the_order_goes_on_from_a_state_that_went_through_json(requests, draws, seed) -> None:
    epochs = RequestEpochs(requests, seed)
    for n in draws:
        epochs.draw(n)
    taken_up = RequestEpochs(requests, seed + 1)
    taken_up.restore(json.loads(json.dumps(epochs.state())))
    assert taken_up.draw(30).tolist() == epochs.draw(30).tolist()


def test_different_seeds_visit_in_different_orders() -> None:
    assert RequestEpochs(50, 0).draw(50).tolist() != RequestEpochs(50, 1).draw(50).tolist()


def test_no_requests_cannot_be_visited() -> None:
    with pytest.raises(InputError, match="no requests to train on"):
        RequestEpochs(0, 0)


def test_a_folder_where_the_log_should_be_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be written"):
        MetricsLog(tmp_path).cut_after(3)


def test_syncing_takes_what_was_written_and_needs_no_file(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "metrics.jsonl").sync()
    log = written(tmp_path / "metrics.jsonl", 2)
    before = log.path.read_bytes()
    log.sync()
    assert log.path.read_bytes() == before
    assert b"\r" not in before
