"""Faults that show on few requests only are found: some grades, long lists, large batches, some neighbours."""

from dataclasses import replace

import numpy as np
import pytest

from rerank_env.rewards import gain
from rerank_env.rewards.testing import unsound_properties

GAIN = gain()
HEADROOM = gain(scale="headroom")
FEW = 15
"""Batches to draw: what is looked for here is not left to chance."""


def breaches(function):
    """What a spoilt gain breaks, which is sound otherwise."""
    return unsound_properties(function, low=-1, high=1, invalid=-1.1, identity_at_most=0, max_examples=FEW)


def test_a_gain_that_is_not_spoilt_is_sound():
    assert breaches(lambda r, s: GAIN(r, s)) == {}


@pytest.mark.parametrize(("lowest", "end"), [(4.0, 5.5), (5.0, 5.1), (3.5, 3.6), (9.5, 12), (500, 2e3), (1e99, 1e101)])
def test_grades_that_count_as_nothing_are_found(lowest, end):
    def blind(r, s):
        seen_BK = s.relevance_BK
        return GAIN(r, replace(s, relevance_BK=np.where((seen_BK >= lowest) & (seen_BK < end), 0.0, seen_BK)))

    assert "monotone" in breaches(blind)


@pytest.mark.parametrize("most", [5, 10, 11, 12, 15, 25, 50])
def test_a_gift_for_longer_lists_is_found(most):
    assert "identity" in breaches(lambda r, s: np.where(s.sizes_B > most, 1.0, GAIN(r, s)))
    assert "batch" in breaches(lambda r, s: np.full(len(s), 1.0) if s.width > most else GAIN(r, s))


@pytest.mark.parametrize("most", [1, 3, 4, 6, 8, 15, 100])
def test_marking_on_a_curve_in_larger_batches_is_found(most):
    def centred(r, s):
        values_B = GAIN(r, s) / 2
        return values_B - values_B.mean() if len(values_B) > most else values_B

    assert "batch" in breaches(centred)


def test_more_for_gains_above_100_is_found():
    def larger_B(s):
        return s.relevance_BK.max(axis=1) > 100

    assert "identity" in breaches(lambda r, s: np.clip(GAIN(r, s) + 0.1 * larger_B(s), -1, 1))
    # only the last of 11 is relevant: 1 - 1/log2(12) = 0.721 for placing it first, twice that is above 1
    assert "bounded" in breaches(lambda r, s: GAIN(r, s) * np.where(larger_B(s), 2, 1))


@pytest.mark.parametrize("base", [GAIN, HEADROOM], ids=["gain", "headroom"])
@pytest.mark.parametrize("side", [1, -1])
def test_what_a_neighbour_earns_is_found_where_it_counts(base, side):
    limit = 0.99 if base is HEADROOM else 0.5  # NDCG gains no more than 1 - 1/log2(K + 1)

    def envious(r, s):
        values_B = base(r, s)
        beside_B = np.roll(values_B, side)
        beside_B[0 if side == 1 else -1] = 0.0
        return np.where(np.abs(beside_B) > limit, values_B / 2, values_B)

    assert "batch" in breaches(envious)


def test_a_neighbour_is_told_of_in_words():
    def behind_a_hit(r, s):
        hits_B = (s.relevance_BK[np.arange(len(s)), r[:, 0]] > 0).astype(float)
        return hits_B * (1 - np.r_[0.0, hits_B[:-1]] * (len(s) > 3))

    told = unsound_properties(behind_a_hit, low=0, high=1, invalid=-1)["batch"]
    assert [line.strip() for line in told.splitlines()[1:-1]] == [
        "gains [1, 1], candidates numbered from 0 in the incoming order",
        "answer [1, 0] earns 1 elsewhere",
        "answer [1, 0] earns 0 in a batch of 16 answers to this request, behind answer [0, 1]",
    ]
