"""The cluster bootstrap against plain loops, against scipy, and against what an interval must do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rerank_env.rewards.bootstrap import Interval, cluster_bootstrap
from rerank_env.rewards.errors import InputError

SETTINGS = settings(max_examples=40, deadline=None)


def made_up(seed: int, users: int = 40, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    users_B = rng.integers(users, size=rows) * 7 + 3
    return rng.normal(size=(rows, 2)) + 0.5 * np.sin(users_B)[:, None], users_B


def test_resamples_equal_a_loop_that_draws_users_and_lists_their_requests() -> None:
    values_BC, users_B = made_up(1)
    found = cluster_bootstrap(values_BC, users_B, resamples=50, rng=np.random.default_rng(5))
    rng = np.random.default_rng(5)
    names = np.unique(users_B)
    for resample in found.resampled_RC:
        drawn = np.repeat(names, rng.multinomial(len(names), np.full(len(names), 1 / len(names))))
        requests = np.concatenate([np.flatnonzero(users_B == user) for user in drawn])
        np.testing.assert_allclose(resample, values_BC[requests].mean(axis=0), rtol=1e-12)


def test_the_interval_agrees_with_a_brute_force_bootstrap_that_shares_no_code() -> None:
    values_BC, users_B = made_up(2)
    found = cluster_bootstrap(values_BC, users_B, resamples=4000, rng=np.random.default_rng(0)).difference(0, 1)
    rng = np.random.default_rng(99)
    differences = values_BC[:, 0] - values_BC[:, 1]
    by_user = [differences[users_B == user] for user in np.unique(users_B)]
    means = []
    for _ in range(4000):
        picked = [by_user[i] for i in rng.integers(len(by_user), size=len(by_user))]
        means.append(np.concatenate(picked).mean())
    low, high = np.percentile(means, [2.5, 97.5])
    # Both ends are quantiles of 4,000 draws: their Monte Carlo error is about 3 % of the interval's width.
    assert found.value == pytest.approx(differences.mean())
    assert found.low == pytest.approx(low, abs=0.1 * (high - low))
    assert found.high == pytest.approx(high, abs=0.1 * (high - low))


def test_the_interval_agrees_with_scipy() -> None:
    values_BC, users_B = made_up(3)
    found = cluster_bootstrap(values_BC, users_B, resamples=4000, rng=np.random.default_rng(0)).interval(0)
    names = np.unique(users_B)
    sums = np.array([values_BC[users_B == user, 0].sum() for user in names])
    sizes = np.array([(users_B == user).sum() for user in names])
    reference = stats.bootstrap(
        (sums, sizes),
        lambda s, n, axis: s.sum(axis=axis) / n.sum(axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = reference.high - reference.low
    assert found.low == pytest.approx(reference.low, abs=0.1 * width)
    assert found.high == pytest.approx(reference.high, abs=0.1 * width)


def test_requests_of_one_user_count_as_one_piece_of_evidence() -> None:
    values_BC = np.repeat(np.random.default_rng(4).normal(size=(30, 1)), 10, axis=0)
    clustered = cluster_bootstrap(values_BC, np.repeat(np.arange(30), 10), resamples=500, rng=np.random.default_rng(0))
    pretended = cluster_bootstrap(values_BC, np.arange(300), resamples=500, rng=np.random.default_rng(0))
    wide, narrow = clustered.interval(0), pretended.interval(0)
    # Ten copies of each request carry no news: the honest interval is about sqrt(10) times as wide.
    assert 2.5 < (wide.high - wide.low) / (narrow.high - narrow.low) < 4.0


def test_with_one_user_the_interval_is_a_point() -> None:
    found = cluster_bootstrap(
        np.array([[1.0], [3.0]]), np.array([8, 8]), resamples=20, rng=np.random.default_rng(0)
    ).interval(0)
    assert found == Interval(2.0, 2.0, 2.0)


@SETTINGS
@given(st.integers(0, 10_000))
def test_the_difference_of_a_column_with_itself_is_exactly_zero(seed) -> None:
    values_BC, users_B = made_up(seed, rows=50)
    found = cluster_bootstrap(values_BC, users_B, resamples=20, rng=np.random.default_rng(seed))
    same = found.difference(1, 1)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    assert not same.is_gain
    one, two = found.difference(0, 1), found.difference(1, 0)
    assert (one.low, one.high) == pytest.approx((-two.high, -two.low), abs=1e-12)


def test_a_ratio_is_that_of_the_sums_over_the_requests_drawn():
    # Users 1, 2 and 3 answered 2 + 1, 0 and 1 times and were right 1 + 0, 0 and 1 times: 2 of 4.
    values_BC = np.array([[1.0, 2.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    users_B = np.array([1, 1, 2, 3])
    bootstrap = cluster_bootstrap(values_BC, users_B, resamples=400, rng=np.random.default_rng(0))
    found = bootstrap.ratio(0, 1)
    assert found.value == 0.5
    # Drawn alone or with user 2, user 1 makes 1/3 and user 3 makes 1; one draw in 27 is user 2 alone and is left out.
    assert (found.low, found.high) == pytest.approx((1 / 3, 1.0))
    assert (bootstrap.resampled_RC[:, 1] == 0).any()


def test_a_ratio_to_nothing_is_nan_which_is_none_in_json():
    bootstrap = cluster_bootstrap(np.zeros((3, 2)), np.arange(3), resamples=5, rng=np.random.default_rng(0))
    found = bootstrap.ratio(0, 1)
    assert np.isnan([found.value, found.low, found.high]).all()
    assert found.to_dict() == {"value": None, "low": None, "high": None}
    assert bootstrap.interval(0).to_dict() == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert str(Interval(0.5, 0.25, 1.0)) == "0.5000 [0.2500, 1.0000]"


def test_a_gain_is_an_interval_above_zero() -> None:
    assert Interval(0.2, 0.1, 0.3).is_gain
    for low, high in ((0.0, 0.3), (-0.1, 0.3), (-0.3, -0.1)):
        assert not Interval(0.1, low, high).is_gain


def test_the_seed_decides_the_interval_however_many_resamples_are_made_at_a_time(monkeypatch) -> None:
    values_BC, users_B = made_up(5)
    several = cluster_bootstrap(values_BC, users_B, resamples=600, rng=np.random.default_rng(0))
    monkeypatch.setattr("rerank_env.rewards.bootstrap.RESAMPLES_AT_A_TIME", 7)
    few = cluster_bootstrap(values_BC, users_B, resamples=600, rng=np.random.default_rng(0))
    np.testing.assert_allclose(few.resampled_RC, several.resampled_RC, rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "users", "options", "message"),
    [
        (np.zeros((0, 1)), np.zeros(0, int), {}, "at least one row"),
        (np.zeros((3, 1)), np.zeros(2, int), {}, "one user a row"),
        (np.array([[0.0], [np.nan]]), np.arange(2), {}, "row 1 holds a value that is not finite"),
        (np.zeros((2, 1)), np.arange(2), {"resamples": 0}, "at least 1 resample"),
        (np.zeros((2, 1)), np.arange(2), {"level": 95.0}, r"level in \(0, 1\)"),
    ],
)
def test_what_cannot_be_resampled_is_refused_in_a_sentence(values, users, options, message) -> None:
    with pytest.raises(InputError, match=message):
        cluster_bootstrap(values, users, **{"resamples": 10, "rng": np.random.default_rng(0), **options})
