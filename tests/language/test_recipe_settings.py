"""Settings, sizes and the plan of GR2: what can be changed, what a change outdates, and what it all costs."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards.errors import CheckpointError, InputError, UnknownNameError
from rerank_env.training.recipes import RunFolder, recipe_of
from rerank_env.training.recipes.changes import changed
from rerank_env.training.recipes.gr2 import NAMES, plan_of
from rerank_env.training.recipes.planning import Later
from rerank_env.training.recipes.settings import ROWS, SEEDED, Gr2Settings, ListsSettings
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
    with pytest.raises(InputError, match="stage 'teacher' is left out of this run: none of the policies in rows"):
        plan("rows=sft-rejection,dapo").chosen(until="teacher")
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
        ("seeds=", InputError, "seeds are none; give at least one"),
        ("dapo.steps", InputError, "not NAME=VALUE"),
        ("traces.teacher=oracle", UnknownNameError, "unknown traces.teacher"),
        ("lists.watch=0", InputError, "lists.watch is 0"),
        ("memory.gradient_checkpointing=1", UnknownNameError, "true"),
        ("dapo.start=opdd", UnknownNameError, "did you mean 'opd'"),
    ],
)
def test_changes_that_cannot_be_are_one_sentence(change: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        changed(Gr2Settings(), [change])


def test_reinforcement_may_start_from_what_was_distilled_which_is_then_a_stage_of_any_run() -> None:
    made = plan("dapo.start=opd", "rows=dapo").stages
    assert "opd" in made["dapo"].needs and made["dapo"].settings["start"] == "opd"
    assert {"teacher", "midtrain"} <= set(made) and list(made).index("opd") < list(made).index("dapo")


def test_nobody_is_distilled_into_itself_whatever_the_order_of_the_changes() -> None:
    with pytest.raises(InputError, match="opd.start and opd.teacher are both 'sft-rejection'"):
        changed(size_of("tiny").settings, ["opd.start=sft-rejection"])
    for changes in (
        ["opd.start=sft-rejection", "opd.teacher=teacher"],
        ["opd.teacher=teacher", "opd.start=sft-rejection"],
    ):
        found = changed(size_of("tiny").settings, changes).opd
        assert (found.start, found.teacher) == ("sft-rejection", "teacher")


@given(st.integers(0, 10**6), st.floats(1e-8, 1.0), st.sampled_from(["train", "validation", "both"]))
def test_changes_are_read_as_what_the_field_has(steps: int, rate: float, source: str) -> None:
    found = changed(
        Gr2Settings(),
        [f"dapo.steps={steps}", f"dapo.learning_rate={rate!r}", f"lists.learn_from={source}", "seeds=7,2"],
    )
    assert (found.dapo.steps, found.dapo.learning_rate, found.seeds) == (steps, rate, (7, 2))
    assert found.lists == ListsSettings(learn_from=source)
    assert replace(found, dapo=Gr2Settings().dapo, lists=ListsSettings(), seeds=(0, 1, 2)) == Gr2Settings()


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


def test_what_is_foretold_is_of_the_lists_that_are_learned_from_and_the_model_that_is_trained(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "new")

    def minutes(*changes: str) -> float:
        return recipe_of("gr2", data="amazon-toys", changes=changes).minutes(folder, [])["sft-rejection"]

    assert minutes() == pytest.approx(15 * minutes("lists.most=1000"))  # of 15,000
    assert minutes("lists.most=99999") == minutes()
    assert minutes("lists.learn_from=validation") == pytest.approx(minutes() * 14 / 15)  # 1,000 are watched
    assert minutes("model.width=64", "model.layers=2") == pytest.approx(minutes() / 8)


def test_distillation_costs_what_its_own_teacher_costs() -> None:
    size = size_of("tiny")
    near = foretold(size, size.settings, learned_from=1000, tested=100)["opd"]
    far = foretold(size, changed(size.settings, ["opd.teacher=teacher"]), learned_from=1000, tested=100)["opd"]
    larger = (192 / 128) ** 2 * 6 / 4
    assert far / near == pytest.approx((1 + larger / 3) / (1 + 1 / 3))


def test_the_command_of_a_run_makes_it_again_whoever_began_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks/gr2.py", "toys"])
    made = recipe_of("gr2", data="amazon-toys", options="first_stage=bm25", changes=["seeds=4", "dapo.reward=gain"])
    assert made.about["command"] == (
        "rerank recipe gr2 --data amazon-toys --size tiny --options first_stage=bm25 --set seeds=4 "
        "--set dapo.reward=gain"
    )
    assert recipe_of("gr2", data="amazon-toys").about["command"] == "rerank recipe gr2 --data amazon-toys --size tiny"


def test_minutes_are_foretold_without_a_record_that_will_be_forgotten(tmp_path: Path) -> None:
    made, folder = recipe_of("gr2", data="amazon-toys"), RunFolder(tmp_path)
    folder.stage("data").mkdir()
    (folder.stage("data") / "metrics.json").write_text("{")
    assert made.minutes(folder, ["data"]) == made.minutes(RunFolder(tmp_path / "new"), [])
    with pytest.raises(CheckpointError):
        made.minutes(folder, [])


def test_a_stage_whose_code_was_changed_can_be_told_from_what_it_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprints(plan())
    monkeypatch.setattr("rerank_env.training.recipes.gr2.VERSIONS", {"opd": 2})
    after = fingerprints(plan())
    assert {name for name in before if before[name] != after[name]} == {"opd", "evaluate"}


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
        ("dapo.steps=0", "^dapo: steps is 0"),
        ("dapo.group_size=1", "^dapo: group_size is 1"),
        ("internalise.max_tokens=0", "^internalise: max_tokens is 0"),
        ("surrogate.epsilon_low=2", "^surrogate, stopping or memory: epsilon_low is 2"),
        ("sft.batch=0", "^sft: batch is 0"),
        ("dapo.reward=gian", "did you mean 'gain'"),
        ("wording.template=compac", "did you mean 'compact'"),
        ("wording.text_format=list", "no room for reasons"),
        ("opd.divergence=kl", "kl"),
        ("remarks.features=score_z,text_maks", "did you mean 'text_max'"),
        ("remarks.features=score_z,score_z", "each once"),
        ("remarks.features=,", "at least one feature"),
        ("remarks.levels=1", "remarks.levels is 1"),
        ("ids.method=rqvae", "did you mean 'rq-vae'"),
        ("ids.epochs=0", "epochs is 0"),
        ("ids.collaborative=1", "collaborative is 1"),
        ("model.width=130", "model.width is 130, no even multiple of 4 heads"),
        ("model.heads=0", "model.heads is 0"),
        ("model.dtype=float33", "model.dtype is 'float33'"),
        ("model.dtype=int8", "model.dtype is 'int8'"),
        ("model.device=gpu", "model.device is 'gpu'"),
        ("model.device=meta", "model.device is 'meta'"),
        ("model.vocabulary=100", "model.vocabulary is 100; give a whole number of at least 2"),
        ("model.base=./nowhere", "model.base is './nowhere', and there is no such folder"),
        ("answering.max_tokens=0", "answering.max_tokens is 0"),
        ("answering.batch=0", "answering: batch_size is 0"),
        ("evaluation.resamples=0", "evaluation.resamples is 0"),
    ],
)
def test_what_a_trainer_would_refuse_hours_later_is_found_before_anything_starts(change: str, says: str) -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai"):
        pytest.importorskip(library)
    with pytest.raises(InputError, match=says):
        recipe_of("gr2", data="amazon-toys", changes=[change]).check([])


def test_the_teachers_of_a_run_are_checked_where_they_are_still_to_be_asked_or_made() -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai"):
        pytest.importorskip(library)
    for changes, stage, says in (
        (["traces.teacher=server", "traces.name=m", "traces.url=localhost:8000"], "traces-targeted", "base_url is"),
        (["traces.teacher=server", "traces.url=http://localhost"], "traces-rejection", "model of a server is ''"),
        (["traces.teacher=server", "traces.name=m", "traces.url=http://localhost", "traces.concurrency=0"],
         "traces-rejection", "concurrency is 0"),
        (["traces.teacher=local"], "traces-rejection", "traces.name is ''"),
        (["traces.teacher=local", "traces.name=m", "traces.max_tokens=0"], "traces-rejection", "max_tokens is 0"),
        (["traces.teacher=local", "traces.name=/no/where"], "traces-rejection", "traces.name is '/no/where'"),
        (["teacher.base=a/b/c"], "teacher", "teacher.base is 'a/b/c'"),
        (["teacher.heads=5"], "teacher", "teacher.width is 192, no even multiple of 5 heads"),
    ):  # fmt: skip
        made = recipe_of("gr2", data="amazon-toys", changes=changes)
        made.check(["dapo"])
        with pytest.raises(InputError, match=says):
            made.check([stage, "dapo"])
    recipe_of("gr2", data="amazon-toys", changes=["model.base=a/model", "model.width=130"]).check(["base"])


@pytest.mark.parametrize("name", SIZES)
def test_every_size_passes_its_own_check(name: str) -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai"):
        pytest.importorskip(library)
    made = recipe_of("gr2", data="amazon-toys", size=name)
    made.check(list(made.plan.stages))


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
    from rerank_env.training.recipes.policies import finer

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
    changes = [
        "traces.teacher=server",
        "traces.name=m",
        "traces.url=http://localhost",
        "server.key_variable=RERANK_TEST_KEY",
    ]
    made = recipe_of("gr2", data="amazon-toys", changes=changes)
    monkeypatch.delenv("RERANK_TEST_KEY", raising=False)
    made.check(["dapo", "evaluate"])  # nobody is asked any more
    with pytest.raises(InputError, match="'RERANK_TEST_KEY', which is not set"):
        made.check(["traces-rejection", "dapo"])
    monkeypatch.setenv("RERANK_TEST_KEY", "a secret")
    made.check(["traces-rejection"])
    assert "a secret" not in repr(made.about)


def test_the_card_loads_the_requests_of_the_run_and_the_terminal_a_policy_that_there_is(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    made = recipe_of("gr2", data="amazon-toys", options="first_stage=bm25,slate_size=20")
    folder = RunFolder(tmp_path)
    folder.describe(made.about)
    assert 'load("amazon-toys", split="test", first_stage=\'bm25\', slate_size=20)' in made.card(folder)
    assert made.ending(folder) == ""
    place = tmp_path / "dapo" / "seed-0" / "policy"
    place.mkdir(parents=True)
    assert f'from_pretrained("{place}")' in made.ending(folder)
