"""Diffusion-GR2 from end to end on a made-up log, in seconds: GR2 taken over, every own stage, a kill, the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for library in ("transformers", "trl", "peft", "datasets", "pyarrow", "sklearn", "huggingface_hub"):
    pytest.importorskip(library, reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402
from walking import USERS, walks  # noqa: E402

from rerank_env import data  # noqa: E402
from rerank_env.agents.block_diffusion import BlockDecoding, BlockDiffusionPolicy, Blocks  # noqa: E402
from rerank_env.agents.language import Decoding, LanguagePolicy  # noqa: E402
from rerank_env.data import amazon, load  # noqa: E402
from rerank_env.data.requests import Requests  # noqa: E402
from rerank_env.prompts import PromptWriter  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402
from rerank_env.rewards.rankings import Verdict, verdicts  # noqa: E402
from rerank_env.training.recipes import CARD, RunFolder, recipe_of  # noqa: E402
from rerank_env.training.recipes.converting import converted  # noqa: E402
from rerank_env.training.recipes.crew import Crew  # noqa: E402
from rerank_env.training.recipes.diffusion import OWN  # noqa: E402
from rerank_env.training.recipes.diffusion_settings import IMITATION  # noqa: E402
from rerank_env.training.recipes.kept_texts import KeptTexts  # noqa: E402
from rerank_env.training.recipes.policies import POLICY, adapted, keep_policy, load_blocks, load_policy  # noqa: E402
from rerank_env.training.recipes.stages import Work  # noqa: E402
from rerank_env.training.recipes.tables import SERVED  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),  # the peers' own
    pytest.mark.filterwarnings("ignore::FutureWarning:(?!rerank_env|tests).*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

NAME, OPTIONS = "amazon-beauty", "first_stage=popularity,slate_size=5"
SHARED = ("data", "ids", "remarks", "base", "midtrain", "traces-rejection", "sft-rejection", "dapo")
QUICK = (
    "ids.epochs=1", "lists.watch=9", "remarks.features=score_z,next_last,near_last_3", "seeds=3", "model.width=32",
    "model.layers=1", "model.heads=2", "model.vocabulary=700", "model.context=512", "midtrain.steps=2",
    "midtrain.warmup_steps=1", "midtrain.batch=4", "midtrain.micro_batch=4", "midtrain.length=64",
    "midtrain.questions=3", "traces.tries=2", "traces.most=40", "traces.copies=1", "sft.epochs=1", "dapo.steps=1",
    "dapo.groups_per_step=2", "dapo.group_size=2", "dapo.max_tokens=40", "dapo.max_resamples=1",
    "answering.max_tokens=40", "evaluation.resamples=50",
)  # fmt: skip
BLOCKS = (
    "blocks.size=16", "cft.lessons=traces-rejection", "cft.epochs=2",
    "cft.batch=8", "cft.micro_batch=8", "cft.save_every=1", "block_opd.steps=1",
    "block_opd.groups_per_step=2", "block_opd.group_size=2", "block_opd.max_tokens=40", "block_dapo.steps=1",
    "block_dapo.groups_per_step=2", "block_dapo.group_size=2", "block_dapo.max_tokens=40",
)  # fmt: skip
"""All stages, with next to nothing learned."""

KILLED = """
import json, sys
from pathlib import Path
from walking import walks
from rerank_env.data import amazon
from rerank_env.training.recipes import RunFolder, recipe_of

log = walks()
amazon.read = lambda name: log
made = recipe_of("diffusion-gr2", data="amazon-beauty", options=sys.argv[2], changes=sys.argv[3:])
made.run(RunFolder(Path(sys.argv[1])), until="cft", on_said=print)
"""


class Run(NamedTuple):
    """A finished run, the run of GR2 beside it, and what was said and began on the way."""

    folder: RunFolder
    beside: RunFolder
    said: list[str]
    ran: list[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The log in the place of a data set, and a cache of its own, which comes back."""
    patch, cache = pytest.MonkeyPatch(), tmp_path_factory.mktemp("cache")
    patch.setenv("RERANK_CACHE", str(cache))
    log = walks()
    patch.setattr(amazon, "read", lambda name: log)
    data._splits.cache_clear()
    yield cache
    data._splits.cache_clear()
    patch.undo()


