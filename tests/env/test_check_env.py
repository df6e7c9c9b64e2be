"""Gymnasium's own checker on every action kind, warnings as errors, over 200 seeds each."""

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env, check_step_determinism

import rerank_env
from rerank_env.data.requests import Requests

SEEDS = 200
ACTIONS = ("ranking", "scores", "pick", "text")


def checked(env: gym.Env, seed: int) -> None:
    env.action_space.seed(seed)
    env.observation_space.seed(seed)
    env.reset(seed=seed)
    check_step_determinism(env, seed=seed)
    check_env(env, skip_render_check=seed % 20 != 0, skip_close_check=seed % 20 != 0)


@pytest.mark.parametrize("action", ACTIONS)
def test_gymnasiums_checker_finds_nothing_on_200_seeds(action: str) -> None:
    env = gym.make("rerank_env:Rerank-v0", action=action, render_mode="ansi").unwrapped
    for seed in range(SEEDS):
        checked(env, seed)


@pytest.mark.parametrize("action", ACTIONS)
def test_gymnasiums_checker_finds_nothing_on_ragged_requests(action: str, requests: Requests) -> None:
    env = gym.make("rerank_env:Rerank-v0", data=requests, action=action).unwrapped
    for seed in range(40):
        checked(env, seed)


@pytest.mark.parametrize("kind", ["next_item", "graded"])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_gymnasiums_checker_finds_nothing_on_any_kind_and_split(kind: str, split: str) -> None:
    env = gym.make("rerank_env:Rerank-v0", kind=kind, split=split).unwrapped
    assert env.requests is rerank_env.load("synthetic", kind=kind, split=split)
    checked(env, 0)
    if kind == "next_item":
        assert ((env.requests.relevance_BK > 0).sum(axis=1) == 1).all()


@pytest.mark.parametrize("text_format", ["list", "arrows", "json"])
def test_gymnasiums_checker_finds_nothing_on_any_text_format(text_format: str) -> None:
    checked(gym.make("rerank_env:Rerank-v0", action="text", text_format=text_format).unwrapped, 0)


@pytest.mark.parametrize("ties", ["incoming", "reverse", "refuse", "random"])
def test_gymnasiums_checker_finds_nothing_on_any_tie_rule(ties: str) -> None:
    checked(gym.make("rerank_env:Rerank-v0", action="scores", ties=ties).unwrapped, 0)


def test_a_whole_wrapped_environment_runs_without_a_warning() -> None:
    env = gym.make("rerank_env:Rerank-v0", action="pick")
    observation, _ = env.reset(seed=0)
    while True:
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample(mask=observation["action_mask"]))
        assert env.observation_space.contains(observation)
        assert not truncated
        if terminated:
            break
    env.close()
