"""Names that load on first use: from a submodule, as a submodule, and where a library is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rerank_env import lazy
from rerank_env.rewards.errors import MissingExtraError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The globals of a made-up package with three submodules, one of which needs what nobody has."""
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "__init__.py").write_text("here = 0")
    (folder / "shapes.py").write_text("Circle = 'a circle'")
    (folder / "needy.py").write_text("import a_library_nobody_has.part")
    (folder / "broken.py").write_text("import made_up.nothing")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("made_up")
    yield vars(module)
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up"]:
        del sys.modules[name]


HOMES = {"Circle": "shapes", "shapes": "shapes", "Square": "needy", "needy": "needy", "broken": "broken"}


def test_a_name_comes_from_its_home_and_is_kept(package) -> None:
    load, listed = lazy.names(package, HOMES)
    assert load("Circle") == "a circle"
    assert package["Circle"] == "a circle"
    assert load("shapes").__name__ == "made_up.shapes"
    assert listed() == sorted({*package, *HOMES})
    assert "here" in listed()


def test_a_name_without_a_home_is_an_attribute_error(package) -> None:
    load, _ = lazy.names(package, HOMES)
    with pytest.raises(AttributeError, match="^module 'made_up' has no attribute 'Cirle'$"):
        load("Cirle")


@pytest.mark.parametrize("name", ["Square", "needy"])
def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it(package, name: str) -> None:
    load, _ = lazy.names(package, HOMES, extra="shapes")
    with pytest.raises(
        MissingExtraError,
        match=rf'^{name} needs a_library_nobody_has, which is not installed; run: pip install "rerank-env\[shapes\]"$',
    ):
        load(name)
    without, _ = lazy.names(package, HOMES)
    with pytest.raises(ModuleNotFoundError, match="a_library_nobody_has"):
        without(name)


def test_a_module_of_the_package_itself_that_is_missing_is_a_bug_and_no_extra(package) -> None:
    load, _ = lazy.names(package, HOMES, extra="shapes")
    with pytest.raises(ModuleNotFoundError, match=r"made_up\.nothing") as caught:
        load("broken")
    assert not isinstance(caught.value, MissingExtraError)


def test_it_loads_nothing_heavy() -> None:
    code = "import sys; from rerank_env import lazy; print(sorted({'torch', 'safetensors'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stderr
