"""Windows, splits, the first stage and requests, on small logs made by hand and on random ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data.building import build, rating_gain
from rerank_env.data.first_stage import SHRINKAGE, ItemStatistics
from rerank_env.data.interactions import Interactions
from rerank_env.data.split import MIN_HISTORY, user_windows
from rerank_env.rewards.errors import DataError, InputError


def random_log(seed: int, *, users: int = 12, items: int = 60, length: int = 40) -> Interactions:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, length + 1, size=users)
    who = np.repeat(np.arange(users), lengths)
    what = np.concatenate([rng.permutation(items)[:n] for n in lengths])
    return Interactions.arranged(
        who, what, rng.integers(1, 6, size=len(who)).astype(float), rng.integers(0, 10, size=len(who)).astype(float),
        texts=tuple(f"film {i}" for i in range(items)), content_IC=np.zeros((items, 1), dtype=np.float32),
        content_names=("none",), seed=seed,
    )  # fmt: skip


@given(st.integers(0, 10**6), st.integers(2, 7))
@settings(max_examples=40, deadline=None)
def test_no_window_straddles_a_split_and_each_user_goes_from_train_to_test_in_time(seed: int, size: int) -> None:
    log = random_log(seed)
    windows = user_windows(log, size=size)
    rows = windows.rows(np.arange(len(windows.starts_W)))
    assert len(np.unique(rows)) == rows.size  # no interaction is asked for twice
    for user in np.unique(log.users_N):
        mine = np.flatnonzero(log.users_N[windows.starts_W] == user)
        assert (log.users_N[rows[mine]] == user).all()
        assert (np.diff(windows.split_W[mine]) >= 0).all()
        assert (np.diff(log.times_N[rows[mine].ravel()]) >= 0).all()
        if len(mine):
            lead = windows.starts_W[mine[0]] - windows.first_W[mine[0]]
            assert MIN_HISTORY <= lead < MIN_HISTORY + size
            assert rows[mine[-1], -1] == np.flatnonzero(log.users_N == user)[-1]
    seen = windows.seen_in_training(log)
    assert not seen[rows[windows.split_W > 0]].any() and seen[rows[windows.split_W == 0]].all()


def test_the_shares_of_a_user_with_forty_five_interactions_are_rounded_windows() -> None:
    # 45 = 5 history + 4 windows of 10: round(4 * 0.25) = 1 test, round(4 * 0.10) = 0 validation, 3 train.
    log = Interactions.arranged(
        np.zeros(45, dtype=np.int64), np.arange(45), np.ones(45), np.arange(45.0),
        texts=tuple("x" * 45), content_IC=np.zeros((45, 0), dtype=np.float32), content_names=(), seed=0,
    )  # fmt: skip
    windows = user_windows(log, size=10)
    assert windows.starts_W.tolist() == [5, 15, 25, 35] and windows.split_W.tolist() == [0, 0, 0, 2]


def test_the_item_mean_is_shrunken_and_leaves_out_the_user_who_is_asked() -> None:
    # Ratings: item 0 has 5 and 1, item 1 has 3; all trained on. Mean 3.
    log = Interactions.arranged(
        np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([5.0, 1, 3]), np.array([0.0, 0, 1]),
        texts=("a", "b"), content_IC=np.zeros((2, 0), dtype=np.float32), content_names=(), seed=0,
    )  # fmt: skip
    statistics = ItemStatistics.fit(log, np.ones(3, dtype=bool))
    row_of_five = int(np.flatnonzero(log.ratings_N == 5)[0])
    # Without that five, item 0 has one rating of 1: (1 - 3) / (1 + 5).
    assert statistics.item_mean_of(log, np.array([row_of_five]))[0] == pytest.approx(-2 / (1 + SHRINKAGE))
    # With everyone: (2 - 2) / (2 + 5) = 0.
    assert statistics.item_mean_I()[log.items_N[row_of_five]] == pytest.approx(0.0)
    # Trained without that row, leaving it out changes nothing.
    unseen = ItemStatistics.fit(log, log.ratings_N != 5)
    assert unseen.item_mean_of(log, np.array([row_of_five]))[0] == pytest.approx((1 - 2) / (1 + SHRINKAGE))


def test_what_other_users_said_of_an_item_stays_in() -> None:
    # One user rates items 0 and 1, another item 1; all trained on, mean 3. Item 1 has 1 and 5, deviations -2 and 2.
    log = Interactions.arranged(
        np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([3.0, 1, 5]), np.array([0.0, 1, 0]),
        texts=("a", "b"), content_IC=np.zeros((2, 0), dtype=np.float32), content_names=(), seed=0,
    )  # fmt: skip
    statistics = ItemStatistics.fit(log, np.ones(3, dtype=bool))
    asked = int(np.flatnonzero(log.ratings_N == 5)[0])
    assert statistics.item_mean_of(log, np.array([asked]))[0] == pytest.approx(-2 / (1 + SHRINKAGE))
    other = int(np.flatnonzero(log.ratings_N == 1)[0])
    assert statistics.item_mean_of(log, np.array([other]))[0] == pytest.approx(2 / (1 + SHRINKAGE))


def test_equal_first_stage_scores_come_in_every_order() -> None:
    """Ratings of a user's own do not separate items nobody else has rated; 0 of them are seen more than once."""
    log = Interactions.arranged(
        np.zeros(8, dtype=np.int64), np.arange(8), np.array([3.0] * 5 + [4, 3, 5]), np.arange(8.0),
        texts=tuple("abcdefgh"), content_IC=np.zeros((8, 0), dtype=np.float32), content_names=(), seed=0,
    )  # fmt: skip
    orders = {tuple(build(log, name="log", slate_size=3, seed=seed)["train"].candidates_BK[0]) for seed in range(60)}
    assert len(orders) == 6


