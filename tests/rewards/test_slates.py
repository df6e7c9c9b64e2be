"""Slates hold what a reward may see, and refuse what cannot be a request."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import Slates, rankings
from rerank_env.rewards.errors import InputError, RankingError, SlateError
from rerank_env.rewards.slates import canonical_orders, ideal_rankings
from rerank_env.rewards.testing import groups, rankings_of, slates


def test_ragged_lists_are_padded_with_zeros():
    batch = Slates.of([[1, 0], [0, 2, 0.5]])
    assert batch.relevance_BK.tolist() == [[1.0, 0.0, 0.0], [0.0, 2.0, 0.5]]
    assert batch.sizes_B.tolist() == [2, 3]
    assert batch.mask_BK.tolist() == [[True, True, False], [True, True, True]]
    assert (len(batch), batch.width, batch.is_full) == (2, 3, False)


def test_arrays_of_the_right_dtype_are_stored_as_given():
    relevance, sizes = np.ones((2, 3)), np.array([3, 3])
    batch = Slates(relevance, sizes)
    assert batch.relevance_BK is relevance
    assert batch.sizes_B is sizes


def test_other_numeric_dtypes_are_converted():
    batch = Slates(np.array([[1, 0]], dtype=np.int8), np.array([2], dtype=np.uint16))
    assert batch.relevance_BK.dtype == np.float64
    assert batch.sizes_B.dtype == np.int64


@pytest.mark.parametrize(
    ("relevance", "sizes", "message"),
    [
        ([1.0, 0.0], [2], r"shape \(2,\), expected \[requests, candidates\]"),
        ([["a", "b"]], [2], "dtype <U1, expected numbers"),
        ([[1.0, 0.0]], [2, 2], r"sizes have shape \(2,\) but relevance has 1 rows"),
        ([[1.0, 0.0]], [2.0], "sizes have dtype float64, expected integers"),
        ([[1.0, 0.0], [1.0, 0.0]], [2, 0], "request 1 has 0 candidates; a request needs at least 2"),
        ([[1.0, 0.0], [1.0, 0.0]], [1, 2], "request 0 has 1 candidates; a request needs at least 2"),
        ([[1.0, 0.0]], [3], "request 0 has size 3 but relevance is only 2 wide"),
        ([[1.0, 0.0], [1.0, np.nan]], [2, 2], "request 1, candidate 1 is nan"),
        ([[1.0, np.inf]], [2], "request 0, candidate 1 is inf"),
        ([[-0.5, 1.0]], [2], "request 0, candidate 0 is -0.5"),
        ([[1e101, 1.0]], [2], "request 0, candidate 0 is 1e[+]101"),
        ([[1.0, 0.0, 0.5]], [2], "request 0 has 2 candidates but relevance at candidate 2"),
        (np.zeros((0, 1)), np.zeros(0, dtype=int), "relevance is 1 wide"),
    ],
)
def test_what_cannot_be_a_request_is_refused_by_row(relevance, sizes, message):
    with pytest.raises(SlateError, match=message):
        Slates(np.array(relevance), np.array(sizes))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 0.0], []], "request 1 has 0 candidates"),
        ([[1.0]], "request 0 has 1 candidates"),
        ([[1.0, 0.0], "abc"], "request 1 is 'abc'; expected a list of numbers"),
        ([[[1.0, 0.0]]], r"request 0 has shape \(1, 2\); expected a flat list"),
        ([[1.0, float("nan")]], "request 0, candidate 1 is nan"),
    ],
)
def test_lists_that_cannot_be_requests_are_refused_by_row(rows, message):
    with pytest.raises(SlateError, match=message):
        Slates.of(rows)


def test_a_slate_error_is_a_value_error():
    assert issubclass(SlateError, InputError)
    assert issubclass(SlateError, ValueError)


def test_no_rows_make_an_empty_batch():
    empty = Slates.of([])
    assert len(empty) == 0
    assert len(empty.take([])) == 0
    assert len(Slates.of([[1, 0]]).take([])) == 0


def test_repeat_lays_the_copies_of_a_request_side_by_side():
    batch = Slates.of([[1, 0], [0, 2]]).repeat(2)
    assert batch.relevance_BK.tolist() == [[1, 0], [1, 0], [0, 2], [0, 2]]
    for n in (-1, 1.5, True):
        with pytest.raises(InputError, match=f"n is {n}; give a whole number of at least 0"):
            batch.repeat(n)


def test_rows_can_be_taken_by_number_and_by_mask():
    batch = Slates.of([[1, 0], [0, 2], [3, 3]])
    assert batch.take([2, 0, 2]).relevance_BK.tolist() == [[3, 3], [1, 0], [3, 3]]
    assert batch.take(np.array([False, True, True])).relevance_BK.tolist() == [[0, 2], [3, 3]]
    with pytest.raises(SlateError, match="cannot take rows from 3 slates"):
        batch.take([3])
    with pytest.raises(SlateError, match=r"rows have shape \(\); expected a flat array"):
        batch.take(1)


def test_slates_can_be_pickled_and_copied():
    taken = Slates.of([[1, 0], [0, 2]]).take([1])
    for again in (pickle.loads(pickle.dumps(taken)), copy.deepcopy(taken)):
        assert again.relevance_BK.tolist() == [[0, 2]]
        assert again.sizes_B.tolist() == [2]


@given(slates(), st.data())
def test_a_taken_row_is_the_row(batch, data):
    row = data.draw(st.integers(0, len(batch) - 1))
    taken = batch.take([row])
    assert vars(taken).keys() == {field.name for field in dataclasses.fields(Slates)}
    assert (taken.relevance_BK == batch.relevance_BK[row]).all()
    assert taken.sizes_B.tolist() == [batch.sizes_B[row]]


def logged_copies():
    """Two requests of three and two candidates with all that can be known of a candidate."""
    return Slates(
        relevance_BK=np.array([[0.0, 1, 2], [3, 0, 0]]),
        sizes_B=np.array([3, 2]),
        clicks_BK=np.array([[1, 0, 0], [0, 1, 0]]),
        propensities_BK=np.array([[1, 0.5, 0.25], [1, 0.5, 0]]),
        predictions_BK=np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0]]),
        canonical_BK=np.array([[1, 2, 0], [1, 0, -1]]),
    )


def test_all_that_is_known_of_a_candidate_moves_with_it():
    moved = logged_copies().reordered([[2, 0, 1], [1, 0, -1]])
    assert {name: values_BK.tolist() for name, values_BK in moved.by_candidate.items()} == {
        "relevance_BK": [[2, 0, 1], [0, 3, 0]],
        "clicks_BK": [[0, 1, 0], [1, 0, 0]],
        "propensities_BK": [[0.25, 1, 0.5], [0.5, 1, 0]],
        "predictions_BK": [[0.3, 0.1, 0.2], [0.5, 0.4, 0]],
        "canonical_BK": [[0, 1, 2], [0, 1, -1]],
    }
    assert moved.sizes_B.tolist() == [3, 2]


def test_what_is_not_known_stays_unknown():
    moved = Slates.of([[0, 1]]).reordered([[1, 0]])
    assert set(moved.by_candidate) == {"relevance_BK"}
    assert vars(moved).keys() == {field.name for field in dataclasses.fields(Slates)}


@pytest.mark.parametrize(
    ("orders", "says"),
    [
        ([[0, 1, 1], [0, 1, -1]], "row 0 is no ranking of 3 candidates"),
        ([[0, 1, 2], [0, 2, -1]], "row 1 is no ranking of 2 candidates"),
        ([[0, 1, 2]], "1 rows"),
        ([[0, 1, 2, -1], [0, 1, -1, -1]], r"shape \(2, 4\), expected \(2, 3\); pad their rows"),
    ],
)
def test_an_order_that_is_no_ranking_is_refused(orders, says):
    with pytest.raises(RankingError, match=says):
        logged_copies().reordered(orders)


@given(groups(requests=slates(logged=True)), st.data())
def test_an_order_and_its_inverse_change_nothing(drawn, data):
    batch = drawn.slates
    orders_BK = data.draw(rankings_of(batch))
    back = batch.reordered(orders_BK).reordered(rankings.invert(orders_BK, batch.sizes_B))
    for name, values_BK in batch.by_candidate.items():
        assert (getattr(back, name) == values_BK).all()


def test_the_ideal_order_keeps_the_incoming_order_of_equals():
    assert ideal_rankings(Slates.of([[0, 2, 1, 2], [0, 0]])).tolist() == [[1, 3, 2, 0], [0, 1, -1, -1]]


def test_an_order_is_told_in_the_numbers_of_the_unshuffled_request():
    # places 2, 0, 1 of the first copy hold the candidates 0, 1, 2; padding stays in place
    orders_BK = np.array([[2, 0, 1], [0, 1, 2]])
    assert canonical_orders(orders_BK, logged_copies()).tolist() == [[0, 1, 2], [1, 0, 2]]
    assert canonical_orders(orders_BK, Slates.of([[0, 1, 2], [1, 0]])) is orders_BK
