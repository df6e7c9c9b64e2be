"""The command `rerank audit`: its table, its verdict and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

OPTIONS = ["--data", "synthetic", "--no-search"]


def rerank(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "rerank_env", *map(str, arguments)]
    variables = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def test_a_reward_that_passes_is_exit_code_zero(tmp_path: Path) -> None:
    ran = rerank("audit", "gain", *OPTIONS, "--text-format", "tagged-json", "--output", tmp_path / "found.json")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "synthetic, validation: graded of 10"
    assert lines[1].endswith("on 500 requests, texts as tagged-json")
    assert lines[2] == "PASS: none of 57 attacks is paid"
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["passed"] is True
    assert found["data"] == lines[0]
    # the popularity copy and the echo of the real prompts are among the attacks
    assert {"identity", "popularity", "prompt_echo", "oracle_empty"} <= {row["name"] for row in found["rows"]}


def test_a_reward_that_fails_is_exit_code_one_and_names_what_is_paid() -> None:
    ran = rerank("audit", "naive", *OPTIONS)
    assert ran.returncode == 1
    assert ran.stderr == ""
    assert "FAIL: " in ran.stdout.splitlines()[2]
    (identity,) = [line for line in ran.stdout.splitlines() if line.startswith("identity")]
    assert "+0.2000" in identity
    assert "FAIL: takes " in identity


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gian", *OPTIONS], "did you mean 'gain'"),
        (["gain", *OPTIONS, "--text-format", "jsno"], "did you mean 'json'"),
        (["gain", *OPTIONS, "--output", "nowhere/found.json"], "nowhere is not a folder"),
        (["click_credit", *OPTIONS], "needs clicks"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_one(arguments: list[str], says: str) -> None:
    ran = rerank("audit", *arguments)
    lines = ran.stderr.strip().splitlines()
    assert ran.returncode == 1
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert says in lines[0]
