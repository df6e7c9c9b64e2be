"""A function that raises, hangs, dies or returns nonsense is named with its row, and the others keep their scores."""

import multiprocessing
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from rerank_env.rewards import FunctionReward, Ndcg, Slates, ValidFormat, isolation
from rerank_env.rewards.errors import InputError, RewardError
from rerank_env.rewards.isolation import GIVE_UP_AFTER, PROCESSES

FIVE = Slates.of([[0, 1], [0, 2], [0, 3], [0, 4], [0, 5]])
ORDERS = [[1, 0]] * 5


def reward_of(function, *, seconds=None, on_error="isolate"):
    return FunctionReward(function, "mine", low=0.0, high=1.0, invalid=-1.0, on_error=on_error, seconds=seconds)


def shares(slates):
    return slates.relevance_BK.max(axis=1) / 10


def faulty(fault):
    """A function that scores a tenth of the best gain, but does `fault` where that gain is 3."""

    def function(rankings_BK, slates):
        values_B = shares(slates)
        if (slates.relevance_BK == 3).any():
            return fault(values_B, slates)
        return values_B

    return function


def raises(values_B, slates):
    raise KeyError("no such thing")


def is_nan(values_B, slates):
    return np.where(slates.relevance_BK.max(axis=1) == 3, np.nan, values_B)


def is_infinite(values_B, slates):
    return np.where(slates.relevance_BK.max(axis=1) == 3, np.inf, values_B)


def is_out_of_range(values_B, slates):
    return np.where(slates.relevance_BK.max(axis=1) == 3, 7.0, values_B)


def is_short(values_B, slates):
    return values_B[:-1]


def is_text(values_B, slates):
    return ["much"] * len(values_B)


def hangs(values_B, slates):
    time.sleep(3600)


def dies(values_B, slates):
    os._exit(3)


@pytest.mark.parametrize(
    ("fault", "message", "seconds"),
    [
        (raises, "reward mine raised KeyError: 'no such thing'", None),
        (raises, "reward mine raised KeyError: 'no such thing'", 5.0),
        (is_nan, "reward mine returned nan for row 2", None),
        (is_infinite, "reward mine returned inf for row 2", None),
        (is_out_of_range, "reward mine returned 7.0 for row 2 but declares 0.0 to 1.0", None),
        (is_short, "reward mine returned shape (0,) for 1 requests", None),
        (is_text, "reward mine returned dtype <U4", None),
        (hangs, "reward mine took longer than 0.5 seconds and was stopped", 0.5),
        (dies, "reward mine ended its process", 5.0),
    ],
)
def test_a_fault_is_told_of_its_row_and_the_rest_is_scored(fault, message, seconds):
    score = reward_of(faulty(fault), seconds=seconds).score(ORDERS, FIVE)
    assert score.total_B.tolist() == [0.1, 0.2, -1.0, 0.4, 0.5]
    [failure] = score.failures
    assert (failure.name, failure.row) == ("mine", 2)
    assert failure.message.startswith(message)


def test_a_failed_answer_is_scored_as_if_invalid_by_the_whole_reward():
    # A sum of what failed (invalid -1), NDCG (invalid 0) and half a format bonus (invalid 0): -1, not NDCG + 0.5.
    reward = reward_of(faulty(raises)) + Ndcg() + 0.5 * ValidFormat()
    score = reward.score(ORDERS, FIVE)
    assert score.total_B.tolist() == [1.6, 1.7, -1.0, 1.9, 2.0]
    assert score.parts["ndcg"].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert [failure.row for failure in score.failures] == [2]


def test_an_invalid_answer_is_no_failure():
    orders = [[1, 0], [1, 0], [1, 1], [1, 0], [1, 0]]
    score = reward_of(faulty(raises)).score(orders, FIVE)
    assert score.total_B.tolist() == [0.1, 0.2, -1.0, 0.4, 0.5]
    assert score.failures == ()


def test_a_fault_met_twice_is_told_once():
    score = reward_of(faulty(raises)).over_incoming().score(ORDERS, FIVE)
    assert [failure.row for failure in score.failures] == [2]
    assert score.total_B.tolist() == [0.0, 0.0, -1.0, 0.0, 0.0]


def test_a_function_that_always_hangs_is_given_up_on():
    many = Slates.of([[0, 1]] * (GIVE_UP_AFTER + 3))
    score = reward_of(hangs_always, seconds=0.05).score([[0, 1]] * len(many), many)
    assert (score.total_B == -1.0).all()
    assert [failure.row for failure in score.failures] == list(range(len(many)))
    assert "was not asked" in score.failures[-1].message


def hangs_always(rankings_BK, slates):
    time.sleep(3600)