def test_all_splits_share_one_catalogue_and_each_draws_for_itself() -> None:
    for kind in ("graded", "next_item"):
        splits = build(random_log(3, users=30), name="random", kind=kind, slate_size=5)
        assert list(splits) == ["train", "validation", "test"]
        assert len({id(requests.catalog) for requests in splits.values()}) == 1
        assert [requests.name.split(":")[0] for requests in splits.values()] == [f"random, {s}" for s in splits]


@pytest.mark.parametrize("kind", ["graded", "next_item"])
def test_a_split_that_nobody_reaches_is_empty_and_says_so(kind: str) -> None:
    # 15 interactions: 5 history and two windows of 5, none of them for validation, one (rounded) for neither or test.
    log = Interactions.arranged(
        np.zeros(15, dtype=np.int64), np.arange(15), np.tile([1.0, 5, 3], 5), np.arange(15.0),
        texts=tuple("abcdefghijklmnopqrst"), content_IC=np.zeros((20, 0), dtype=np.float32), content_names=(), seed=0,
    )  # fmt: skip
    splits = build(log, name="log", kind=kind, slate_size=5)
    assert len(splits["validation"]) == 0
    assert splits["validation"].notes[0].startswith("0 of 0 ")


def test_the_gain_of_a_rating_is_none_click_or_conversion() -> None:
    assert rating_gain(np.array([1.0, 2, 3, 4, 5])).tolist() == [0, 0, 0, 1, 2]


@given(st.integers(0, 10**6), st.sampled_from(["train", "test"]))
@settings(max_examples=20, deadline=None)
def test_a_graded_slate_holds_the_next_window_after_its_history(seed: int, split: str) -> None:
    log = random_log(seed, users=20)
    requests = build(log, name="random", slate_size=5, history=8)[split]
    position = {(int(u), int(i)): n for n, (u, i) in enumerate(zip(log.users_N, log.items_N, strict=True))}
    for row in range(len(requests)):
        user = int(requests.users_B[row])
        asked = sorted(position[user, int(i)] for i in requests.candidates_BK[row])
        known = [position[user, int(i)] for i in requests.history_BH[row] if i >= 0]
        assert asked == list(range(asked[0], asked[0] + 5))
        assert known == list(range(asked[0] - len(known), asked[0]))
        gains = rating_gain(log.ratings_N[[position[user, int(i)] for i in requests.candidates_BK[row]]])
        assert requests.relevance_BK[row].tolist() == gains.tolist()
        assert (np.diff(requests.scores_BK[row]) <= 0).all()


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_a_next_item_list_holds_its_target_once_and_nothing_already_rated(seed: int) -> None:
    log = random_log(seed, users=20)
    requests = build(log, name="random", kind="next_item", slate_size=20, history=40)["train"]
    assert (requests.relevance_BK.sum(axis=1) == 1).all()
    for row in range(len(requests)):
        assert not set(requests.candidates_BK[row]) & set(requests.history_BH[row])
    assert "recall@20" in requests.notes[0]


