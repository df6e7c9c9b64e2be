"""The Amazon data sets by name, on a small domain written by the test."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from rerank_env.data import SPLITS, amazon, lists, load, read_options
from rerank_env.data import _splits as splits_of
from rerank_env.data.lists import CandidateLists
from rerank_env.data.next_item import leave_one_out
from rerank_env.rewards.errors import DataError, InputError, UnknownNameError

ITEMS = 30


@pytest.fixture
def beauty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty users who walk through thirty items, in the form of the files."""
    folder = tmp_path / "data" / "amazon_beauty"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    walks = [rng.permutation(ITEMS)[:6] + 1 for _ in range(40)]
    lines = [" ".join(map(str, [user, *walk])) + "\n" for user, walk in enumerate(walks, start=1)]
    (folder / "sequences.txt.gz").write_bytes(gzip.compress("".join(lines).encode()))
    entries = [{"item_id": i, "title": f"item {i}", "keywords": "x", "attr_ids": [i % 3]} for i in range(1, ITEMS + 1)]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / "items.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("RERANK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path / "cache"))
    splits_of.cache_clear()
    yield folder
    splits_of.cache_clear()


def put_lists(first_stage: str = "popularity", seed: int = 0) -> dict[str, CandidateLists]:
    """Lists in which every target is at the last of three places."""
    log = amazon.read("amazon-beauty")
    targets = leave_one_out(log)
    made = {}
    for split in SPLITS:
        rows = targets.rows[split]
        others = [[i for i in range(ITEMS) if i not in log.items_N[targets.first_N[row] : row + 1]][:2] for row in rows]
        items = np.concatenate([np.array(others), log.items_N[rows][:, None]], axis=1)
        made[split] = CandidateLists(rows, items, np.tile(np.array([3, 2, 1], dtype=np.float32), (len(rows), 1)))
    lists.save(amazon.lists_path("amazon-beauty", first_stage, seed), made, log, {"split": "leave_one_out"})
    return made


def test_lists_that_are_not_built_are_asked_for_by_the_command_that_builds_them(beauty: Path) -> None:
    with pytest.raises(DataError, match="rerank data build amazon-beauty --first-stage sasrec --seed 0"):
        load("amazon-beauty")


def test_requests_are_made_of_the_lists_and_the_kind_need_not_be_said(beauty: Path) -> None:
    made = put_lists()
    requests = load("amazon-beauty", split="test", first_stage="popularity", slate_size=3)
    assert len(requests) == 40 and (requests.relevance_BK == [0, 0, 1]).all()
    np.testing.assert_array_equal(requests.candidates_BK, made["test"].items_TK)
    assert (requests.history_BH != -1).sum(axis=1).tolist() == [5] * 40
    assert len(load("amazon-beauty", split="test", kind="next_item", first_stage="popularity", slate_size=3)) == 40


def test_labels_without_names_are_not_in_the_catalogue_that_prompts_read(beauty: Path) -> None:
    put_lists()
    assert amazon.read("amazon-beauty").labels[0]
    assert load("amazon-beauty", first_stage="popularity", slate_size=3).catalog.labels == ()


def test_a_target_that_is_not_listed_is_counted_in_the_notes(beauty: Path) -> None:
    put_lists()
    requests = load("amazon-beauty", split="test", first_stage="popularity", slate_size=2)
    assert len(requests) == 0
    assert requests.notes[0].startswith("40 of 40 requests left out")


def test_the_latest_targets_of_train_can_be_asked_for_alone(beauty: Path) -> None:
    put_lists()
    every = load("amazon-beauty", first_stage="popularity", slate_size=3)
    last = load("amazon-beauty", first_stage="popularity", slate_size=3, latest=1)
    assert len(every) == 3 * 40 and len(last) == 40  # of six purchases the second to the fourth are train targets
    assert (last.history_BH != -1).sum(axis=1).tolist() == [3] * 40
    with pytest.raises(InputError, match="latest is 0"):
        load("amazon-beauty", first_stage="popularity", slate_size=3, latest=0)


def test_each_first_stage_and_seed_has_lists_of_its_own(beauty: Path) -> None:
    put_lists("popularity", seed=1)
    with pytest.raises(DataError, match="with seed 0 are not built"):
        load("amazon-beauty", first_stage="popularity", slate_size=3)
    assert len(load("amazon-beauty", first_stage="popularity", slate_size=3, seed=1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "graded"}, UnknownNameError, "graded"),
        ({"first_stage": "popularity", "slate_size": 4}, InputError, "slate_size is 4; the lists can give 2 to 3"),
        ({"depth": 4}, UnknownNameError, "depth"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(beauty: Path, options: dict, error: type, message: str) -> None:
    put_lists()
    with pytest.raises(error, match=message):
        load("amazon-beauty", **options)


def test_without_the_folder_the_variable_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RERANK_DATA", raising=False)
    with pytest.raises(DataError, match="set RERANK_DATA to the folder that holds amazon_toys"):
        amazon.read("amazon-toys")
    monkeypatch.setenv("RERANK_DATA", str(tmp_path))
    with pytest.raises(DataError, match="amazon_toys is no folder"):
        amazon.read("amazon-toys")


def test_options_are_read_from_a_line() -> None:
    assert read_options(None) == read_options("") == {}
    assert read_options("first_stage=bm25, slate_size=20") == {"first_stage": "bm25", "slate_size": 20}


@pytest.mark.parametrize("text", ["slate_size", "slate_size=", "=3", "a=1,a=2"])
def test_a_line_that_is_no_options_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not NAME=VALUE"):
        read_options(text)


def test_a_first_stage_that_there_is_not_is_told_at_once(beauty: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'sasrec'"):
        load("amazon-beauty", first_stage="sasrek")
