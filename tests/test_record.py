"""The writer of measured results keeps to the house form."""

import json
from pathlib import Path
from typing import Any

import pytest
import record

ROW = {"name": "ours", "metrics": {"ratio": {"value": 2.0, "low": 1.0, "high": 3.0}}}


def write(directory: Path, **changes: Any) -> Path:
    arguments = {"command": "c", "data": "d", "n": 3, "seeds": [0, 1], "rows": [ROW], "goal": "g", "met": True}
    return record.record(changes.pop("name", "some-result"), directory=directory, **(arguments | changes))


def test_a_result_has_the_house_form(tmp_path: Path) -> None:
    result = json.loads(write(tmp_path).read_text())
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
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    before = write(tmp_path).read_text()
    with pytest.raises(ValueError, match=sentence):
        write(tmp_path, **changes)
    assert (tmp_path / "some-result.json").read_text() == before


def test_a_dry_run_records_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = {"command": "c", "data": "d", "n": 3, "seeds": [0], "rows": [ROW], "goal": "g", "met": True}
    for arguments in (["--dry-run"], []):
        options = record.options_of("What it is.").parse_args([*arguments, "--directory", str(tmp_path)])
        assert [*tmp_path.iterdir()] == []
        record.finish(options, "some-result", **result)
    assert [path.name for path in tmp_path.iterdir()] == ["some-result.json"]
    assert capsys.readouterr().out == "wrote some-result.json\n"


def test_repeats_are_summed_up_by_median_and_range() -> None:
    assert record.spread([3.0, 1.0, 2.0, 10.0]) == {"value": 2.5, "low": 1.0, "high": 10.0}
