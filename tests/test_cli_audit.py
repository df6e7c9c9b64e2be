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
    assert lines[:4] == [
        "synthetic, validation: graded of 10",
        "audit of gain on 500 requests, texts as tagged-json",
        "  = ndcg@10.over_incoming().gate(valid, otherwise=-1.1)",
        "PASS: none of 57 attacks is paid",
    ]
    assert max(map(len, lines)) <= 80
    # yardsticks, some that pass, and a word on the rest
    assert {"oracle", "identity", "popularity"} <= {line.split()[0] for line in lines}
    assert not any(line.startswith("verbosity") for line in lines)
    assert "57 attacks pass, not all of them are shown" in lines
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["passed"] is True
    assert found["data"] == lines[0]
    # the popularity copy and the echo of the real prompts are among the attacks
    assert {"identity", "popularity", "prompt_echo", "oracle_empty"} <= {row["name"] for row in found["rows"]}


def test_a_reward_that_fails_is_exit_code_one_and_names_what_is_paid() -> None:
    ran = rerank("audit", "naive", *OPTIONS)
    assert ran.returncode == 1
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert lines[3].startswith("FAIL: ")
    assert max(map(len, lines)) <= 80
    place = next(n for n, line in enumerate(lines) if line.startswith("identity"))
    assert "+0.2000" in lines[place] and lines[place].endswith("FAIL")
    assert lines[place + 1].startswith("    takes ")


def test_a_part_that_this_text_format_cannot_meet_is_exit_code_three() -> None:
    ran = rerank("audit", "gain + 0.1*cites", *OPTIONS, "--all")
    assert ran.returncode == 3
    lines = ran.stdout.splitlines()
    assert lines[3].startswith("UNDECIDED: cites is never met in the text format 'list'")
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("oracle_override_text") for line in lines)


def test_the_help_says_what_the_exit_codes_mean() -> None:
    ran = rerank("audit", "--help")
    assert "0 PASS, 1 FAIL, 3 UNDECIDED; 2 for any mistake" in " ".join(ran.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gian", *OPTIONS], "did you mean 'gain'"),
        (["gain", *OPTIONS, "--text-format", "jsno"], "did you mean 'json'"),
        (["gain", *OPTIONS, "--output", "nowhere/found.json"], "nowhere is not a folder"),
        (["click_credit", *OPTIONS], "needs clicks"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(arguments: list[str], says: str) -> None:
    ran = rerank("audit", *arguments)
    lines = ran.stderr.strip().splitlines()
    assert ran.returncode == 2
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert says in lines[0]
