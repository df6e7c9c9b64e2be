"""`rerank recipe`: what it prints, runs, resumes and refuses."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner, Result

from rerank_env.commands import app
from rerank_env.rewards.errors import CheckpointError, InputError, UnknownNameError
from rerank_env.training import recipes
from rerank_env.training.recipes import Plan, Recipe, RunFolder, Stage, Work


class Sums:
    """A recipe of two stages that count and add."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked: dict[str, Any] = {}
        self.costs: dict[str, float] = {"count": 3.0, "add": 0.001}
        self.refused = ""

    def recipe(self, *, data: str, size: str, options: str | None, changes: Sequence[str]) -> Recipe:
        self.asked = {"data": data, "size": size, "options": options, "changes": list(changes)}
        limit = int(changes[0].partition("=")[2]) if changes else 5

        def count(work: Work) -> Mapping[str, Any]:
            self.calls.append("count")
            for n in range(work.settings["limit"]):
                work.tell("counting", n + 1, work.settings["limit"])
            work.say("counted by ones")
            (work.folder / "numbers.txt").write_text(" ".join(map(str, range(work.settings["limit"]))))
            return {"count": work.settings["limit"]}

        def add(work: Work) -> Mapping[str, Any]:
            self.calls.append("add")
            return {"sum": sum(map(int, (work.inputs["count"] / "numbers.txt").read_text().split()))}

        plan = Plan([Stage("count", count, settings={"limit": limit}), Stage("add", add, needs=("count",))])
        about = {"recipe": "sums", "data": data, "size": size, "settings": {"limit": limit}}
        return Recipe(
            plan,
            about,
            self.card,
            self.minutes,
            "two cores",
            check=self.check,
            ending=lambda folder: self.ended(folder),
        )

    def check(self, todo: Collection[str]) -> None:
        if "count" in todo and self.refused:
            raise InputError(self.refused)

    def minutes(self, folder: RunFolder, forgotten: Collection[str]) -> Mapping[str, float]:
        counted = {} if "count" in forgotten else folder.metrics("count")
        return {name: minutes + counted.get("count", 0) / 1e6 for name, minutes in self.costs.items()}

    def card(self, folder: RunFolder) -> str:
        return f"---\nlicense: apache-2.0\n---\n{self.ended(folder)}\nSettings: none.\n"

    def ended(self, folder: RunFolder) -> str:
        return f"The sum is {folder.metrics('add').get('sum', 'not known yet')}."


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sums:
    made, module = Sums(), ModuleType("recipe_of_sums")
    module.recipe = made.recipe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "recipe_of_sums", module)
    monkeypatch.setattr(recipes, "RECIPES", {"sums": "recipe_of_sums"})
    monkeypatch.chdir(tmp_path)
    return made


def rerank(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["recipe", "sums", "--data", "numbers", *arguments])


def test_a_recipe_runs_all_stages_prints_what_it_ends_with_and_is_not_repeated(sums: Sums) -> None:
    first = rerank("--size", "small", "--options", "first_stage=bm25")
    assert first.exit_code == 0, first.output
    assert sums.asked == {"data": "numbers", "size": "small", "options": "first_stage=bm25", "changes": []}
    assert "The sum is 10." in first.output and "foretold: about 3 minutes to go on two cores" in first.output
    assert "counted by ones" in first.stderr
    assert "license" not in first.output and "Settings" not in first.output  # the rest of the card is for readers of it
    assert Path("runs/sums-numbers-small/README.md").read_text().endswith("The sum is 10.\nSettings: none.\n")
    assert sums.calls == ["count", "add"]
    again = rerank("--size", "small")
    assert again.exit_code == 0 and "foretold: about 0 minutes" in again.output
    assert sums.calls == ["count", "add"]


def test_a_plan_runs_nothing(sums: Sums) -> None:
    found = rerank("--plan")
    assert found.exit_code == 0 and sums.calls == []
    assert not Path("runs").exists()
    for word in ("count", "new", "add", "waiting", "3.0"):
        assert word in found.output


def test_a_plan_that_a_stage_would_refuse_is_not_printed(sums: Sums) -> None:
    sums.refused = "limit is 0"
    found = rerank("--plan")
    assert isinstance(found.exception, InputError) and "limit is 0" in str(found.exception)
    assert "count" not in found.output and sums.calls == []


def test_what_nobody_foretold_is_said_and_not_taken_for_nothing(sums: Sums) -> None:
    sums.costs = {"add": 0.0}
    found = rerank("--plan", "--until", "count").output
    assert "not foretold: how long count will take" in found and "foretold: about" not in found
    sums.costs = {"count": 9022.0}
    assert "about 150 hours 22 minutes to go" in rerank("--plan").output


def test_stages_alone_up_to_one_and_again(sums: Sums) -> None:
    assert rerank("--until", "count").exit_code == 0 and sums.calls == ["count"]
    assert "not known yet" in Path("runs/sums-numbers-tiny/README.md").read_text()
    assert rerank("--only", "add").exit_code == 0 and sums.calls == ["count", "add"]
    plan = rerank("--restart", "count", "--plan")
    assert "waiting" in plan.output and sums.calls == ["count", "add"]
    assert rerank("--restart", "count").exit_code == 0 and sums.calls == ["count", "add", "count", "add"]


def test_a_stage_whose_records_were_damaged_can_be_restarted(sums: Sums) -> None:
    assert rerank().exit_code == 0
    stage = Path("runs/sums-numbers-tiny/count")
    for record in ("done.json", "metrics.json"):
        (stage / record).write_text("{")
    assert isinstance(rerank("--plan").exception, CheckpointError)
    done = rerank("--restart", "count")
    assert done.exit_code == 0 and "The sum is 10." in done.output
    assert sums.calls == ["count", "add", "count", "add"]


def test_changed_settings_are_refused_until_the_stage_is_restarted(sums: Sums) -> None:
    assert rerank().exit_code == 0
    refused = rerank("--set", "limit=3")
    assert isinstance(refused.exception, InputError) and "settings (limit was 5, now 3)" in str(refused.exception)
    assert "outdated" in refused.output and sums.calls == ["count", "add"]
    done = rerank("--set", "limit=3", "--restart", "count")
    assert done.exit_code == 0 and "The sum is 3." in done.output


def test_wrong_names_are_found_before_anything_starts(sums: Sums) -> None:
    for arguments in (["--only", "addd"], ["--restart", "coumt"], ["--until", "ad"]):
        assert isinstance(rerank(*arguments).exception, UnknownNameError)
    wrong = CliRunner().invoke(app, ["recipe", "summs"])
    assert isinstance(wrong.exception, UnknownNameError) and "did you mean 'sums'" in str(wrong.exception)
    assert sums.calls == [] and not Path("runs").exists()


def test_other_processes_of_a_launcher_print_and_write_nothing(sums: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rerank().exit_code == 0
    before = Path("runs/sums-numbers-tiny/run.json").read_bytes()
    monkeypatch.setattr("rerank_env.training.recipes.crew.Crew.wait", lambda self: None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = rerank("--set", "limit=5")
    assert found.exit_code == 0 and found.output == ""
    assert Path("runs/sums-numbers-tiny/run.json").read_bytes() == before
