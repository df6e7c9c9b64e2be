"""Stages that are taken over from another run: which, what is said, and what a kill or a harmed file leads to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.training.recipes import adopting
from rerank_env.training.recipes.adopting import FROM, Adopted, foreseen, source_of
from rerank_env.training.recipes.folder import RunFolder, left_in
from rerank_env.training.recipes.stages import FINISHED, Plan, Stage, Work

Run = Callable[[Work], Mapping[str, Any]]

KILLED = """
import os, signal, sys
from pathlib import Path
from rerank_env.training.recipes import adopting
from rerank_env.training.recipes.folder import RunFolder

linked, link = [], os.link

def killing(there, here):
    link(there, here)
    linked.append(here)
    if len(linked) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

os.link = killing
source = RunFolder(Path(sys.argv[1]))
adopting.take(source, source.record("draw"), Path(sys.argv[2]))
"""


class World:
    """Three stages of numbers: drawn, squared, and summed; the first leaves several files, one in a folder."""

    def __init__(self, folder: Path) -> None:
        self.source, self.own = RunFolder(folder / "first"), RunFolder(folder / "second")
        self.calls: list[str] = []
        self.said: list[str] = []

    def plan(self, *, numbers: int = 3, adopts: bool = False, source: RunFolder | None = None) -> Plan:
        def given(name: str, run: Run) -> Run:
            return Adopted(name, run, lambda _: source) if adopts else run

        return Plan(
            [
                Stage("draw", given("draw", self.draw), settings={"numbers": numbers}),
                Stage("square", given("square", self.square), needs=("draw",)),
                Stage("total", self.total, needs=("square",)),
            ]
        )

    def draw(self, work: Work) -> Mapping[str, Any]:
        self.calls.append("draw")
        for n in range(work.settings["numbers"]):
            (work.folder / f"{n}.txt").write_text(str(n))
        (work.folder / "inner").mkdir(exist_ok=True)
        (work.folder / "inner" / "all.json").write_text(json.dumps(list(range(work.settings["numbers"]))))
        work.training.mkdir(exist_ok=True)
        (work.training / "state.bin").write_bytes(b"large")
        return {"numbers": work.settings["numbers"]}

    def square(self, work: Work) -> Mapping[str, Any]:
        self.calls.append("square")
        drawn = json.loads((work.inputs["draw"] / "inner" / "all.json").read_text())
        (work.folder / "squares.json").write_text(json.dumps([n * n for n in drawn]))
        return {}

    def total(self, work: Work) -> Mapping[str, Any]:
        self.calls.append("total")
        return {"total": sum(json.loads((work.inputs["square"] / "squares.json").read_text()))}

    def run(self, plan: Plan, **told: Any) -> Mapping[str, Any]:
        return plan.run(self.own, on_said=self.said.append, about={"recipe": "second"}, **told)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.plan().run(made.source, about={"recipe": "first"})
    made.calls.clear()
    return made


def everything(folder: Path) -> dict[str, tuple[bytes, float]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_is_the_same_there_is_taken_over_and_not_run(world: World) -> None:
    before = everything(world.source.directory)
    plan = world.plan(adopts=True, source=world.source)
    assert foreseen(plan, ["draw", "square"], world.own, world.source) == {"draw": "", "square": ""}
    found = world.run(plan)
    assert world.calls == ["total"] and found["total"] == {"total": 0 + 1 + 4}
    assert found["draw"] == {"numbers": 3, FROM: "first"}
    assert world.said == [f"{name}: taken from {world.source.directory}" for name in ("draw", "square")]
    for name in ("draw", "square"):
        ours, theirs = world.own.record(name), world.source.record(name)
        assert ours and theirs and (ours.result, ours.fingerprint) == (theirs.result, theirs.fingerprint)
    assert os.path.samefile(world.own.stage("draw") / "0.txt", world.source.stage("draw") / "0.txt")
    assert not world.own.stage("draw").joinpath("training").exists()  # what a training goes on from is no result
    assert everything(world.source.directory) == before
    assert foreseen(plan, ["draw", "square"], world.own, world.source) == {}  # nothing is left to be made
    world.run(plan)
    assert world.calls == ["total"]


def test_what_differs_is_made_anew_and_it_is_said_why(world: World) -> None:
    plan = world.plan(numbers=4, adopts=True, source=world.source)
    why = foreseen(plan, ["draw", "square"], world.own, world.source)
    assert why["draw"] == "made it from other settings (numbers was 3, now 4)"
    assert why["square"] == "is compared with once 'draw' is made"
    assert world.run(plan)["total"] == {"total": 0 + 1 + 4 + 9}
    assert world.calls == ["draw", "square", "total"]
    assert world.said == [
        f"draw: made anew, as {world.source.directory} made it from other settings (numbers was 3, now 4)",
        f"square: made anew, as {world.source.directory} made it from other results of stages (draw)",
    ]


def test_what_is_not_finished_there_is_made_here_and_what_rests_on_it_is_taken_where_it_is_equal(world: World) -> None:
    (world.source.stage("draw") / "1.txt").unlink()
    plan = world.plan(adopts=True, source=world.source)
    assert foreseen(plan, ["draw"], world.own, world.source) == {"draw": "has not finished it, or lost files of it"}
    world.run(plan)
    assert world.calls == ["draw", "total"]  # what was drawn came out equal, so its squares are those there
    nowhere = World(world.own.directory.parent / "nowhere")
    assert foreseen(nowhere.plan(), ["draw"], nowhere.own, None) == {"draw": "is not there"}


def test_a_file_that_was_harmed_there_and_kept_its_size_is_named(world: World) -> None:
    (world.source.stage("draw") / "1.txt").write_text("7")
    with pytest.raises(CheckpointError, match=r"1.txt is not what stage 'draw' left.* --set gr2=none"):
        world.run(world.plan(adopts=True, source=world.source))
    assert world.calls == [] and world.own.record("draw") is None
    world.run(world.plan(adopts=True, source=None))
    assert world.calls == ["draw", "square", "total"]
    assert (world.source.stage("draw") / "1.txt").read_text() == "7"  # nothing was written through a shared file


def test_killed_in_the_middle_of_a_take_over_it_begins_again_or_is_run_without_touching_the_other_run(
    world: World,
) -> None:
    before = everything(world.source.directory)
    plan = world.plan(adopts=True, source=world.source)
    for source in (world.source, None):
        world.own.begin("draw", **plan.stages["draw"].begun({}))
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(world.source.directory), str(world.own.stage("draw"))], check=False
        )
        assert killed.returncode == -signal.SIGKILL
        assert len(left_in(world.own.stage("draw"))) == 2 and world.own.record("draw") is None
        world.run(world.plan(adopts=True, source=source), until="draw")
        record, there = world.own.record("draw"), world.source.record("draw")
        assert record and there and record.result == there.result
        assert everything(world.source.directory) == before
        shared = os.path.samefile(world.own.stage("draw") / "0.txt", world.source.stage("draw") / "0.txt")
        assert shared == (source is not None) == (world.calls == [])


def test_files_are_copied_where_the_disk_has_no_links(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(there: Path, here: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    world.run(world.plan(adopts=True, source=world.source))
    assert world.calls == ["total"]
    assert not os.path.samefile(world.own.stage("draw") / "0.txt", world.source.stage("draw") / "0.txt")


def test_a_restarted_stage_is_taken_over_again_unless_nothing_is_to_be_taken(world: World) -> None:
    plan = world.plan(adopts=True, source=world.source)
    world.run(plan)
    assert foreseen(plan, ["draw", "square"], world.own, world.source, forgotten=["draw", "square"]) == {
        "draw": "", "square": ""
    }  # fmt: skip
    world.run(plan, restart=["draw"])
    assert world.calls == ["total", "total"]
    world.run(world.plan(adopts=True, source=None), restart=["draw"])
    assert world.calls == ["total", "total", "draw", "square", "total"]
    assert world.source.record("draw") is not None


def test_the_run_to_take_from_is_the_one_named_or_the_one_beside(tmp_path: Path) -> None:
    own = tmp_path / "runs" / "own"
    own.mkdir(parents=True)
    assert source_of("", own, usual="gr2-x") is None and source_of("none", own, usual="own") is None
    beside = tmp_path / "runs" / "gr2-x"
    beside.mkdir()
    for given in ("", str(beside)):
        found = source_of(given, own, usual="gr2-x")
        assert found is not None and found.directory.resolve() == beside.resolve()
    with pytest.raises(InputError, match="no such folder; give that of a run of gr2, or 'none'"):
        source_of(str(tmp_path / "nowhere"), own, usual="gr2-x")
    with pytest.raises(InputError, match="is the folder of this run"):
        source_of(str(own), own, usual="gr2-x")


def test_a_stage_with_other_settings_here_is_left_to_the_plan_to_refuse(world: World) -> None:
    world.run(world.plan(adopts=True, source=world.source))
    later = world.plan(numbers=5, adopts=True, source=world.source)
    assert later.states(world.own)["draw"] != FINISHED
    assert "draw" not in foreseen(later, ["draw", "square"], world.own, world.source)
    with pytest.raises(InputError, match="numbers was 3, now 5"):
        world.run(later)
    assert adopting.TAKEN in {path.name for path in world.own.stage("draw").iterdir()}  # it stays as it was
