"""The vector form against Gymnasium's SyncVectorEnv over single environments: equal to the last bit."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data.requests import Requests
from rerank_env.episodes import EpisodeError
from rerank_env.rewards.errors import InputError

ID = "rerank_env:Rerank-v0"


def assert_same(left: Any, right: Any, path: str = "") -> None:
    """Equal in type, dtype, shape and every bit, all the way down."""
    assert type(left) is type(right), f"{path}: {type(left)} and {type(right)}"
    if isinstance(left, dict):
        assert left.keys() == right.keys(), f"{path}: {left.keys() ^ right.keys()}"
        for key in left:
            assert_same(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, tuple):
        assert len(left) == len(right), path
        for index, pair in enumerate(zip(left, right, strict=True)):
            assert_same(*pair, f"{path}/{index}")
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype, f"{path}: {left.dtype} and {right.dtype}"
        assert left.shape == right.shape, path
        if left.dtype == object:
            assert_same(tuple(left), tuple(right), path)
        else:
            assert left.tobytes() == right.tobytes(), f"{path}: {left} and {right}"
    else:
        assert left == right, path


def both_forms(n: int, **arguments: Any) -> tuple[gym.vector.VectorEnv, SyncVectorEnv]:
    native = gym.make_vec(ID, num_envs=n, vectorization_mode="vector_entry_point", **arguments)
    single = gym.make_vec(
        ID,
        num_envs=n,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        **arguments,
    )
    return native, single


def hostile_actions(rng: np.random.Generator, env: gym.vector.VectorEnv, observation: dict[str, Any]) -> Any:
    """About half legal actions, half of every other sort the shape allows."""
    n, width = observation["candidates"].shape
    sizes = (observation["candidates"] >= 0).sum(axis=1)
    action = env.unwrapped.task.action
    if action == "ranking":
        rankings = rng.integers(0, width, (n, width))
        for row in np.flatnonzero(rng.random(n) < 0.6):
            rankings[row, : sizes[row]] = rng.permutation(sizes[row])
        return rankings
    if action == "scores":
        scores = rng.integers(-2, 3, (n, width)).astype(np.float32)
        scores[rng.random((n, width)) < 0.05] = np.nan
        return scores
    if action == "pick":
        picks = rng.integers(0, width, n)
        for row in np.flatnonzero(rng.random(n) < 0.9):
            picks[row] = rng.choice(np.flatnonzero(observation["action_mask"][row]))
        return picks
    texts = []
    for size in sizes:
        numbers = rng.permutation(size) + 1
        if rng.random() < 0.3:
            numbers[0] = rng.integers(0, width + 2)
        texts.append(str(numbers.tolist()) if rng.random() < 0.8 else env.single_action_space.sample())
    return tuple(texts)


@settings(max_examples=60, deadline=None)
@given(
    action=st.sampled_from(["ranking", "scores", "pick", "text"]),
    n=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    ragged=st.booleans(),
    reward=st.sampled_from(["gain", "gr2", "ndcg@3 + 0.5*valid_format", "gr2_industrial"]),
    ties=st.sampled_from(["random", "reverse", "refuse"]),
)
def test_the_vector_form_and_single_environments_agree_to_the_last_bit(
    action: str, n: int, seed: int, ragged: bool, reward: str, ties: str
) -> None:
    options = {"requests": 50, "slate_size": 6, "min_slate_size": 2 if ragged else 6}
    native, single = both_forms(
        n, action=action, reward=reward, ties=ties, data_options=options, metrics=["ndcg@10", "mrr"]
    )
    rng = np.random.default_rng(seed)
    left, right = native.reset(seed=seed), single.reset(seed=seed)
    assert_same(left, right)
    for step in range(8):
        actions = hostile_actions(rng, native, left[0])
        left, right = native.step(actions), single.step(actions)
        assert_same(left, right, f"step {step}")
        assert_same(native.np_random_seed, seed)
        assert left[0] in native.observation_space
    rows = {"request": int(rng.integers(10))}
    assert_same(native.reset(options=rows), single.reset(options=dict(rows)))
    assert_same(native.reset(seed=[seed + 7] * n), single.reset(seed=[seed + 7] * n))


def test_spaces_of_both_forms_are_equal(requests: Requests) -> None:
    for action in ("ranking", "scores", "pick", "text"):
        native, single = both_forms(3, data=requests, action=action)
        assert native.observation_space == single.observation_space
        assert native.action_space == single.action_space
        assert native.single_observation_space == single.single_observation_space
        assert native.single_action_space == single.single_action_space
        assert native.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_every_step_of_a_one_step_episode_is_one_answered_request(requests: Requests) -> None:
    envs = gym.make_vec(ID, num_envs=3, data=requests)
    asked = envs.reset(seed=0)[1]["request"]
    for _ in range(5):
        _, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        assert rewards.dtype == np.float64
        assert terminated.all()
        assert not truncated.any()
        assert (infos["final_info"]["request"] == asked).all()
        asked = infos["request"]


def test_an_environment_does_not_depend_on_its_neighbours(requests: Requests) -> None:
    """Environment 1 of three, seeded 11, acts like environment 0 of one, seeded 11."""
    many = gym.make_vec(ID, num_envs=3, data=requests, action="pick")
    one = gym.make_vec(ID, num_envs=1, data=requests, action="pick")
    many.reset(seed=[3, 11, 5])
    one.reset(seed=11)
    rng = np.random.default_rng(0)
    for _ in range(30):
        picks = rng.integers(0, 5, 3)
        left, right = many.step(picks), one.step(picks[1:2])
        assert left[0]["candidates"][1].tolist() == right[0]["candidates"][0].tolist()
        assert (left[1][1], left[2][1]) == (right[1][0], right[2][0])


def test_nothing_handed_out_is_handed_out_twice(requests: Requests) -> None:
    envs = gym.make_vec(ID, num_envs=4, data=requests, action="pick")
    first, _ = envs.reset(seed=0)
    kept = {key: value.copy() for key, value in first.items()}
    for _ in range(6):
        after, _, _, _, infos = envs.step(np.zeros(4, dtype=np.int64))
        for key, value in after.items():
            assert not np.shares_memory(value, first[key])
        for final in infos.get("final_obs", []):
            for key, value in (final or {}).items():
                assert not np.shares_memory(value, first[key])
                assert not np.shares_memory(value, after[key])
    assert all((first[key] == kept[key]).all() for key in kept)


def test_the_data_are_never_written_to(requests: Requests) -> None:
    before = requests.candidates_BK.copy()
    envs = gym.make_vec(ID, num_envs=2, data=requests)
    observations, _ = envs.reset(seed=0)
    observations["candidates"][:] = 99
    assert (requests.candidates_BK == before).all()


def test_stepping_before_the_first_reset_says_what_to_do(requests: Requests) -> None:
    envs = gym.make_vec(ID, num_envs=2, data=requests)
    with pytest.raises(EpisodeError, match="call reset"):
        envs.step(envs.action_space.sample())


def test_seeds_must_fit_the_number_of_environments(requests: Requests) -> None:
    envs = gym.make_vec(ID, num_envs=2, data=requests)
    with pytest.raises(InputError, match="3 seeds for 2 environments"):
        envs.reset(seed=[1, 2, 3])


@pytest.mark.parametrize("seed", [[1, 2.5], [1, "2"], [1, -2], [True, 1]])
def test_a_seed_that_is_no_whole_number_is_refused(requests: Requests, seed: list[Any]) -> None:
    envs = gym.make_vec(ID, num_envs=2, data=requests)
    with pytest.raises(InputError, match="a seed is"):
        envs.reset(seed=seed)


def test_a_seed_of_none_leaves_an_environment_on_its_own_stream(requests: Requests) -> None:
    envs = gym.make_vec(ID, num_envs=2, data=requests)
    rows = [envs.reset(seed=[1, 2])[1]["request"]] + [envs.reset()[1]["request"] for _ in range(5)]
    envs.reset(seed=[1, 2])
    partly = [envs.reset(seed=[None, 2])[1]["request"]] + [envs.reset()[1]["request"] for _ in range(4)]
    assert [row[0] for row in partly] == [row[0] for row in rows[1:]]
    assert [row[1] for row in partly] == [row[1] for row in rows[:5]]
