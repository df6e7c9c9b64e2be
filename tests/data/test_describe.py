"""The description of a data set: values worked out by hand, and the traps it names."""

import json

import numpy as np
import pytest

from rerank_env.data import Requests, load
from rerank_env.data.describe import Description, describe


def requests_of(relevance: list[list[float]], scores: list[list[float]]) -> Requests:
    return Requests.of(
        [list(range(len(row))) for row in relevance], relevance, scores, history=[[0]] * len(relevance),
        users=[0] * len(relevance), texts=["a", "b", "c"], features=np.zeros((3, 1)),
    )  # fmt: skip


def warned(relevance: list[list[float]], scores: list[list[float]], words: str) -> bool:
    return any(words in sentence for sentence in describe(requests_of(relevance, scores)).warnings)


def test_shares_and_the_incoming_ndcg_are_those_worked_out_by_hand() -> None:
    # Request 0 is ideal (NDCG 1), request 1 has its one relevant item at place 2: 1/log2(3) = 0.6309.
    found = describe(requests_of([[1, 0, 0], [0, 1, 0]], [[3, 2, 1], [3, 3, 1]]))
    assert found.incoming_ndcg_at_10 == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert (found.requests, found.users, found.items, found.item_features) == (2, 1, 3, 1)
    assert (found.candidates_min, found.candidates_max) == (3, 3)
    assert found.head_room_share == 0.5
    assert found.equal_score_share == 0.5
    assert found.relevant_share == pytest.approx(2 / 6)
    assert found.relevant_per_request == 1
    assert found.history_mean == 1


def test_each_trap_is_named() -> None:
    assert warned([[1, 0, 0]] * 9, [[3, 2, 1]] * 9, "nearly ideal")
    assert warned([[0, 0, 1]] * 9, [[3, 2, 1]] * 9, "no better than")
    assert warned([[0, 1, 0]] * 9, [[3, 3, 1]] * 9, "equal scores")
    assert warned([[0, 0, 0]] * 9, [[3, 2, 1]] * 9, "nothing relevant")


def test_ragged_requests_have_no_equal_scores_in_their_padding() -> None:
    ragged = describe(load("synthetic", requests=40, min_slate_size=3))
    assert ragged.equal_score_share == 0
    assert not ragged.warnings
    assert describe(requests_of([[0, 1], [0, 1, 0]], [[1, 0], [2, 1, 0]])).equal_score_share == 0


def test_an_empty_set_is_described_by_its_counts() -> None:
    empty = describe(load("synthetic", requests=40).take([]))
    assert (empty.requests, empty.users, empty.items) == (0, 0, 400)
    assert empty.incoming_ndcg_at_10 is None and empty.notes


def test_as_plain_data_a_description_has_the_same_keys_whatever_it_is_of() -> None:
    requests = load("synthetic", requests=40)
    found, empty = describe(requests).to_dict(), describe(requests.take([])).to_dict()
    assert list(found) == list(empty)
    assert found["incoming_ndcg@10"] == describe(requests).incoming_ndcg_at_10
    assert found["notes"] == list(requests.notes) and found["warnings"] == []
    assert json.loads(json.dumps(found)) == found
    assert isinstance(describe(requests), Description)
