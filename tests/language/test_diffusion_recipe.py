"""Diffusion-GR2 as a recipe: what it shares with GR2, what changes, what is refused and foretold, and its table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training.recipes import RunFolder, gr2, recipe_of
from rerank_env.training.recipes.adopting import Adopted
from rerank_env.training.recipes.changes import changed
from rerank_env.training.recipes.diffusion import OWN, plan_of
from rerank_env.training.recipes.diffusion_settings import DiffusionSettings
from rerank_env.training.recipes.diffusion_sizes import SIZES, foretold, size_of
from rerank_env.training.recipes.diffusion_table import names_of, recovered, results
from rerank_env.training.recipes.kept_texts import Written, told_of
from rerank_env.training.recipes.planning import Later
from rerank_env.training.recipes.sizes import SIZES as GR2_SIZES
from rerank_env.training.recipes.stages import Plan

SHARED = ["data", "ids", "remarks", "base", "midtrain", "traces-rejection", "sft-rejection", "dapo"]


def plan(*changes: str, settings: DiffusionSettings | None = None) -> Plan:
    told = changed(settings or DiffusionSettings(), changes)
    return plan_of(told, data="amazon-beauty", options=None, source=lambda _: None)


def fingerprints(made: Plan) -> dict[str, str]:
    """Of every stage, with the fingerprints of what it needs in the place of their results."""
    found: dict[str, str] = {}
    for name, stage in made.stages.items():
        found[name] = stage.fingerprint(found)
    return found


def test_the_stages_are_those_the_teacher_needs_and_then_its_own() -> None:
    assert list(plan().stages) == [*SHARED, *OWN]
    with_opd = plan("dapo.start=opd", "opd.start=sft-targeted", "opd.teacher=sft-rejection").stages
    assert set(with_opd) - set(plan().stages) == {"traces-targeted", "sft-targeted", "opd"}
    with pytest.raises(InputError, match="stage 'dapo-naive' is left out of this run: no stage of this recipe needs"):
        plan().chosen(until="dapo-naive")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", ["seed=3", "dapo.steps=9", "memory.gradient_checkpointing=true", "surrogate.beta=1"])
def test_what_both_recipes_have_is_made_with_the_same_fingerprints(size: str, change: str) -> None:
    ours = fingerprints(plan(change, settings=SIZES[size].settings))
    plain = gr2.plan_of(changed(GR2_SIZES[size].settings, [change]), data="amazon-beauty", options=None)
    theirs = fingerprints(plain)
    assert {name: ours[name] for name in ours if name not in OWN} == {name: theirs[name] for name in SHARED}


@pytest.mark.parametrize(
    ("change", "outdated"),
    [
        ("evaluation.resamples=9", {"evaluate"}),
        ("block_dapo.steps=9", {"block-dapo", "evaluate"}),
        ("block_dapo.start=cft", {"block-dapo", "evaluate"}),
        ("block_opd.steps=9", {"block-opd", "block-dapo", "evaluate"}),
        ("block_dapo.reward=gain", {"block-opd", "block-dapo", "evaluate"}),
        ("cft.names_share=1", {"cft", "block-opd", "block-dapo", "evaluate"}),
        ("decode.rule=static(4)", {"convert", "cft", "block-opd", "block-dapo", "evaluate"}),
        ("blocks.size=8", {"convert", "cft", "block-opd", "block-dapo", "evaluate"}),
        ("surrogate.beta=0.1", {"dapo", *OWN}),
        ("stopping.patience=3", {"dapo", *OWN}),
        ("dapo.steps=9", {"dapo", *OWN}),
        ("gr2=none", set()),
    ],
)
def test_a_change_outdates_the_stages_that_read_it_and_what_depends_on_them(change: str, outdated: set[str]) -> None:
    before, after = fingerprints(plan()), fingerprints(plan(change))
    assert {name for name in before if before[name] != after[name]} == outdated


def test_every_stage_is_a_function_that_there_is_and_those_of_gr2_may_be_taken_over() -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai"):
        pytest.importorskip(library)
    for name, stage in plan().stages.items():
        run: Any = stage.run
        if name not in OWN:
            assert isinstance(run, Adopted) and run.name == name
            run = run.stage
        assert isinstance(run, Later) and callable(run.function()), name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("rows=opd,dapo", "rows are opd, dapo, but the table of this recipe"),
        ("block_dapo.start=dapo", "unknown block_dapo.start 'dapo'"),
        ("opd.steps=300", "'opd.steps=300' is of a stage that this recipe does not have; .* block_opd"),
        ("internalise.steps=3", "decides nothing here"),
        ("cft.lessons=traces-targeted", "cft.lessons"),
        ("imitation.copies=0", "imitation.copies is 0"),
        ("cft.lr=-1", "cft.lr is -1"),
        ("block_opd.stepss=4", "did you mean 'steps'"),
    ],
)
def test_changes_that_cannot_be_are_one_sentence(change: str, says: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=says):
        recipe_of("diffusion-gr2", data="amazon-toys", changes=[change])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("blocks.size=0", "^blocks: the size of a block is 0"),
        ("blocks.clean=blok", "did you mean 'block'"),
        ("decode.rule=treshold(0.9)", "^decode: .*did you mean 'threshold'"),
        ("decode.answer=constrained", "^decode: the answer decoder is 'constrained'"),
        ("decode.answer=plackett-luce", "^decode.answer is 'plackett-luce', but distillation"),
        ("decode.answer=assignment(1)", "^decode.answer is 'assignment.1.', but distillation"),
        ("cft.high=2", "^cft: low is 0.05 and high 2"),
        ("cft.draw=poisson", "^cft: .*poisson"),
        ("cft.batch=0", "^cft: batch is 0"),
        ("block_opd.divergence=kl", "^block_opd: .*kl"),
        ("block_opd.places=shown", "^block_opd: .*shown"),
        ("block_dapo.group_size=1", "^block_dapo: group_size is 1"),
        ("block_dapo.likelihood=replai", "^block_dapo: .*did you mean 'replay'"),
        ("block_dapo.reward=gian", "^block_dapo.reward: .*did you mean 'gain'"),
        ("dapo.steps=0", "^dapo: steps is 0"),
        ("gr2=./nowhere", "gr2 is './nowhere', and there is no such folder"),
    ],
)
def test_what_a_stage_would_refuse_hours_later_is_found_before_anything_starts(change: str, says: str) -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai"):
        pytest.importorskip(library)
    made = recipe_of("diffusion-gr2", data="amazon-toys", changes=[change])
    with pytest.raises(InputError, match=says):
        made.check([])


@pytest.mark.parametrize("name", SIZES)
def test_every_size_passes_its_own_check_and_its_costs_grow_with_the_work(name: str) -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai"):
        pytest.importorskip(library)
    recipe_of("diffusion-gr2", data="amazon-toys", size=name).check([])
    size = size_of(name)
    told = foretold(size, size.settings, learned_from=1000, tested=100)
    assert set(OWN) <= set(told) and min(told.values()) >= 0.0
    for change, stage in (
        ("cft.epochs=30", "cft"), ("block_opd.steps=9999", "block-opd"), ("block_dapo.group_size=99", "block-dapo"),
        ("blocks.size=512", "block-dapo"), ("seeds=0,1,2,3,4,5", "evaluate"),
    ):  # fmt: skip
        assert foretold(size, changed(size.settings, [change]), learned_from=1000, tested=100)[stage] > told[stage]


def test_the_plan_says_what_will_be_taken_from_where_and_that_it_costs_nothing(tmp_path: Path) -> None:
    made, folder = (
        recipe_of("diffusion-gr2", data="amazon-toys"),
        RunFolder(tmp_path / "diffusion-gr2-amazon-toys-tiny"),
    )
    assert [note.partition(",")[0] for note in made.notes(folder, [])] == ["no run of gr2 to take stages from"]
    assert made.minutes(folder, [])["sft-rejection"] > 1.0
    beside = RunFolder(tmp_path / "gr2-amazon-toys-tiny")
    plain = recipe_of("gr2", data="amazon-toys").plan.stages
    results: dict[str, str] = {}
    for name in ("data", "ids", "remarks"):
        beside.begin(name, **plain[name].begun(results))
        (beside.stage(name) / "file.txt").write_text(name)
        results[name] = beside.finish(name, {"train requests": 1}, seconds=1.0).result
    first, *others = made.notes(folder, [])
    assert first == f"to be taken from {beside.directory.resolve()}: data, ids, remarks"
    assert "base: not to be taken over" in others[0] and others[0].endswith("has none")
    assert made.minutes(folder, [])["cft"] < 1.0  # there is one request to learn from, by what is taken over
    assert made.about["command"] == "rerank recipe diffusion-gr2 --data amazon-toys --size tiny"
    other = recipe_of("diffusion-gr2", data="amazon-toys", changes=["gr2=none"])
    assert "no run of gr2" in other.notes(folder, [])[0]


def test_rows_are_named_by_what_reinforcement_begins_with() -> None:
    assert list(names_of("block-opd").values()) == ["naive conversion", "CFT", "CFT + OPD", "CFT + OPD + RL"]
    assert names_of("cft")["block-dapo"] == "CFT + RL"


def test_what_is_recovered_is_the_ratio_of_two_means_that_are_resampled_together() -> None:
    floor_B, teacher_B = np.array([0.0, 0, 1, 0, 0, 0]), np.array([1.0, 1, 1, 1, 1, 0])
    values_B, users_B = np.array([1.0, 1, 1, 1, 0, 0]), np.array([0, 0, 1, 2, 3, 4])
    found = recovered(values_B, floor_B, teacher_B, users_B, seed=5, resamples=400)
    assert found.value == pytest.approx(3 / 4)  # the means are 1/6, 4/6 and 5/6
    assert found.low < 3 / 4 <= found.high <= 1.0
    whole = recovered(teacher_B, floor_B, teacher_B, users_B, seed=5, resamples=400)
    assert (whole.value, whole.low, whole.high) == (1.0, 1.0, 1.0)  # resample by resample, so without any width
    assert recovered(floor_B, floor_B, teacher_B, users_B, seed=5, resamples=400).high == 0.0


def test_a_share_of_no_way_is_undefined() -> None:
    floor_B, users_B = np.array([0.0, 1, 0, 1]), np.arange(4)
    for teacher_B in (floor_B, 1 - floor_B, np.zeros(4)):  # no better, better by chance, worse
        found = recovered(np.ones(4), floor_B, teacher_B, users_B, seed=0, resamples=200)
        assert math.isnan(found.value) and math.isnan(found.low) and math.isnan(found.high)


@given(st.floats(-2.0, 3.0), st.integers(0, 99))
def test_going_a_part_of_the_way_everywhere_recovers_that_part_whoever_is_drawn(part: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    floor_B, users_B = rng.random(12), rng.integers(5, size=12)
    teacher_B = floor_B + rng.uniform(0.5, 1.0, size=12)
    found = recovered(floor_B + part * (teacher_B - floor_B), floor_B, teacher_B, users_B, seed=seed, resamples=20)
    assert [found.value, found.low, found.high] == pytest.approx([part] * 3, abs=1e-9)


def written(texts: Sequence[str], rounds: list[int], tokens: list[int]) -> Written:
    return Written([[-1] * 3] * len(texts), list(texts), "list", None, [3] * len(texts), rounds, tokens)


def test_faults_and_forwards_are_those_of_all_answers_of_all_seeds() -> None:
    told = told_of(
        [written(["[1, 2, 3]", "[2, 2, 9]"], [2, 6], [8, 8]), written(["no list", "[3, 1]"], [4, 4], [8, 0])]
    )
    wrong: Any = told["faults"]
    assert wrong["valid"] == 0.25 and wrong["unparseable"] == 0.25 and wrong["wrong length"] == 0.25
    assert wrong["duplicates a list"] == pytest.approx(1 / 3) and wrong["out of set a list"] == pytest.approx(1 / 3)
    assert wrong["dropped a list"] == (0 + 2 + 3 + 1) / 4
    assert told["forwards"] == 4.0 and told["tokens_per_forward"] == 24 / 16


def test_the_second_table_has_a_line_for_every_row_with_a_gap() -> None:
    interval = {"value": 0.3, "low": 0.2, "high": 0.4}
    metrics = dict.fromkeys(("recall@1", "recall@3", "recall@5", "ndcg@3", "ndcg@5"), interval)
    plain = {
        "seeds": 1, "validity": 1.0, "identity_rate": 0.0, "metrics": metrics, "relative": metrics,
        "over_rival": metrics,
    }  # fmt: skip
    rates = told_of([written(["[1, 2, 3]"], [4], [10])])
    rows = {
        "incoming": plain,
        "CFT": {**plain, "gap": {"value": 0.8, "low": -0.05, "high": 1.2}, **rates},
        "RL": {**plain, "gap": dict.fromkeys(interval), **rates},
    }
    told = {"rows": rows, "rival": "incoming", "listed": None, "asked": None, "n_requests": 9, "n_users": 9}
    text = results(json.loads(json.dumps({**told, "level": 0.95, "resamples": 5})))
    assert "| CFT | 80% [-5%, 120%] | 100.0% | 0.0% | 0.0% | 0.000 | 0.000 | 0.000 | 4.0 | 2.50 |" in text
    assert "| RL | undefined |" in text and "| incoming | undefined |" not in text
    second = text.split("\n\n")[2].splitlines()
    assert len({line.count("|") for line in second}) == 1
