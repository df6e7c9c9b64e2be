"""A run that is stopped, killed or starved of disk ends, once resumed, as if nothing had happened."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rerank_env.rewards.errors import CheckpointError, InputError  # noqa: E402
from rerank_env.training import DapoConfig, Interrupted, SupervisedConfig, checkpoints, dapo, learner, supervised  # noqa: E402
from rerank_env.training.checkpoints import CheckpointStore  # noqa: E402
from rerank_env.training.logs import LOG_NAME, UNEQUAL_FIELDS, read_log  # noqa: E402

pytestmark = pytest.mark.torch

DAPO = DapoConfig(
    steps=11,
    requests_per_step=8,
    group_size=4,
    learning_rate=3e-3,
    checkpoint_every=4,
    validate_every=3,
    inner_epochs=2,
    warmup_steps=3,
    decay="cosine",
)
SUPERVISED = SupervisedConfig(steps=11, requests_per_step=8, checkpoint_every=4, validate_every=3, patience=None)


def started(method, policy, requests, *, directory, config=None, **options):
    if method == "dapo":
        return dapo.train(policy, requests, "gain", config=config or DAPO, directory=directory, **options)
    return supervised.train(policy, requests, config=config or SUPERVISED, directory=directory, **options)


def comparable(directory: Path) -> list[dict[str, object]]:
    return [{k: v for k, v in line.items() if k not in UNEQUAL_FIELDS} for line in read_log(directory / LOG_NAME)]


def same_weights(one, two) -> bool:
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def same_checkpoints(one: Path, two: Path) -> bool:
    a, b = CheckpointStore(one).load_latest(), CheckpointStore(two).load_latest()
    assert a is not None
    assert b is not None
    tensors = a.tensors.keys() == b.tensors.keys() and all(torch.equal(a.tensors[n], b.tensors[n]) for n in a.tensors)
    return tensors and (a.step, a.state) == (b.step, b.state)


def stop_at(step):
    def on_step(log) -> None:
        if log.step == step:
            raise KeyboardInterrupt

    return on_step


@pytest.mark.parametrize("method", ["dapo", "supervised"])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(method, requests, validation, new_policy, tmp_path) -> None:
    whole = started(method, new_policy(), requests, directory=tmp_path / "whole", validation=validation)
    pieces = tmp_path / "pieces"
    for step in sorted(random.Random(7).sample(range(1, 11), 3)):
        with pytest.raises(Interrupted, match=rf"interrupted; {step} steps are saved in .*again to go on"):
            started(method, new_policy(), requests, directory=pieces, validation=validation, on_step=stop_at(step))
    resumed = started(method, new_policy(), requests, directory=pieces, validation=validation)
    assert same_weights(resumed.policy, whole.policy)
    assert same_checkpoints(pieces, tmp_path / "whole")
    assert comparable(pieces) == comparable(tmp_path / "whole")
    assert (resumed.best_step, resumed.best_validation) == (whole.best_step, whole.best_validation)


@pytest.mark.parametrize("method", ["dapo", "supervised"])
def test_an_interrupt_in_the_middle_of_an_update_saves_the_last_completed_step(
    method, requests, new_policy, tmp_path, monkeypatch
) -> None:
    whole = started(method, new_policy(), requests, directory=tmp_path / "whole")
    module, calls = {"dapo": dapo, "supervised": supervised}[method], []

    def interrupted(*args, **options):
        calls.append(learner.apply_gradients(*args, **options))  # the weights are changed already
        if len(calls) == 6:
            raise KeyboardInterrupt
        return calls[-1]

    with monkeypatch.context() as patch:
        patch.setattr(module, "apply_gradients", interrupted)
        with pytest.raises(Interrupted) as stopped:
            started(method, new_policy(), requests, directory=tmp_path / "pieces")
    assert stopped.value.step == (2 if method == "dapo" else 5)  # two updates a step against one
    resumed = started(method, new_policy(), requests, directory=tmp_path / "pieces")
    assert same_weights(resumed.policy, whole.policy)
    assert comparable(tmp_path / "pieces") == comparable(tmp_path / "whole")


def test_an_interruption_passes_by_handlers_of_errors(tmp_path) -> None:
    error = Interrupted(3, tmp_path)
    assert isinstance(error, KeyboardInterrupt)
    assert not isinstance(error, Exception)
    assert (error.step, error.directory) == (3, tmp_path)


def test_a_finished_run_is_not_trained_again(requests, validation, new_policy, tmp_path) -> None:
    first = started("dapo", new_policy(), requests, directory=tmp_path, validation=validation)
    seen = []
    again = started("dapo", new_policy(), requests, directory=tmp_path, validation=validation, on_step=seen.append)
    assert seen == []
    assert same_weights(again.policy, first.policy)
    assert dataclasses.replace(again, policy=first.policy) == first


def test_starting_afresh_forgets_the_earlier_run(requests, new_policy, tmp_path) -> None:
    started("dapo", new_policy(), requests, directory=tmp_path)
    config = dataclasses.replace(DAPO, steps=3, seed=1)
    result = started("dapo", new_policy(), requests, directory=tmp_path, config=config, resume=False)
    assert result.steps == 3
    assert [line["step"] for line in read_log(result.log_path)] == [1, 2, 3]
    assert CheckpointStore(tmp_path).steps() == [0, 3]


@pytest.mark.parametrize("change", ["config.learning_rate", "data", "reward", "validation", "policy.dim", "algorithm"])
def test_a_resume_with_anything_else_is_refused_by_name(change, requests, validation, new_policy, tmp_path) -> None:
    with pytest.raises(Interrupted):
        started("dapo", new_policy(), requests, directory=tmp_path, validation=validation, on_step=stop_at(2))
    before = (tmp_path / LOG_NAME).read_bytes()
    config, data, reward, held_out, policy = DAPO, requests, "gain", validation, new_policy()
    if change == "config.learning_rate":
        config = dataclasses.replace(DAPO, learning_rate=0.5)
    elif change == "data":
        data = requests.take(range(100))
    elif change == "reward":
        reward = "gr2"
    elif change == "validation":
        held_out = None
    elif change == "policy.dim":
        policy = type(policy).for_requests(requests, generator=torch.Generator().manual_seed(0), dim=8)
    with pytest.raises(InputError, match=rf"^{change} is .* was started with .*\(`rerank train --restart`\)"):
        if change == "algorithm":
            supervised.train(policy, data, config=SUPERVISED, directory=tmp_path, validation=held_out)
        else:
            dapo.train(policy, data, reward, config=config, directory=tmp_path, validation=held_out)
    assert (tmp_path / LOG_NAME).read_bytes() == before
    assert CheckpointStore(tmp_path).steps() == [0, 2]


def test_a_full_disk_ends_the_run_in_a_sentence_and_it_can_go_on(
    requests, validation, new_policy, tmp_path, monkeypatch
) -> None:
    whole = started("dapo", new_policy(), requests, directory=tmp_path / "whole", validation=validation)
    synced, sync = [], os.fsync

    def filling_up(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > 12:  # a checkpoint takes six, and the log has no line yet at the first
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", filling_up)
        with pytest.raises(CheckpointError, match="No space left on device"):
            started("dapo", new_policy(), requests, directory=tmp_path / "pieces", validation=validation)
    assert CheckpointStore(tmp_path / "pieces").steps() == [0, 4]
    resumed = started("dapo", new_policy(), requests, directory=tmp_path / "pieces", validation=validation)
    assert same_weights(resumed.policy, whole.policy)
    assert comparable(tmp_path / "pieces") == comparable(tmp_path / "whole")


def test_a_directory_that_cannot_be_made_is_one_sentence(requests, new_policy, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"file.run.checkpoints.* could not be written"):
        started("dapo", new_policy(), requests, directory=tmp_path / "file" / "run")


def test_a_torn_newest_checkpoint_costs_only_the_steps_since_the_one_before(requests, new_policy, tmp_path) -> None:
    whole = started("dapo", new_policy(), requests, directory=tmp_path / "whole")
    with pytest.raises(Interrupted):
        started("dapo", new_policy(), requests, directory=tmp_path / "pieces", on_step=stop_at(9))
    newest = tmp_path / "pieces" / "checkpoints" / "step-00000009" / checkpoints.TENSORS_NAME
    newest.write_bytes(newest.read_bytes()[:-1])
    seen = []
    resumed = started("dapo", new_policy(), requests, directory=tmp_path / "pieces", on_step=seen.append)
    assert seen[0].step == 9  # from step 8
    assert same_weights(resumed.policy, whole.policy)
    assert comparable(tmp_path / "pieces") == comparable(tmp_path / "whole")


def test_training_stops_early_without_a_new_best_and_stays_stopped(requests, validation, new_policy, tmp_path) -> None:
    config = dataclasses.replace(SUPERVISED, steps=30, learning_rate=2.0, max_grad_norm=1e6, patience=2)
    config = dataclasses.replace(config, warmup_steps=0, decay="none")
    for _ in range(2):
        policy = new_policy()
        result = started("supervised", policy, requests, directory=tmp_path, config=config, validation=validation)
        assert result.best_step == 0
        assert result.steps == 6  # validations after steps 3 and 6 found nothing better
        assert len(read_log(result.log_path)) == 6


SCRIPT = """
import sys, time
import torch
from rerank_env.agents import ListwisePolicy
from rerank_env.data import load
from rerank_env.training import DapoConfig, Interrupted, dapo

