"""The description of a data set: values worked out by hand, and the traps it names."""

import dataclasses

import numpy as np
import pytest

from rerank_env.data import Catalog, Requests, load
from rerank_env.data.describe import describe


def requests_of(relevance: list[list[float]], scores: list[list[float]]) -> Requests:
    rows, width = len(relevance), len(relevance[0])
    return Requests(
        catalog=Catalog(("a", "b", "c"), np.zeros((3, 1), dtype=np.float32), ("zero",), np.zeros(3)),
        users_B=np.zeros(rows, dtype=np.int64),
        history_BH=np.tile([0, -1], (rows, 1)),
        feedback_BH=np.zeros((rows, 2), dtype=np.float32),
        candidates_BK=np.tile(np.arange(width), (rows, 1)),
        scores_BK=np.array(scores, dtype=np.float32),
        relevance_BK=np.array(relevance),
        sizes_B=np.full(rows, width),
        name="by hand",
    )


def test_shares_and_the_incoming_ndcg_are_those_worked_out_by_hand() -> None:
    # Request 0 is ideal (NDCG 1), request 1 has its one relevant item at place 2: 1/log2(3) = 0.6309.
    found = describe(requests_of([[1, 0, 0], [0, 1, 0]], [[3, 2, 1], [3, 3, 1]]))
    assert found["incoming_ndcg@10"] == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert (found["requests"], found["users"], found["items"]) == (2, 1, 3)
    assert found["head_room_share"] == 0.5
    assert found["equal_score_share"] == 0.5
    assert found["relevant_share"] == pytest.approx(2 / 6)
    assert found["history_mean"] == 1


def test_each_trap_is_named() -> None:
    assert any("nearly ideal" in w for w in describe(requests_of([[1, 0, 0]] * 9, [[3, 2, 1]] * 9))["warnings"])  # type: ignore[union-attr]
    assert any("no better than" in w for w in describe(requests_of([[0, 0, 1]] * 9, [[3, 2, 1]] * 9))["warnings"])  # type: ignore[union-attr]
    assert any("equal scores" in w for w in describe(requests_of([[0, 1, 0]] * 9, [[3, 3, 1]] * 9))["warnings"])  # type: ignore[union-attr]
    assert any("nothing relevant" in w for w in describe(requests_of([[0, 0, 0]] * 9, [[3, 2, 1]] * 9))["warnings"])  # type: ignore[union-attr]


def test_ragged_requests_have_no_equal_scores_in_their_padding() -> None:
    ragged = load("synthetic", requests=40, min_slate_size=3)
    assert describe(ragged)["equal_score_share"] == 0
    assert not describe(ragged)["warnings"]


def test_an_empty_set_is_described_by_its_counts() -> None:
    empty = dataclasses.replace(load("synthetic", requests=40)).take([])
    assert describe(empty)["requests"] == 0
