"""The package says exactly what is importable, and needs torch only where it must."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import rerank_env.training

ROOT = Path(rerank_env.training.__file__).resolve().parent.parent

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from rerank_env import load
from rerank_env.rewards.errors import MissingExtraError
from rerank_env.training import advantages, evaluate
assert advantages.group_relative([[1.0, 0.0]]).tolist() == [[1.0, -1.0]]
print(evaluate.evaluate(load("synthetic", split="test", requests=40), {}, seed=0, resamples=10).n_requests)
try:
    from rerank_env.training import dapo
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.torch
def test_all_is_sorted_and_importable() -> None:
    pytest.importorskip("torch")
    names = rerank_env.training.__all__
    assert names == sorted(names)
    for name in names:
        assert getattr(rerank_env.training, name) is not None
    assert set(names) <= set(dir(rerank_env.training))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'grpo'"):
        rerank_env.training.grpo  # noqa: B018


def test_evaluation_works_without_torch_and_training_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    size, sentence = done.stdout.splitlines()
    assert size == "20"
    assert sentence == 'dapo needs torch, which is not installed; run: pip install "rerank-env[training]"'


def test_the_folder_refuses_to_be_imported_under_its_bare_name(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (ROOT / "training").is_dir():
        pytest.skip("an installed wheel has no folder of that name")
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(ImportError, match=r"write `from rerank_env import training`"):
        importlib.import_module("training")
