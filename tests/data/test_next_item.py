"""Leave-one-out and the split by time, on logs made by hand and on random ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import global_time, leave_one_out
from rerank_env.rewards.errors import InputError


def log_of(lengths: list[int], times: list[float] | None = None) -> Interactions:
    users = np.repeat(np.arange(len(lengths)), lengths)
    items = np.concatenate([np.arange(length) for length in lengths])
    return Interactions(
        users, items, np.ones(len(users)), items.astype(float) if times is None else np.array(times),
        tuple(f"item {i}" for i in range(max(lengths))), np.zeros((max(lengths), 0), dtype=np.float32), (),
    )  # fmt: skip


def test_the_last_is_test_the_one_before_validation_and_the_first_of_a_user_is_never_asked_for() -> None:
    # Users with 5, 2 and 3 interactions: rows 0-4, 5-6, 7-9.
    targets = leave_one_out(log_of([5, 2, 3]))
    assert targets.rows["train"].tolist() == [1, 2, 6]
    assert targets.rows["validation"].tolist() == [3, 8]
    assert targets.rows["test"].tolist() == [4, 9]
    assert np.flatnonzero(targets.seen_N).tolist() == [0, 1, 2, 5, 6, 7]
    assert targets.first_N.tolist() == [0] * 5 + [5] * 2 + [7] * 3
    assert targets.notes == ("1 users with fewer than 3 interactions are in train only",)


def test_a_log_in_which_nobody_has_three_interactions_is_refused() -> None:
    with pytest.raises(InputError, match="no user has three interactions"):
        leave_one_out(log_of([2, 1]))


def test_the_split_by_time_asks_in_test_for_nothing_that_happened_before_any_of_train() -> None:
    # Ten interactions at times 0..9: the last one is test, the one before validation.
    log = log_of([5, 5], times=[0, 2, 4, 6, 8, 1, 3, 5, 7, 9])
    targets = global_time(log)
    assert log.times_N[targets.rows["test"]].tolist() == [9]
    assert log.times_N[targets.rows["validation"]].tolist() == [8]
    assert targets.seen_N.sum() == 8


def test_places_in_a_sequence_are_no_times() -> None:
    with pytest.raises(InputError, match="use leave_one_out"):
        global_time(log_of([5, 4, 3]))


@pytest.mark.parametrize("count", range(1, 40))
def test_a_tenth_of_the_interactions_or_more_is_in_each_later_part_however_few_there_are(count: int) -> None:
    log = log_of([count], times=[float(2 * time) for time in range(count)])
    if count < 3:
        with pytest.raises(InputError):
            global_time(log)
        return
    targets = global_time(log)
    for split in ("validation", "test"):
        assert 0.1 * count <= len(targets.rows[split]) < 0.1 * count + 1
    assert targets.seen_N.any()


def test_equal_times_are_never_parted() -> None:
    with pytest.raises(InputError, match="too many are equal"):
        global_time(log_of([4, 4], times=[1, 1, 1, 1, 2, 2, 2, 2]))


@given(st.integers(0, 10**6))
def test_by_time_every_split_is_later_than_the_one_before_and_nothing_is_in_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, size=30).tolist()
    times = np.concatenate([np.sort(rng.integers(0, 500, size=length)) for length in lengths]).astype(float) + 1000
    log = log_of(lengths, times=times.tolist())
    targets = global_time(log)
    train, validation, test = (targets.rows[split] for split in ("train", "validation", "test"))
    assert log.times_N[targets.seen_N].max() < log.times_N[validation].min(initial=np.inf)
    assert log.times_N[validation].max(initial=-np.inf) < log.times_N[test].min(initial=np.inf)
    assert len({*train, *validation, *test}) == len(train) + len(validation) + len(test)
    assert not targets.seen_N[validation].any() and not targets.seen_N[test].any() and targets.seen_N[train].all()
    alone = int(targets.notes[1].split()[0])
    assert (~targets.seen_N).sum() == len(validation) + len(test) + alone


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20).filter(lambda lengths: max(lengths) >= 3))
def test_leave_one_out_asks_each_long_user_once_in_validation_and_test(lengths: list[int]) -> None:
    log = log_of(lengths)
    targets = leave_one_out(log)
    long = [user for user, length in enumerate(lengths) if length >= 3]
    assert log.users_N[targets.rows["validation"]].tolist() == log.users_N[targets.rows["test"]].tolist() == long
    assert (targets.rows["test"] == targets.rows["validation"] + 1).all()
    assert targets.seen_N.sum() == sum(lengths) - 2 * len(long)
