"""A lower layer loads no higher layer's libraries, and no package can be imported under a second name."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    *("torch", "trl", "transformers", "ray", "typer", "rich", "jinja2", "matplotlib", "hypothesis", "pandas"),
    *("scipy.stats", "cloudpickle", "pyarrow", "polars", "sklearn", "lightgbm", "bm25s"),
)
ROOT = Path(__file__).parent.parent


def run(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "module",
    [
        *("rerank_env", "rerank_env.rewards", "rerank_env.data", "rerank_env.clicks", "rerank_env.env"),
        *("rerank_env.prompts", "rerank_env.semantic_ids", "rerank_env.agents", "rerank_env.agents.retrieval"),
        *("rerank_env.agents.evidence", "rerank_env.data.readers"),
    ],
)
def test_importing_a_lower_layer_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    ran = run(code)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


def test_making_and_stepping_an_environment_loads_nothing_heavy() -> None:
    code = (
        "import sys, gymnasium as gym; env = gym.make('rerank_env:Rerank-v0'); env.reset(seed=0); "
        f"env.step(env.action_space.sample()); print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    ran = run(code)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["rewards", "agents", "training"])
def test_a_package_imported_without_its_root_is_refused_with_the_right_name(name: str) -> None:
    ran = run(f"import {name}", cwd=ROOT)
    assert ran.returncode != 0
    said = ran.stderr.strip().splitlines()[-1]
    assert f"rerank_env.{name}" in said or f"from rerank_env import {name}" in said


@pytest.mark.parametrize(
    "package",
    [
        *("rerank_env", "rerank_env.rewards", "rerank_env.data", "rerank_env.clicks", "rerank_env.agents"),
        *("rerank_env.prompts", "rerank_env.semantic_ids", "rerank_env.agents.evidence"),
        *("rerank_env.agents.semantic_ids", "rerank_env.agents.retrieval", "rerank_env.training"),
    ],
)
def test_every_name_in_all_can_be_imported(package: str) -> None:
    if package.endswith(("agents", "agents.semantic_ids", "retrieval", "training")):
        pytest.importorskip("torch")
    if package.endswith("retrieval"):
        pytest.importorskip("bm25s")
    code = (
        f"import importlib; m = importlib.import_module({package!r}); names = m.__all__; "
        "assert len(set(names)) == len(names); [getattr(m, name) for name in names]"
    )
    ran = run(code)
    assert ran.returncode == 0, ran.stderr
