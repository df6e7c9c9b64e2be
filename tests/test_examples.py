"""Every example runs as a user would run it, and stays short enough to read."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"score_a_ranking", "custom_reward", "dapo_one_page"}


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints(path: Path, tmp_path: Path) -> None:
    if "torch" in path.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    ran = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_one_page(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