def test_a_time_limit_raises_where_errors_raise():
    with pytest.raises(RewardError, match=r"reward mine took longer than 0.1 seconds"):
        reward_of(hangs_always, seconds=0.1, on_error="raise")(ORDERS, FIVE)


def test_a_process_lives_from_call_to_call_and_any_function_can_be_sent():
    numbers = reward_of(lambda rankings_BK, slates: np.full(len(slates), os.getpid() % 1000 / 1000), seconds=5.0)
    first_B, second_B = numbers(ORDERS, FIVE), numbers(ORDERS, FIVE)
    assert first_B.tolist() == second_B.tolist()
    assert first_B[0] != os.getpid() % 1000 / 1000


def hundredth(rankings_BK, slates):
    return slates.relevance_BK.max(axis=1) / 100


def asked(gain):
    return float(reward_of(hundredth, seconds=5.0)([[0, 1]], Slates.of([[gain, 0]]))[0])


def test_a_fork_has_processes_of_its_own():
    assert asked(1) == 0.01  # the parent's process is running before the fork
    with multiprocessing.get_context("fork").Pool(2) as pool:
        values = pool.map(asked, range(40), chunksize=1)
    assert values == [gain / 100 for gain in range(40)]
    assert asked(3) == 0.03


def constant(value, rankings_BK, slates):
    return np.full(len(slates), value)


def test_functions_that_are_not_asked_any_more_free_their_processes():
    for number in range(PROCESSES + 3):
        reward_of(lambda rankings_BK, slates, number=number: np.full(len(slates), number / 100), seconds=5.0)(
            ORDERS, FIVE
        )
    assert len(isolation._processes) == PROCESSES


def test_nothing_that_a_function_returns_is_unpickled_here():
    class Slow:
        def __reduce__(self):
            return (time.sleep, (3600,))

    score = reward_of(lambda rankings_BK, slates: [Slow()] * len(slates), seconds=2.0).score(ORDERS, FIVE)
    assert score.failures[0].message == "reward mine returned dtype object; return one number a request"


def test_a_huge_return_stays_where_it_was_made():
    score = reward_of(lambda rankings_BK, slates: np.ones(10_000_000), seconds=20.0).score(
        ORDERS[:2], FIVE.take([0, 1])
    )
    assert "returned shape (10000000,) for 1 requests" in score.failures[0].message


def test_what_a_hung_function_started_is_stopped_with_it(tmp_path):
    note = tmp_path / "pid"

    def starts_another(rankings_BK, slates):
        child = subprocess.Popen(["sleep", "3600"])
        note.write_text(str(child.pid))
        child.wait()

    reward_of(starts_another, seconds=1.0).score(ORDERS[:1], FIVE.take([0]))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and is_running(int(note.read_text())):
        time.sleep(0.05)
    assert not is_running(int(note.read_text()))


def is_running(pid):
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("seconds", [None, 5.0])
def test_an_exit_and_an_error_without_words_are_faults_too(seconds):
    class MuteError(Exception):
        def __str__(self):
            raise ValueError

    def mute(values_B, slates):
        raise MuteError

    def leaves(values_B, slates):
        raise SystemExit(3)

    for fault, message in ((mute, "raised MuteError: (it cannot say what)"), (leaves, "raised SystemExit: 3")):
        score = reward_of(faulty(fault), seconds=seconds).score(ORDERS, FIVE)
        assert score.total_B.tolist() == [0.1, 0.2, -1.0, 0.4, 0.5]
        assert score.failures[0].message.startswith(f"reward mine {message}")


def test_a_function_that_often_hangs_is_given_up_on_even_if_it_answers_between():
    many = Slates.of([[0, 1], [0, 3]] * (GIVE_UP_AFTER + 2))
    score = reward_of(faulty(hangs), seconds=0.05).score([[1, 0]] * len(many), many)
    assert sum("took longer" in failure.message for failure in score.failures) == GIVE_UP_AFTER
    assert "was not asked" in score.failures[-1].message


def test_what_a_function_prints_does_not_disturb_it():
    def chatty(rankings_BK, slates):
        print("a line on standard output")
        return shares(slates)

    assert reward_of(chatty, seconds=5.0)(ORDERS, FIVE).tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_function_that_cannot_be_sent_is_refused():
    import threading

    lock = threading.Lock()

    def locked(rankings_BK, slates):
        with lock:
            return shares(slates)

    with pytest.raises(InputError, match=r"cannot be sent to a process of its own"):
        reward_of(locked, seconds=1.0)(ORDERS, FIVE)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), True])
def test_a_useless_time_limit_is_refused(seconds):
    with pytest.raises(InputError, match=r"seconds of mine|may take"):
        reward_of(shares, seconds=seconds)
