"""The writer of measured results keeps to the house form."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROW = {"name": "ours", "metrics": {"ratio": {"value": 2.0, "low": 1.0, "high": 3.0}}}


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", ROOT / "benchmarks" / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(writer: ModuleType, directory: Path, **changes: Any) -> Path:
    arguments = {"command": "c", "data": "d", "n": 3, "seeds": [0, 1], "rows": [ROW], "goal": "g", "met": True}
    return writer.record(changes.pop("name", "some-result"), directory=directory, **(arguments | changes))


def test_a_result_has_the_house_form(writer: ModuleType, tmp_path: Path) -> None:
    result = json.loads(write(writer, tmp_path).read_text())
    assert list(result) == [
        "command",
        "commit",
        "date",
        "versions",
        "machine",
        "data",
        "n",
        "seeds",
        "rows",
        "goal",
        "met",
    ]
    assert result["rows"] == [ROW]
    assert result["met"] is True
    assert {"python", "numpy", "gymnasium"} <= result["versions"].keys()
    assert result["machine"]["cores"] >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["some-result.json"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "Some Result"}, "lower-case words"),
        ({"rows": []}, "no rows"),
        ({"rows": [{"name": "ours"}]}, "exactly a name and metrics"),
        ({"rows": [{"name": "ours", "metrics": {"m": {"value": 1.0}}}]}, "give value, low and high"),
        ({"rows": [{"name": "ours", "metrics": {"m": {"value": 4.0, "low": 1.0, "high": 3.0}}}]}, "low <= value"),
        ({"rows": [{"name": "ours", "metrics": {"m": dict.fromkeys(("value", "low", "high"), float("nan"))}}]}, "nan"),
    ],
)
def test_another_form_is_refused_and_leaves_the_earlier_result(
    writer: ModuleType, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    before = write(writer, tmp_path).read_text()
    with pytest.raises(ValueError, match=sentence):
        write(writer, tmp_path, **changes)
    assert (tmp_path / "some-result.json").read_text() == before


def test_repeats_are_summed_up_by_median_and_range(writer: ModuleType) -> None:
    assert writer.spread([3.0, 1.0, 2.0, 10.0]) == {"value": 2.5, "low": 1.0, "high": 10.0}
