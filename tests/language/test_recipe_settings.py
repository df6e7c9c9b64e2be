"""Settings, sizes and the plan of GR2: what can be changed, what a change outdates, and what it all costs."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training.recipes import RunFolder, recipe_of
from rerank_env.training.recipes.changes import changed
from rerank_env.training.recipes.gr2 import NAMES, Later, plan_of
from rerank_env.training.recipes.settings import ROWS, SEEDED, Gr2Settings, Lists
from rerank_env.training.recipes.sizes import SIZES, foretold, size_of
from rerank_env.training.recipes.stages import Plan


def plan(*changes: str) -> Plan:
    return plan_of(changed(Gr2Settings(), changes), data="amazon-beauty", options=None)


def fingerprints(made: Plan) -> dict[str, str]:
    """Of every stage, with the fingerprints of what it needs in the place of their results."""
    found: dict[str, str] = {}
    for name, stage in made.stages.items():
        found[name] = stage.fingerprint(found)
    return found


@pytest.mark.parametrize(
    ("change", "outdated"),
    [
        ("evaluation.resamples=9", {"evaluate"}),
        ("dapo.naive=gain", {"dapo-naive", "evaluate"}),
        ("internalise.steps=9", {"internalise", "evaluate"}),
        ("opd.steps=9", {"opd", "evaluate"}),
        ("dapo.gain=ndcg@10.over_incoming()", {"dapo-gain", "evaluate"}),
        ("dapo.steps=9", {"dapo-naive", "dapo", "dapo-gain", "internalise", "evaluate"}),
        ("dapo.start=midtrain", {"dapo-naive", "dapo", "dapo-gain", "internalise", "evaluate"}),
        ("dapo.reward=gain", {"opd", "dapo", "internalise", "evaluate"}),
        ("teacher.layers=9", {"teacher", "opd", "evaluate"}),
        ("sft.epochs=9", {"sft-targeted", "sft-rejection", "teacher", "opd", "dapo-naive", "dapo", "dapo-gain",
                          "internalise", "evaluate"}),
        ("seed=9", set(plan().stages) - {"data"}),
        ("surrogate.beta=0.1", {"opd", "dapo-naive", "dapo", "dapo-gain", "internalise", "evaluate"}),
        ("stopping.patience=3", {"opd", "dapo-naive", "dapo", "dapo-gain", "internalise", "evaluate"}),
        ("memory.gradient_checkpointing=true", {"midtrain", "sft-targeted", "sft-rejection", "teacher", "opd",
                                                "dapo-naive", "dapo", "dapo-gain", "internalise", "evaluate"}),
        ("server.key_variable=KEY", {"traces-targeted", "traces-rejection", "sft-targeted", "sft-rejection", "teacher",
                                     "opd", "dapo-naive", "dapo", "dapo-gain", "internalise", "evaluate"}),
    ],
)  # fmt: skip
def test_a_change_outdates_the_stages_that_read_it_and_what_depends_on_them(change: str, outdated: set[str]) -> None:
    before, after = fingerprints(plan()), fingerprints(plan(change))
    assert {name for name in before if before[name] != after[name]} == outdated


def test_every_row_of_the_table_is_a_stage_and_reinforced_ones_have_seeds() -> None:
    stages = plan().stages
    assert set(SEEDED) < set(ROWS) == set(NAMES) < set(stages)
    assert set(stages["evaluate"].needs) == {"data", "rivals", *ROWS}
    assert all("seeds" in stages[name].settings for name in SEEDED)


def test_rows_that_are_not_wanted_leave_out_the_stages_that_nothing_else_needs() -> None:
    few = plan("rows=sft-rejection,dapo").stages
    assert set(plan().stages) - set(few) == {
        "traces-targeted", "sft-targeted", "teacher", "opd", "dapo-naive", "dapo-gain", "internalise"
    }  # fmt: skip
    with pytest.raises(UnknownNameError, match="did you mean 'dapo'"):
        plan("rows=dapoo")
    with pytest.raises(InputError, match="name 'dapo' among them"):
        plan("rows=opd")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ("dapo.step=3", UnknownNameError, "did you mean 'steps'"),
        ("dappo.steps=3", UnknownNameError, "did you mean 'dapo'"),
        ("dapo.steps=three", InputError, "dapo.steps is 'three'"),
        ("dapo.steps=3.5", InputError, "whole number"),
        ("dapo.learning_rate=-1", InputError, "at least 0"),
        ("dapo=3", InputError, "a group of settings"),
        ("seed.x=3", InputError, "seed has no parts"),
        ("seeds=1,1", InputError, "each once"),
        ("seeds=", InputError, "seeds is"),
        ("dapo.steps", InputError, "not NAME=VALUE"),
        ("traces.teacher=oracle", UnknownNameError, "unknown traces.teacher"),
        ("lists.watch=0", InputError, "lists.watch is 0"),
        ("memory.gradient_checkpointing=1", UnknownNameError, "true"),
    ],
)
def test_changes_that_cannot_be_are_one_sentence(change: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        changed(Gr2Settings(), [change])


@given(st.integers(0, 10**6), st.floats(1e-8, 1.0), st.sampled_from(["train", "validation", "both"]))
def test_changes_are_read_as_what_the_field_has(steps: int, rate: float, source: str) -> None:
    found = changed(
        Gr2Settings(),
        [f"dapo.steps={steps}", f"dapo.learning_rate={rate!r}", f"lists.learn_from={source}", "seeds=7,2"],
    )
    assert (found.dapo.steps, found.dapo.learning_rate, found.seeds) == (steps, rate, (7, 2))
    assert found.lists == Lists(learn_from=source)
    assert replace(found, dapo=Gr2Settings().dapo, lists=Lists(), seeds=(0, 1, 2)) == Gr2Settings()


@pytest.mark.parametrize("name", SIZES)
def test_every_size_can_be_planned_and_its_costs_grow_with_the_work(name: str) -> None:
    size = size_of(name)
    few = foretold(size, size.settings, learned_from=1000, tested=100)
    many = foretold(size, size.settings, learned_from=2000, tested=200)
    assert set(few) <= set(plan().stages)
    assert all(many[stage] >= few[stage] >= 0.0 for stage in few)
    assert many["sft-targeted"] == pytest.approx(2 * few["sft-targeted"])
    longer = changed(size.settings, [f"dapo.steps={2 * size.settings.dapo.steps}"])
    assert foretold(size, longer, learned_from=1000, tested=100)["dapo"] == pytest.approx(2 * few["dapo"])
    assert {group.name for group in fields(size.settings)} == set(asdict(size.settings))


def test_the_recipe_is_found_by_name_and_wrong_names_are_said() -> None:
    made = recipe_of("gr2", data="amazon-sports", changes=["seeds=4"])
    assert made.about["settings"]["seeds"] == (4,) and made.about["size"] == "tiny"
    with pytest.raises(UnknownNameError, match="did you mean 'amazon-toys'"):
        recipe_of("gr2", data="amazon-toy")
    with pytest.raises(UnknownNameError, match="unknown size"):
        recipe_of("gr2", data="amazon-toys", size="huge")
    with pytest.raises(InputError, match="not NAME=VALUE"):
        recipe_of("gr2", data="amazon-toys", options="first_stage")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("dapo.steps=0", "steps is 0"),
        ("dapo.group_size=1", "group_size is 1"),
        ("sft.batch=0", "batch is 0"),
        ("dapo.reward=gian", "did you mean 'gain'"),
        ("wording.template=compac", "did you mean 'compact'"),
        ("wording.text_format=list", "no room for reasons"),
        ("opd.divergence=kl", "kl"),
    ],
)
def test_what_a_trainer_would_refuse_hours_later_is_found_before_anything_starts(change: str, says: str) -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai"):
        pytest.importorskip(library)
    with pytest.raises(InputError, match=says):
        recipe_of("gr2", data="amazon-toys", changes=[change]).check([])


def test_groups_that_came_later_are_no_part_of_a_stage_that_leaves_them_alone() -> None:
    later = {"surrogate", "stopping", "memory", "server"}
    assert not any(later & set(stage.settings) for stage in plan().stages.values())
    told = plan("surrogate.epsilon_high=0.3", "stopping.window=0").stages["dapo"].settings
    assert (told["surrogate"], told["stopping"]) == ({"epsilon_high": 0.3}, {"window": 0})


def test_the_finer_settings_are_those_of_the_trainer_and_reach_it() -> None:
    for library in ("trl", "peft"):
        pytest.importorskip(library)
    from rerank_env.training.language.dapo import DapoConfig
    from rerank_env.training.language.stopping import StopRule
    from rerank_env.training.recipes.reinforcing import finer

    assert DapoConfig(**finer(asdict(Gr2Settings()))) == DapoConfig()
    told = plan("stopping.window=0", "stopping.patience=2", "surrogate.beta=0.5", "memory.gradient_checkpointing=true")
    for name in (*SEEDED, "opd"):
        assert finer(told.stages[name].settings) == {
            "beta": 0.5, "gradient_checkpointing": True, "stopping": StopRule(patience=2, window=None),
        }  # fmt: skip
    assert size_of("8b").settings.memory.gradient_checkpointing


def test_every_stage_is_a_function_that_there_is() -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai", "lightgbm", "sklearn"):
        pytest.importorskip(library)
    for name, stage in plan().stages.items():
        assert isinstance(stage.run, Later), name
        assert callable(stage.run.function()), name


def test_the_key_of_a_server_is_asked_for_before_traces_and_is_in_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai"):
        pytest.importorskip(library)
    changes = ["traces.teacher=server", "server.key_variable=RERANK_TEST_KEY"]
    made = recipe_of("gr2", data="amazon-toys", changes=changes)
    monkeypatch.delenv("RERANK_TEST_KEY", raising=False)
    made.check(["dapo", "evaluate"])  # nobody is asked any more
    with pytest.raises(InputError, match="'RERANK_TEST_KEY', which is not set"):
        made.check(["traces-rejection", "dapo"])
    monkeypatch.setenv("RERANK_TEST_KEY", "a secret")
    made.check(["traces-rejection"])
    assert "a secret" not in repr(made.about)


def test_the_card_loads_the_requests_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    made = recipe_of("gr2", data="amazon-toys", options="first_stage=bm25,slate_size=20")
    folder = RunFolder(tmp_path)
    folder.describe(made.about)
    assert 'load("amazon-toys", split="test", first_stage=\'bm25\', slate_size=20)' in made.card(folder)
