"""The request record refuses what does not fit together and keeps rows aligned when it is cut or reordered."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.data import Catalog, Requests, load
from rerank_env.rewards.errors import DataError, RerankError, SlateError


def catalog(items: int = 6) -> Catalog:
    return Catalog(
        texts=tuple(f"item {i}" for i in range(items)),
        features_IF=np.zeros((items, 1), dtype=np.float32),
        feature_names=("zero",),
        popularity_I=np.arange(items, dtype=np.float64),
    )


def two_requests(**changes: object) -> Requests:
    fields: dict[str, object] = {
        "catalog": catalog(),
        "users_B": np.array([0, 1]),
        "history_BH": np.array([[5, -1], [4, 5]]),
        "feedback_BH": np.array([[1, 0], [2, 3]], dtype=np.float32),
        "candidates_BK": np.array([[0, 1, 2], [3, 1, -1]]),
        "scores_BK": np.array([[3, 2, 1], [2, 1, 0]], dtype=np.float32),
        "relevance_BK": np.array([[0.0, 1, 2], [1, 0, 0]]),
        "sizes_B": np.array([3, 2]),
        "name": "two",
    }
    return Requests(**(fields | changes))  # type: ignore[arg-type]


def test_a_sound_record_is_accepted_and_has_one_slate_a_request() -> None:
    requests = two_requests()
    assert len(requests) == len(requests.slates) == 2
    assert requests.slates.sizes_B.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"relevance_BK": np.array([[0.0, -1, 2], [1, 0, 0]])}, SlateError, "0"),
        ({"relevance_BK": np.array([[0.0, 1, 2], [np.nan, 0, 0]])}, SlateError, "1"),
        ({"relevance_BK": np.array([[0.0, 1], [1, 0]])}, DataError, "relevance has shape"),
        ({"users_B": np.array([0, 1, 2])}, DataError, "users has shape"),
        ({"sizes_B": np.array([3, 1]), "candidates_BK": np.array([[0, 1, 2], [3, -1, -1]])}, SlateError, "1"),
        ({"sizes_B": np.array([3, 0]), "candidates_BK": np.array([[0, 1, 2], [-1, -1, -1]])}, SlateError, "1"),
        ({"candidates_BK": np.array([[0, 1, 0], [3, 1, -1]])}, DataError, "request 0 lists the same candidate twice"),
        ({"candidates_BK": np.array([[0, 1, 2], [3, 3, -1]])}, DataError, "request 1 lists the same candidate twice"),
        ({"candidates_BK": np.array([[0, 1, 2], [3, 9, -1]])}, DataError, "request 1 has candidates item 9"),
        ({"candidates_BK": np.array([[0, 1, 2], [3, 1, 2]])}, DataError, "request 1 has candidates beyond its size"),
        ({"history_BH": np.array([[7, -1], [4, 5]])}, DataError, "request 0 has history item 7"),
        ({"scores_BK": np.array([[3, 2, np.inf], [2, 1, 0]], dtype=np.float32)}, DataError, "request 0"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_in_one_sentence_naming_the_row(
    changes: dict[str, object], error: type[RerankError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        two_requests(**changes)
    assert "\n" not in str(caught.value)


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="item 0"):
        dataclasses.replace(catalog(), features_IF=np.full((6, 1), np.nan, dtype=np.float32))


def test_taking_rows_keeps_every_field_aligned_and_may_repeat_them() -> None:
    taken = two_requests().take([1, 1, 0])
    assert taken.users_B.tolist() == [1, 1, 0]
    assert taken.candidates_BK.tolist() == [[3, 1, -1], [3, 1, -1], [0, 1, 2]]
    assert taken.relevance_BK.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 2]]


def test_reordering_moves_scores_and_relevance_with_their_candidates() -> None:
    moved = two_requests().reordered(np.array([[2, 0, 1], [1, 0, -1]]))
    assert moved.candidates_BK.tolist() == [[2, 0, 1], [1, 3, -1]]
    assert moved.scores_BK.tolist() == [[1, 3, 2], [1, 2, 0]]
    assert moved.relevance_BK.tolist() == [[2, 0, 1], [0, 1, 0]]


@given(st.integers(0, 2**31), st.booleans())
def test_reordering_keeps_the_set_of_candidates_and_what_each_is_worth(seed: int, ragged: bool) -> None:
    requests = load("synthetic", requests=20, min_slate_size=2 if ragged else 10)
    rng = np.random.default_rng(seed)
    keys = np.where(requests.candidates_BK >= 0, rng.random(requests.candidates_BK.shape), 2.0)
    order = np.argsort(keys, axis=1)
    order = np.where(np.arange(order.shape[1]) < requests.sizes_B[:, None], order, -1)
    moved = requests.reordered(order)
    for before, after in ((requests, moved),):
        worth = [
            [dict(zip(r.candidates_BK[b].tolist(), r.relevance_BK[b].tolist(), strict=True)) for b in range(len(r))]
            for r in (before, after)
        ]
        assert worth[0] == worth[1]