@pytest.fixture(scope="module")
def finished(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """GR2 up to reinforcement, then all of Diffusion-GR2 beside it."""
    runs, patch = tmp_path_factory.mktemp("runs"), pytest.MonkeyPatch()
    for home in ("reinforcing", "converting"):  # so little was learned that no answer is a ranking
        patch.setattr(f"rerank_env.training.recipes.{home}.refuse_dead", lambda *told, **_: None)
    beside, folder = RunFolder(runs / f"gr2-{NAME}-tiny"), RunFolder(runs / "own")
    recipe_of("gr2", data=NAME, options=OPTIONS, changes=(*QUICK, "rows=dapo")).run(beside, until="dapo")
    said, ran = list[str](), list[str]()
    recipe_of("diffusion-gr2", data=NAME, options=OPTIONS, changes=(*QUICK, *BLOCKS)).run(
        folder, on_said=said.append, on_stage=lambda name, state: ran.append(name) if state == "running" else None
    )
    patch.undo()
    return Run(folder, beside, said, ran)


@pytest.mark.slow
def test_a_teacher_whose_greedy_answers_are_no_rankings_is_not_imitated(
    world: Path, finished: Run, tmp_path: Path
) -> None:
    assert world.is_dir()
    changes = (*QUICK, *BLOCKS, "cft.lessons=traces-imitation", f"gr2={finished.beside.directory}")
    made = recipe_of("diffusion-gr2", data=NAME, options=OPTIONS, changes=changes)
    with pytest.raises(InputError, match="answers of the teacher is a ranking"):
        made.run(RunFolder(tmp_path / "run"), until=IMITATION)
    assert not (tmp_path / "run" / IMITATION / "done.json").is_file()


@pytest.mark.slow
def test_what_gr2_finished_is_taken_over_and_every_other_stage_runs_once(finished: Run) -> None:
    assert finished.ran == [*SHARED, *(name for name in OWN if name != IMITATION)]
    taken = [line for line in finished.said if "taken from" in line]
    assert taken == [f"{name}: taken from {finished.beside.directory.resolve()}" for name in SHARED]
    for name in SHARED:
        ours, theirs = finished.folder.record(name), finished.beside.record(name)
        assert ours and theirs and ours.result == theirs.result
    again = recipe_of("diffusion-gr2", data=NAME, options=OPTIONS, changes=(*QUICK, *BLOCKS))
    assert set(again.plan.states(finished.folder).values()) == {"finished"}
    assert again.notes(finished.folder, []) == []


@pytest.mark.slow
def test_the_conversion_has_the_teachers_weights_and_its_saved_way_of_decoding(finished: Run) -> None:
    teacher = LanguagePolicy.from_pretrained(finished.folder.stage("dapo") / "seed-3" / POLICY)
    naive = BlockDiffusionPolicy.from_pretrained(finished.folder.stage("convert") / POLICY)
    assert (naive.blocks.size, naive.decoding.rule, naive.decoding.max_tokens) == (16, "threshold(0.9)", 40)
    known = len(teacher.tokenizer)
    told = dict(teacher.model.named_parameters())
    for name, weights in naive.model.named_parameters():
        assert torch.equal(weights[:known] if weights.shape != told[name].shape else weights, told[name]), name
    tuned = BlockDiffusionPolicy.from_pretrained(finished.folder.stage("cft") / POLICY)
    assert not torch.equal(tuned.model.get_input_embeddings().weight, naive.model.get_input_embeddings().weight)


@pytest.mark.slow
def test_the_table_has_a_row_a_step_with_faults_and_the_card_says_what_is_kept(finished: Run) -> None:
    table = json.loads((finished.folder.stage("evaluate") / "table.json").read_bytes())
    steps = ["naive conversion", "CFT", "CFT + OPD", "CFT + OPD + RL"]
    names = [name for name in table["rows"] if not name.endswith(SERVED)]
    assert names == ["incoming", "random", "oracle", "AR teacher", *steps]
    assert table["rival"] == "AR teacher" and table["asked"] == USERS
    test = load(NAME, split="test", first_stage="popularity", slate_size=5)
    for name, stage in zip(steps, ("convert", "cft", "block-opd", "block-dapo/seed-3"), strict=True):
        row = table["rows"][name]
        assert row["faults"]["valid"] == row["validity"] and set(row["gap"]) == {"value", "low", "high"}
        policy = BlockDiffusionPolicy.from_pretrained(finished.folder.directory / stage / POLICY)
        answers = policy.answers(test)
        rounds = [sum(told.block_rounds) for told, *_ in answers.trajectories_BN]
        assert row["forwards"] == pytest.approx(np.mean(rounds))
        valid_B = verdicts(policy.rank(test, rng=np.random.default_rng(0)), test.sizes_B) == Verdict.OK
        assert row["validity"] == pytest.approx(valid_B.mean())
    card = (finished.folder.directory / CARD).read_text(encoding="utf-8")
    assert "not finished" not in card and "| CFT + OPD + RL | undefined |" in card
    assert "BlockDiffusionPolicy.from_pretrained" in card and "threshold(0.9)" in card


@pytest.mark.slow
def test_validity_after_fine_tuning_is_said_with_advice_where_it_is_low(finished: Run) -> None:
    valid = finished.folder.metrics("cft")["watched valid"]
    at = finished.said.index(
        f"after conversion fine-tuning {valid:.1%} of the answers to watched requests are rankings"
    )
    assert "cft.epochs=4 --restart cft" in finished.said[at + 1]


@pytest.mark.slow
def test_reinforcement_is_refused_where_no_answer_is_a_ranking(finished: Run, tmp_path: Path) -> None:
    changes = (*QUICK, *BLOCKS, f"gr2={finished.folder.directory}")
    made = recipe_of("diffusion-gr2", data=NAME, options=OPTIONS, changes=(*changes, "block_dapo.start=cft"))
    for name in ("convert", "cft"):  # not stages of GR2, so they are put there by hand
        (tmp_path / name).symlink_to(finished.folder.stage(name))
    folder = RunFolder(tmp_path)
    with pytest.raises(InputError, match=r"before 'block-dapo' is a ranking.*fine-tune longer \(cft.epochs\)"):
        made.run(folder, only=[*SHARED, "block-dapo"])


@pytest.mark.slow
def test_killed_in_the_middle_of_fine_tuning_a_run_ends_with_the_same_files(
    finished: Run, world: Path, tmp_path: Path
) -> None:
    script, own = tmp_path / "killed.py", RunFolder(tmp_path / "own")
    script.write_text(KILLED)
    told = [OPTIONS, *QUICK, *BLOCKS, f"gr2={finished.beside.directory}"]
    command = [sys.executable, str(script), str(own.directory), *told]
    shared = str(Path(__file__).parent.parent / "data")
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": shared, "RERANK_CACHE": str(world)}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not list(own.stage("cft").glob("training/cft/checkpoint-2*/trainer_state.json")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert own.record("convert") is not None and own.record("cft") is None
    subprocess.run(command, env=variables, check=True, capture_output=True)
    for name in ("convert", "cft"):
        ours, theirs = own.record(name), finished.folder.record(name)
        assert ours and theirs and ours.files == theirs.files


def settings() -> dict[str, Any]:
    return {"model": {"dtype": "float32", "device": "cpu"}}


def work(folder: Path) -> Work:
    return Work(folder, {}, settings(), Crew(), lambda what, done, total: None)


def plain(rank: int = 0) -> tuple[LanguagePolicy, Requests]:
    requests, tokenizer = load("synthetic", requests=4, slate_size=3, history=2), tiny_tokenizer()
    policy = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter("list"), decoding=Decoding(max_tokens=8))
    policy.model = adapted(policy.model, rank, seed=0)
    return policy, requests


