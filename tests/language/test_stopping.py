"""The stop rule on curves made by hand and by chance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import InputError
from rerank_env.training.language.stopping import DIVERGING, PATIENCE, StopRule, best_of, trend

FLAT = [math.nan, *[0.5] * 6]
UP = [math.nan, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
DOWN = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]


def test_a_reward_that_rises_while_the_metric_falls_stops_the_run() -> None:
    assert StopRule().verdict(UP, DOWN) == DIVERGING
    assert StopRule().verdict(UP[:6], DOWN[:6]) is None  # five points after the first are no trend yet


@pytest.mark.parametrize(
    ("proxy", "held_out"), [(UP, [*UP[1:], 0.7]), (UP, [0.5] * 7), (FLAT, DOWN), ([math.nan, *DOWN[1:]], DOWN)]
)
def test_either_alone_is_an_ordinary_run(proxy: list[float], held_out: list[float]) -> None:
    assert StopRule().verdict(proxy, held_out) is None


def test_a_drop_that_recovers_is_forgotten_and_one_that_goes_on_is_not() -> None:
    held_out = [0.5, 0.9, 0.8, 0.7, 0.75, 0.8, 0.85, 0.9]
    assert StopRule().verdict([math.nan, *np.linspace(0, 1, 7)], held_out) is None
    held_out = [0.2, 0.4, 0.6, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    proxy = [math.nan, *np.linspace(0, 1, 9)]
    stops = [n for n in range(1, 11) if StopRule().verdict(proxy[:n], held_out[:n])]
    # The last six of 8 are 0.6 0.8 0.7 0.6 0.5 0.4: of 15 pairs 12 fall, 2 rise, 1 is a tie, so tau is -10/15.
    assert stops[0] == 8


def test_patience_counts_validations_since_the_best() -> None:
    rule = StopRule(patience=2, window=None)
    assert rule.verdict([math.nan] * 3, [0.1, 0.3, 0.3]) is None
    assert rule.verdict([math.nan] * 4, [0.1, 0.3, 0.3, 0.2]) == PATIENCE
    assert rule.verdict([math.nan] * 3, [0.5, 0.4, 0.4]) == PATIENCE  # where it started from can be the best
    assert best_of([0.1, 0.3, 0.3]) == 1


def test_trend_by_brute_force_and_by_hand() -> None:
    assert trend([1, 2, 2]) == pytest.approx(2 / 3)
    assert trend([5.0]) == 0.0
    # The doc's count: orders of six with tau >= 0.6 have at most 3 of 15 pairs the wrong way round.
    rising = sum(trend(order) >= 0.6 - 1e-12 for order in itertools.permutations(range(6)))
    assert rising == 49


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_trend_turns_round_with_time(values: list[float]) -> None:
    assert trend(values) == pytest.approx(-trend(values[::-1]))
    assert -1.0 <= trend(values) <= 1.0


def test_flat_noise_is_called_as_often_as_is_said() -> None:
    rng = np.random.default_rng(0)
    rule = StopRule()
    looks = 20_000
    called = sum(
        rule.verdict(rng.normal(size=7).tolist(), rng.normal(size=7).tolist()) is not None for _ in range(looks)
    )
    assert called / looks == pytest.approx((49 / 720) ** 2, abs=0.0015)


@pytest.mark.parametrize(
    ("field", "value"), [("patience", 0), ("window", 3), ("agreement", 0.0), ("agreement", 1.5), ("window", 6.0)]
)
def test_settings_that_cannot_be_used_are_refused(field: str, value: float) -> None:
    with pytest.raises(InputError, match=field):
        StopRule(**{field: value})
