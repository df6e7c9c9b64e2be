"""Stages: which are run, which are not repeated, what a kill leaves, and what is refused.

Longer than other files because every test runs the same few stages, which are made here.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError, InputError, UnknownNameError
from rerank_env.training.recipes.folder import RunFolder
from rerank_env.training.recipes.stages import FINISHED, INTERRUPTED, NEW, OUTDATED, WAITING, Plan, Stage, Work

SLOW = """
import os, sys, time
from pathlib import Path
from rerank_env import durable
from rerank_env.training.recipes.folder import RunFolder
from rerank_env.training.recipes.stages import Plan, Stage

def counted(work):
    work.training.mkdir(parents=True, exist_ok=True)
    done = work.training / "done.txt"
    n = int(done.read_text()) if done.exists() else 0
    while n < 40:
        n += 1
        with (work.folder.parent / "paid.txt").open("a") as file:
            file.write(f"{n}\\n")
        durable.replace(done, str(n).encode())
        time.sleep(0.05)
    (work.folder / "sum.txt").write_text(str(n))
    return {"n": n}

def doubled(work):
    n = int((work.inputs["count"] / "sum.txt").read_text())
    (work.folder / "double.txt").write_text(str(2 * n))
    return {"n": 2 * n}

Plan([Stage("count", counted), Stage("double", doubled, needs=("count",))]).run(RunFolder(Path(sys.argv[1])))
"""

TOGETHER = """
import sys
from pathlib import Path
from rerank_env.training.recipes import Plan, RunFolder, Stage

def alone(work):
    (work.folder / "three.txt").write_text("3")
    return {}

def together(work):
    from accelerate.utils import gather_object
    return {"total": sum(gather_object([int((work.inputs["alone"] / "three.txt").read_text()) + work.crew.rank]))}

plan = Plan([Stage("alone", alone), *(Stage(n, together, needs=("alone",), together=True) for n in ("one", "two"))])
plan.run(RunFolder(Path(sys.argv[1])), only=sys.argv[2].split(","))
"""


class World:
    """Three stages that do real, small sums and say when they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder(folder)
        self.calls: list[str] = []
        self.fails: set[str] = set()

    def plan(self, *, numbers: int = 4, power: int = 2) -> Plan:
        return Plan(
            [
                Stage("draw", self.draw, settings={"numbers": numbers}),
                Stage("powers", self.powers, needs=("draw",), settings={"power": power, "names": ("a", "b")}),
                Stage("other", self.other, needs=("draw",)),
                Stage("total", self.total, needs=("powers",)),
            ]
        )

    def called(self, work: Work) -> None:
        self.calls.append(work.folder.name)
        if work.folder.name in self.fails:
            raise ValueError(work.folder.name)

    def draw(self, work: Work) -> Mapping[str, Any]:
        self.called(work)
        drawn = np.random.default_rng(0).integers(9, size=work.settings["numbers"])
        (work.folder / "drawn.json").write_text(json.dumps(drawn.tolist()))
        return {"numbers": len(drawn)}

    def powers(self, work: Work) -> Mapping[str, Any]:
        self.called(work)
        drawn = json.loads((work.inputs["draw"] / "drawn.json").read_text())
        (work.folder / "powers.json").write_text(json.dumps([n ** work.settings["power"] for n in drawn]))
        return {}

    def other(self, work: Work) -> Mapping[str, Any]:
        self.called(work)
        return {"seconds of no use": 0}

    def total(self, work: Work) -> Mapping[str, Any]:
        self.called(work)
        return {"total": sum(json.loads((work.inputs["powers"] / "powers.json").read_text()))}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "run")


def test_every_stage_runs_once_in_order_and_the_metrics_come_back(world: World) -> None:
    found = world.plan().run(world.folder)
    assert world.calls == ["draw", "powers", "other", "total"]
    drawn = np.random.default_rng(0).integers(9, size=4)
    assert found["total"] == {"total": int((drawn**2).sum())}
    assert world.plan().run(world.folder) == found
    assert world.calls == ["draw", "powers", "other", "total"]  # nothing was repeated


def test_an_unfinished_stage_is_run_again_and_finished_ones_are_not(world: World) -> None:
    world.fails = {"powers"}
    with pytest.raises(ValueError, match="powers"):
        world.plan().run(world.folder)
    assert world.plan().states(world.folder) == {
        "draw": FINISHED, "powers": INTERRUPTED, "other": NEW, "total": WAITING
    }  # fmt: skip
    world.fails = set()
    world.plan().run(world.folder)
    assert world.calls == ["draw", "powers", "powers", "other", "total"]


