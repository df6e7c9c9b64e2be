"""A file is replaced whole or not at all, and a disk that refuses is one sentence."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rerank_env import durable
from rerank_env.rewards.errors import CheckpointError


def test_a_file_is_written_replaced_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "run.json"
    for data in (b"first", b"second, which is longer", b""):
        durable.replace(path, data)
        assert path.read_bytes() == data
    assert [found.name for found in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize("refusing", ["write", "fsync", "replace"])
def test_a_refusal_leaves_the_old_file_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: str
) -> None:
    path = tmp_path / "run.json"
    durable.replace(path, b"old")

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        match refusing:
            case "write":
                patch.setattr(Path, "open", full)
            case "fsync":
                patch.setattr(os, "fsync", full)
            case "replace":
                patch.setattr(Path, "replace", full)
        with pytest.raises(
            CheckpointError, match=r"^\S+run\.json could not be written \(No space left on device\); .*untouched"
        ) as caught:
            durable.replace(path, b"new")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["run.json"]


def test_a_file_where_a_folder_should_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file" / "run.json", tmp_path / "file" / "deeper" / "run.json"):
        with pytest.raises(CheckpointError, match=r"could not be written .*name a place that can be written"):
            durable.replace(path, b"new")


def test_an_error_that_is_a_sentence_already_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="^inner sentence$"), durable.writing(tmp_path):
        raise CheckpointError("inner sentence")


def test_windows_is_not_asked_to_sync_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # what Windows says to os.open of a folder

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(PermissionError):
            durable.sync_folder(tmp_path)
        patch.setattr(durable.os, "name", "nt")
        durable.sync_folder(tmp_path)


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path) -> None:
    pytest.importorskip("fcntl")
    refused = pytest.raises(CheckpointError, match="in use by another run")
    with durable.held(tmp_path / "run"), refused, durable.held(tmp_path / "run"):
        raise AssertionError("held twice")
    with durable.held(tmp_path / "run"):  # free again
        assert (tmp_path / "run").is_dir()