def test_adapters_are_merged_and_new_ones_leave_the_converted_weights_alone(tmp_path: Path) -> None:
    base, requests = plain()
    keep_policy(work(tmp_path / "midtrain"), base)
    teacher = load_policy(tmp_path / "midtrain" / POLICY, settings())
    teacher.model = adapted(teacher.model, 2, seed=0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weights in teacher.model.named_parameters():
            if "lora" in name:
                weights.copy_(0.2 * torch.randn(weights.shape, generator=draw))
        said = torch.cat(teacher.log_prob(requests, ["[2, 1, 3]"] * 4))
        assert (said - torch.cat(base.log_prob(requests, ["[2, 1, 3]"] * 4))).abs().max() > 0.1
    known = len(teacher.tokenizer)
    naive = converted(teacher, blocks=Blocks(4), decoding=BlockDecoding(max_tokens=8))
    with torch.no_grad():
        as_before = LanguagePolicy(naive.model, naive.tokenizer, naive.writer)
        now = torch.cat(as_before.log_prob(requests, ["[2, 1, 3]"] * 4))
    share = (said - now).exp() - 1  # the mask token, one more beside `known`, takes about one part in so many from all
    assert 0.5 / known < share.min() and share.max() < 2.0 / known
    keep_policy(work(tmp_path / "convert"), naive)
    tuned = load_blocks(tmp_path / "convert" / POLICY, settings())
    tuned.model = adapted(tuned.model, 2, seed=0)
    keep_policy(work(tmp_path / "cft"), tuned)
    assert json.loads((tmp_path / "cft" / POLICY / "policy.json").read_bytes())["adapter"] == "../../convert/policy"
    again = load_blocks(tmp_path / "cft" / POLICY, settings())
    rows = again.model.get_input_embeddings().weight
    torch.testing.assert_close(rows[again.mask_id], rows[:known].mean(dim=0))
    assert not rows.requires_grad and any(weights.requires_grad for weights in again.model.parameters())


def test_texts_are_kept_and_nobody_is_asked_twice(tmp_path: Path) -> None:
    teacher, requests = plain()
    policy, loaded = converted(teacher, blocks=Blocks(4), decoding=BlockDecoding(max_tokens=8)), list[int]()
    kept = KeptTexts(lambda: loaded.append(1) or policy, tmp_path / "mine")  # type: ignore[func-returns-value]
    answers = policy.answers(requests)
    first = kept.written(requests)
    assert first.texts == [text for text, *_ in answers.texts] and first.sizes == [3] * 4
    assert first.tokens == [len(ids) for ids, *_ in answers.ids_BN] and max(first.rounds) <= 8
    again = KeptTexts(lambda: pytest.fail("asked again"), tmp_path / "mine")
    assert again.written(requests) == first and loaded == [1]
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(again.rank(requests, rng=rng), policy.rank(requests, rng=rng))
