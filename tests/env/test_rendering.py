"""What a person sees."""

import gymnasium as gym
import pytest

from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.vector_env import RerankVectorEnv


def test_before_the_answer_the_request_is_shown_without_its_relevance(requests: Requests) -> None:
    env = RerankEnv(requests, render_mode="ansi")
    env.reset(seed=0, options={"request": 1})
    assert [line.rstrip() for line in env.render().splitlines()] == [
        "request 1 of by hand, user 7",
        "history, oldest first, with feedback",
        "  Alien                                         4",
        "  Brazil                                        5",
        "  Dune, Part Two                                2",
        "incoming order",
        "    1. Casablanca",
        "    2. Élan",
        "    3. Fargo",
        "    4. Gilda",
    ]


def test_after_the_answer_both_orders_stand_side_by_side_with_relevance_and_reward(requests: Requests) -> None:
    """Fargo, the one relevant candidate, moves from place 3 of 4 to place 1: rank promotion 2 / 4."""
    env = RerankEnv(requests, render_mode="ansi", reward="rank_promotion")
    env.reset(seed=0, options={"request": 1})
    env.step([2, 0, 1, 3, 0])
    lines = env.render().splitlines()
    table = [" ".join(line.split()) for line in lines[lines.index("  Dune, Part Two" + " " * 32 + "2") + 1 :]]
    assert table == [
        "before | after",
        "1. Casablanca 0 | 3. Fargo 1",
        "2. Élan 0 | 1. Casablanca 0",
        "3. Fargo 1 | 2. Élan 0",
        "4. Gilda 0 | 4. Gilda 0",
        "ndcg@10 1.0000 reward +0.5000",
    ]


def test_an_invalid_answer_is_explained(requests: Requests) -> None:
    env = RerankEnv(requests, render_mode="ansi")
    env.reset(seed=0, options={"request": 2})
    env.step([0] * 5)
    assert "no ranking: duplicate" in env.render()
    assert "names a candidate more than once" in env.render()


def test_the_incoming_order_is_recognised(requests: Requests) -> None:
    env = RerankEnv(requests, render_mode="ansi")
    env.reset(seed=0, options={"request": 2})
    env.step([0, 1, 0, 0, 0])
    assert "The answer is the incoming order." in env.render()
    env.reset()
    assert "after" not in env.render()


def test_picks_and_their_pay_are_shown_as_they_come(requests: Requests) -> None:
    env = RerankEnv(requests, render_mode="ansi", action="pick", reward="rank_promotion")
    env.reset(seed=0, options={"request": 1})
    assert "picked so far: nothing; earned +0.0000" in env.render()
    env.step(2)
    env.step(0)
    assert "picked so far: 3, 1; earned +0.5000" in env.render()
    env.step(1)
    env.step(3)
    assert "reward +0.5000" in env.render()


def test_long_histories_and_texts_are_cut(requests: Requests) -> None:
    env = RerankEnv(render_mode="ansi", data_options={"history": 30})
    env.reset(seed=0)
    text = env.render()
    assert "... " in text
    assert max(map(len, text.splitlines())) <= 60
    env.step(range(10))
    assert max(map(len, env.render().splitlines())) <= 120


def test_the_vector_form_renders_every_current_request(requests: Requests) -> None:
    envs = RerankVectorEnv(requests, num_envs=2, render_mode="ansi", action="pick", reward="rank_promotion")
    envs.reset(seed=0, options={"request": [1, 2]})
    envs.step([2, 0])
    frames = envs.render()
    assert frames[0].startswith("request 1 of by hand")
    assert "picked so far: 3; earned +0.5000" in frames[0]
    assert frames[1].startswith("request 2 of by hand")


@pytest.mark.parametrize("action", ["ranking", "pick"])
def test_both_forms_render_alike(requests: Requests, action: str) -> None:
    single = RerankEnv(requests, render_mode="ansi", action=action)
    envs = RerankVectorEnv(requests, num_envs=1, render_mode="ansi", action=action)
    single.reset(seed=4)
    envs.reset(seed=4)
    assert envs.render() == (single.render(),)


def test_rendering_without_a_mode_warns_and_shows_nothing(requests: Requests) -> None:
    for env in (RerankEnv(requests), RerankVectorEnv(requests)):
        env.reset(seed=0)
        with pytest.warns(UserWarning, match="render_mode"):
            assert env.render() is None


def test_the_render_collection_wrapper_of_gymnasium_works(requests: Requests) -> None:
    env = gym.make("rerank_env:Rerank-v0", data=requests, render_mode="ansi_list")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert len(env.render()) == 2
