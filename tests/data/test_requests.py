"""The request record refuses what does not fit together and keeps rows aligned when it is cut or reordered."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.data import Catalog, Requests, load
from rerank_env.prompts import build_prompts, longest_prompt_chars
from rerank_env.rewards import ClickCredit, Consistency, Context, shuffled_groups
from rerank_env.rewards.errors import DataError, InputError, RerankError, SlateError
from rerank_env.rewards.rankings import padded


def two_requests(**changes: object) -> Requests:
    """Three and two candidates of six items, one and two of history; `changes` are put in their padded places."""
    requests = Requests.of(
        [[0, 1, 2], [3, 1]],
        [[0, 1, 2], [1, 0]],
        [[3, 2, 1], [2, 1]],
        history=[[5], [4, 5]],
        feedback=[[1], [2, 3]],
        catalog=Catalog.of([f"item {i}" for i in range(6)]),
    )
    return dataclasses.replace(requests, **changes)


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
        ({"sizes_B": np.array([3, 4])}, SlateError, "request 1 has size 4"),
        ({"candidates_BK": np.array([[0, 1, 0], [3, 1, -1]])}, DataError, "request 0 lists the same candidate twice"),
        ({"candidates_BK": np.array([[0, 1, 2], [3, 3, -1]])}, DataError, "request 1 lists the same candidate twice"),
        ({"candidates_BK": np.array([[0, 1, 2], [3, 9, -1]])}, DataError, "request 1 has candidates item 9"),
        ({"candidates_BK": np.array([[0, 1, 2], [3, 1, 2]])}, DataError, "request 1 has candidates beyond its size"),
        (
            {"candidates_BK": np.array([[0, 1, 2], [-1, 3, 1]])},
            DataError,
            "request 1 has no candidates item at place 0",
        ),
        ({"history_BH": np.array([[7, -1], [4, 5]])}, DataError, "request 0 has history item 7"),
        ({"history_BH": np.array([[-1, 3], [4, 5]])}, DataError, "request 0 has no history item at place 0"),
        ({"scores_BK": np.array([[3, 2, np.inf], [2, 1, 0]])}, DataError, "request 0"),
        ({"scores_BK": np.array([[3, 2, 1e300], [2, 1, 0]])}, DataError, "scores of request 0 are not finite"),
        ({"scores_BK": np.array([[3, 2, 1], [2, 1, 5]])}, DataError, "request 1 has scores beyond its size"),
        ({"feedback_BH": np.array([[1, 1], [2, 3]])}, DataError, "request 0 has feedback beyond its size"),
        ({"feedback_BH": np.array([[1, 0], [2, np.nan]])}, DataError, "feedback of request 1 are not finite"),
        ({"candidates_BK": np.array([0, 1, 2])}, DataError, "candidates has shape"),
        ({"candidates_BK": np.array(3)}, DataError, "candidates has shape"),
        ({"candidates_BK": [[0, 1, 2], [3, 1]]}, DataError, "candidates has parts of different lengths"),
        ({"history_BH": np.array([5, 4])}, DataError, "history has shape"),
        ({"sizes_B": np.array([[3, 2]])}, DataError, "sizes has shape"),
        ({"candidates_BK": np.array([[0, 1, 2], [3, 1, -1.0]])}, DataError, "candidates has dtype float64"),
        ({"history_BH": np.array([[5, -1], [4, 5.0]])}, DataError, "history has dtype float64"),
        ({"sizes_B": np.array([3.0, 2])}, DataError, "sizes has dtype float64"),
        ({"users_B": np.array([0.5, 1])}, DataError, "users has dtype float64"),
        ({"users_B": np.array(["ann", "bob"])}, DataError, "users has dtype <U3"),
        ({"users_B": np.array([True, False])}, DataError, "users has dtype bool"),
        ({"scores_BK": np.array([["a"] * 3] * 2)}, DataError, "scores has dtype <U1"),
        ({"feedback_BH": np.array([[1, 0], [2, None]])}, DataError, "feedback has dtype object"),
        ({"relevance_BK": np.array([["0"] * 3] * 2)}, DataError, "relevance has dtype <U1"),
        ({"catalog": ["item 0"]}, DataError, "catalogue is of type list"),
        ({"clicks_BK": np.zeros((2, 3))}, SlateError, "clicks and propensities come together"),
        ({"predictions_BK": np.array([[0, 0, 2], [0, 0, 0]])}, SlateError, "predictions of request 0, candidate 2 is"),
        ({"predictions_BK": np.array([[0, 0, 1], [0, 0, 1]])}, SlateError, "predictions of request 1, candidate 2 is"),
        ({"predictions_BK": np.array([0, 0])}, DataError, "predictions has shape"),
        ({"canonical_BK": np.array([[0, 1, 1], [0, 1, -1]])}, SlateError, "canonical numbers of request 0"),
        ({"canonical_BK": np.zeros((2, 3))}, DataError, "canonical has dtype float64"),
        ({"origins_B": np.array([0])}, DataError, "origins has shape"),
        ({"origins_B": np.array([0.0, 1])}, DataError, "origins has dtype float64"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_in_one_sentence_naming_the_row(
    changes: dict[str, object], error: type[RerankError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        two_requests(**changes)
    assert "\n" not in str(caught.value)


def test_numbers_of_other_types_are_converted_and_those_of_the_right_type_are_not_copied() -> None:
    sound = two_requests()
    given = {
        "users_B": np.array([7, 8], dtype=np.uint8),
        "history_BH": sound.history_BH.astype(np.int16),
        "feedback_BH": sound.feedback_BH > 0,
        "candidates_BK": sound.candidates_BK.astype(np.int32),
        "scores_BK": sound.scores_BK.astype(np.float64),
        "relevance_BK": sound.relevance_BK.astype(np.int64),
        "sizes_B": sound.sizes_B.tolist(),
    }
    converted = two_requests(**given)
    for field in given:
        assert getattr(converted, field).dtype == getattr(sound, field).dtype
        assert getattr(dataclasses.replace(converted), field) is getattr(converted, field)
    assert converted.candidates_BK.tolist() == sound.candidates_BK.tolist()
    assert converted.feedback_BH.tolist() == [[1, 0], [1, 1]]


def test_no_requests_at_all_are_a_sound_record_that_everything_takes() -> None:
    for empty in (two_requests().take([]), Requests.of([], []), load("synthetic").take(np.zeros(2000, dtype=bool))):
        assert len(empty) == len(empty.slates) == 0
        assert len(empty.take([])) == len(empty.reordered(empty.candidates_BK)) == 0
        assert {key: len(values) for key, values in empty.observation().items()} == dict.fromkeys(
            ("candidates", "scores", "history", "feedback"), 0
        )
        assert build_prompts(empty) == [] and longest_prompt_chars(empty) > 0


def test_taking_a_row_that_does_not_exist_is_refused() -> None:
    for rows in ([2], [0, -3], [True, False, True]):
        with pytest.raises(InputError, match="2 requests"):
            two_requests().take(rows)


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ([[0, 1, 1], [0, 1, -1]], "row 0"),
        ([[0, 1, 2], [0, 2, -1]], "row 1"),
        ([[0, 1, 2]], "1 rows"),
        ([[0.0, 1, 2], [0, 1, -1]], "dtype"),
        ([[0, 1, 2, -1], [0, 1, -1, -1]], "shape"),
    ],
)
def test_reordering_by_what_is_no_ranking_is_refused(order: list[list[int]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        two_requests().reordered(np.array(order))


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
    worth = [
        [dict(zip(r.candidates_BK[b].tolist(), r.relevance_BK[b].tolist(), strict=True)) for b in range(len(r))]
        for r in (requests, moved)
    ]
    assert worth[0] == worth[1]


def logged() -> Requests:
    return Requests.of(
        [[0, 1, 2], [3, 1]],
        [[0, 1, 2], [1, 0]],
        clicks=[[1, 0, 0], [0, 1]],
        propensities=[[1, 0.5, 0.25], [1, 0.5]],
        predictions=[[0.5, 0.25, 0], [0, 1]],
        catalog=Catalog.of([f"item {i}" for i in range(4)], popularity=[5, 6, 7, 8]),
    )


def test_a_log_reaches_rewards_and_no_policy() -> None:
    slates = logged().slates
    assert slates.provides == {"clicks", "predictions"}
    assert slates.propensities_BK is not None
    assert slates.propensities_BK.tolist() == [[1, 0.5, 0.25], [1, 0.5, 0]]
    # credit 1 / 1 of the first candidate in the first place, of discounts 1 + 0.63 + 0.5; 1 / 0.5 in the second of two
    assert ClickCredit()(np.array([[0, 1, 2], [0, 1, -1]]), slates) == pytest.approx(
        [1 / (1.5 + 1 / np.log2(3)), 2 / np.log2(3) / (1 + 1 / np.log2(3))], abs=1e-15
    )
    assert logged().observation().keys() == {"candidates", "scores", "history", "feedback"}


def test_a_log_has_a_number_for_each_candidate() -> None:
    with pytest.raises(DataError, match="clicks of request 1 has 1 entries but candidates has 2"):
        Requests.of([[0, 1], [0, 1]], [[0, 1], [0, 1]], clicks=[[0, 1], [0]], propensities=[[1, 1], [1, 1]])


def test_popularity_is_that_of_the_candidates() -> None:
    assert logged().popularity_BK.tolist() == [[5, 6, 7], [8, 6, 0]]
    assert logged().take([1]).popularity_BK.tolist() == [[8, 6, 0]]


def test_copies_know_where_they_were_taken_from_and_what_moved_where() -> None:
    requests = logged()
    assert requests.origins.tolist() == [0, 1]
    assert requests.origins_B is requests.canonical_BK is None
    moved = requests.take([1, 0, 1]).reordered(np.array([[1, 0, -1], [2, 0, 1], [0, 1, -1]]))
    assert moved.origins.tolist() == [1, 0, 1]
    assert moved.canonical_BK is not None
    assert moved.canonical_BK.tolist() == [[1, 0, -1], [2, 0, 1], [0, 1, -1]]
    assert moved.clicks_BK is not None
    assert moved.clicks_BK.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    again = moved.take([1, 0]).reordered(np.array([[1, 2, 0], [1, 0, -1]]))
    assert again.origins.tolist() == [0, 1]
    assert again.slates.canonical_BK is not None
    assert again.slates.canonical_BK.tolist() == [[0, 1, 2], [0, 1, -1]]
    assert again.candidates_BK.tolist() == requests.candidates_BK.tolist()


def test_consistency_tells_the_copies_of_a_request_by_themselves() -> None:
    requests = load("synthetic", requests=20, min_slate_size=2)
    groups = shuffled_groups(requests.slates, 4, np.random.default_rng(0))
    assert groups.slates.canonical_BK is not None
    shown = requests.take(groups.groups_B).reordered(groups.slates.canonical_BK)
    assert (shown.slates.canonical_BK == groups.slates.canonical_BK).all()
    assert shown.origins.tolist() == groups.groups_B.tolist()
    # a policy that goes by the item numbers answers all copies alike, however they are listed
    keys_BK = np.where(shown.candidates_BK >= 0, shown.candidates_BK, len(shown.catalog))
    answers_BK = padded(np.argsort(keys_BK, axis=1), shown.sizes_B)
    assert (Consistency()(answers_BK, shown.slates, context=Context(groups_B=shown.origins)) == 1).all()