def test_the_training_statistics_do_not_change_when_held_out_ratings_do() -> None:
    log = random_log(3, users=20)
    windows = user_windows(log, size=5)
    held_out = ~windows.seen_in_training(log)
    flipped = Interactions(
        log.users_N, log.items_N, np.where(held_out, 6 - log.ratings_N, log.ratings_N), log.times_N,
        log.texts, log.content_IC, log.content_names,
    )  # fmt: skip
    before = build(log, name="log", slate_size=5)["train"]
    after = build(flipped, name="log", slate_size=5)["train"]
    assert (before.catalog.features_IF == after.catalog.features_IF).all()
    assert (before.candidates_BK == after.candidates_BK).all() and (before.scores_BK == after.scores_BK).all()


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_no_score_of_a_training_request_tells_anything_of_what_its_user_said(seed: int) -> None:
    log = random_log(seed, users=15)
    windows = user_windows(log, size=5)
    user = int(np.random.default_rng(seed).choice(log.users_N[windows.starts_W]))
    said_otherwise = np.where(log.users_N == user, 6 - log.ratings_N, log.ratings_N)
    other = Interactions(
        log.users_N, log.items_N, said_otherwise, log.times_N, log.texts, log.content_IC, log.content_names
    )
    seen_N = windows.seen_in_training(log)
    rows = np.flatnonzero(seen_N & (log.users_N == user))
    before, after = ItemStatistics.fit(log, seen_N), ItemStatistics.fit(other, seen_N)
    shift = after.mean - before.mean  # of all ratings, and the same for all items but for the shrinkage
    counts = before.count_I[log.items_N[rows]] - before.count_JI[before.fold_N[rows], log.items_N[rows]]
    moved = before.item_mean_of(log, rows) - shift * counts / (counts + SHRINKAGE)
    assert after.item_mean_of(other, rows) == pytest.approx(moved, abs=1e-12)


def test_an_item_rated_twice_by_one_user_is_refused() -> None:
    with pytest.raises(DataError, match="user 0 has the same item twice"):
        Interactions.arranged(
            np.array([0, 0]), np.array([1, 1]), np.ones(2), np.arange(2.0),
            texts=("a", "b"), content_IC=np.zeros((2, 0), dtype=np.float32), content_names=(), seed=0,
        )  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 500])
def test_a_slate_size_that_cannot_be_cut_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"slate_size is {size}"):
        user_windows(random_log(0), size=size)
    with pytest.raises(InputError, match=f"slate_size is {size}"):
        build(random_log(0), name="log", slate_size=size)


def test_a_list_longer_than_what_a_user_has_left_unrated_is_refused() -> None:
    """A user has 30 of 40 items; 11 are unrated when the last of the 30 is asked for."""
    rng = np.random.default_rng(0)
    log = Interactions.arranged(
        np.zeros(30, dtype=np.int64), rng.permutation(40)[:30], np.full(30, 5.0), np.arange(30.0),
        texts=("x",) * 40, content_IC=np.zeros((40, 0), dtype=np.float32), content_names=(), seed=0,
    )  # fmt: skip
    build(log, name="log", kind="next_item", slate_size=11)
    with pytest.raises(InputError, match="slate_size is 12 but a user has rated 30 of the 40 items"):
        build(log, name="log", kind="next_item", slate_size=12)


@pytest.mark.parametrize("history", [0, -1, 2.5])
def test_a_history_that_cannot_be_read_is_refused(history: int) -> None:
    with pytest.raises(InputError, match="history is"):
        build(random_log(0), name="log", slate_size=5, history=history)
