"""One candidate a step: rewards that sum to the answer's worth, and a mask that never lies."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.rewards.rankings import Verdict

REWARDS = ["gain", "gr2", "naive", "gr2_industrial", "ndcg@3", "recall@2 - 0.5*valid_format"]


@pytest.fixture(params=["train", "validation"])
def env(request: pytest.FixtureRequest) -> RerankEnv:
    options = {"min_slate_size": 2, "slate_size": 7, "requests": 40}
    return RerankEnv("synthetic", request.param, action="pick", data_options=options)


def test_following_the_mask_ends_with_a_valid_ranking(env: RerankEnv) -> None:
    for seed in range(40):
        observation, info = env.reset(seed=seed)
        env.action_space.seed(seed)
        size, picks = int((observation["candidates"] >= 0).sum()), []
        for step in range(size):
            assert (observation["action_mask"] == info["action_mask"]).all()
            assert observation["action_mask"].sum() == size - step
            picks.append(int(env.action_space.sample(mask=observation["action_mask"])))
            observation, _, terminated, _, info = env.step(picks[-1])
            assert observation["picked"].tolist() == picks + [-1] * (7 - len(picks))
            assert terminated == (step == size - 1)
        assert info["valid"]
        assert info["verdict"] == Verdict.OK
        assert info["ranking"].tolist() == picks + [-1] * (7 - size)
        assert observation["action_mask"].sum() == 0


@settings(max_examples=60, deadline=None)
@given(
    reward=st.sampled_from(REWARDS),
    row=st.integers(0, 5),
    seed=st.integers(0, 2**31),
    slip=st.floats(0, 0.3),
)
def test_rewards_sum_to_the_worth_of_the_final_answer(
    requests: Requests, reward: str, row: int, seed: int, slip: float
) -> None:
    env = RerankEnv(requests, reward=reward, action="pick")
    whole = RerankEnv(requests, reward=reward, action="ranking")
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed, options={"request": row})
    earned, terminated = 0.0, False
    while not terminated:
        legal = np.flatnonzero(observation["action_mask"])
        pick = rng.integers(-1, 6) if rng.random() < slip else rng.choice(legal)
        observation, gained, terminated, _, info = env.step(pick)
        earned += gained
    whole.reset(seed=seed, options={"request": row})
    answer = np.where(info["ranking"] < 0, 0, info["ranking"])  # an invalid answer: all zeros, invalid as well
    _, worth, _, _, final = whole.step(answer)
    assert final["valid"] == info["valid"]
    assert abs(earned - worth) <= 1e-9
    assert final["reward_parts"] == info["reward_parts"]
    assert final["metrics"] == info["metrics"]


def test_the_first_pick_is_paid_for_the_list_it_completes(requests: Requests) -> None:
    """Row 1 has its one relevant candidate third of four (rank promotion (3 - place) / 4).

    Picking it first completes to [2, 0, 1, 3]: promoted by 2 places of 4, worth 0.5; nothing later changes its place.
    Picking candidate 3 first instead completes to [3, 0, 1, 2]: demoted by one place, worth -0.25; then picking
    candidate 2 second promotes it to place 2: worth 0.25, so the step pays 0.5.
    """
    env = RerankEnv(requests, reward="rank_promotion", action="pick")
    env.reset(seed=0, options={"request": 1})
    assert [env.step(pick)[1] for pick in (2, 0, 1, 3)] == [0.5, 0.0, 0.0, 0.0]
    env.reset(options={"request": 1})
    assert [env.step(pick)[1] for pick in (3, 2, 0, 1)] == [-0.25, 0.5, 0.0, 0.0]


def test_an_illegal_pick_takes_back_what_was_paid(requests: Requests) -> None:
    """Rank promotion's invalid score is -1: after 0.5 has been paid, the illegal pick pays -1.5."""
    env = RerankEnv(requests, reward="rank_promotion", action="pick")
    env.reset(seed=0, options={"request": 1})
    env.step(2)
    observation, reward, terminated, _, info = env.step(2)
    assert (reward, terminated) == (-1.5, True)
    assert info["verdict"] == Verdict.DUPLICATE
    assert info["ranking"].tolist() == [-1] * 5
    assert not info["valid"]
    assert not info["identity"]
    assert observation["picked"].tolist() == [2, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("pick", "verdict"),
    [(4, Verdict.UNKNOWN), (-1, Verdict.UNKNOWN), (1.5, Verdict.MALFORMED), (np.nan, Verdict.MALFORMED)],
)
def test_a_pick_of_nobody_ends_the_episode_with_its_verdict(requests: Requests, pick: object, verdict: Verdict) -> None:
    env = RerankEnv(requests, action="pick")
    env.reset(seed=0, options={"request": 1})  # four candidates, width five
    _, reward, terminated, _, info = env.step(pick)
    assert terminated
    assert info["verdict"] == verdict
    assert reward == env.task.reward.invalid


def test_picking_the_incoming_order_is_flagged_as_identity(requests: Requests) -> None:
    env = RerankEnv(requests, action="pick")
    for row, size in enumerate(requests.sizes_B):
        env.reset(seed=0, options={"request": row})
        rewards = [env.step(pick)[1] for pick in range(size - 1)]
        _, last, _, _, info = env.step(size - 1)
        assert info["identity"]
        assert sum(rewards) + last == 0.0  # gain over the incoming order, exactly


def test_environments_that_end_at_different_steps_reset_alone(requests: Requests) -> None:
    envs = gym.make_vec("rerank_env:Rerank-v0", num_envs=3, data=requests, action="pick")
    envs.reset(seed=0, options={"request": np.array([2, 3, 0])})  # sizes 2, 3 and 5
    _, _, terminated, _, infos = envs.step(np.zeros(3, dtype=int))
    assert terminated.tolist() == [False] * 3
    assert "final_info" not in infos
    observations, _, terminated, _, infos = envs.step(np.ones(3, dtype=int))
    assert terminated.tolist() == [True, False, False]
    assert infos["_final_info"].tolist() == [True, False, False]
    assert infos["final_info"]["ranking"].tolist() == [[0, 1, -1, -1, -1], [0] * 5, [0] * 5]
    assert infos["final_obs"][0]["picked"].tolist() == [0, 1, -1, -1, -1]
    assert infos["final_obs"][1] is None
    assert observations["picked"].tolist() == [[-1] * 5, [0, 1, -1, -1, -1], [0, 1, -1, -1, -1]]
