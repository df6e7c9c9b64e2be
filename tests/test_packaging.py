"""What is built is what was tested: one import name, and the core tests pass from outside the tree.

The core tests run in a clean environment that holds the wheel, its three dependencies and the test tools only.
"""

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ("rewards", "env", "data")

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the source distribution, which is built from a copy of the tree."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("the source tree is not here")
    work = tmp_path_factory.mktemp("build")
    shutil.copytree(
        ROOT,
        work / "tree",
        symlinks=True,
        ignore=shutil.ignore_patterns(".git", ".venv*", "runs", "build", "*.egg-info"),
    )
    command = [sys.executable, "-m", "build", "--outdir", work / "dist", work / "tree"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (built,) = (work / "dist").glob("*.whl")
    return built


def test_the_wheel_has_one_top_level_name_and_all_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rerank_env"}
    for member in ("rewards/reward.py", "agents/listwise.py", "training/dapo.py", "data/requests.py", "py.typed"):
        assert f"rerank_env/{member}" in names
    assert "rerank_env/training/report.html.jinja" in names
    assert not any("test" in Path(name).name and "/rewards/testing" not in name for name in names)


def test_the_core_tests_pass_in_a_clean_environment_from_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", _without_torch(tmp_path), wheel, "hypothesis", "pytest", "pytest-timeout"], check=True)
    for name in CORE:
        shutil.copytree(ROOT / "tests" / name, tmp_path / "tests" / name)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")  # how hypothesis runs
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")  # the independent readers that tests compare with
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not network", "tests"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    where = "import rerank_env.rewards, sys; print(rerank_env.__file__); sys.exit('torch' in sys.modules)"
    found = subprocess.run([python, "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(tmp_path / "clean") in found.stdout


def _without_torch(folder: Path) -> Path:
    lines = (ROOT / "constraints" / "dev.txt").read_text(encoding="utf-8").splitlines()
    kept = folder / "constraints.txt"
    kept.write_text("\n".join(line for line in lines if not line.startswith("torch==")) + "\n", encoding="utf-8")
    return kept
