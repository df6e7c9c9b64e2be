"""Checks of arguments: what passes, what is refused, and what the sentence says."""

import numpy as np
import pytest

from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError, UnknownNameError


@pytest.mark.parametrize("value", [2, 7, np.int64(7), np.uint8(2)])
def test_whole_numbers_come_back_as_ints(value):
    given = whole("size", value, least=2)
    assert (type(given), given) == (int, int(value))


@pytest.mark.parametrize("value", [1, -3, np.int64(1), 2.0, True, np.True_, np.float64(2), "2", None, [2]])
def test_what_is_not_whole_or_too_small_is_refused(value):
    with pytest.raises(InputError, match=r"^size is .*; give a whole number of at least 2$"):
        whole("size", value, least=2)


@pytest.mark.parametrize("value", [0, 0.5, -3, np.float32(0.5), np.int64(2)])
def test_finite_numbers_come_back_as_floats(value):
    given = finite("alpha", value)
    assert (type(given), given) == (float, float(value))


def test_minus_zero_becomes_zero():
    assert str(finite("alpha", -0.0)) == "0.0"


@pytest.mark.parametrize("value", [True, np.True_, "0.5", None, 1j, [0.5]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InputError, match=r"^alpha is .*; expected a number$"):
        finite("alpha", value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf, 10**400])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(InputError, match=r"^alpha is (nan|-?inf); expected a finite number$"):
        finite("alpha", value)


def test_a_known_name_comes_back_and_an_unknown_one_gets_a_suggestion():
    known = {"json": 1, "list": 2}
    assert one_of("text format", "json", known) == "json"
    with pytest.raises(UnknownNameError, match=r"^unknown text format 'jsn'; did you mean 'json'\? known: json, list$"):
        one_of("text format", "jsn", known)
    for value in (None, 3, ["json"], np.array([1, 2])):
        with pytest.raises(UnknownNameError, match="unknown text format"):
            one_of("text format", value, known)
