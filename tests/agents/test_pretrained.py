"""A saved policy answers as before, and a folder that cannot be trusted is refused in one sentence."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from rerank_env.agents import ListwisePolicy, pretrained  # noqa: E402
from rerank_env.data.synthetic import synthetic  # noqa: E402
from rerank_env.rewards.errors import CheckpointError  # noqa: E402

pytestmark = pytest.mark.torch
REQUESTS = synthetic(requests=8, slate_size=5, min_slate_size=2, history=4)


def new_policy(seed: int = 0, **settings: object) -> ListwisePolicy:
    settings = {"dim": 8, "heads": 2, "item_embedding": 2, **settings}
    return ListwisePolicy.for_requests(REQUESTS, generator=torch.Generator().manual_seed(seed), **settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_policy().save_pretrained(tmp_path / "runs" / "policy")
    return tmp_path / "runs" / "policy"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loaded_policy_answers_as_the_saved_one_to_the_last_bit(tmp_path: Path, dtype: "torch.dtype") -> None:
    policy = new_policy().to(dtype)
    policy.save_pretrained(tmp_path)
    loaded = ListwisePolicy.from_pretrained(tmp_path)
    assert loaded.config == policy.config
    assert not loaded.training
    with torch.no_grad():
        assert torch.equal(loaded(REQUESTS), policy(REQUESTS))
        assert torch.equal(loaded(REQUESTS.observation()), policy(REQUESTS))  # no catalogue needed
    rng = np.random.default_rng(0)
    assert np.array_equal(loaded.rank(REQUESTS, rng=rng), policy.rank(REQUESTS, rng=rng))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_policy_without_item_features_can_be_saved(tmp_path: Path) -> None:
    bare = replace(REQUESTS.catalog, features_IF=np.zeros((len(REQUESTS.catalog), 0), np.float32), feature_names=())
    requests = replace(REQUESTS, catalog=bare)
    policy = ListwisePolicy.for_requests(requests, generator=torch.Generator().manual_seed(0), item_embedding=4)
    policy.save_pretrained(tmp_path)
    assert torch.equal(ListwisePolicy.from_pretrained(tmp_path)(requests), policy(requests))


def test_saving_again_replaces_and_loading_leaves_random_numbers_alone(folder: Path) -> None:
    other = new_policy(seed=1, dim=16)
    other.save_pretrained(folder)
    before = torch.random.get_rng_state()
    assert torch.equal(ListwisePolicy.from_pretrained(folder).key.weight, other.key.weight)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"has no {name}; pass a folder that save_pretrained wrote"):
        ListwisePolicy.from_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        ListwisePolicy.from_pretrained(folder / "nowhere")


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_torn_weights_are_refused(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"cannot be read .*; save it again"):
        ListwisePolicy.from_pretrained(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[1, 2]", b'{"config": {}}'])
def test_a_configuration_that_is_not_the_saved_one_is_refused(folder: Path, text: bytes) -> None:
    (folder / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"cannot be read|were not saved together"):
        ListwisePolicy.from_pretrained(folder)


def test_files_of_two_policies_in_one_folder_are_noticed(folder: Path, tmp_path: Path) -> None:
    new_policy(heads=4).save_pretrained(tmp_path / "other")  # the same tensors: only the configuration differs
    (tmp_path / "other" / "config.json").replace(folder / "config.json")
    with pytest.raises(CheckpointError, match="were not saved together"):
        ListwisePolicy.from_pretrained(folder)


def test_another_kind_or_version_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, weights = pretrained.read(folder, "listwise")
    pretrained.write(folder, "pointwise", config, weights)
    with pytest.raises(CheckpointError, match="holds a 'pointwise' policy of version 1, not a 'listwise' policy"):
        ListwisePolicy.from_pretrained(folder)
    monkeypatch.setattr(pretrained, "VERSION", 2)
    pretrained.write(folder, "listwise", config, weights)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="of version 2, not a 'listwise' policy of version 1"):
        ListwisePolicy.from_pretrained(folder)


def test_weights_that_do_not_fit_the_configuration_are_refused(folder: Path) -> None:
    config, weights = pretrained.read(folder, "listwise")
    cases = [
        (config | {"dim": 0}, weights, "dim is 0"),
        (config | {"colour": "red"}, weights, "cannot be built: .*colour"),
        (config | {"item_features": 3}, weights, "item_features=3"),
        (config | {"dim": 16}, weights, "has one of shape .* but its configuration needs one of shape"),
        (config, {name: weights[name] for name in weights if name != "key.weight"}, "has none for tensor key.weight"),
        (config, weights | {"stray": torch.zeros(2)}, r"has one of shape \(2,\) for tensor stray, .* needs none"),
        (config, {name: weights[name] for name in weights if name != "tokens.features_IF"}, "no item table"),
    ]
    for bad_config, bad_weights, sentence in cases:
        pretrained.write(folder, "listwise", bad_config, bad_weights)
        with pytest.raises(CheckpointError, match=sentence):
            ListwisePolicy.from_pretrained(folder)


def test_a_full_disk_leaves_the_previous_policy_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"could not be written \(No space left on device\)"):
        new_policy(seed=1).save_pretrained(folder)
    monkeypatch.undo()
    assert torch.equal(ListwisePolicy.from_pretrained(folder).key.weight, new_policy(seed=0).key.weight)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_removed_policy_is_gone_and_other_files_stay(folder: Path) -> None:
    (folder / "notes.txt").write_text("the user's own")
    pretrained.remove(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    pretrained.remove(folder)
    assert not folder.exists()
    pretrained.remove(folder)


def test_a_path_that_is_a_file_cannot_hold_a_policy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        new_policy().save_pretrained(tmp_path / "file")


def test_the_configuration_is_plain_json(folder: Path) -> None:
    record = json.loads((folder / "config.json").read_text())
    assert record["kind"] == "listwise"
    assert record["config"]["item_embedding"] == 2
