"""The run folder: records that are whole or absent, files that are counted, and runs that are not mixed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.training.recipes.folder import (
    CONFIG,
    DONE,
    METRICS,
    PARTIAL,
    TRAINING,
    RunFolder,
    hash_of,
    left_in,
    made_with,
)

ABOUT = {"recipe": "gr2", "data": "synthetic", "size": "tiny", "settings": {"seed": 0}}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def finished(folder: RunFolder) -> None:
    folder.begin("fit", "f" * 64, inputs={"data": "d" * 64}, settings={"steps": 3})
    (folder.stage("fit") / "policy").mkdir()
    (folder.stage("fit") / "policy" / "weights.bin").write_bytes(b"abc")
    (folder.stage("fit") / TRAINING).mkdir()
    (folder.stage("fit") / TRAINING / "checkpoint.bin").write_bytes(b"not a result")
    folder.finish("fit", {"loss": 1.5}, seconds=2.0)


def test_a_record_names_files_inputs_and_versions(folder: RunFolder) -> None:
    finished(folder)
    record = folder.record("fit")
    assert record is not None
    assert list(record.files) == ["policy/weights.bin"]
    assert record.files["policy/weights.bin"].sha256 == hashlib.sha256(b"abc").hexdigest()
    assert record.files["policy/weights.bin"].bytes == 3
    assert record.inputs == {"data": "d" * 64} and record.fingerprint == "f" * 64 and record.seconds == 2.0
    assert record.versions == made_with() and set(record.versions) >= {"platform", "python", "numpy"}
    assert folder.metrics("fit") == {"loss": 1.5}


@pytest.mark.parametrize("harm", ["lost", "torn"])
def test_a_stage_whose_files_were_harmed_is_not_finished(folder: RunFolder, harm: str) -> None:
    finished(folder)
    weights = folder.stage("fit") / "policy" / "weights.bin"
    weights.unlink() if harm == "lost" else weights.write_bytes(b"ab")
    assert folder.record("fit") is None


def test_the_result_depends_on_files_and_not_on_metrics_or_checkpoints(folder: RunFolder) -> None:
    finished(folder)
    first = folder.record("fit")
    (folder.stage("fit") / TRAINING / "checkpoint.bin").write_bytes(b"another")
    again = folder.finish("fit", {"loss": 1.0}, seconds=9.0)
    (folder.stage("fit") / "policy" / "weights.bin").write_bytes(b"abd")
    other = folder.finish("fit", {"loss": 1.0}, seconds=9.0)
    assert first is not None and first.result == again.result != other.result


def test_beginning_again_takes_the_record_away_and_forgetting_takes_everything(folder: RunFolder) -> None:
    finished(folder)
    folder.begin("fit", "e" * 64, inputs={}, settings={})
    assert folder.record("fit") is None and (folder.stage("fit") / "policy" / "weights.bin").is_file()
    folder.describe(ABOUT)
    folder.forget("fit")
    folder.forget("fit")  # nothing is there, and nothing happens
    assert not folder.stage("fit").exists() and folder.started("fit") is None


@pytest.mark.parametrize("there", ["nothing", "another program's", "another stage's", "no mapping"])
def test_files_that_no_run_made_are_neither_removed_nor_worked_among(folder: RunFolder, there: str) -> None:
    place = folder.stage("fit")
    place.mkdir(parents=True)
    (place / "precious.txt").write_text("mine")
    told = {"another program's": '{"model_type": "llama"}', "another stage's": '{"stage": "fi", "fingerprint": "f"}'}
    if there != "nothing":
        (place / CONFIG).write_text(told.get(there, "[]"))
    folder.describe(ABOUT)
    before = {path.name: path.read_text() for path in place.iterdir()}
    with pytest.raises(InputError, match="made by no stage 'fit' of a run, so it is not removed"):
        folder.forget("fit")
    with pytest.raises(InputError, match="has files that no stage 'fit' left; name another directory"):
        folder.begin("fit", "f" * 64, inputs={}, settings={})
    assert {path.name: path.read_text() for path in place.iterdir()} == before


def test_a_stage_of_a_directory_that_is_no_run_is_not_removed(folder: RunFolder) -> None:
    finished(folder)  # a copy of a stage, say
    with pytest.raises(InputError, match="name a run's directory"):
        folder.forget("fit")
    assert folder.record("fit") is not None


def test_what_a_kill_leaves_of_beginning_and_forgetting_can_be_begun_and_forgotten(folder: RunFolder) -> None:
    folder.describe(ABOUT)
    folder.stage("fit").mkdir()
    (folder.stage("fit") / f"{CONFIG}{PARTIAL}").write_text("{")  # killed before the first record was whole
    folder.begin("fit", "f" * 64, inputs={}, settings={})
    assert list(left_in(folder.stage("fit"))) == []
    (folder.stage("fit") / CONFIG).write_text("{")  # damaged, and the record is not
    (folder.stage("fit") / DONE).write_text('{"stage": "fit", "fingerprint": "f"}')
    folder.forget("fit")
    assert not folder.stage("fit").exists()


def test_forgetting_is_killed_at_any_file_and_done_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.describe(ABOUT)
    finished(folder)
    remove = shutil.rmtree

    def killed(path: Path) -> None:
        remove(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    for _ in range(2):  # policy and training
        with pytest.raises(KeyboardInterrupt):
            folder.forget("fit")
        assert folder.record("fit") is None and folder.started("fit") is not None
    folder.forget("fit")
    assert not folder.stage("fit").exists()


def test_forgetting_follows_no_link_out_of_the_run(folder: RunFolder, tmp_path: Path) -> None:
    folder.describe(ABOUT)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    folder.begin("fit", "f" * 64, inputs={}, settings={})
    (folder.stage("fit") / "link").symlink_to(elsewhere)
    folder.forget("fit")
    assert not folder.stage("fit").exists() and (elsewhere / "mine.txt").read_text() == "mine"


def test_a_file_that_was_harmed_and_kept_its_size_is_named(folder: RunFolder) -> None:
    finished(folder)
    folder.intact("fit")
    (folder.stage("fit") / "policy" / "weights.bin").write_bytes(b"abd")
    assert folder.record("fit") is not None  # sizes tell nothing
    with pytest.raises(CheckpointError, match=r"policy/weights.bin is not what stage 'fit' left.*--restart fit"):
        folder.intact("fit")


def test_a_folder_that_is_removed_under_a_stage_is_said(folder: RunFolder) -> None:
    with pytest.raises(CheckpointError, match="was removed while the stage ran"):
        folder.finish("fit", {}, seconds=0.0)


def test_another_recipe_data_set_or_size_is_refused(folder: RunFolder) -> None:
    folder.describe(ABOUT)
    folder.describe({**ABOUT, "settings": {"seed": 1}})  # settings may change, stage by stage
    assert folder.described()["settings"] == {"seed": 1} and "python" in folder.described()["versions"]
    for key in ("recipe", "data", "size"):
        with pytest.raises(InputError, match=f"with {key} .*, not 'other'; name another directory"):
            folder.describe({**ABOUT, key: "other"})


@pytest.mark.parametrize("content", ["{", "[]", '"text"', "nothing"])
def test_a_damaged_record_is_one_sentence(folder: RunFolder, content: str) -> None:
    finished(folder)
    (folder.stage("fit") / DONE).write_text(content)
    with pytest.raises(CheckpointError, match="restart that stage"):
        folder.record("fit")
    (folder.stage("fit") / DONE).write_text('{"stage": "fit", "files": {}}')
    with pytest.raises(CheckpointError, match="no record of a stage"):
        folder.record("fit")


@pytest.mark.parametrize("path", ["../run.json", "/etc/passwd", "policy/../../run.json", CONFIG, DONE, "."])
def test_a_record_that_names_files_outside_its_folder_or_is_of_another_stage_is_none(
    folder: RunFolder, path: str
) -> None:
    finished(folder)
    record = json.loads((folder.stage("fit") / DONE).read_text())
    for harm in ({"files": {path: {"bytes": 0, "sha256": ""}}}, {"stage": "../own"}):
        (folder.stage("fit") / DONE).write_text(json.dumps({**record, **harm}))
        with pytest.raises(CheckpointError, match="no record of a stage"):
            folder.record("fit")


def test_metrics_that_json_does_not_have_are_refused(folder: RunFolder) -> None:
    folder.begin("fit", "f" * 64, inputs={}, settings={})
    for metrics in ({"loss": float("nan")}, {"policy": object()}):
        with pytest.raises(InputError, match=f"what goes into {METRICS} is no plain data"):
            folder.finish("fit", metrics, seconds=0.0)
    assert folder.record("fit") is None


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="is a file; name a directory"):
        RunFolder(tmp_path / "run")


def test_what_is_left_is_sorted_and_leaves_out_only_our_own_records(tmp_path: Path) -> None:
    ours = ("config.json", "a/training/x", "training/y", "a/.lock")
    killed = ("a/paid.jsonl.partial", ".policy.x1/weights.bin")  # while it was written, or moved into its place
    for name in (*ours, *killed, "b.txt", "a/config.json", "training.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(left_in(tmp_path)) == ["a/config.json", "b.txt", "training.txt"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), plain, max_size=5))
def test_a_hash_does_not_depend_on_the_order_of_keys_and_survives_json(value: dict[str, Any]) -> None:
    assert hash_of(value) == hash_of(dict(reversed(list(value.items())))) == hash_of(json.loads(json.dumps(value)))