def test_other_settings_are_refused_with_their_name_until_the_stage_is_restarted(world: World) -> None:
    world.plan(power=2).run(world.folder)
    assert world.plan(power=3).states(world.folder)["powers"] == OUTDATED
    with pytest.raises(
        InputError, match=r"'powers' .* settings \(power was 2, now 3\); make it anew with --restart powers"
    ):
        world.plan(power=3).run(world.folder)
    assert (world.folder.stage("powers") / "powers.json").is_file()  # nothing was lost
    found = world.plan(power=3).run(world.folder, restart=["powers"])
    assert found["total"]["total"] == int((np.random.default_rng(0).integers(9, size=4) ** 3).sum())
    assert world.calls == ["draw", "powers", "other", "total", "powers", "total"]  # and what depends on it, no more


def test_changed_files_of_an_input_are_noticed(world: World) -> None:
    plan = world.plan()
    plan.run(world.folder)
    world.folder.forget("draw")
    later = Plan([Stage("draw", lambda work: (work.folder / "drawn.json").write_text("[1]") and {},
                        settings={"numbers": 4}), *list(plan.stages.values())[1:]])  # fmt: skip
    later.run(world.folder, only=["draw"])
    with pytest.raises(InputError, match=r"results of stages \(draw\)"):
        later.run(world.folder)


def test_an_input_made_anew_with_equal_files_leaves_what_depends_on_it_finished(world: World) -> None:
    world.plan().run(world.folder)
    (world.folder.stage("draw") / "drawn.json").unlink()  # lost, so it is made anew, and comes out equal
    world.plan().run(world.folder)
    assert world.calls == ["draw", "powers", "other", "total", "draw"]


def test_a_finished_stage_whose_file_was_changed_says_which_before_it_is_made_again(world: World) -> None:
    world.plan().run(world.folder)
    drawn, said = world.folder.stage("draw") / "drawn.json", list[str]()
    drawn.write_text("[]")
    world.plan().run(world.folder, on_said=said.append)
    assert said == [f"{drawn} is no longer what stage 'draw' left, so the stage is made again"]


