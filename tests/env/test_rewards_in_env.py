"""The reward in the environment is the reward outside it, whichever way it is given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env import rewards as R
from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.rewards.errors import InputError, RewardError
from rerank_env.rewards.rankings import random_rankings
from rerank_env.rewards.slates import Slates
from rerank_env.vector_env import RerankVectorEnv

PAIRS = [
    ("gain", R.gain()),
    ("gr2(alpha=0.1)", R.gr2(alpha=0.1)),
    ("naive", R.naive()),
    ("gr2_industrial", R.gr2_industrial()),
    ("ndcg@3", R.Ndcg(k=3)),
    (
        "rank_promotion + 0.2*valid_format.when(improved | kept_first)",
        R.RankPromotion() + 0.2 * R.ValidFormat().when(R.Improved() | R.KeptFirst()),
    ),
]


@pytest.mark.parametrize(("text", "reward"), PAIRS)
def test_a_string_and_an_object_pay_the_same(requests: Requests, text: str, reward: R.Reward) -> None:
    named, given = (RerankVectorEnv(requests, num_envs=64, reward=r) for r in (text, reward))
    named.reset(seed=0)
    given.reset(seed=0)
    assert named.task.reward == given.task.reward
    actions = named.action_space.sample()
    assert named.step(actions)[1].tobytes() == given.step(actions)[1].tobytes()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), row=st.integers(0, 5), pair=st.sampled_from(PAIRS))
def test_the_environment_pays_what_the_reward_says(requests: Requests, seed: int, row: int, pair) -> None:
    text, reward = pair
    env = RerankEnv(requests, reward=text, metrics=["ndcg@10", "recall@1", "mrr"])
    slates = requests.slates.take([row])
    ranking = random_rankings(slates.sizes_B, 5, np.random.default_rng(seed))
    env.reset(options={"request": row})
    _, paid, _, _, info = env.step(np.where(ranking[0] < 0, 0, ranking[0]))
    score = reward.score(ranking, slates)
    assert paid == score.total_B[0]
    assert info["reward_parts"] == {name: part_B[0] for name, part_B in score.parts.items()}
    assert list(info["metrics"]) == ["ndcg@10", "recall@1", "mrr"]
    assert info["metrics"]["mrr"] == R.Mrr()(ranking, slates)[0]


def test_echoing_the_incoming_order_earns_exactly_nothing_by_default() -> None:
    envs = RerankVectorEnv(num_envs=500)
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step(np.tile(np.arange(10), (500, 1)))
    assert (rewards == 0.0).all()
    assert infos["final_info"]["identity"].all()


def last_first(rankings_BK: np.ndarray, slates: Slates) -> np.ndarray:
    """1 where the last incoming candidate is put first."""
    return (rankings_BK[:, 0] == slates.sizes_B - 1).astype(float)


def test_a_plain_function_is_a_reward_in_both_forms(requests: Requests) -> None:
    reward = R.FunctionReward(last_first, name="last_first", low=0.0, high=1.0, invalid=-2.0)
    env = RerankEnv(requests, reward=reward, metrics=[reward])
    env.reset(seed=0, options={"request": 1})
    _, paid, _, _, info = env.step([3, 0, 1, 2, 0])
    assert paid == 1.0
    assert list(info["metrics"].values()) == [1.0]
    envs = RerankVectorEnv(requests, num_envs=3, reward=reward)
    envs.reset(options={"request": 1})
    paid_B = envs.step([[3, 0, 1, 2, 0], [0, 1, 2, 3, 0], [0, 0, 0, 0, 0]])[1]
    assert paid_B.tolist() == [1.0, 0.0, -2.0]


def test_a_function_that_fails_is_named(requests: Requests) -> None:
    def broken(rankings_BK: np.ndarray, slates: Slates) -> np.ndarray:
        return np.full(len(rankings_BK), np.nan)

    env = RerankEnv(requests, reward=R.FunctionReward(broken, name="broken", low=0.0, high=1.0, invalid=-1.0))
    env.reset(seed=0, options={"request": 1})
    with pytest.raises(RewardError, match="broken"):
        env.step([3, 0, 1, 2, 0])


@pytest.mark.parametrize("part", ["reward", "metrics"])
@pytest.mark.parametrize("action", ["pick", "ranking"])
def test_a_reward_that_raises_leaves_the_episode_as_it_was(requests: Requests, action: str, part: str) -> None:
    calls = []

    def sulking(rankings_BK: np.ndarray, slates: Slates) -> np.ndarray:
        calls.append(len(rankings_BK))
        if len(calls) == 1:
            raise OSError("the model is away")
        return np.zeros(len(rankings_BK))

    reward = R.FunctionReward(sulking, name="sulking", low=0.0, high=1.0, invalid=-1.0)
    worth = {"reward": reward} if part == "reward" else {"reward": "0*mrr", "metrics": [reward]}
    env = RerankEnv(requests, action=action, **worth)
    env.reset(seed=0, options={"request": 2})
    if action == "pick" and part == "metrics":
        env.step(0)  # metrics are asked at the end only
    answer = 1 if action == "pick" else [1, 0, 0, 0, 0]
    with pytest.raises(RewardError, match="sulking"):
        env.step(answer)
    _, paid, terminated, _, _ = env.step(answer)
    assert (paid, terminated) == (0.0, action == "ranking" or part == "metrics")


def test_metrics_can_be_left_out(requests: Requests) -> None:
    env = RerankEnv(requests, metrics=[])
    env.reset(seed=0)
    assert env.step([0] * 5)[4]["metrics"] == {}


def test_a_text_environment_knows_lengths_and_reasonings():
    reward = "0.5*cites(least=2) + 0.25*length(most=55, unit='chars')"
    env = RerankEnv(data="synthetic", reward=reward, action="text", text_format="tagged-list")
    ranking = "<answer>[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]</answer>"  # 48 characters
    env.reset(seed=0)
    assert env.step(f"<think>[1] or [2]?</think>{ranking}")[1] == 0.5  # cites two, but 48 + 26 characters
    env.reset()
    assert env.step(ranking)[1] == 0.25


@pytest.mark.parametrize(
    ("need", "remedy"),
    [
        ("linear(start=0, end=1, steps=5)", "a Scorer in a loop of your own"),
        ("cites", "use action='text'"),
        ("overlong(limit=9, buffer=3)", "a Scorer in a loop of your own"),
    ],
)
def test_a_reward_that_needs_what_the_environment_does_not_know_is_refused_when_it_is_made(need, remedy):
    with pytest.raises(InputError, match=rf"in an environment with action='ranking', .* needs .*{remedy}"):
        RerankEnv(data="synthetic", reward=f"gain*{need}", action="ranking")
    with pytest.raises(InputError, match="needs"):
        RerankEnv(data="synthetic", metrics=[need], action="ranking")


@pytest.mark.parametrize("action", ["ranking", "pick"])
def test_a_function_that_fails_in_isolation_is_flagged(requests, action):
    def fails(rankings_BK, slates):
        raise KeyError("no such thing")

    reward = R.FunctionReward(fails, "fails", low=0.0, high=1.0, invalid=-0.5, on_error="isolate")
    env = RerankEnv(data=requests, reward=reward, action=action)
    _, info = env.reset(seed=0)
    size = int(requests.sizes_B[info["request"]])
    for step in range(size if action == "pick" else 1):
        _, _, _, _, info = env.step(step if action == "pick" else np.arange(requests.candidates_BK.shape[1]))
    assert (info["valid"], info["failed"]) == (True, True)
    env = RerankEnv(data=requests, action="ranking")
    env.reset(seed=0)
    assert env.step(np.arange(requests.candidates_BK.shape[1]))[4]["failed"] is False
