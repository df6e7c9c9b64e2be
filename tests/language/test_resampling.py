"""Groups compared, dead ones replaced, and batches put together: by hand and by property."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if find_spec("torch") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

import torch

from rerank_env.rewards import InputError
from rerank_env.rewards.errors import UnknownNameError
from rerank_env.training.language.groups import advantages, equal_groups
from rerank_env.training.language.lengths import LengthRule
from rerank_env.training.language.resampling import arranged, fresh_rows, in_order, joined, schedule, taken, trimmed

pytestmark = pytest.mark.torch


def test_advantages_by_hand() -> None:
    # mean 1/2; deviations +-1/2; sample variance (4 * 1/4) / 3 = 1/3; std 0.57735
    expected = 0.5 / (np.sqrt(1 / 3) + 1e-4)
    assert advantages([[1, 0, 1, 0]]) == pytest.approx(np.array([[1, -1, 1, -1]]) * expected)
    assert advantages([[1, 0, 1, 0]], scale="none").tolist() == [[0.5, -0.5, 0.5, -0.5]]


def test_an_answer_that_does_not_count_changes_nothing_for_the_others() -> None:
    counted = [[True, True, True, False]]
    with_it = advantages([[3.0, 1.0, 2.0, -99.0]], counted)
    assert with_it[:, :3].tolist() == advantages([[3.0, 1.0, 2.0]]).tolist()
    assert with_it[0, 3] == 0.0
    assert advantages([[3.0, 1.0, np.nan]], [[True, True, False]])[0, 2] == 0.0


def test_equal_rewards_get_exactly_zero() -> None:
    third = 0.1 + 0.2
    assert not advantages([[third] * 7, [1e100] * 7]).any()
    assert not advantages([[5.0, 7.0]], [[True, False]]).any()  # one alone is compared with nothing
    assert not advantages([[5.0, 7.0]], [[False, False]]).any()


def test_dead_is_exact_equality() -> None:
    values = [[0.3, 0.3, 0.3], [0.3, 0.3, 0.1 + 0.2], [np.nan, 1.0, 1.0]]
    counted = [[True] * 3, [True] * 3, [False, True, True]]
    assert equal_groups(values, counted).tolist() == [True, False, True]


@settings(max_examples=50)
@given(st.integers(1, 4), st.integers(2, 6), st.integers(0, 2**31))
def test_advantages_are_those_of_trl(rows: int, size: int, seed: int) -> None:
    rewards = np.random.default_rng(seed).normal(size=(rows, size))
    plain = torch.tensor(rewards)
    expected = (plain - plain.mean(1, keepdim=True)) / (plain.std(1, keepdim=True) + 1e-4)
    assert advantages(rewards) == pytest.approx(expected.numpy(), abs=1e-9)


def test_what_is_not_finite_is_refused_where_it_counts() -> None:
    with pytest.raises(InputError, match="answer 1 of group 0 is worth nan"):
        advantages([[1.0, np.nan]])
    with pytest.raises(InputError, match="one row a group"):
        equal_groups([1.0, 2.0])
    with pytest.raises(UnknownNameError, match="advantage scale"):
        advantages([[1.0, 2.0]], scale="var")


def test_every_request_is_asked_once_before_any_comes_again() -> None:
    rows = schedule(7, steps=5, groups=3, seed=4)
    assert rows.shape == (5, 3)
    assert sorted(rows.ravel()[:7].tolist()) == list(range(7)) == sorted(rows.ravel()[7:14].tolist())
    assert np.array_equal(rows, schedule(7, steps=5, groups=3, seed=4))
    assert not np.array_equal(rows, schedule(7, steps=5, groups=3, seed=5))


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(1, 30), st.data())
def test_fresh_rows_are_unused_as_long_as_there_are_any(requests: int, count: int, data: Any) -> None:
    used = data.draw(st.lists(st.integers(0, requests - 1), max_size=requests))
    rows = fresh_rows(used, count, requests=requests, key=(1, 2, 3))
    unused = requests - len(set(used))
    assert len(rows) == count
    assert not set(rows[:unused].tolist()) & set(used)
    assert len(set(rows[:requests].tolist())) == min(count, requests)  # no row twice before all came
    assert np.array_equal(rows, fresh_rows(used, count, requests=requests, key=(1, 2, 3)))


def batch(prompts: list[list[int]], answers: list[list[int]], trained: list[int] | None = None) -> dict[str, Any]:
    width, length = max(map(len, prompts)), max(map(len, answers))
    trained = [1] * len(answers) if trained is None else trained
    mask = torch.tensor([[1] * len(a) + [0] * (length - len(a)) for a in answers])
    return {
        "prompt_ids": torch.tensor([[9] * (width - len(p)) + p for p in prompts]),
        "prompt_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": torch.tensor([a + [9] * (length - len(a)) for a in answers]),
        "completion_mask": mask,
        "tool_mask": mask * torch.tensor(trained)[:, None],
        "advantages": torch.arange(len(answers)).float(),
        "num_items_in_batch": mask.sum(),
    }


def words(found: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    said = []
    for row in range(len(found["advantages"])):
        prompt, answer = found["prompt_mask"][row].bool(), found["completion_mask"][row].bool()
        said.append((found["prompt_ids"][row][prompt].tolist(), found["completion_ids"][row][answer].tolist()))
    return said


def test_batches_of_unequal_width_are_joined() -> None:
    first, second = batch([[1, 2, 3]], [[4]]), batch([[5], [6, 7]], [[8, 8, 8], [7]])
    whole = joined([first, second], pad_id=9)
    assert words(whole) == [([1, 2, 3], [4]), ([5], [8, 8, 8]), ([6, 7], [7])]
    assert whole["prompt_ids"].tolist() == [[1, 2, 3], [9, 9, 5], [9, 6, 7]]
    assert whole["completion_ids"].tolist() == [[4, 9, 9], [8, 8, 8], [7, 9, 9]]
    assert whole["tool_mask"].tolist() == [[1, 0, 0], [1, 1, 1], [1, 0, 0]]


def test_padding_that_no_row_needs_is_cut() -> None:
    whole = joined([batch([[1, 2, 3]], [[4, 4]]), batch([[5], [6]], [[8], [7]])], pad_id=9)
    small = trimmed(taken(whole, torch.tensor([1, 2])))
    assert small["prompt_ids"].tolist() == [[5], [6]]
    assert small["completion_ids"].tolist() == [[8], [7]]
    assert small["tool_mask"].tolist() == [[1], [1]]
    assert words(small) == words(whole)[1:]


def test_groups_stay_together_the_long_ones_apart_from_the_short_and_idle_ones_last() -> None:
    prompts = [[1] * 4] * 2 + [[2]] * 2 + [[3] * 3] * 2 + [[4] * 2] * 2
    found = arranged(batch(prompts, [[5]] * 8, [1, 1, 0, 0, 1, 1, 1, 1]), 2, updates=1, key=(0, 0))
    assert [prompt[0] for prompt, _ in words(found)] == [4, 4, 3, 3, 1, 1, 2, 2]
    mixed = taken(found, torch.randperm(8, generator=torch.Generator().manual_seed(0)))
    parts = in_order([taken(mixed, torch.arange(start, start + 4)) for start in (0, 4)])
    assert words(parts[0]) + words(parts[1]) == words(found)


def test_groups_are_dealt_to_updates_by_chance() -> None:
    prompts = [[group] for group in range(1, 9) for _ in range(2)]
    dealt = [arranged(batch(prompts, [[5]] * 16), 2, updates=2, key=(0, draw)) for draw in range(2)]
    halves = [{prompt[0] for prompt, _ in words(found)[:8]} for found in dealt]
    assert all(len(half) == 4 for half in halves)
    assert halves[0] != halves[1]


def test_the_soft_penalty_is_dapos() -> None:
    rule = LengthRule("soft", 20, soft_tokens=5, penalty=2.0)
    lengths, finished = [15, 16, 19, 20, 20], [True, True, True, True, False]
    assert rule.penalties(lengths, finished).tolist() == [0.0, -0.4, -1.6, -2.0, -2.0]
    assert not rule.invalid(finished).any() and rule.counted(finished).all()


def test_rules_for_length_exclude_each_other() -> None:
    finished = [True, False]
    for policy, invalid, counted in (("invalid", [0, 1], [1, 1]), ("mask", [0, 0], [1, 0]), ("soft", [0, 0], [1, 1])):
        rule = LengthRule(policy, 10)
        assert rule.invalid(finished).tolist() == invalid and rule.counted(finished).tolist() == counted
        assert bool(rule.penalties([10, 10], finished).any()) == (policy == "soft")
    with pytest.raises(InputError, match="soft_tokens is 3 but length_policy is 'mask'"):
        LengthRule("mask", 10, soft_tokens=3)
    with pytest.raises(InputError, match="soft_tokens is 11"):
        LengthRule("soft", 10, soft_tokens=11)
    with pytest.raises(InputError, match="soft_penalty is -1"):
        LengthRule("soft", 10, penalty=-1)
    with pytest.raises(UnknownNameError, match="did you mean 'soft'"):
        LengthRule("sofft", 10)
