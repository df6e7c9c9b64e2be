"""A run in a directory: its record comes first, its policy last, and neither outlives it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rerank_env.agents import Evidence, LinearPlackettLuce, ListwisePolicy, TokenPolicy  # noqa: E402
from rerank_env.data import load  # noqa: E402
from rerank_env.data.interactions import Interactions  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError, UnknownNameError  # noqa: E402
from rerank_env.training import Interrupted, runs  # noqa: E402
from rerank_env.training.runs import RunSettings, arguments, run_settings, train_run, trained_policy  # noqa: E402

pytestmark = pytest.mark.torch

SHORT = RunSettings(method="supervised", data="synthetic", steps=2)


def stop(_log: object) -> None:
    raise KeyboardInterrupt


def weights_of(directory: Path) -> torch.Tensor:
    return trained_policy(directory).key.weight


def test_the_record_is_there_before_the_policy_and_an_unfinished_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train_run(SHORT, tmp_path / "run", on_step=stop)
    assert run_settings(tmp_path / "run") == SHORT
    with pytest.raises(CheckpointError, match="is not finished; run its `rerank train` command again"):
        trained_policy(tmp_path / "run")
    result = train_run(SHORT, tmp_path / "run")
    assert torch.equal(weights_of(tmp_path / "run"), result.policy.key.weight)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".lock",
        "checkpoints",
        "metrics.jsonl",
        "policy",
        "run.json",
    ]


@pytest.mark.parametrize("forgotten", ["restart", "checkpoints are gone"])
def test_a_run_that_starts_from_nothing_leaves_no_earlier_policy(tmp_path: Path, forgotten: str) -> None:
    train_run(SHORT, tmp_path)
    (tmp_path / "policy" / "notes.txt").write_text("the user's own")
    if forgotten != "restart":
        for path in sorted((tmp_path / "checkpoints").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    other = RunSettings(method="supervised", data="synthetic", steps=3, seed=1)
    with pytest.raises(Interrupted):
        train_run(other, tmp_path, resume=forgotten != "restart", on_step=stop)
    assert run_settings(tmp_path) == other
    with pytest.raises(CheckpointError, match="is not finished"):
        trained_policy(tmp_path)
    assert [path.name for path in (tmp_path / "policy").iterdir()] == ["notes.txt"]


def test_a_refused_resume_leaves_record_and_policy_as_they_were(tmp_path: Path) -> None:
    train_run(SHORT, tmp_path)
    before = weights_of(tmp_path)
    with pytest.raises(InputError, match=r"config\.seed is 1 .* resume=False \(`rerank train --restart`\)"):
        train_run(RunSettings(method="supervised", data="synthetic", steps=2, seed=1), tmp_path)
    assert run_settings(tmp_path) == SHORT
    assert torch.equal(weights_of(tmp_path), before)


def test_a_directory_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="file is a file; name a directory"):
        train_run(SHORT, tmp_path / "file")
    with pytest.raises(CheckpointError, match="could not be written"):
        train_run(SHORT, tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_saved_policy_without_a_run_is_loaded_and_has_no_settings(tmp_path: Path) -> None:
    train_run(SHORT, tmp_path / "run")
    trained_policy(tmp_path / "run").save_pretrained(tmp_path / "alone")
    assert isinstance(trained_policy(tmp_path / "alone"), ListwisePolicy)
    assert run_settings(tmp_path / "alone") is None
    with pytest.raises(CheckpointError, match=r"nowhere has no config\.json"):
        trained_policy(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"colour": "red"}', '{"steps": 0}'])
def test_a_record_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / runs.RECORD).write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json cannot be read"):
        run_settings(tmp_path)


def test_only_dapo_reads_a_reward() -> None:
    assert RunSettings(reward="gr2").reward == "gr2"
    with pytest.raises(InputError, match="reward is 'gain' but supervised reads none; leave it out"):
        RunSettings(method="supervised", reward="gain")


def test_the_default_reward_of_dapo_is_gain(tmp_path: Path) -> None:
    settings = RunSettings(data="synthetic", steps=1)
    train_run(settings, tmp_path)
    (state,) = tmp_path.glob("checkpoints/step-00000001/state.json")
    assert (
        json.loads(state.read_text())["state"]["identity"]["reward"]
        == "ndcg@10.over_incoming().gate(valid, otherwise=-1.1)"
    )
    assert json.loads((tmp_path / runs.RECORD).read_text())["reward"] is None


def test_settings_repeat_as_arguments_without_what_was_left_open() -> None:
    assert arguments(RunSettings(method="supervised")) == [
        "supervised", "--data", "movielens-100k", "--seed", "0",
    ]  # fmt: skip
    assert arguments(RunSettings(reward="gr2", steps=5, learning_rate=0.001))[-8:] == [
        "--reward", "gr2", "--seed", "0", "--steps", "5", "--learning-rate", "0.001",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"method": "dappo"}, UnknownNameError, "did you mean 'dapo'"),
        ({"reward": "gian"}, UnknownNameError, "did you mean 'gain'"),
        ({"steps": 0}, InputError, "steps is 0"),
        ({"seed": -1}, InputError, "seed is -1"),
        ({"learning_rate": float("nan")}, InputError, "learning_rate is nan"),
        ({"learning_rate": 0.0}, InputError, r"learning_rate is 0\.0; give a number above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    change: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        RunSettings(**change)


def test_a_reward_that_a_run_cannot_serve_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="in a training run, gain.* needs step"):
        RunSettings(reward="gain*linear(start=0, end=1, steps=5)")


def test_a_directory_is_read_by_the_kind_that_it_names(tmp_path: Path) -> None:
    requests = load("synthetic", requests=40)
    token = TokenPolicy.for_requests(requests, generator=torch.Generator().manual_seed(0))
    token.save_pretrained(tmp_path / "token")
    assert isinstance(trained_policy(tmp_path / "token"), TokenPolicy)
    log = Interactions.arranged(
        np.repeat(np.arange(30), 5), np.tile(np.arange(5), 30), np.ones(150), np.tile(np.arange(5.0), 30),
        texts=requests.catalog.texts, content_IC=np.zeros((len(requests.catalog), 0), dtype=np.float32),
        content_names=(), seed=0,
    )  # fmt: skip
    over_log = replace(requests, catalog=replace(requests.catalog, texts=log.texts))
    evidence = Evidence.fit(log, np.ones(len(log), dtype=bool))
    linear = LinearPlackettLuce.fit(over_log, evidence=evidence)
    linear.save_pretrained(tmp_path / "linear")
    again = trained_policy(tmp_path / "linear")
    assert isinstance(again, LinearPlackettLuce)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(again.rank(over_log, rng=rng), linear.rank(over_log, rng=rng))


def test_a_language_policy_is_read_and_the_folder_of_a_recipe_names_those_in_it(tmp_path: Path) -> None:
    for library in ("transformers", "trl"):
        pytest.importorskip(library)
    from tiny import tiny_model, tiny_tokenizer

    from rerank_env.agents.language import Decoding, LanguagePolicy
    from rerank_env.prompts import PromptWriter

    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"recipe": "gr2", "data": "amazon-beauty", "size": "tiny"}))
    with pytest.raises(InputError, match=r"a run of the recipe gr2 without a policy yet"):
        trained_policy(run)
    tokenizer = tiny_tokenizer()
    made = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter("list"), decoding=Decoding(max_tokens=8))
    requests, rng = load("synthetic", requests=4, slate_size=3, history=2), np.random.default_rng(0)
    for place in (run / "midtrain" / "policy", run / "dapo" / "seed-0" / "policy"):
        made.save_pretrained(place)
        for folder in (place, place.parent):
            again = trained_policy(folder)
            assert isinstance(again, LanguagePolicy)
            np.testing.assert_array_equal(again.rank(requests, rng=rng), made.rank(requests, rng=rng))
    for ask in (trained_policy, run_settings):
        with pytest.raises(InputError, match="name one of its policies: .*midtrain/policy, .*dapo/seed-0/policy"):
            ask(run)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"kind": 3}', b"{"])
def test_a_directory_that_names_no_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError):
        trained_policy(tmp_path)


def test_options_of_a_data_set_are_part_of_a_run(tmp_path: Path) -> None:
    settings = RunSettings(data="synthetic", options="requests=40,slate_size=5", steps=1)
    assert train_run(settings, tmp_path).steps == 1
    assert run_settings(tmp_path) == settings
    assert "--options" in arguments(settings)
    with pytest.raises(InputError, match="slate_size is not NAME=VALUE|'slate_size' is not NAME=VALUE"):
        RunSettings(options="slate_size")