torch.set_num_threads(1)
train = load("synthetic", requests=200, slate_size=6, history=8)
validation = load("synthetic", split="validation", requests=200, slate_size=6, history=8)
policy = ListwisePolicy.for_requests(train, generator=torch.Generator().manual_seed(0), dim=16, layers=1, heads=2)
config = DapoConfig(steps=60, requests_per_step=8, group_size=4, checkpoint_every=7, validate_every=10)
pause = float(sys.argv[2])
try:
    dapo.train(policy, train, "gain", config=config, directory=sys.argv[1], validation=validation,
               on_step=lambda log: time.sleep(pause))
except Interrupted as stopped:
    print(stopped)
    sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("sent", ["SIGINT", "SIGKILL"])
def test_a_real_signal_to_a_real_process_loses_nothing(sent, tmp_path, start) -> None:
    def process(directory: Path, pause: float) -> subprocess.Popen[str]:
        return start([sys.executable, "-c", SCRIPT, directory, str(pause)])

    whole = process(tmp_path / "whole", 0.0)
    killed = process(tmp_path / "pieces", 0.03)
    log = tmp_path / "pieces" / LOG_NAME
    deadline = time.monotonic() + 120
    while killed.poll() is None and time.monotonic() < deadline and not (log.exists() and len(read_log(log)) >= 12):
        time.sleep(0.02)
    killed.send_signal(getattr(signal, sent))
    out, err = killed.communicate(timeout=120)
    if sent == "SIGINT":
        assert killed.returncode == 130, err
        assert "steps are saved in" in out
    else:
        assert killed.returncode == -signal.SIGKILL
    assert len(read_log(log)) < 60
    for finished in (whole, process(tmp_path / "pieces", 0.0)):
        _, err = finished.communicate(timeout=120)
        assert finished.returncode == 0, err
    assert same_checkpoints(tmp_path / "pieces", tmp_path / "whole")
    assert comparable(tmp_path / "pieces") == comparable(tmp_path / "whole")
