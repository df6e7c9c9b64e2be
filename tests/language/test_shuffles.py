"""Requests as a step of training shows them, and groups compared: pure functions, by hand and by property."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data import Requests, load
from rerank_env.prompts import PromptWriter, ask
from rerank_env.rewards import InputError, parse_reward
from rerank_env.rewards.errors import UnknownNameError
from rerank_env.rewards.formats import FORMATS
from rerank_env.training.adapters.records import request_rows
from rerank_env.training.adapters.trl import TrlReward
from rerank_env.training.language.shuffles import MODES, Shown, Shuffles
from rerank_env.training.language.signals import WatchedReward

REQUESTS = load("synthetic", requests=12, slate_size=5, history=3)
REWARDS = ("gain", "gr2", "naive", "ndcg@10")


def shuffles(
    mode: str = "across", *, requests: Requests = REQUESTS, seed: int = 0, text_format: str = "list"
) -> Shuffles:
    return Shuffles(
        requests,
        PromptWriter(text_format),
        mode=mode,
        seed=seed,
        prompt_ids=lambda prompts: [list(prompt.text.encode()) for prompt in prompts],
    )


def order_of(shown: Shown, answer: int) -> list[int]:
    size = shown.columns["size"][answer]
    return shown.columns["input_order"][answer] if "input_order" in shown.columns else list(range(size))


def test_unshuffled_columns_are_those_of_the_adapters() -> None:
    shown = shuffles("none").show(range(len(REQUESTS)), 1, draw=0)
    rows = request_rows(REQUESTS, text_format="list", conversational=False)
    for name, values in shown.columns.items():
        assert values == [row[name] for row in rows], name
    assert shown.texts == [row["prompt"] for row in rows]
    assert [row["prompt"] for row in shown.rows()] == shown.texts


def test_shuffled_columns_are_those_of_the_adapters() -> None:
    shown = shuffles("inside").show([3, 7], 2, draw=1)
    orders = np.array([order_of(shown, answer) for answer in range(4)])
    rows = request_rows(REQUESTS.take([3, 3, 7, 7]).reordered(orders), text_format="list", conversational=False)
    for name, values in {**shown.columns, "prompt": shown.texts}.items():
        assert values == [row[name] for row in rows], name


def test_across_shows_one_order_to_a_group_and_another_to_the_next_step() -> None:
    first, again = (shuffles().show([0, 1, 2], 4, draw=draw) for draw in (0, 1))
    for shown in (first, again):
        for group in range(3):
            assert len(set(shown.texts[4 * group : 4 * group + 4])) == 1
    assert [order_of(first, a) for a in (0, 4, 8)] != [order_of(again, a) for a in (0, 4, 8)]


def test_inside_shows_every_answer_an_order_of_its_own() -> None:
    shown = shuffles("inside").show([0], 8, draw=0)
    assert len({tuple(order_of(shown, answer)) for answer in range(8)}) > 4
    assert shown.columns["request"] == [0] * 8


@pytest.mark.parametrize("mode", MODES)
def test_what_is_shown_depends_on_the_key_alone(mode: str) -> None:
    alone = shuffles(mode).show([5], 2, draw=3, round_=1)
    among = shuffles(mode).show([2, 5, 9], 2, draw=3, round_=1)
    assert alone.texts == among.texts[2:4]
    assert alone.token_ids == [list(text.encode()) for text in alone.texts]


def test_seed_and_round_change_the_order() -> None:
    base = shuffles().show(range(12), 1, draw=0)
    assert base.texts != shuffles(seed=1).show(range(12), 1, draw=0).texts
    assert base.texts != shuffles().show(range(12), 1, draw=0, round_=1).texts


@settings(max_examples=30)
@given(st.integers(0, 11), st.permutations(range(5)), st.sampled_from(FORMATS), st.integers(0, 50), st.data())
def test_an_answer_earns_the_same_under_every_shuffle(
    request: int, ranking: list[int], text_format: str, draw: int, data: Any
) -> None:
    reward = data.draw(st.sampled_from(REWARDS))
    unshuffled = ask(REQUESTS.take([request]), PromptWriter(text_format))
    plain = shuffles("none", text_format=text_format).show([request], 1, draw=draw)
    shown = shuffles("inside", text_format=text_format).show([request], 3, draw=draw)
    expected = TrlReward(reward, text_format)(completions=unshuffled.answers([ranking]), **plain.columns)
    watched = WatchedReward(reward, text_format, eos_ids=frozenset([0]))
    said = []
    for answer in range(3):
        asked = ask(REQUESTS.take([request]).reordered(np.array([order_of(shown, answer)])), PromptWriter(text_format))
        places = [order_of(shown, answer).index(candidate) for candidate in ranking]
        said += asked.answers([places])
    assert watched(completions=said, completion_ids=[[0]] * 3, **shown.columns) == expected * 3
    raw = parse_reward("ndcg@10")(np.array([ranking]), REQUESTS.take([request]).slates)
    assert watched.last.raw_N.tolist() == raw.tolist() * 3
    assert watched.last.identity_N.tolist() == [ranking == list(range(5))] * 3
    orders = [order_of(shown, answer) for answer in range(3)]
    assert watched.last.echo_N.tolist() == [order == ranking for order in orders]


def test_a_watched_reward_refuses_answers_without_their_tokens() -> None:
    shown = shuffles("none").show([0], 1, draw=0)
    watched, said = WatchedReward("gain", eos_ids=frozenset([0])), ["[1, 2, 3, 4, 5]"]
    with pytest.raises(InputError, match="completion_ids are missing.*as TRL does"):
        watched(completions=said, **shown.columns)
    for tokens in ([], [[0], [0]]):
        with pytest.raises(InputError, match=rf"completion_ids has {len(tokens)} entries for 1 completions"):
            watched(completions=said, completion_ids=tokens, **shown.columns)


def test_requests_of_unequal_size_keep_their_padding() -> None:
    ragged = Requests.of([[0, 1, 2], [2, 0]], [[0, 0, 1], [1, 0]], texts=["a", "b", "c"])
    shown = shuffles("inside", requests=ragged).show([0, 1], 2, draw=0)
    assert shown.columns["size"] == [3, 3, 2, 2]
    for answer, size in enumerate([3, 3, 2, 2]):
        assert sorted(order_of(shown, answer)) == list(range(size))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'across'"):
        shuffles("acros")
    with pytest.raises(InputError, match="seed is -1"):
        shuffles(seed=-1)
