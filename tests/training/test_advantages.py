"""Group-relative advantages: hand-worked values and the properties that make them safe to train on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training.advantages import dead_groups, group_relative

SETTINGS = settings(max_examples=40, deadline=None)

REWARDS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(2, 8)),
    elements=st.integers(-8, 8).map(lambda n: n / 8),
)


def test_advantages_are_distances_from_the_group_mean_in_population_standard_deviations() -> None:
    # mean = (1 + 2 + 3 + 6) / 4 = 3; deviations -2, -1, 0, 3; variance = (4 + 1 + 0 + 9) / 4 = 3.5
    expected = np.array([[-2.0, -1.0, 0.0, 3.0]]) / np.sqrt(3.5)
    np.testing.assert_allclose(group_relative([[1.0, 2.0, 3.0, 6.0]]), expected, rtol=1e-15)


def test_without_scaling_advantages_are_plain_distances_from_the_group_mean() -> None:
    np.testing.assert_array_equal(group_relative([[1.0, 2.0, 3.0, 6.0]], scale="none"), [[-2.0, -1.0, 0.0, 3.0]])


def test_a_group_whose_rewards_are_all_equal_gets_exact_zeros_even_where_its_mean_rounds() -> None:
    rewards = np.full((1, 3), 0.1)
    assert rewards.mean(axis=1)[0] != 0.1  # the mean of three times 0.1 is not 0.1 in float64
    for scale in ("std", "none"):
        np.testing.assert_array_equal(group_relative(rewards, scale=scale), np.zeros((1, 3)))


def test_rounding_noise_is_not_blown_up_to_an_advantage() -> None:
    noisy = [[0.1 + 0.2, 0.3, 0.3, 0.3]]  # 0.1 + 0.2 exceeds 0.3 by 5.6e-17
    assert not dead_groups(noisy)[0]
    assert np.abs(group_relative(noisy)).max() < 1e-7


def test_a_group_is_dead_only_by_exact_equality() -> None:
    assert dead_groups([[0.5, 0.5], [0.5, 0.5 + 1e-15], [0.0, -0.0]]).tolist() == [True, False, True]


def test_a_group_of_one_has_no_baseline_and_gets_zero() -> None:
    np.testing.assert_array_equal(group_relative([[3.0], [-1.0]]), [[0.0], [0.0]])


@SETTINGS
@given(REWARDS, st.sampled_from(["std", "none"]), st.randoms(use_true_random=False))
def test_advantages_do_not_depend_on_the_order_of_groups_or_of_answers(rewards, scale, random) -> None:
    groups, answers = rewards.shape
    group_order = random.sample(range(groups), groups)
    answer_order = random.sample(range(answers), answers)
    reordered = group_relative(rewards[group_order][:, answer_order], scale=scale)
    np.testing.assert_allclose(
        reordered, group_relative(rewards, scale=scale)[group_order][:, answer_order], atol=1e-12
    )


@SETTINGS
@given(REWARDS, st.sampled_from(["std", "none"]))
def test_advantages_sum_to_zero_and_keep_the_order_of_the_rewards(rewards, scale) -> None:
    advantages = group_relative(rewards, scale=scale)
    np.testing.assert_allclose(advantages.sum(axis=1), 0.0, atol=1e-9)
    gaps = (rewards[:, :, None] - rewards[:, None]) * (advantages[:, :, None] - advantages[:, None])
    assert (gaps >= 0).all()


@SETTINGS
@given(REWARDS, st.floats(0.125, 8), st.integers(-4, 4))
def test_scaled_advantages_do_not_depend_on_the_unit_or_the_zero_of_the_reward(rewards, unit, zero) -> None:
    np.testing.assert_allclose(group_relative(unit * rewards + zero), group_relative(rewards), atol=1e-9)


def test_a_reward_that_is_not_finite_is_named() -> None:
    with pytest.raises(InputError, match="answer 1 to request 0 is worth nan"):
        group_relative([[0.0, np.nan]])


def test_a_flat_array_is_refused() -> None:
    with pytest.raises(InputError, match="one row a request"):
        group_relative([1.0, 2.0])


def test_an_unknown_scale_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'std'"):
        group_relative([[1.0, 2.0]], scale="sdt")
