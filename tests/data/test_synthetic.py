"""The synthetic data: planted structure, the same each time, usable at any size."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data import Requests, load
from rerank_env.data.synthetic import synthetic
from rerank_env.rewards.arrays import PAD
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.metrics import ndcg
from rerank_env.rewards.rankings import from_scores, identity_rankings, random_rankings


def mean_ndcg(requests: Requests, rankings: np.ndarray) -> float:
    return float(ndcg(rankings, requests.slates).mean())


def test_the_incoming_order_beats_random_and_leaves_head_room_that_taste_fills() -> None:
    requests = load("synthetic", split="test")
    width = requests.candidates_BK.shape[1]
    incoming = mean_ndcg(requests, identity_rankings(requests.sizes_B, width))
    chance = mean_ndcg(requests, random_rankings(requests.sizes_B, width, np.random.default_rng(0)))
    assert chance + 0.03 < incoming < 0.9
    # An independent reading of the planted structure: least-squares taste from 20 past items, then taste . traits.
    features = requests.catalog.features_IF
    scores = np.empty(requests.candidates_BK.shape)
    for row in range(len(requests)):
        traits = features[requests.history_BH[row], :-1]
        ridge = traits.T @ traits + np.eye(traits.shape[1]) * 0.5
        feedback = requests.feedback_BH[row]
        taste = np.linalg.solve(ridge, traits.T @ (feedback - feedback.mean()))
        scores[row] = features[requests.candidates_BK[row], :-1] @ taste + requests.scores_BK[row]
    informed, _ = from_scores(scores, requests.sizes_B, ties="incoming")
    assert mean_ndcg(requests, informed) > incoming + 0.05


def test_no_user_of_one_split_and_no_request_is_in_another() -> None:
    histories = [load("synthetic", split=split).history_BH for split in ("train", "validation", "test")]
    rows = [{tuple(row) for row in history.tolist()} for history in histories]
    assert not rows[0] & rows[1] and not rows[0] & rows[2] and not rows[1] & rows[2]


@given(st.integers(2, 12), st.integers(0, 5), st.sampled_from(["graded", "next_item"]), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_every_slate_has_a_relevant_and_an_irrelevant_candidate(size: int, less: int, kind: str, seed: int) -> None:
    requests = load("synthetic", kind=kind, requests=40, slate_size=size, min_slate_size=max(2, size - less), seed=seed)
    real = np.arange(size) < requests.sizes_B[:, None]
    assert ((requests.relevance_BK > 0) & real).any(axis=1).all()
    assert ((requests.relevance_BK == 0) & real).any(axis=1).all()
    if kind == "next_item":
        assert (requests.relevance_BK.sum(axis=1) == 1).all()
    assert (np.diff(requests.scores_BK, axis=1)[real[:, 1:]] <= 0).all()


def test_the_same_arguments_give_the_same_requests_and_another_seed_others() -> None:
    first, again, other = synthetic(requests=40), synthetic(requests=40), synthetic(requests=40, seed=1)
    assert (first.candidates_BK == again.candidates_BK).all() and (first.feedback_BH == again.feedback_BH).all()
    assert (first.candidates_BK != other.candidates_BK).any()


def test_unknown_names_are_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'synthetic'"):
        load("sinthetic")
    with pytest.raises(UnknownNameError, match="did you mean 'validation'"):
        load("synthetic", split="valid")
    with pytest.raises(UnknownNameError, match="did you mean 'next_item'"):
        load("synthetic", kind="next-item")
    with pytest.raises(UnknownNameError, match="did you mean 'slate_size'"):
        load("synthetic", slate_sise=4)


@pytest.mark.parametrize(
    "options",
    [
        {"slate_size": 1},
        {"slate_size": 0},
        {"slate_size": 201},
        {"slate_size": 5.5},
        {"slate_size": 10.0},
        {"slate_size": "5"},
        {"slate_size": [5]},
        {"slate_size": None},
        {"slate_size": True},
        {"min_slate_size": 11},
        {"min_slate_size": [3]},
        {"requests": 0},
        {"requests": 3},
        {"history": 0},
        {"history": 201},
        {"history": {}},
        {"seed": -1},
        {"seed": 0.5},
        {"seed": None},
    ],
)
def test_an_option_that_cannot_be_used_is_refused_by_name(options: dict[str, Any]) -> None:
    load("synthetic")  # what is loaded already must not hide that 10.0 is no whole number
    (name,) = options
    for make in (load, lambda _, **given: synthetic(**given)):
        with pytest.raises(InputError, match=name) as caught:
            make("synthetic", **options)
        assert "\n" not in str(caught.value)


def test_options_may_be_numpy_integers_and_spelled_out_defaults() -> None:
    assert load("synthetic", slate_size=np.int32(10), min_slate_size=None, seed=0) is load("synthetic")


def test_all_splits_of_one_seed_share_one_catalogue() -> None:
    assert load("synthetic").catalog is load("synthetic", split="test").catalog


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_the_next_item_of_a_ragged_slate_is_the_best_liked_of_its_real_candidates(seed: int) -> None:
    options = {"requests": 40, "slate_size": 9, "min_slate_size": 2, "seed": seed}
    requests, graded = load("synthetic", kind="next_item", **options), load("synthetic", **options)
    real_BK = np.arange(9) < requests.sizes_B[:, None]
    assert len(set(requests.sizes_B.tolist())) > 3
    assert (requests.candidates_BK == graded.candidates_BK).all()
    assert (requests.relevance_BK[~real_BK] == 0).all() and (requests.candidates_BK[~real_BK] == PAD).all()
    assert set(np.unique(requests.relevance_BK)) == {0.0, 1.0} and (requests.relevance_BK.sum(axis=1) == 1).all()
    # The best liked candidate has the highest gain of the graded form, where gains follow the same liking.
    target_B = requests.relevance_BK.argmax(axis=1)
    assert (graded.relevance_BK[np.arange(len(requests)), target_B] == graded.relevance_BK.max(axis=1)).all()
