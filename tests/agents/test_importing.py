"""What importing the package loads, offers and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from rerank_env import agents

ROOT = Path(__file__).parents[2]


def run(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_a_bare_import_from_the_repository_is_refused() -> None:
    if not (ROOT / "agents" / "__init__.py").is_file():
        pytest.skip("not run from the repository")
    result = run("import agents", ROOT)
    assert result.returncode == 1
    last_line = result.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError")
    assert "from rerank_env import agents" in last_line


def test_baselines_load_no_torch(tmp_path: Path) -> None:
    code = "import sys; from rerank_env.agents import Oracle, Policy; print('torch' in sys.modules)"
    result = run(code, tmp_path)
    assert result.stdout.strip() == "False", result.stderr


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "absent"),
    [("ListwisePolicy", "torch"), ("plackett_luce", "torch"), ("tensors", "torch"), ("ListwisePolicy", "safetensors")],
)
def test_without_an_extra_the_name_says_what_to_install(tmp_path: Path, name: str, absent: str) -> None:
    pytest.importorskip("torch")
    code = f"import sys; sys.modules[{absent!r}] = None; from rerank_env.agents import {name}"
    result = run(code, tmp_path)
    last_line = result.stderr.strip().splitlines()[-1]
    assert last_line.endswith(f'{name} needs {absent}, which is not installed; run: pip install "rerank-env[agents]"')
    assert "MissingExtraError" in last_line


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Listwise'"):
        _ = agents.Listwise


@pytest.mark.torch
def test_the_public_names_are_sorted_and_all_there() -> None:
    pytest.importorskip("torch")
    assert agents.__all__ == sorted(agents.__all__)
    assert set(agents.__all__) <= set(dir(agents))
    for name in agents.__all__:
        assert getattr(agents, name) is not None
