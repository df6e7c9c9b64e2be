"""Checkpoints survive full disks, torn files and kills; the optimiser comes back bit for bit."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rerank_env.rewards.errors import CheckpointError  # noqa: E402
from rerank_env.training import checkpoints  # noqa: E402
from rerank_env.training.checkpoints import Checkpoint, CheckpointStore, optimizer_tensors, restore_optimizer  # noqa: E402

pytestmark = pytest.mark.torch


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"weight": torch.full((3,), float(step)), "seed": torch.arange(4)}, {"best": step / 3})


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def test_what_is_saved_comes_back_bit_for_bit(store: CheckpointStore) -> None:
    store.save(checkpoint(7))
    found = store.load_latest()
    assert found is not None
    assert found.step == 7
    assert found.state == {"best": 7 / 3}
    assert torch.equal(found.tensors["weight"], torch.full((3,), 7.0))
    assert found.tensors["seed"].dtype == torch.int64


def test_an_empty_directory_has_no_checkpoint(store: CheckpointStore) -> None:
    assert store.load_latest() is None


def test_the_last_two_steps_are_kept(store: CheckpointStore) -> None:
    for step in (1, 2, 3):
        store.save(checkpoint(step))
    assert store.steps() == [2, 3]


def test_saving_a_step_again_replaces_it(store: CheckpointStore) -> None:
    store.save(checkpoint(1))
    store.save(Checkpoint(1, {"weight": torch.zeros(1)}, {"best": None}))
    found = store.load_latest()
    assert found is not None
    assert found.state == {"best": None}
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]


def test_a_full_disk_is_one_sentence_and_the_previous_checkpoint_survives(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(checkpoint(1))

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"could not be written \(No space left on device\); .*untouched"):
            store.save(checkpoint(2))
    found = store.load_latest()
    assert found is not None
    assert found.step == 1
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from rerank_env.rewards.errors import CheckpointError
from rerank_env.training.checkpoints import Checkpoint, CheckpointStore

store = CheckpointStore(Path(sys.argv[1]))
store.save(Checkpoint(1, {"weight": torch.ones(10)}, {}))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    store.save(Checkpoint(2, {"weight": torch.ones(100_000)}, {}))
except CheckpointError as error:
    print(error)
assert store.load_latest().step == 1
assert len(list(store.folder.iterdir())) == 1
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX resource limits")
def test_a_write_that_the_operating_system_refuses_half_way_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout


def test_leftovers_of_a_killed_write_are_ignored_and_removed(store: CheckpointStore) -> None:
    store.save(checkpoint(1))
    leftover = store.folder / f"{checkpoints.TEMPORARY_PREFIX}abc"
    leftover.mkdir()
    (leftover / "tensors.safetensors").write_bytes(b"half")
    assert store.load_latest() is not None
    store.save(checkpoint(2))
    assert not leftover.exists()


@pytest.mark.parametrize("name", [checkpoints.TENSORS_NAME, checkpoints.STATE_NAME])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    store.save(checkpoint(1))
    path = store.save(checkpoint(2)) / name
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[:-20])
    else:
        content[content.index(b'"best": ' if name == checkpoints.STATE_NAME else b"\x00\x00\x40") + 8] ^= 1
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        found = store.load_latest()
    assert found is not None
    assert found.step == 1
    assert "step-00000002" in caplog.text


def test_when_every_checkpoint_is_damaged_the_error_says_what_to_do(store: CheckpointStore) -> None:
    for step in (1, 2):
        (store.save(checkpoint(step)) / checkpoints.TENSORS_NAME).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints .* start the run again"):
        store.load_latest()


def test_a_checkpoint_of_another_format_is_refused_by_name(store: CheckpointStore) -> None:
    path = store.save(checkpoint(1)) / checkpoints.STATE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="format 99 but this version reads format 1"):
        checkpoints.read_checkpoint(path.parent)


def test_forgetting_what_came_later_keeps_what_came_before(store: CheckpointStore) -> None:
    store.save(checkpoint(1))
    store.save(checkpoint(2))
    store.remove_after(1)
    assert store.steps() == [1]


def test_a_restored_optimiser_goes_on_bit_for_bit() -> None:
    def build() -> tuple[nn.Linear, torch.optim.AdamW]:
        layer = nn.Linear(4, 3)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(0.5)
        return layer, torch.optim.AdamW(layer.parameters(), lr=0.01)

    def update(layer: nn.Linear, optimizer: torch.optim.AdamW, seed: int) -> None:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        layer(inputs).pow(2).sum().backward()
        optimizer.step()

    layer, optimizer = build()
    for seed in range(3):
        update(layer, optimizer, seed)
    names = {parameter: name for name, parameter in layer.named_parameters()}
    moments = {name: value.clone() for name, value in optimizer_tensors(optimizer, names).items()}
    weights = {name: value.clone() for name, value in layer.state_dict().items()}
    other, restored = build()
    other.load_state_dict(weights)
    restore_optimizer(restored, moments, {parameter: name for name, parameter in other.named_parameters()})
    for seed in range(3, 6):
        update(layer, optimizer, seed)
        update(other, restored, seed)
    assert all(torch.equal(one, two) for one, two in zip(layer.parameters(), other.parameters(), strict=True))
