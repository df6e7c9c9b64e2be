"""Several commands at once, watched through the logs they write."""

from __future__ import annotations

import sys
import time
from collections import defaultdict

import pytest

pytest.importorskip("torch")

from rerank_env.training.processes import Run, RunFailedError, run_all

pytestmark = pytest.mark.torch

TRAINS = """
import json, pathlib, sys, time
directory = pathlib.Path(sys.argv[1])
(directory / "started").write_text(str(time.time()))
with (directory / "metrics.jsonl").open("w") as log:
    for step in (1, 2, 3):
        log.write(json.dumps({"step": step}) + "\\n")
time.sleep(1)
(directory / "ended").write_text(str(time.time()))
"""


def command(directory, script=TRAINS) -> Run:
    return Run((sys.executable, "-c", script, str(directory)), steps=3)


def test_every_command_is_run_and_its_steps_are_reported(tmp_path) -> None:
    seen = defaultdict(list)
    names = ["one", "deeper/two"]
    run_all(
        {name: command(tmp_path / name) for name in names},
        tmp_path,
        on_progress=lambda name, step, steps: seen[name].append((step, steps)),
    )
    assert {name: steps[-1] for name, steps in seen.items()} == dict.fromkeys(names, (3, 3))
    assert all((tmp_path / name / "ended").is_file() for name in names)


def test_one_worker_runs_one_command_after_the_other(tmp_path) -> None:
    runs = {name: command(tmp_path / name) for name in ("one", "two")}
    run_all(runs, tmp_path, on_progress=lambda *_: None, workers=1)
    assert float((tmp_path / "two" / "started").read_text()) > float((tmp_path / "one" / "ended").read_text())


def test_a_command_that_fails_stops_the_others_and_says_where_to_look(tmp_path) -> None:
    waits = "import time; time.sleep(60)"
    runs = {"bad": command(tmp_path / "bad", "raise SystemExit('no such thing')"), "good": command(tmp_path, waits)}
    started = time.monotonic()
    with pytest.raises(RunFailedError, match=r"run bad ended with exit code 1 \(no such thing\); its output is in"):
        run_all(runs, tmp_path, on_progress=lambda *_: None, workers=2)
    assert time.monotonic() - started < 30
