"""Candidate lists: places of targets, requests made of them, and what survives on disk."""

from pathlib import Path

import numpy as np
import pytest

from rerank_env.data import lists
from rerank_env.data.catalog import Catalog
from rerank_env.data.interactions import Interactions
from rerank_env.data.lists import CandidateLists
from rerank_env.data.next_item import leave_one_out
from rerank_env.rewards.errors import DataError, InputError

USERS, ITEMS = [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 3, 2, 1, 0]


def small_log(texts: tuple[str, ...] = ("a", "b", "c", "d", "e", "f")) -> Interactions:
    return Interactions(
        np.array(USERS), np.array(ITEMS), np.ones(8), np.tile(np.arange(4.0), 2), texts,
        np.zeros((6, 0), dtype=np.float32), (),
    )  # fmt: skip


def small_lists() -> CandidateLists:
    # Test rows are 3 (user 0, item 3) and 7 (user 1, item 0): in place 2 of its list, and not listed.
    return CandidateLists(
        np.array([3, 7]), np.array([[4, 3, 5], [4, 5, 2]]), np.array([[0.5, 0.25, 0], [3, 2, 1]], dtype=np.float32)
    )


def test_places_count_from_zero_and_a_target_that_is_not_listed_is_behind_all() -> None:
    assert small_lists().target_places(small_log()).tolist() == [1, 3]


def test_requests_hold_the_listed_targets_with_all_that_the_user_did_before() -> None:
    log = small_log()
    made = small_lists().requests(
        log, leave_one_out(log), Catalog.of(log.texts), slate_size=2, history=2, name="small, test"
    )
    assert made.users_B.tolist() == [0]
    assert made.history_BH.tolist() == [[1, 2]]
    assert made.candidates_BK.tolist() == [[4, 3]] and made.relevance_BK.tolist() == [[0, 1]]
    assert made.scores_BK.tolist() == [[0.5, 0.25]]
    assert made.notes[0].startswith("1 of 2 requests left out: target not in the first stage's top 2 (recall@2 0.5000")


def test_the_latest_targets_of_each_user_are_kept_in_the_order_they_were() -> None:
    # Rows 0-3 are of user 0, rows 4-7 of user 1; the lists come in no order.
    rows = np.array([6, 1, 3, 2, 5])
    lists_ = CandidateLists(rows, np.tile(rows[:, None], (1, 2)), np.zeros((5, 2), dtype=np.float32))
    assert lists_.latest(small_log(), 1).rows_T.tolist() == [6, 3]
    assert lists_.latest(small_log(), 2).rows_T.tolist() == [6, 3, 2, 5]
    kept = lists_.latest(small_log(), 9)
    assert kept.rows_T.tolist() == rows.tolist() and (kept.items_TK[:, 0] == rows).all()
    with pytest.raises(InputError, match="latest is 0"):
        lists_.latest(small_log(), 0)


def test_a_slate_longer_than_the_lists_is_refused() -> None:
    log = small_log()
    with pytest.raises(InputError, match="slate_size is 4; the lists can give 2 to 3 candidates"):
        small_lists().requests(log, leave_one_out(log), Catalog.of(log.texts), slate_size=4, history=2, name="x")


def test_what_was_saved_is_loaded_and_settings_come_along(tmp_path: Path) -> None:
    log, made = small_log(), small_lists()
    lists.save(tmp_path / "deep" / "lists.npz", {"test": made}, log, {"first_stage": "popularity", "seed": 3})
    found, settings = lists.load(tmp_path / "deep" / "lists.npz", log)
    assert settings == {"first_stage": "popularity", "seed": 3}
    for field in ("rows_T", "items_TK", "scores_TK"):
        np.testing.assert_array_equal(getattr(found["test"], field), getattr(made, field))


def test_lists_of_another_log_are_refused(tmp_path: Path) -> None:
    lists.save(tmp_path / "lists.npz", {"test": small_lists()}, small_log(), {})
    with pytest.raises(DataError, match="made from other data"):
        lists.load(tmp_path / "lists.npz", small_log(("a", "b", "c", "d", "e", "another")))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04torn"])
def test_a_torn_file_is_named_with_the_command_that_makes_it_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lists.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"lists\.npz holds no candidate lists .*rerank data build"):
        lists.load(path, small_log())


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lists.npz"
    lists.save(path, {"test": small_lists()}, small_log(), {})
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            lists.load(path, small_log())


def test_without_a_file_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="make them with `rerank data build`"):
        lists.load(tmp_path / "none.npz", small_log())
