"""Which request comes: reproducible from a seed, even over the data, or chosen by row."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.episodes import Episodes
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.streams import scrambled
from rerank_env.vector_env import RerankVectorEnv


def asked(env: RerankEnv, seed: int, episodes: int = 20) -> list[int]:
    rows = [env.reset(seed=seed)[1]["request"]]
    for _ in range(episodes):
        env.step(env.action_space.sample())
        rows.append(env.reset()[1]["request"])
    return rows


def test_a_seed_reproduces_the_requests_whatever_the_actions() -> None:
    env, other = RerankEnv(), RerankEnv(action="scores")
    assert asked(env, 4) == asked(env, 4) == asked(other, 4)
    assert all(type(row) is int for row in asked(env, 4))


def test_different_seeds_ask_different_requests() -> None:
    env = RerankEnv()
    first = [tuple(asked(env, seed, 3)) for seed in range(50)]
    assert len(set(first)) == 50


def test_an_environment_without_a_seed_differs_from_the_next() -> None:
    rows = set()
    for _ in range(3):
        env = RerankEnv()
        rows.add(tuple(env.reset()[1]["request"] for _ in range(6)))
    assert len(rows) == 3


def test_requests_come_evenly() -> None:
    """60,000 draws of 6 rows: 10,000 each on average, standard deviation 91; 5 of them allowed."""
    requests = RerankEnv(data_options={"requests": 6}).requests
    envs = RerankVectorEnv(requests, num_envs=6000)
    envs.reset(seed=0)
    counts = np.zeros(len(requests), dtype=int)
    for _ in range(10):
        counts += np.bincount(envs.reset()[1]["request"], minlength=len(requests))
    assert (np.abs(counts - 60_000 / len(requests)) < 456).all()


def test_the_counter_stream_is_splitmix64() -> None:
    """The first outputs of SplitMix64 started at 0 are published with the generator."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    outputs = scrambled(np.arange(1, 4, dtype=np.uint64) * golden)
    assert [hex(x) for x in outputs.tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_episode_t_reads_output_t_of_the_stream(requests: Requests) -> None:
    """Key 0 over six requests: the upper halves of the outputs above times 6, divided by 2**32, are 5, 2 and 0."""
    episodes = Episodes(RerankEnv(requests).task, 1)
    episodes.reseed([0], [np.uint64(0)])
    rows = []
    for _ in range(3):
        episodes.begin()
        rows.append(int(episodes.rows_B[0]))
    assert rows == [5, 2, 0]


@settings(max_examples=30, deadline=None)
@given(row=st.integers(0, 5), seed=st.none() | st.integers(0, 99))
def test_a_row_can_be_asked_for(requests: Requests, row: int, seed: int | None) -> None:
    env = RerankEnv(requests)
    observation, info = env.reset(seed=seed, options={"request": row})
    assert info["request"] == row
    assert (observation["candidates"] == requests.candidates_BK[row]).all()
    assert (observation["history"] == requests.history_BH[row]).all()
    assert (observation["feedback"] == requests.feedback_BH[row]).all()
    assert (observation["scores"] == requests.scores_BK[row]).all()


def test_a_chosen_row_does_not_move_the_stream(requests: Requests) -> None:
    env = RerankEnv(requests)
    drawn = [env.reset(seed=3)[1]["request"]] + [env.reset()[1]["request"] for _ in range(8)]
    mixed = [env.reset(seed=3)[1]["request"]]
    for turn in range(8):
        mixed.append(env.reset(options={"request": 4} if turn % 2 else None)[1]["request"])
    assert [row for turn, row in enumerate(mixed) if turn in (0, 1, 3, 5, 7)] == drawn[:1] + drawn[1::2]


def test_the_vector_form_takes_one_row_or_one_each(requests: Requests) -> None:
    envs = RerankVectorEnv(requests, num_envs=3)
    assert envs.reset(options={"request": 4})[1]["request"].tolist() == [4, 4, 4]
    observations, infos = envs.reset(options={"request": [2, 0, 2]})
    assert infos["request"].tolist() == [2, 0, 2]
    assert (observations["candidates"] == requests.candidates_BK[[2, 0, 2]]).all()


@pytest.mark.parametrize(
    ("row", "sentence"),
    [(6, "rows 0..5"), (-1, "rows 0..5"), (1.0, "was expected"), (True, "was expected"), ("1", "was expected")],
)
def test_a_row_that_does_not_exist_is_refused_in_both_forms(requests: Requests, row: Any, sentence: str) -> None:
    for env in (RerankEnv(requests), RerankVectorEnv(requests, num_envs=2)):
        with pytest.raises(InputError, match=sentence):
            env.reset(options={"request": row})


def test_rows_of_the_wrong_number_are_refused(requests: Requests) -> None:
    with pytest.raises(InputError, match="2 row numbers"):
        RerankVectorEnv(requests, num_envs=2).reset(options={"request": [1, 2, 3]})
    with pytest.raises(InputError, match="one row number"):
        RerankEnv(requests).reset(options={"request": [1]})
    with pytest.raises(InputError, match="2 row numbers"):
        RerankVectorEnv(requests, num_envs=2).reset(options={"request": [[1], [2, 3]]})


def test_an_unknown_option_is_refused_with_the_nearest(requests: Requests) -> None:
    for env in (RerankEnv(requests), RerankVectorEnv(requests, num_envs=2)):
        with pytest.raises(UnknownNameError, match="did you mean 'request'"):
            env.reset(options={"requests": 1})


def test_a_refused_reset_changes_nothing(requests: Requests) -> None:
    env = RerankEnv(requests)
    expected = [env.reset(seed=3)[1]["request"], env.reset()[1]["request"]]
    env.reset(seed=3)
    with pytest.raises(InputError):
        env.reset(seed=8, options={"request": 99})
    assert env.reset()[1]["request"] == expected[1]