def test_settings_that_differ_are_named_by_group_with_both_values(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    Plan([Stage("one", lambda work: {}, settings={"ids": {"epochs": 2, "text": "a"}})]).run(folder)
    with pytest.raises(InputError, match=r"settings \(ids.epochs was 2, now 30, beta was not given, now 0.5\)"):
        Plan([Stage("one", lambda work: {}, settings={"ids": {"epochs": 30, "text": "a"}, "beta": 0.5})]).run(folder)


def test_a_stage_that_is_left_out_is_told_from_one_that_there_is_not(world: World) -> None:
    plan = Plan([Stage("one", lambda work: {})], left_out={"two": "no row needs it"})
    for chosen in (
        lambda: plan.chosen(until="two"),
        lambda: plan.chosen(only=["two"]),
        lambda: plan.dependents(["two"]),
    ):
        with pytest.raises(InputError, match="stage 'two' is left out of this run: no row needs it"):
            chosen()


def test_a_stage_is_not_built_on_what_other_settings_made(world: World) -> None:
    world.plan(numbers=4).run(world.folder, until="powers", about={"numbers": 4})
    for only in (["powers"], ["other"]):
        with pytest.raises(
            InputError, match=r"needs 'draw', which was made from other settings \(numbers was 4, now 5\); .*--restart"
        ):
            world.plan(numbers=5).run(world.folder, only=only, about={"numbers": 5})
    with pytest.raises(InputError, match="'total' needs 'draw', which was made from other settings"):
        world.plan(numbers=5).run(world.folder, only=["total"], about={"numbers": 5})  # by way of powers
    assert world.calls == ["draw", "powers"]
    assert world.folder.described()["numbers"] == 4  # what was refused is not written down as the run's
    world.plan(numbers=5).run(world.folder, restart=["draw"], about={"numbers": 5})
    assert world.calls == ["draw", "powers", "draw", "powers", "other", "total"]


def test_what_is_refused_is_refused_before_anything_is_run_or_forgotten(world: World) -> None:
    world.plan(power=2).run(world.folder, until="powers")
    with pytest.raises(InputError, match="'powers' .* settings"):
        world.plan(power=3).run(world.folder, only=["powers", "other"])
    with pytest.raises(InputError, match="'powers' .* settings"):
        world.plan(power=3).run(world.folder)  # other comes behind it, and does not rest on it
    with pytest.raises(InputError, match="'powers' needs 'draw', which is not finished"):
        world.plan().run(world.folder, only=["powers"], restart=["draw"])
    assert world.calls == ["draw", "powers"] and world.plan().states(world.folder)["powers"] == FINISHED


def test_a_directory_that_no_run_made_is_not_restarted(tmp_path: Path) -> None:
    world = World(tmp_path)
    (tmp_path / "powers").mkdir()
    (tmp_path / "powers" / "precious.txt").write_text("mine")
    for restart in (["powers"], ["draw"]):  # by its name, or because it depends on one
        with pytest.raises(InputError, match="made by no stage 'powers' of a run"):
            world.plan().run(world.folder, until="powers", restart=restart, about={"recipe": "world"})
    assert not (tmp_path / "run.json").exists()  # which would make it one
    with pytest.raises(InputError, match="has files that no stage 'powers' left"):
        world.plan().run(world.folder, about={"recipe": "world"})
    with pytest.raises(InputError, match="made by no stage 'powers' of a run"):
        world.plan().run(world.folder, restart=["powers"], about={"recipe": "world"})
    assert (tmp_path / "powers" / "precious.txt").read_text() == "mine" and world.calls == ["draw"]


def test_an_input_that_was_harmed_and_kept_its_size_is_not_built_on(world: World) -> None:
    world.plan().run(world.folder, until="powers")
    drawn = world.folder.stage("draw") / "drawn.json"
    whole = drawn.read_bytes()
    drawn.write_bytes(whole.replace(whole[1:2], b"9"))
    for name in ("other", "total"):  # straight from it, or by way of another
        with pytest.raises(CheckpointError, match=r"drawn.json is not what stage 'draw' left.*--restart draw"):
            world.plan().run(world.folder, only=[name])
    assert world.plan().states(world.folder)["draw"] == FINISHED  # looking reads no file
    drawn.write_bytes(whole)
    world.plan().run(world.folder)
    assert world.calls == ["draw", "powers", "other", "total"]


def test_files_are_hashed_once_a_run_and_only_for_a_stage_that_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.plan().run(world.folder, until="powers")
    looked: list[str] = []
    monkeypatch.setattr(RunFolder, "intact", lambda self, name: looked.append(name))
    world.plan().run(world.folder)
    assert looked == ["draw", "powers"]  # for other and total together
    world.plan().run(world.folder)
    assert looked == ["draw", "powers"]


def test_another_version_of_a_stage_makes_its_result_outdated(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    Plan([Stage("one", lambda work: {})]).run(folder)
    with pytest.raises(InputError, match=r"code \(another version of the stage\)"):
        Plan([Stage("one", lambda work: {}, version=2)]).run(folder)


def test_only_and_until_choose_and_inputs_have_to_be_there(world: World) -> None:
    with pytest.raises(InputError, match="'powers' needs 'draw', which is not finished"):
        world.plan().run(world.folder, only=["powers"])
    world.plan().run(world.folder, until="powers")
    assert world.calls == ["draw", "powers"]
    world.plan().run(world.folder, only=["total"])
    assert world.calls == ["draw", "powers", "total"]
    with pytest.raises(UnknownNameError, match="did you mean 'total'"):
        world.plan().run(world.folder, only=["totall"])
    with pytest.raises(InputError, match="both only and until"):
        world.plan().run(world.folder, only=["draw"], until="draw")
    with pytest.raises(UnknownNameError, match="unknown stage"):
        world.plan().run(world.folder, restart=["nothing"])


def test_plans_that_cannot_be_are_refused() -> None:
    one = Stage("one", lambda work: {})
    with pytest.raises(InputError, match="two stages are called 'one'"):
        Plan([one, one])
    with pytest.raises(InputError, match="needs 'two', which is not before it"):
        Plan([Stage("one", lambda work: {}, needs=("two",)), Stage("two", lambda work: {})])
    with pytest.raises(InputError, match="small letters, digits and hyphens"):
        Stage("../one", lambda work: {})
    with pytest.raises(InputError, match="no plain data"):
        Stage("one", lambda work: {}, settings={"rate": float("nan")})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_sentence_and_the_stage_goes_on_later(world: World, number: int) -> None:
    def full(work: Work) -> Mapping[str, Any]:
        raise OSError(number, os.strerror(number))

    with pytest.raises(CheckpointError, match=f"'one' could not write \\({os.strerror(number)}\\)"):
        Plan([Stage("one", full)]).run(world.folder)
    assert Plan([Stage("one", full)]).states(world.folder) == {"one": INTERRUPTED}


def test_two_runs_cannot_share_a_folder(world: World) -> None:
    with durable.held(world.folder.directory), pytest.raises(CheckpointError, match="in use by another run"):
        world.plan().run(world.folder)
    assert world.calls == []


def test_what_comes_afterwards_comes_also_where_a_stage_fails(world: World) -> None:
    told: list[int] = []
    world.fails = {"other"}
    with pytest.raises(ValueError, match="other"):
        world.plan().run(world.folder, afterwards=lambda: told.append(len(world.calls)))
    assert told == [3]


def test_what_fails_afterwards_does_not_hide_why_the_run_ended(world: World) -> None:
    def fails() -> None:
        raise CheckpointError("no card can be written")

    world.fails = {"other"}
    with pytest.raises(ValueError, match="^other$"):
        world.plan().run(world.folder, afterwards=fails)
    world.fails = set()
    with pytest.raises(CheckpointError, match="no card can be written"):
        world.plan().run(world.folder, afterwards=fails)


def test_what_forgotten_stages_left_is_not_read_for_their_state(world: World) -> None:
    world.plan().run(world.folder)
    (world.folder.stage("powers") / "done.json").write_text("{")
    with pytest.raises(CheckpointError, match="restart that stage"):
        world.plan().states(world.folder)
    assert world.plan().states(world.folder, forgotten=["powers", "total"]) == {
        "draw": FINISHED, "powers": NEW, "other": FINISHED, "total": WAITING
    }  # fmt: skip


def test_several_processes_are_refused_for_a_stage_that_runs_in_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rerank_env.training.recipes.crew.Crew.wait", lambda self: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match="'draw' runs in one process"):
        world.plan().run(world.folder)
    monkeypatch.setenv("RANK", "1")  # the other one reads, and writes nothing
    together = Plan([Stage("sum", lambda work: {"rank": work.crew.rank}, together=True)])
    together.run(world.folder)
    assert not (world.folder.directory / "sum").exists()
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(InputError, match="RANK is 'x'"):
        together.run(world.folder)


def test_killed_in_the_middle_a_run_goes_on_and_nothing_is_done_twice(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-W", "error", "-c", SLOW, str(run)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while not ((run / "paid.txt").is_file() and len((run / "paid.txt").read_text().splitlines()) >= 5):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert RunFolder(run).record("count") is None and RunFolder(run).started("count") is not None
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    paid = (run / "paid.txt").read_text().split()
    assert len(paid) <= 41 and sorted(set(map(int, paid))) == list(range(1, 41))  # at most the one under way again
    assert (run / "double" / "double.txt").read_text() == "80"


@pytest.mark.slow
def test_several_processes_run_stages_together_and_one_of_them_writes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    command = [str(script), str(tmp_path / "run")]
    alone = subprocess.run([*launch, *command, "alone"], env=variables, capture_output=True, text=True, check=False)
    assert alone.returncode != 0 and "stage 'alone' runs in one process" in alone.stderr
    subprocess.run([sys.executable, *command, "alone"], env=variables, check=True)
    subprocess.run([*launch, *command, "one,two"], env=variables, check=True, capture_output=True)
    for stage in ("one", "two"):
        assert RunFolder(tmp_path / "run").metrics(stage) == {"total": 3 + 4}


@given(st.data())
def test_dependents_are_the_stages_that_can_be_reached(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    edges = [[j for j in range(i) if data.draw(st.booleans())] for i in range(size)]
    plan = Plan([Stage(f"s{i}", lambda work: {}, needs=tuple(f"s{j}" for j in edges[i])) for i in range(size)])
    start = data.draw(st.integers(0, size - 1))
    reach = np.linalg.matrix_power(  # (I + A)^size: paths of any length
        np.eye(size, dtype=int) + np.array([[j in edges[i] for j in range(size)] for i in range(size)], dtype=int), size
    )
    assert plan.dependents([f"s{start}"]) == [f"s{i}" for i in range(size) if reach[i, start]]
