"""Signs of copying, on answers whose distance to the incoming order is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import NearIdentity, NotIdentity, Slates, rankings
from rerank_env.rewards.copies import copying
from rerank_env.rewards.errors import InputError, RankingError
from rerank_env.rewards.testing import rankings_of, slates

SIZES = [4, 4, 4, 4, 3]
ANSWERS = [
    [0, 1, 2, 3],  # the order itself
    [1, 0, 3, 2],  # two swaps: 2 of 6 pairs turned round, tau 1 - 4/6 = 1/3
    [3, 0, 1, 2],  # three: tau 0
    [0, 0, 1, 2],  # no ranking
    [2, 1, 0, -1],  # reversed: 3 of 3 pairs, tau -1
]


def test_rates_are_those_worked_by_hand():
    found = copying(ANSWERS, SIZES)
    assert found == pytest.approx((1 / 4, 2 / 4, (1 + 1 / 3 + 0 - 1) / 4))
    assert found._fields == ("identity_rate", "near_identity_rate", "kendall_tau")
    assert copying(ANSWERS, SIZES, swaps=3).near_identity_rate == 1
    assert copying(ANSWERS, SIZES, swaps=0).near_identity_rate == 1 / 4


@given(st.data(), st.integers(0, 4))
def test_rates_are_those_of_the_conditions(data, swaps):
    batch = data.draw(slates())
    answers_BK = data.draw(rankings_of(batch, invalid=True))
    valid_B = rankings.verdicts(answers_BK, batch.sizes_B) == 0
    found = copying(answers_BK, batch, swaps=swaps)
    if valid_B.any():
        moved_B, near_B = NotIdentity().holds(answers_BK, batch), NearIdentity(swaps).holds(answers_BK, batch)
        assert found.identity_rate == (~moved_B)[valid_B].mean()
        assert found.near_identity_rate == near_B[valid_B].mean()
    else:
        assert np.isnan(found).all()


def test_near_means_the_same_everywhere():
    near_B = NearIdentity().holds(ANSWERS, Slates.of([[0] * size for size in SIZES]))
    assert near_B.tolist() == [True, True, False, False, False]
    assert copying(ANSWERS, SIZES).near_identity_rate == 2 / 4 == near_B.sum() / 4


def test_without_a_valid_answer_nothing_is_known():
    assert np.isnan(copying([[0, 0]], [2])).all()
    assert np.isnan(copying(np.zeros((0, 2), int), Slates.of([]))).all()


def test_useless_arguments_are_refused():
    with pytest.raises(RankingError, match="give one a row"):
        copying(ANSWERS, SIZES[1:])
    with pytest.raises(InputError, match="swaps is -1"):
        copying(ANSWERS, SIZES, swaps=-1)
