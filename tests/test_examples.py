"""Every example runs as a user would run it, and stays short enough to read."""

import re
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
    text = path.read_text(encoding="utf-8")
    for library, sign in (("torch", "torch"), ("trl", "training.language")):
        if sign in text:
            pytest.importorskip(library)
    ran = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_one_page(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


README = Path(__file__).parent.parent / "README.md"


@pytest.mark.slow
def test_the_code_in_the_readme_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("0.0 True")  # echoing earns exactly nothing under gain()
    assert len(block.splitlines()) <= 24


@pytest.mark.parametrize("folder", ["rewards", "rerank_env", "agents", "training"])
def test_the_file_tree_in_the_readme_names_every_file(folder: str) -> None:
    tree = re.findall(r"```\n(rewards/ .*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    part = re.findall(rf"^{folder}/.*?\n((?:  .*\n)+)", tree, re.MULTILINE)[0]
    named = set(re.findall(r"\b\w+\.py\b", part))
    on_disk = {path.name for path in (README.parent / folder).glob("*.py")} - {"__init__.py"}
    assert named == on_disk
