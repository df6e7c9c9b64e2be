"""What the stages of GR2 start from, on a log in which what follows is known: lists, users, IDs, remarks, rivals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from walking import ITEMS, LENGTH, USERS, walks

from rerank_env import data
from rerank_env.data import amazon, load
from rerank_env.data.requests import Requests
from rerank_env.rewards.errors import CheckpointError, DataError, InputError, ServerError, UnknownNameError
from rerank_env.training.fingerprints import requests_hash
from rerank_env.training.recipes.changes import changed
from rerank_env.training.recipes.crew import Crew
from rerank_env.training.recipes.gr2 import NAMES
from rerank_env.training.recipes.inputs import (
    fit_rivals,
    ids_of,
    joined,
    make_ids,
    make_lists,
    make_remarks,
    prepared,
    remarks_of,
    writers,
)
from rerank_env.training.recipes.settings import ROWS, Gr2Settings
from rerank_env.training.recipes.stages import Work

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),  # the peers' own
    pytest.mark.filterwarnings("ignore::FutureWarning:(?!rerank_env|tests).*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

NAME, OPTIONS = "amazon-beauty", "first_stage=popularity,slate_size=20"
QUICK = (
    "ids.epochs=1", "lists.watch=9", "remarks.features=score_z,next_last,near_last_3", "seeds=0", "model.width=32",
    "model.layers=1", "model.heads=2", "model.vocabulary=700", "model.context=512", "midtrain.steps=2",
    "midtrain.warmup_steps=1", "midtrain.batch=4", "midtrain.micro_batch=4", "midtrain.length=64",
    "midtrain.questions=3", "traces.tries=2", "traces.most=40", "sft.epochs=1", "teacher.width=32", "teacher.layers=1",
    "teacher.heads=2", "opd.steps=1", "opd.groups_per_step=2", "opd.max_tokens=40", "dapo.steps=1",
    "dapo.groups_per_step=2", "dapo.group_size=2", "dapo.max_tokens=40", "dapo.max_resamples=1", "internalise.steps=1",
    "answering.max_tokens=40", "evaluation.resamples=50", f"rows={','.join(ROWS)}", "opd.teacher=teacher",
)  # fmt: skip
"""All stages in seconds, with next to nothing learned."""

SETTINGS = changed(
    Gr2Settings(), ["ids.epochs=1", "lists.watch=9", "remarks.features=score_z,next_last,near_last_3", "seeds=0"]
)


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The log in the place of a data set, and a cache of its own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RERANK_CACHE", str(tmp_path_factory.mktemp("cache")))
    log = walks()
    patch.setattr(amazon, "read", lambda name: log)
    data._splits.cache_clear()
    yield
    data._splits.cache_clear()
    patch.undo()


def given(**groups: Any) -> dict[str, Any]:
    told = SETTINGS.group("seed", "seeds", "lists", "ids", "remarks", "wording")
    return {"data": NAME, "options": OPTIONS, **told, **groups}


def work(folder: Path, inputs: Mapping[str, Path], **groups: Any) -> Work:
    folder.mkdir(parents=True, exist_ok=True)
    return Work(folder, inputs, given(**groups), Crew(), lambda what, done, total: None)


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory, world: None) -> Path:
    folder = tmp_path_factory.mktemp("data")
    measured = make_lists(work(folder, {}))
    assert measured["test requests"] == len(load(NAME, split="test", first_stage="popularity", slate_size=20))
    assert measured["test listed"] == measured["test requests"] / USERS
    return folder


def test_lists_are_made_once_and_the_number_of_all_targets_is_kept(lists: Path) -> None:
    found = prepared(lists, given())
    assert found.asked == {"train": USERS * (LENGTH - 3), "validation": USERS, "test": USERS}
    assert len(found.learn) == len(load(NAME, split="train", first_stage="popularity", slate_size=20))


def test_watched_users_are_chosen_by_the_seed_and_are_never_learned_from(lists: Path) -> None:
    both = prepared(lists, given(lists={**SETTINGS.group("lists")["lists"], "learn_from": "both"}))
    again = prepared(lists, given())
    assert both.watch.users_B.tolist() == again.watch.users_B.tolist()
    assert 9 <= len(both.watch) < 12  # all lists of a user, or none
    learned = {
        (int(user), tuple(history))
        for user, history in zip(both.learn.users_B, both.learn.history_BH.tolist(), strict=True)
    }
    watched = {
        (int(user), tuple(history))
        for user, history in zip(both.watch.users_B, both.watch.history_BH.tolist(), strict=True)
    }
    assert not learned & watched
    assert len(both.learn) == len(again.learn) + len(both.validation) - len(both.watch)
    other = prepared(lists, given(seed=5))
    assert other.watch.users_B.tolist() != again.watch.users_B.tolist()


def test_at_most_so_many_are_learned_from(lists: Path) -> None:
    told = {**SETTINGS.group("lists")["lists"], "most": 7}
    some = prepared(lists, given(lists=told)).learn
    assert len(some) == 7 and (some.users_B == prepared(lists, given(lists=told)).learn.users_B).all()


def test_another_data_set_than_the_run_began_with_is_refused(lists: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="are not those the run began with"):
        prepared(lists, given(options="first_stage=popularity,slate_size=9"))
    with pytest.raises(CheckpointError, match="cannot be read"):
        prepared(tmp_path, given())
    with pytest.raises(UnknownNameError, match="did you mean 'amazon-beauty'"):
        prepared(lists, given(data="amazon-beauti"))
    with pytest.raises(InputError, match="0 requests to learn from"):
        prepared(lists, given(lists={**SETTINGS.group("lists")["lists"], "learn_from": "validation", "watch": 9999}))


def test_requests_that_are_joined_are_those_of_the_parts() -> None:
    one = Requests.of([[0, 1, 2], [2, 0]], [[0, 0, 1], [1, 0]], history=[[3, 4], []])
    longer = Requests.of([[4, 3, 1]], [[0, 1, 0]], history=[[0, 1, 2]], catalog=one.catalog, users=[7])
    both = joined([one, longer])
    assert both.candidates_BK.tolist() == [[0, 1, 2], [2, 0, -1], [4, 3, 1]]
    assert both.history_BH.tolist() == [[3, 4, -1], [-1, -1, -1], [0, 1, 2]]
    assert both.users_B.tolist() == [0, 1, 7] and both.origins.tolist() == [0, 1, 2]
    assert both.relevance_BK.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert joined([one.take([1, 1])]).origins.tolist() == [0, 1]
    with pytest.raises(InputError, match="two catalogues or widths"):
        joined([one, Requests.of([[0, 1]], [[0, 1]])])


def test_ids_remarks_and_rivals_are_made_and_read_back(lists: Path, tmp_path: Path) -> None:
    found, inputs = prepared(lists, given()), {"data": lists}
    measured = make_ids(work(tmp_path / "ids", inputs))
    ids = ids_of(tmp_path / "ids", found)
    assert measured["items"] == len(ids) == ITEMS
    make_remarks(work(tmp_path / "remarks", inputs))
    remarks = remarks_of(tmp_path / "remarks")
    assert remarks.names == ("stage", "next", "near")
    fit_rivals(work(tmp_path / "rivals", inputs))
    assert sorted(path.name for path in (tmp_path / "rivals").iterdir()) == ["lambdamart-seed-0", "linear"]
    from rerank_env.agents.linear import LinearPlackettLuce

    linear = LinearPlackettLuce.from_pretrained(tmp_path / "rivals" / "linear")
    first_B = linear.rank(found.test, rng=np.random.default_rng(0))[:, 0]
    hits = found.test.relevance_BK[np.arange(len(found.test)), first_B]
    assert hits.mean() > 0.9  # who walked on from the last item is known, and popularity is not
    for template, cites in (("compact", False), ("compact-id", True), ("evidence-steps", False)):
        wording = {**given()["wording"], "template": template}
        reasoned, direct = writers(wording, ids, remarks)
        assert (reasoned.text_format, direct.text_format) == ("tagged-list", "list")
        assert reasoned.cites_ids == cites
        prompt = reasoned.write(remarks.on(found.watch))[0].text
        assert ("Remarks are words with levels" in prompt) == (template == "evidence-steps")
        assert "next" in prompt


@pytest.fixture(scope="module")
def made(lists: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """What the stages left that come before traces."""
    folder = tmp_path_factory.mktemp("made")
    inputs = {"data": lists, "ids": folder / "ids", "remarks": folder / "remarks"}
    make_ids(work(inputs["ids"], inputs))
    make_remarks(work(inputs["remarks"], inputs))
    return inputs


def asking(folder: Path, inputs: Mapping[str, Path], *changes: str) -> Work:
    told = changed(SETTINGS, ["traces.most=5", "traces.tries=2", *changes])
    return work(folder, inputs, **told.group("model", "answering", "traces", "sft"), **told.changed_in("memory"))


def test_traces_leave_the_same_files_whenever_their_parts_were_written(
    made: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("trl")
    from rerank_env.rewards.rankings import Verdict
    from rerank_env.training.language.traces import Traces, collecting
    from rerank_env.training.language.traces.journal import Journal
    from rerank_env.training.language.traces.proposals import Proposal
    from rerank_env.training.recipes.folder import left_in
    from rerank_env.training.recipes.learning import TRACES, collect_traces

    at_once = asking(tmp_path / "one", made)
    measured = collect_traces("targeted")(at_once)
    before = left_in(at_once.folder)
    assert set(before) == {"traces/part-00000.parquet", "traces/manifest.json"}
    one_by_one = asking(tmp_path / "other", made, "traces.batch=1")
    monkeypatch.setattr(collecting, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(collecting, "versions", lambda packages: {"python": "3.99"})
    collect_traces("targeted")(one_by_one)
    assert len(list((one_by_one.training / TRACES).glob("part-*"))) == 5
    assert left_in(one_by_one.folder) == before
    row = int(Traces.load(one_by_one.folder / TRACES).requests_T[0])
    with Journal(one_by_one.training / TRACES) as journal:  # as it is between the last part and its being told so
        journal.add(row, 0, Proposal("", (), Verdict.EMPTY, "", 0, 0))
    assert collect_traces("targeted")(one_by_one) == measured
    assert left_in(one_by_one.folder) == before


def test_every_copy_of_a_request_is_remarked_on_once(made: Mapping[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from rerank_env.training.recipes.learning import traced
    from rerank_env.training.recipes.policies import materials

    asked = asking(tmp_path, made, "traces.copies=3")
    given = materials(asked)
    remarked: list[int] = []

    class Counting:
        def on(self, requests: Requests) -> Requests:
            remarked.append(len(requests))
            return given.remarks.on(requests)

    found = traced(asked.settings, given._replace(remarks=Counting()))  # type: ignore[arg-type]
    assert len(found) == 15 and remarked == [5]
    plain = given.found.learn.take(found.origins[:5])
    assert requests_hash(found) == requests_hash(given.remarks.on(given.found.learn.take(found.origins)))
    assert (found.candidates_BK[5:10] == plain.candidates_BK).all()


def test_seeds_of_a_reinforcement_share_their_remarks(
    made: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    from rerank_env.training.recipes import reinforcing
    from rerank_env.training.recipes.policies import materials

    asked = asking(tmp_path, made)
    asked = replace(asked, settings={**asked.settings, "seeds": [0, 1, 2], "reward": "gain"})
    given, seen = materials(asked), []

    def run(work: Work, learn: Requests, watch: Requests, seed: int, *others: Any) -> dict[str, float]:
        assert learn.remarks_BK is not None and watch.remarks_BK is not None
        seen.append((id(learn), id(watch)))
        return {"updates": float(seed)}

    monkeypatch.setattr(reinforcing, "_run", run)
    assert reinforcing.runs(asked, given, lambda seed: pytest.fail("not begun"), {}, reinforcing.AUTOREGRESSIVE) == {
        "reward": "gain", "updates": 1.0
    }  # fmt: skip
    assert len(seen) == 3 and len(set(seen)) == 1


def test_reinforcement_is_refused_where_no_answer_is_a_ranking(made: Mapping[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from rerank_env.training.language.dapo import DapoConfig
    from rerank_env.training.recipes import reinforcing

    asked, config = asking(tmp_path, made), DapoConfig(max_tokens=40)
    asked.training.mkdir(parents=True)
    look: Any = lambda: reinforcing._look_first(asked, None, None, "gain", config)  # type: ignore[arg-type]  # noqa: E731
    (asked.training / reinforcing.PREFLIGHT).write_text(json.dumps({"valid": 0.01}))
    look()
    (asked.training / reinforcing.PREFLIGHT).write_text(json.dumps({"valid": 0.0}))
    with pytest.raises(
        InputError, match="is a ranking, so there is nothing to learn from; fine-tune longer .* 40 tokens"
    ):
        look()


def test_fine_tuning_is_told_how_to_save_memory(
    made: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("trl", "transformers", "datasets"):
        pytest.importorskip(library)
    from tiny import tiny_tokenizer

    from rerank_env.training.recipes import learning
    from rerank_env.training.recipes.policies import materials

    traces = asking(tmp_path / "traces", made)
    learning.collect_traces("targeted")(traces)
    told: list[bool] = []

    def run(model: Any, tokenizer: Any, dataset: Any, *, directory: Path, config: Any) -> Any:
        told.append(config.gradient_checkpointing)
        return SimpleNamespace(log=[], steps=0)

    monkeypatch.setattr(learning.sft, "run", run)
    policy: Any = SimpleNamespace(model=None, tokenizer=tiny_tokenizer())
    for changes in ([], ["memory.gradient_checkpointing=true"]):
        asked = asking(tmp_path / "sft", {**made, "traces-targeted": traces.folder}, *changes)
        learning._fine_tuned(asked, policy, "traces-targeted", materials(asked), lr=1e-3)
    assert told == [False, True]


def test_a_server_that_is_away_is_told_before_anything_is_asked(
    made: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    pytest.importorskip("openai")
    from rerank_env.agents.language.server import ServerModel
    from rerank_env.training.recipes import learning

    def away(server: ServerModel) -> None:
        raise ServerError(f"{server.model} at {server.base_url} is away")

    monkeypatch.setattr(ServerModel, "check", away)
    monkeypatch.setattr(learning, "collect", lambda *given, **told: pytest.fail("asked"))
    told = ["traces.teacher=server", "traces.name=m", "traces.url=http://localhost:9"]
    with pytest.raises(ServerError, match="m at http://localhost:9 is away"):
        learning.collect_traces("rejection")(asking(tmp_path, made, *told))


@pytest.mark.slow
def test_every_stage_of_gr2_runs_on_real_trainers_and_none_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("trl", "peft", "datasets", "pyarrow", "openai", "huggingface_hub"):
        pytest.importorskip(library)
    from rerank_env.agents.language import LanguagePolicy
    from rerank_env.training.recipes import CARD, RunFolder, recipe_of

    monkeypatch.setattr("rerank_env.training.recipes.reinforcing.refuse_dead", lambda *told, **_: None)  # QUICK is dead
    made = recipe_of("gr2", data=NAME, options=OPTIONS, changes=QUICK)
    folder, told = RunFolder(tmp_path / "run"), []
    said: list[str] = []
    made.run(folder, on_stage=lambda name, state: told.append((name, state)), on_said=said.append)
    assert sum("groups say nothing" in line for line in said) == 4  # once before each reinforcement
    looked = json.loads((folder.stage("dapo") / "training" / "preflight.json").read_bytes())
    assert folder.metrics("dapo")["dead groups before"] == looked["dead_share"]
    assert [name for name, state in told if state == "running"] == list(made.plan.stages)
    told.clear()
    measured = made.run(folder, on_stage=lambda name, state: told.append((name, state)))
    assert [state for _, state in told] == ["finished"] * len(made.plan.stages)
    assert set(measured) == set(made.plan.stages)
    table = json.loads((folder.stage("evaluate") / "table.json").read_bytes())
    names = {"incoming", "random", "oracle", "LambdaMART", "supervised listwise", *NAMES.values()}
    assert names <= set(table["rows"])
    assert table["rows"]["LambdaMART"]["metrics"]["recall@1"]["value"] > 0.9  # the next item is the one after the last
    assert table["asked"] == USERS
    card = (folder.directory / CARD).read_text(encoding="utf-8")
    assert f"| {NAMES['dapo']} |" in card and "not finished" not in card
    policy = LanguagePolicy.from_pretrained(folder.stage("dapo") / "seed-0" / "policy")
    test = load(NAME, split="test", first_stage="popularity", slate_size=20).take(np.arange(4))
    kept = next((folder.stage("evaluate") / "answers" / "dapo-0").glob("*.npy"))
    assert policy.rank(test, rng=np.random.default_rng(0)).shape == np.load(kept)[:4].shape
