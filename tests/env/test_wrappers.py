"""Item features in the observation, single and vector."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.rewards.errors import InputError
from rerank_env.vector_env import RerankVectorEnv
from rerank_env.wrappers import ItemFeatures, VectorItemFeatures


def test_features_stand_beside_their_items_and_padding_is_zero(requests: Requests) -> None:
    """Item i of the catalogue made by hand has features (i, -i / 2); row 1 offers items 2, 4, 5, 6."""
    env = ItemFeatures(RerankEnv(requests))
    observation, _ = env.reset(seed=0, options={"request": 1})
    assert observation["candidate_features"].tolist() == [[2, -1], [4, -2], [5, -2.5], [6, -3], [0, 0]]
    assert observation["history_features"].tolist() == [[0, 0], [1, -0.5], [3, -1.5]]
    assert observation["candidate_features"].dtype == np.float32
    for row in range(len(requests)):
        assert env.reset(options={"request": row})[0] in env.observation_space


@pytest.mark.parametrize("action", ["ranking", "pick", "text"])
def test_the_wrapped_environment_passes_gymnasiums_checker(requests: Requests, action: str) -> None:
    env = ItemFeatures(gym.make("rerank_env:Rerank-v0", data=requests, action=action).unwrapped)
    with pytest.warns(UserWarning, match="unwrapped"):  # the checker says so of every wrapper, and nothing else
        check_env(env, skip_render_check=True, skip_close_check=True)


def test_the_wrapped_spec_can_be_made_again() -> None:
    env = ItemFeatures(gym.make("rerank_env:Rerank-v0"))
    again = gym.make(env.spec)
    assert "candidate_features" in again.reset(seed=0)[0]


@pytest.mark.parametrize("action", ["ranking", "pick"])
def test_the_vector_wrapper_agrees_with_wrapped_single_environments(requests: Requests, action: str) -> None:
    native = VectorItemFeatures(RerankVectorEnv(requests, num_envs=3, action=action))
    single = SyncVectorEnv(
        [lambda: ItemFeatures(RerankEnv(requests, action=action))] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    assert native.observation_space == single.observation_space
    left, right = native.reset(seed=0)[0], single.reset(seed=0)[0]
    for _ in range(6):
        for key in right:
            assert left[key].tobytes() == right[key].tobytes()
        actions = native.action_space.sample()
        (left, *_, infos), (right, *_, expected) = native.step(actions), single.step(actions)
        assert infos.keys() == expected.keys()
        for ours, theirs in zip(infos.get("final_obs", []), expected.get("final_obs", []), strict=True):
            assert (ours is None) == (theirs is None)
            for key in theirs or {}:
                assert ours[key].tobytes() == theirs[key].tobytes()


def test_an_environment_without_items_is_refused() -> None:
    with pytest.raises(InputError, match="no catalogue"):
        ItemFeatures(gym.make("CartPole-v1"))
