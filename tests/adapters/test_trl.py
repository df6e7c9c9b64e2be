"""TRL: the reward function and the environment by themselves; `test_trl_trainer` has them in TRL's own machinery."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contract import as_messages, fails_on_the_last

from rerank_env.data import Requests
from rerank_env.episodes import EpisodeError
from rerank_env.rewards import FunctionReward, InputError, Ndcg, Reward, Slates, gain
from rerank_env.rewards.errors import DataError, UnknownNameError
from rerank_env.rewards.scoring import Scorer
from rerank_env.training.adapters.records import request_rows
from rerank_env.training.adapters.trl import RerankTool, TrlReward, environment_factory

RELEVANCE = [0.0, 2.0, 1.0]
LISTS = ["[2, 3, 1]", "[1, 2, 3]", "[2, 2, 1]"]
"""The ideal order of RELEVANCE, the incoming one, and a ranking that is none."""


def columns(count: int = 3) -> dict[str, list[Any]]:
    return {"relevance": [RELEVANCE] * count, "request": [7] * count}


# The reward function, which needs no peer.


def test_texts_and_messages_earn_what_the_scorer_says() -> None:
    # Gains 2, 1, 0 in the ideal order: DCG 2 + 1/log2(3) = 2.63093. Incoming 0, 2, 1: 2/log2(3) + 1/2 = 1.76186.
    # The ideal order gains 1 - 1.76186/2.63093 = 0.33033, echoing 0, and what is no ranking earns -1.1.
    expected = Scorer("gain")(LISTS, Slates.of([RELEVANCE] * 3)).total_B.tolist()
    reward = TrlReward("gain")
    assert expected == [pytest.approx(0.33033, abs=1e-5), 0.0, -1.1]
    assert reward(completions=LISTS, **columns()) == expected
    assert reward(completions=[as_messages(text) for text in LISTS], **columns()) == expected
    assert (
        reward(prompts=["", "", ""], completions=LISTS, completion_ids=[[1]] * 3, other=[1] * 3, **columns())
        == expected
    )


def test_the_last_message_is_the_answer() -> None:
    talk = [*as_messages("[1, 2, 3]"), {"role": "user", "content": "sure?"}, *as_messages("[2, 3, 1]")]
    assert TrlReward("ndcg")(completions=[talk], **columns(1)) == [1.0]


@pytest.mark.parametrize(
    ("reward", "name"),
    [
        ("gain", "gain"),
        (Ndcg(k=10), "ndcg_10"),
        (gain(), "ndcg_10_over_incoming_gate_valid_otherwise_minus_1_1"),
        ("0.5*ndcg - 1", "0_5_ndcg_minus_1"),
    ],
)
def test_the_name_is_the_text_of_the_reward_in_legal_signs(reward: str | Reward, name: str) -> None:
    assert TrlReward(reward).__name__ == name
    assert TrlReward.__name__ == "TrlReward"


def test_a_reward_survives_pickling_used_or_not() -> None:
    reward = TrlReward("gr2(alpha=0.1)", "list", on_failure="abstain")
    assert pickle.loads(pickle.dumps(reward)) == reward
    before = reward(completions=LISTS, **columns())
    assert pickle.loads(pickle.dumps(reward))(completions=LISTS, **columns()) == before


def test_arguments_are_by_keyword_only() -> None:
    with pytest.raises(TypeError):
        TrlReward("gain")([], [])  # type: ignore[misc]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InputError, match="column 'relevance' is missing.*request"):
        TrlReward("gain")(completions=LISTS, request=[1, 1, 1])
    with pytest.raises(InputError, match="column 'request' is missing"):
        TrlReward("consistency")(completions=LISTS, relevance=[RELEVANCE] * 3)


@pytest.mark.parametrize("column", ["relevance", "size", "text_format", "input_order", "request"])
def test_a_column_of_the_wrong_length_is_named(column: str) -> None:
    whole = {**columns(), "size": [3] * 3, "text_format": ["list"] * 3, "input_order": [[0, 1, 2]] * 3}
    whole[column] = whole[column][:1]  # one value for all is not silently spread
    with pytest.raises(InputError, match=f"{column}.* 1 .*3"):
        TrlReward("consistency")(completions=LISTS, **whole)


def test_token_counts_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(InputError, match="completion_ids has 2 entries for 3"):
        TrlReward("gain")(completions=LISTS, completion_ids=[[1], [2]], **columns())


def test_a_prompt_that_asks_for_another_format_is_refused() -> None:
    with pytest.raises(InputError, match="answer 1 asks for the text format 'json' but the reward reads 'list'"):
        TrlReward("gain")(completions=LISTS, text_format=["list", "json", "list"], **columns())


def test_lengths_are_counted_in_tokens() -> None:
    # overlong: limit 4, buffer 2: 2 tokens 0, 3 tokens -1/2, 9 tokens -1
    reward = TrlReward("overlong(limit=4, buffer=2)")
    assert reward(completions=["[1, 2, 3]"] * 3, completion_ids=[[1] * 2, [1] * 3, [1] * 9], **columns()) == [
        0,
        -0.5,
        -1,
    ]
    with pytest.raises(InputError, match="in TRL, .* needs tokens.*pass completion_ids"):
        reward(completions=LISTS, **columns())


def test_a_schedule_follows_the_trainers_step() -> None:
    reward = TrlReward("linear(start=0, end=1, steps=10)*ndcg")
    best = ["[2, 3, 1]"]
    for step, worth in [(0, 0.0), (5, 0.5), (10, 1.0), (99, 1.0)]:
        assert reward(completions=best, trainer_state=SimpleNamespace(global_step=step), **columns(1)) == [worth]
    with pytest.raises(InputError, match="in TRL, .* needs step.*pass trainer_state"):
        reward(completions=best, **columns(1))


def test_groups_come_from_the_request_and_not_from_the_place() -> None:
    # Consistency is the share of pairs in the same order as in the others of the group: two equal answers share all
    # three pairs, an answer and its reverse none.
    answers = ["[1, 2, 3]", "[1, 2, 3]", "[1, 2, 3]", "[3, 2, 1]"]
    reward = TrlReward("consistency")
    assert reward(completions=answers, relevance=[RELEVANCE] * 4, request=[5] * 4) == [2 / 3, 2 / 3, 2 / 3, 0.0]
    assert reward(completions=answers, relevance=[RELEVANCE] * 4, request=[5, 8, 5, 8]) == [1.0, 0.0, 1.0, 0.0]


def test_consistency_is_that_over_shuffled_copies_of_a_request() -> None:
    # The second copy lists the candidates 0, 1, 2 of the first as 2, 0, 1. "[2, 3, 1]" to the first is the order
    # 1, 2, 0, and so is "[3, 1, 2]" to the second. Echoes are 0, 1, 2 and 2, 0, 1: one pair of three, (0, 1), agrees.
    once = Requests.of([[0, 1, 2], [0, 1, 2]], [RELEVANCE, RELEVANCE])
    copies = once.take([1, 0, 1]).reordered(np.array([[0, 1, 2], [0, 1, 2], [2, 0, 1]]))
    rows = request_rows(copies)
    named = {name: [row[name] for row in rows] for name in rows[0]}
    reward = TrlReward("consistency")
    assert reward(completions=["[2, 3, 1]", "[3, 2, 1]", "[3, 1, 2]"], **named) == [1.0, 0.0, 1.0]
    assert reward(completions=["[1, 2, 3]"] * 3, **named) == [1 / 3, 0.0, 1 / 3]


def test_clicks_are_read_from_their_columns() -> None:
    # One click, on candidate 3, seen with probability 1/4, so of credit 4; at the first of three places, discounts
    # 1 + 1/log2(3) + 1/2 = 2.13093.
    log = {"clicks": [[0, 0, 1]], "propensities": [[1.0, 0.5, 0.25]]}
    reward = TrlReward("click_credit(min_propensity=0.1)")
    assert reward(completions=["[3, 1, 2]"], **columns(1), **log) == [pytest.approx(4 / 2.13093, abs=1e-5)]
    with pytest.raises(InputError, match="'clicks' is missing"):
        reward(completions=["[3, 1, 2]"], **columns(1))


def test_a_failed_answer_earns_the_invalid_score_or_abstains_and_is_never_nan() -> None:
    isolated = FunctionReward(fails_on_the_last, name="picky", low=0, high=1, invalid=-2, on_error="isolate")
    answers = ["[1, 2, 3]", "[3, 1, 2]", "nonsense"]
    logged: dict[str, float] = {}
    assert TrlReward(isolated)(completions=answers, **columns()) == [1.0, -2.0, -2.0]
    abstaining = TrlReward(isolated, on_failure="abstain")
    assert abstaining(completions=answers, log_metric=logged.__setitem__, **columns()) == [1.0, None, -2.0]
    assert (logged["picky/failed"], logged["picky/valid"]) == (1 / 3, 2 / 3)
    assert all(map(math.isfinite, logged.values()))


def test_shares_and_parts_are_logged() -> None:
    logged: dict[str, float] = {}
    answers = ["[2, 3, 1]", "[1, 2, 3]", "[3, 2, 1]", "[2, 2, 1]"]
    reward = TrlReward("ndcg + 0.2*valid_format")
    reward(completions=answers, log_metric=logged.__setitem__, **columns(4))
    shares = {name: logged[f"{reward.__name__}/{name}"] for name in ("valid", "identity", "near_identity", "failed")}
    assert shares == {"valid": 3 / 4, "identity": 1 / 4, "near_identity": 2 / 4, "failed": 0}
    assert logged["ndcg_0_2_valid_format/verdict/duplicate"] == 1 / 4
    # by hand: 0.2 for each of three valid answers of four
    assert logged["ndcg_0_2_valid_format/part/0.2*valid_format"] == pytest.approx(0.15)


def test_unknown_arguments_are_refused_at_once() -> None:
    with pytest.raises(UnknownNameError, match="abstain"):
        TrlReward("gain", on_failure="abstian")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="list"):
        TrlReward("gain", "lists")
    with pytest.raises(UnknownNameError, match="gain"):
        TrlReward("gian")


# The environment, which needs no peer either.


def row(**more: Any) -> dict[str, Any]:
    return {"prompt": [], "relevance": RELEVANCE, "size": 3, **more}


def test_the_tool_takes_one_answer_and_the_environment_scores_it() -> None:
    environment = environment_factory("ndcg")()
    assert "submit_ranking" in environment.reset(**row())
    assert environment.submit_ranking([2, 3, 1]) == "Received."
    with pytest.raises(InputError, match="first one counts"):
        environment.submit_ranking([1, 2, 3])
    assert environment.get_reward() == 1.0
    environment.reset(**row())
    assert environment.get_reward() == 0.0  # no answer: the invalid score


@pytest.mark.parametrize(
    "answer",
    [[2, 2, 1], [0, 1, 2], [1, 2], [1, 2, 3, 3], [1.0, 2.0, 3.0], ["1", "2", "3"], "[1, 2, 3]", [True, 2, 3], None, {}],
)
def test_no_answer_but_whole_numbers_counts(answer: Any) -> None:
    environment = RerankTool("gain")
    environment.reset(**row())
    environment.submit_ranking(answer)
    assert environment.get_reward() == -1.1


def test_an_environment_refuses_what_it_cannot_know_and_rows_it_cannot_score() -> None:
    with pytest.raises(InputError, match="a TRL environment.*needs step"):
        environment_factory("linear(start=0, end=1, steps=10)*ndcg")
    with pytest.raises(InputError, match="a TRL environment, cites needs reasonings.*TrlReward"):
        environment_factory("cites")
    with pytest.raises(EpisodeError, match="call reset"):
        environment_factory("gain")().get_reward()
    with pytest.raises(InputError, match="asks for the text format 'json'"):
        environment_factory("gain")().reset(**row(text_format="json"))
    with pytest.raises(InputError, match="'relevance' is missing"):
        environment_factory("gain")().reset(prompt=[])
    with pytest.raises(DataError, match="size"):
        environment_factory("gain")().reset(**row(size=4))


def test_an_environment_factory_survives_pickling() -> None:
    environment = pickle.loads(pickle.dumps(environment_factory("gain")))()
    environment.reset(**row())
    environment.submit_ranking([1, 2, 3])
    assert environment.get_reward() == 0.0
