"""The `rerank` command: what it prints, what it writes, how it fails."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

pytestmark = pytest.mark.torch

TRAIN = ["train", "dapo", "--data", "synthetic"]


def rerank(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "rerank_env", *map(str, arguments)]
    variables = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"} | environment
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=variables)


@pytest.mark.parametrize(
    "command",
    [["--help"], ["demo", "--help"], ["train", "--help"], ["eval", "--help"], ["bias", "--help"], ["data", "--help"]],
)
def test_help_teaches(command: list[str]) -> None:
    ran = rerank(*command)
    assert ran.returncode == 0
    assert len(ran.stdout.splitlines()) > 10


def test_describe_prints_every_split_with_its_baseline() -> None:
    ran = rerank("data", "describe", "synthetic")
    assert ran.returncode == 0, ran.stderr
    for word in ("train", "validation", "test", "incoming_ndcg@10", "head_room_share", "2000"):
        assert word in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["data", "describe", "sinthetic"], "did you mean 'synthetic'"),
        (["train", "dappo", "--data", "synthetic", "--directory", "x"], "did you mean 'dapo'"),
        ([*TRAIN, "--directory", "x", "--reward", "gian"], "did you mean 'gain'"),
        ([*TRAIN, "--directory", "x", "--reward", "gain +"], "gain +"),
        ([*TRAIN, "--directory", "x", "--learning-rate", "-1"], "above 0"),
        (["eval", "nowhere", "--data", "synthetic"], "nowhere"),
        (
            ["bias", "random", "--data", "synthetic", "--metric", "linear(start=1, end=0, steps=9)"],
            "without a schedule",
        ),
        (["bias", "incomin", "--data", "synthetic"], "no baseline, which are incoming, random, popularity, oracle"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(arguments: list[str], says: str, tmp_path: Path) -> None:
    ran = rerank(*arguments, cwd=tmp_path)
    lines = ran.stderr.strip().splitlines()
    assert ran.returncode == 2, ran.stderr
    assert len(lines) == 1 and lines[0].startswith("error: ") and says in lines[0]


def test_bias_of_a_baseline_is_printed_and_written(tmp_path: Path) -> None:
    output = tmp_path / "bias.json"
    ran = rerank("bias", "incoming", "--data", "synthetic", "--shuffles", "2", "--output", output)
    assert ran.returncode == 0, ran.stderr
    for word in ("Kendall tau", "flip rate", "answered first", "2 random orders"):
        assert word in ran.stdout
    assert json.loads(output.read_text())["slots"][0]["lift"]["value"] == 10.0
    oracle = rerank("bias", "oracle", "--data", "synthetic", "--shuffles", "2", "--metric", "ndcg")
    assert oracle.returncode == 0, oracle.stderr
    assert "1.0000 [1.0000, 1.0000]" in oracle.stdout


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    ran = rerank("--debug", "eval", "nowhere", "--data", "synthetic", cwd=tmp_path)
    assert ran.returncode == 2 and "Traceback" in ran.stderr


def test_an_unknown_option_is_exit_code_two() -> None:
    assert rerank("train", "dapo", "--sede", "3").returncode == 2


@pytest.mark.slow
def test_training_then_evaluating_prints_the_policy_beside_the_baselines(tmp_path: Path) -> None:
    for method in ("dapo", "supervised"):
        ran = rerank("train", method, "--data", "synthetic", "--steps", "3", "--directory", tmp_path / method)
        assert ran.returncode == 0, ran.stderr
        assert "3" in ran.stdout and (tmp_path / method / "policy" / "model.safetensors").is_file()
    output = tmp_path / "found.json"
    ran = rerank("eval", tmp_path / "dapo", tmp_path / "supervised", "--data", "synthetic", "--output", output)
    assert ran.returncode == 0, ran.stderr
    for row in ("incoming", "random", "oracle", "over the incoming order", "shuffled"):
        assert row in ran.stdout
    assert set(json.loads(output.read_text())["rows"]) >= {"incoming", "random", "oracle", str(tmp_path / "dapo")}
    other = rerank(
        "train", "dapo", "--data", "synthetic", "--steps", "3", "--seed", "1", "--directory", tmp_path / "dapo"
    )
    assert other.returncode == 2 and "seed" in other.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c_in_training_is_one_sentence_and_the_same_command_goes_on(
    tmp_path: Path, start: Callable[[list[str | Path]], subprocess.Popen[str]]
) -> None:
    process = start([sys.executable, "-m", "rerank_env", *TRAIN, "--steps", "400", "--directory", tmp_path / "run"])
    log = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size > 2000) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors and "go on" in errors
    stopped = len(log.read_text().splitlines())
    saved = int(re.findall(r"(\d+) steps are saved", errors)[0])
    assert 0 < saved <= stopped
    again = rerank(*TRAIN, "--steps", "400", "--directory", tmp_path / "run")
    assert again.returncode == 0, again.stderr
    assert len(log.read_text().splitlines()) == 400


@pytest.mark.slow
def test_the_demo_leaves_a_report_with_everything_it_promises(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    ran = rerank("demo", "--data", "synthetic", "--seeds", "2", "--steps", "4", "--directory", tmp_path / "demo")
    assert ran.returncode == 0, ran.stderr
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["n_test"] == 1000 and report["seeds"] == [0, 1]
    assert set(report["metrics"]) == {"incoming", "random", "oracle", "supervised", "policy"}
    assert set(report["paired"]["ndcg@10"]) == {"diff", "low", "high"}
    assert 0 <= report["identity_rate"] <= 1
    # The incoming order is the identity, and falls to chance when the candidates are shuffled.
    shuffled, metrics = report["shuffled"], report["metrics"]
    assert report["behaviour"]["incoming"]["identity_rate"] == 1
    assert shuffled["incoming"]["ndcg@10"]["value"] == pytest.approx(metrics["random"]["ndcg@10"]["value"], abs=0.03)
    assert shuffled["oracle"]["ndcg@10"]["value"] == pytest.approx(1)
    # Echoing earns exactly nothing under gain(), and alpha = 0.2 everywhere under naive().
    assert report["audit"]["gain"]["identity"]["mean_reward"] == 0
    assert report["audit"]["naive"]["identity"]["mean_reward"] == pytest.approx(0.2)
    page = (tmp_path / "demo" / "report.html").read_text()
    assert report["verdict"].split(":")[0] in page and page.count("<svg") == 1 and "Largest loss" in page


@pytest.mark.slow
def test_a_training_run_that_fails_inside_the_demo_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "demo" / "dapo-seed0" / "metrics.jsonl"
    blocked.mkdir(parents=True)  # a folder where the log should be
    ran = rerank("demo", "--data", "synthetic", "--seeds", "1", "--steps", "2", "--directory", tmp_path / "demo")
    assert ran.returncode == 2
    assert "training run dapo-seed0" in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_stopping_the_demo_stops_its_runs_and_the_same_command_goes_on(
    sent: str, tmp_path: Path, start: Callable[[list[str | Path]], subprocess.Popen[str]]
) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    options = ["demo", "--data", "synthetic", "--seeds", "1", "--steps", "120", "--directory", tmp_path / "demo"]
    process = start([sys.executable, "-m", "rerank_env", *options])
    log = tmp_path / "demo" / "dapo-seed0" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size > 2000) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.Signals[sent])  # to the parent alone, as a service manager would
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.Signals[sent]
    assert "Traceback" not in errors
    assert "go on" in errors or sent == "SIGTERM"
    stopped = len(log.read_text().splitlines())
    assert stopped < 120
    time.sleep(1)
    assert len(log.read_text().splitlines()) == stopped  # nobody trains on
    again = rerank(*options)
    assert again.returncode == 0, again.stderr
    assert len(log.read_text().splitlines()) == 120
    assert (tmp_path / "demo" / "report.json").is_file()
