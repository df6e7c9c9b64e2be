"""The four presets against the published tables, and the leaks that the literal ones are known for."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import (
    Auc,
    Improved,
    KeptFirst,
    Mrr,
    Ndcg,
    RankPromotion,
    Slates,
    ValidFormat,
    Verdict,
    gain,
    gr2,
    gr2_hardened,
    gr2_industrial,
    gr2_industrial_hardened,
    naive,
)
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.testing import leaves, presets, rankings_of, slates


def moved(pre, out, size=10):
    """One relevant item brought from place `pre` to place `out`, both from 1: the slate and the ranking."""
    gains = [0.0] * size
    gains[pre - 1] = 1.0
    ranking = [j for j in range(size) if j != pre - 1]
    ranking.insert(out - 1, pre - 1)
    return gains, ranking


GRID = [(pre, out) for pre in range(1, 11) for out in range(1, 11)]
GRID_SLATES = Slates.of([moved(pre, out)[0] for pre, out in GRID])
GRID_RANKINGS = [moved(pre, out)[1] for pre, out in GRID]


def test_gr2_is_the_published_table():
    # K = 10, alpha = 0.2: promoted by j: 0.1 j + 0.2; kept at rank 1: 0.2; unchanged below: 0; demoted by j: -0.1 j
    scores = gr2()(GRID_RANKINGS, GRID_SLATES)
    for (pre, out), score in zip(GRID, scores, strict=True):
        if out < pre:
            expected = 0.1 * (pre - out) + 0.2
        elif out == pre:
            expected = 0.2 if pre == 1 else 0.0
        else:
            expected = -0.1 * (out - pre)
        assert score == pytest.approx(expected, abs=1e-12), (pre, out)


def test_gr2_puts_an_invalid_answer_below_the_worst_valid_one():
    assert gr2()(GRID_RANKINGS, GRID_SLATES).min() == pytest.approx(-0.9)
    for verdict in (Verdict.MALFORMED, Verdict.OVERLONG, Verdict.DUPLICATE):
        assert (gr2()(GRID_RANKINGS, GRID_SLATES, verdicts_B=[verdict] * 100) == -1).all()


def test_gr2_is_written_with_the_algebra():
    assert gr2() == RankPromotion() + 0.2 * ValidFormat().when(Improved() | KeptFirst())
    assert str(gr2(alpha=0.5)) == "rank_promotion + 0.5*valid_format.when(improved | kept_first)"


def test_gr2_pays_a_random_shuffle_where_the_incoming_order_says_nothing():
    # pre and out uniform on 1..10: promotions average out; the bonus pays out < pre (45 of 100) and both 1 (1 of 100)
    assert gr2()(GRID_RANKINGS, GRID_SLATES).mean() == pytest.approx(0.2 * 46 / 100)


def test_gr2_pays_echoing_on_requests_whose_best_item_was_first():
    echoes = [index for index, (pre, out) in enumerate(GRID) if pre == out]
    scores = gr2()(np.array(GRID_RANKINGS)[echoes], GRID_SLATES.take(echoes))
    assert scores.tolist() == [0.2] + [0.0] * 9


def test_the_literal_exemption_pays_for_demoting_the_best_item():
    literal = gr2(exemption="literal")
    by_case = dict(zip(GRID, literal(GRID_RANKINGS, GRID_SLATES), strict=True))
    assert by_case[1, 2] == pytest.approx(0.1)  # -0.1 + 0.2
    assert by_case[1, 3] == pytest.approx(0.0)  # -0.2 + 0.2
    assert by_case[2, 3] == pytest.approx(-0.1)
    # the bonus pays out < pre (45 of 100) and pre = 1 (10 of 100)
    assert np.mean(list(by_case.values())) == pytest.approx(0.2 * 55 / 100)
    with pytest.raises(UnknownNameError, match="did you mean 'literal'"):
        gr2(exemption="literaly")


def test_naive_pays_echoing_everywhere():
    scores = dict(zip(GRID, naive()(GRID_RANKINGS, GRID_SLATES), strict=True))
    for (pre, out), score in scores.items():
        assert score == pytest.approx((pre - out) / 10 + 0.2)
    assert {scores[place, place] for place in range(1, 11)} == {0.2}
    assert naive()([[0, 0]], Slates.of([[0, 1]])).tolist() == [-1.0]


def test_the_identity_check_of_the_industrial_reward():
    # relevant 0 and 3 of four: AUC of the incoming order: 0 beats 1 and 2, 3 beats none: 2 of 4 pairs
    batch = Slates.of([[1, 0, 0, 1]] * 4 + [[1, 1, 0, 0]])
    answers = [[0, 1, 2, 3], [0, 1, 3, 2], [0, 3, 1, 2], [1, 2, 0, 3], [0, 1, 2, 3]]
    # identity: alpha alone.  one swap: 3 of 4 pairs.  ideal: all pairs.  worse than incoming: no pair, alpha alone is
    # paid all the same.  identity of an ideal order: 1 + alpha
    expected = [0.2, 0.75 + 0.2, 1.2, 0.0 + 0.2, 1.2]
    assert gr2_industrial()(answers, batch) == pytest.approx(expected)


def test_one_swap_escapes_the_identity_check_even_when_it_is_worse():
    # one relevant item of six at place 2: AUC 4/5; at place 3: 3/5
    batch = Slates.of([[0, 1, 0, 0, 0, 0]] * 2)
    echo, worse = gr2_industrial()([[0, 1, 2, 3, 4, 5], [0, 2, 1, 3, 4, 5]], batch)
    assert (echo, worse) == pytest.approx((0.2, 0.6 + 0.2))
    # ours tells them apart the right way round
    echo, worse = gain(Auc())([[0, 1, 2, 3, 4, 5], [0, 2, 1, 3, 4, 5]], batch)
    assert (echo, worse) == pytest.approx((0.0, -0.2))


def test_an_invalid_answer_earns_nothing_under_the_industrial_reward():
    assert gr2_industrial()([[1, 1]], Slates.of([[0, 1]])).tolist() == [0.0]
    assert gr2_industrial().low == pytest.approx(0.2)


def test_the_industrial_reward_for_graded_labels():
    # gains 2^2 - 1 = 3 and 2^1 - 1 = 1; answer shows 1 then 2: (1 + 3/1.584963) / (3 + 1/1.584963) = 0.796708
    reward = gr2_industrial(quality=Ndcg(gains="exp2"), alpha=0.1)
    batch = Slates.of([[2, 1, 0], [1, 2, 0], [2, 1, 0]])
    scores = reward([[1, 0, 2], [0, 1, 2], [0, 1, 2]], batch)
    assert scores == pytest.approx([0.796708 + 0.1, 0.1, 1.1], abs=1e-6)


def test_gain_is_the_difference_to_the_incoming_order():
    # one relevant item at place 3 of three: NDCG 1/log2(4) = 0.5; at place 2: 1/log2(3) = 0.630930; at place 1: 1
    batch = Slates.of([[0, 0, 1]] * 4)
    scores = gain()([[0, 1, 2], [0, 2, 1], [2, 0, 1], [0, 0, 1]], batch)
    assert scores == pytest.approx([0.0, 0.130930, 0.5, -1.1], abs=1e-6)
    assert scores[0] == 0.0
    assert (gain().low, gain().high, gain().invalid) == (-1.0, 1.0, -1.1)


def test_gain_punishes_touching_an_ideal_order():
    scores = gain()([[0, 1, 2], [1, 0, 2]], Slates.of([[2, 1, 0]] * 2))
    assert scores[0] == 0.0
    assert scores[1] < 0


def test_gain_pays_random_shuffling_nothing_where_the_incoming_order_says_nothing():
    orders = list(itertools.permutations(range(4)))
    slates = Slates.of([[(3.0, 1.0, 0.0, 0.0)[j] for j in order] for order in orders for _ in orders])
    answers = [answer for _ in orders for answer in orders]
    assert gain()(answers, slates).mean() == pytest.approx(0.0, abs=1e-15)


def multiples(qualities):
    """Qualities and multiples of them, turned round too."""
    return qualities | st.builds(lambda number, quality: number * quality, st.floats(-1e3, 1e3), qualities)


@given(multiples(leaves()))
def test_gain_puts_an_invalid_answer_below_the_worst_valid_one_whatever_the_quality(quality):
    assert gain(quality).invalid < gain(quality).low


@pytest.mark.parametrize(
    ("quality", "invalid"),
    # 1.1 times the width of the range: 1 for ndcg, 2 for rank promotion in (-1, 1); never less than 1.1
    [(Ndcg(), -1.1), (0.5 * Ndcg(), -1.1), (2 * Ndcg(), -2.2), (RankPromotion(), -2.2), (-3 * RankPromotion(), -6.6)],
    ids=str,
)
def test_the_invalid_score_of_gain_grows_with_the_range(quality, invalid):
    assert gain(quality).invalid == pytest.approx(invalid)


def test_the_worst_of_a_wide_quality_is_still_above_invalid():
    # the relevant item falls from first to last of ten: twice the NDCG drops by 2 (1 - 1 / log2(11)) = 1.42
    batch = Slates.of([[1] + [0] * 9])
    (worst,) = gain(2 * Ndcg())([[*range(1, 10), 0]], batch)
    assert worst == pytest.approx(-2 * (1 - 1 / np.log2(11)))
    assert gain(2 * Ndcg()).invalid < worst < -1.1


@given(st.one_of(presets(), st.builds(gain, multiples(leaves())), st.builds(gr2_industrial, multiples(leaves()))))
def test_no_preset_gives_an_invalid_answer_more_than_a_valid_one(preset):
    assert preset.invalid <= preset.low


@given(
    st.one_of(
        st.builds(gain, multiples(leaves())),
        st.builds(gr2, st.floats(-4, 4), st.sampled_from(["kept_first", "literal"])),
        st.builds(naive, st.floats(-4, 4)),
    ),
    st.data(),
)
def test_every_valid_answer_earns_more_than_an_invalid_one(preset, data):
    batch = data.draw(slates())
    assert (preset(data.draw(rankings_of(batch)), batch) > preset.invalid).all()


def test_an_industrial_quality_that_can_be_negative_lowers_the_invalid_score():
    reward = gr2_industrial(RankPromotion())
    assert (reward.low, reward.invalid) == pytest.approx((-0.8, -1.0))
    # first to last of four: -0.75 + 0.2
    assert reward([[1, 2, 3, 0], [0, 0, 0, 0]], Slates.of([[1, 0, 0, 0]] * 2)) == pytest.approx([-0.55, -1.0])


def test_presets_take_parameters_and_check_them():
    assert naive(alpha=0.7) == RankPromotion() + 0.7 * ValidFormat()
    assert gain(quality=Mrr()) == gain(Mrr())
    for preset in (gain, gr2_industrial):
        with pytest.raises(InputError, match="quality is 'mrr'; expected a reward"):
            preset(quality="mrr")
    with pytest.raises(InputError, match="expected a number"):
        gr2(alpha=None)


def test_the_hardened_gr2_pays_its_bonus_for_the_first_place_and_takes_it_for_losing_it():
    # K = 10, alpha = 0.2: 0.1 a place, 0.2 more for arriving at the first place and 0.2 less for leaving it; kept: 0
    scores = gr2_hardened()(GRID_RANKINGS, GRID_SLATES)
    for (pre, out), score in zip(GRID, scores, strict=True):
        assert score == pytest.approx(0.1 * (pre - out) + 0.2 * ((out == 1) - (pre == 1)), abs=1e-12), (pre, out)


@pytest.mark.parametrize("hardened", [gr2_hardened(), gr2_industrial_hardened(), gr2_industrial_hardened(Ndcg())])
def test_the_hardened_rewards_pay_random_shuffling_nothing_where_the_incoming_order_says_nothing(hardened):
    # All pairs of a place before and a place after are equally likely then; the mean over the grid is exactly 0.
    assert hardened(GRID_RANKINGS, GRID_SLATES).mean() == pytest.approx(0.0, abs=1e-12)


def test_one_swap_does_not_escape_the_hardened_industrial_reward():
    # AUC of the incoming order 1, 0, 1, 0: pairs (1st, 2nd), (1st, 4th), (3rd, 4th) right, (3rd, 2nd) wrong: 3/4.
    batch = Slates.of([[1, 0, 1, 0]] * 3)
    answers = [[0, 1, 2, 3], [0, 1, 3, 2], [1, 0, 2, 3]]  # the echo; two exchanges that make it worse, AUC 1/2
    assert gr2_industrial()(answers, batch).tolist() == pytest.approx([0.2, 0.7, 0.7])
    # hardened: nothing for the echo; -1/4 of AUC; and -1/4 with the first place lost, another -0.2
    assert gr2_industrial_hardened()(answers, batch).tolist() == pytest.approx([0.0, -0.25, -0.45])


@pytest.mark.parametrize("alpha", [0.2, 0.0, -0.5, 3.0])
def test_the_hardened_rewards_put_an_invalid_answer_below_every_valid_one(alpha):
    for hardened in (gr2_hardened(alpha), gr2_industrial_hardened(alpha=alpha)):
        assert hardened.invalid < hardened.low - 0.05
        assert hardened(GRID_RANKINGS, GRID_SLATES).min() > hardened.invalid
