"""What a log says that other rankings are worth, beside what they are worth: right within its interval, or shown wrong.

Everything is estimated from clicks on the incoming order by `rewards.ClickCredit`, whose estimand is the discounted
mean attraction of each request's ranking (`true_value`), and for "snips" the exact expectation of its own ratio.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.clicks import (
    Cascade,
    Grades,
    PositionBased,
    TrustBias,
    affine_credit,
    affine_value,
    expected_reward,
    logged,
    parse_click_model,
    true_value,
)
from rerank_env.data import Requests
from rerank_env.data.synthetic import build
from rerank_env.rewards import ClickCredit, gain
from rerank_env.rewards.bootstrap import ClusterBootstrap, cluster_bootstrap
from rerank_env.rewards.clicks import click_credit
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import identity_rankings, random_rankings
from rerank_env.rewards.slates import ideal_rankings
from rerank_env.rewards.testing import rankings_of, slates

IPS, SNIPS = ClickCredit(min_propensity=1e-6), ClickCredit("snips", min_propensity=1e-6)
DR = ClickCredit("dr", min_propensity=0.5)  # heavily clipped, so that predictions matter
PLAIN = ClickCredit(min_propensity=1)
SECOND, THIRD = 1 / np.log2(3), 1 / 2
AS_IS = Grades(least=0, most=1, gains="linear")
CALM = Grades(max_grade=2, most=0.5)  # so that cascades reach the end of the list
PBM, TRUST = PositionBased(attraction=CALM), TrustBias(attraction=CALM)
CASCADE, DEPENDENT = Cascade(attraction=CALM), Cascade(0.5, 0.9, attraction=CALM)


@pytest.fixture(scope="module")
def people() -> Requests:
    return build(requests=1500, slate_size=5, seed=1)["train"]


def reversed_order(requests: Requests) -> np.ndarray:
    """As unlike what was shown as can be."""
    return identity_rankings(requests.sizes_B, requests.candidates_BK.shape[1])[:, ::-1]


def beside(log: Requests, *columns: np.ndarray) -> ClusterBootstrap:
    """Means of the columns with 95 % intervals over users, who come with all their sessions."""
    return cluster_bootstrap(np.stack(columns, axis=1), log.users_B, resamples=500, rng=np.random.default_rng(9))


def holds(found: ClusterBootstrap, column: int, truth: int) -> bool:
    """Whether the estimate's interval holds the mean truth, and that of their paired difference holds 0."""
    interval, error = found.interval(column), found.difference(column, truth)
    return bool(interval.low <= found.means_C[truth] <= interval.high and error.low <= 0 <= error.high)


def test_the_value_of_a_ranking_is_that_worked_by_hand():
    three = Requests.of([[0, 1, 2], [0, 1]], [[0.8, 0.5, 0.2], [0.4, 0.6]])
    order_BK = np.array([[2, 0, 1], [1, 0, -1]])
    values_B = true_value(three, PositionBased(attraction=AS_IS), order_BK)
    assert values_B[0] == pytest.approx((0.2 + 0.8 * SECOND + 0.5 * THIRD) / (1 + SECOND + THIRD))
    assert values_B[1] == pytest.approx((0.6 + 0.4 * SECOND) / (1 + SECOND))
    assert true_value(three, PositionBased(attraction=AS_IS), order_BK, k=1) == pytest.approx([0.2, 0.6])
    assert true_value(three, Cascade(attraction=AS_IS), k=2)[0] == pytest.approx((0.8 + 0.5 * SECOND) / (1 + SECOND))
    assert true_value(three, "pbm(attraction=grades(least=0, most=1, gains='linear'))", k=9) == pytest.approx(
        [(0.8 + 0.5 * SECOND + 0.2 * THIRD) / (1 + SECOND + THIRD), (0.4 + 0.6 * SECOND) / (1 + SECOND)]
    )


def test_the_expectation_of_a_reward_is_that_worked_by_hand():
    # looked at 1, 1/2, attractions 0.5, 0.8: clicks 0.5, 0.4. By "snips" a click on 0 alone pays its discount, one on 1
    # alone its own, and of both the shares are 1/3 and 2/3. The answer 1 0 has discounts SECOND, 1.
    two = Requests.of([[0, 1]], [[0.5, 0.8]])
    users = PositionBased(attraction=AS_IS)
    worked = 0.5 * 0.6 * SECOND + 0.5 * 0.4 * 1 + 0.5 * 0.4 * (SECOND / 3 + 2 / 3)
    assert expected_reward(SNIPS, two, users, [[1, 0]]) == pytest.approx([worked])
    # a cascade clicks 0 with 0.5, else 1 with 0.8: shares of one click are the click itself, whatever the propensity
    worked = 0.5 * SECOND + 0.5 * 0.8 * 1
    assert expected_reward(SNIPS, two, Cascade(attraction=AS_IS), [[1, 0]]) == pytest.approx([worked])


CHANCES = st.floats(0.05, 0.95)
UNBIASED = st.one_of(
    st.builds(PositionBased, eta=st.floats(0, 2), attraction=st.just(AS_IS)),
    st.builds(Cascade, st.floats(0, 1), st.floats(0.2, 1), attraction=st.just(AS_IS)),
)


@given(st.data(), UNBIASED, st.none() | st.integers(1, 4))
@settings(max_examples=60)
def test_inverse_propensities_expect_the_true_value_exactly(data, users, k):
    drawn = data.draw(slates(relevance=CHANCES, max_candidates=4, max_requests=3))
    rows = [row[:size] for row, size in zip(drawn.relevance_BK, drawn.sizes_B, strict=True)]
    asked = Requests.of([range(len(row)) for row in rows], rows)
    shown = asked.reordered(data.draw(rankings_of(asked.slates)))
    answer_BK = data.draw(rankings_of(asked.slates))
    truth_B = true_value(shown, users, answer_BK, k=k)
    unclipped = ClickCredit(k=k, min_propensity=1e-6)
    assert expected_reward(unclipped, shown, users, answer_BK) == pytest.approx(truth_B, abs=1e-12)
    # of the net gain too, and doubly robust credit with right predictions under any clipping
    gained_B = truth_B - true_value(shown, users, k=k)
    assert expected_reward(gain(unclipped), shown, users, answer_BK) == pytest.approx(gained_B, abs=1e-12)
    told = replace(shown, predictions_BK=users.attraction_BK(shown))
    doubly = ClickCredit("dr", k=k, min_propensity=0.7)
    assert expected_reward(doubly, told, users, answer_BK) == pytest.approx(truth_B, abs=1e-12)


@pytest.mark.parametrize("users", [PBM, CASCADE, DEPENDENT], ids=str)
@pytest.mark.parametrize("answer", [reversed_order, lambda log: ideal_rankings(log.slates)], ids=["reversed", "ideal"])
def test_a_log_tells_what_other_rankings_are_worth_unless_propensities_are_ignored(users, answer, people):
    told = replace(people, predictions_BK=users.attraction_BK(people))
    log = logged(told, users, rng=np.random.default_rng(0), sessions=2)
    rankings_BK = answer(log)
    truth_B = true_value(log, users, rankings_BK)
    snips_B = expected_reward(SNIPS, people, users, rankings_BK[::2]).repeat(2)
    estimates = [reward(rankings_BK, log.slates) for reward in (IPS, DR, SNIPS, PLAIN)]
    found = beside(log, *estimates, truth_B, snips_B)
    ips, dr, snips, plain, truth, snips_truth = range(6)
    assert holds(found, ips, truth)
    assert holds(found, dr, truth)
    assert holds(found, snips, snips_truth)
    # the same clicks at face value: far too little, and the interval says so
    assert found.interval(plain).high < found.means_C[truth]
    assert found.difference(plain, truth).high < -0.02


def test_plain_clicks_take_a_worse_order_for_a_better_one_and_corrected_ones_do_not(people):
    # the worst candidates are shown first and the best where few look: turning the list round is worth much
    last = ideal_rankings(people.slates)[:, ::-1]
    log = logged(people, PositionBased(eta=2, attraction=CALM), rankings=last, rng=np.random.default_rng(0), sessions=6)
    better_BK, shown_BK = reversed_order(log), identity_rankings(log.sizes_B, 5)
    users = parse_click_model(f"pbm(eta=2, attraction={CALM})")
    gained_B = true_value(log, users, better_BK) - true_value(log, users, shown_BK)
    ips_B, plain_B = (reward(better_BK, log.slates) - reward(shown_BK, log.slates) for reward in (IPS, PLAIN))
    found = beside(log, ips_B, plain_B, gained_B)
    assert holds(found, 0, 2)
    assert found.interval(0).low > 0.05
    assert found.interval(1).high < 0


@pytest.mark.parametrize("users", [PBM, DEPENDENT], ids=str)
def test_credit_normalised_over_the_whole_log_finds_the_true_ratio_to_the_incoming_order(users, people):
    log = logged(people, users, rng=np.random.default_rng(3), sessions=2)
    orders = reversed_order(log), identity_rankings(log.sizes_B, 5)
    found = beside(log, *(IPS(order, log.slates) for order in orders), *(PLAIN(order, log.slates) for order in orders))
    worth, incoming = (true_value(log, users, order).mean() for order in orders)
    ratio, plain = found.ratio(0, 1), found.ratio(2, 3)
    assert ratio.low <= worth / incoming <= ratio.high
    assert plain.high < worth / incoming


def test_propensities_by_place_alone_are_biased_for_a_cascade(people):
    log = logged(people, CASCADE, rng=np.random.default_rng(0), sessions=2)
    by_place = replace(
        log, propensities_BK=np.broadcast_to(log.propensities_BK.mean(axis=0), log.propensities_BK.shape)
    )
    best_BK = ideal_rankings(log.slates)
    truth_B = true_value(log, CASCADE, best_BK)
    found = beside(log, IPS(best_BK, log.slates), IPS(best_BK, by_place.slates), truth_B)
    assert holds(found, 0, 2)
    assert not holds(found, 1, 2)


def test_clipping_costs_a_bias_that_right_predictions_take_back_and_wrong_ones_do_not(people):
    told = replace(people, predictions_BK=PBM.attraction_BK(people))
    log = logged(told, PBM, rng=np.random.default_rng(1), sessions=2)
    fooled = replace(log, predictions_BK=1.0 - log.predictions_BK)
    answer_BK = reversed_order(log)
    truth_B = true_value(log, PBM, answer_BK)
    clipped = ClickCredit(min_propensity=0.5)
    found = beside(
        log, DR(answer_BK, log.slates), clipped(answer_BK, log.slates), DR(answer_BK, fooled.slates), truth_B
    )
    assert holds(found, 0, 3)
    assert found.difference(1, 3).high < -0.02
    assert found.difference(2, 3).low > 0.02
    # which is what their exact expectations say
    few = log.take(np.arange(0, 200, 2))
    few_BK = reversed_order(few)
    for reward, requests in ((DR, few), (clipped, few), (DR, replace(few, predictions_BK=1 - few.predictions_BK))):
        drawn = logged(requests, PBM, rng=np.random.default_rng(2), sessions=100)
        error_B = reward(reversed_order(drawn), drawn.slates) - expected_reward(reward, requests, PBM, few_BK).repeat(
            100
        )
        assert holds(beside(drawn, error_B, np.zeros(len(drawn))), 0, 1)


def test_trust_defeats_every_propensity_and_the_affine_correction_does_not_mind(people):
    told = replace(people, predictions_BK=TRUST.attraction_BK(people))
    log = logged(told, TRUST, rng=np.random.default_rng(0), sessions=2)
    shown_BK = identity_rankings(log.sizes_B, 5)
    for rankings_BK in (reversed_order(log), ideal_rankings(log.slates), shown_BK):
        truth_B = true_value(log, TRUST, rankings_BK)
        ips_B, dr_B = IPS(rankings_BK, log.slates), DR(rankings_BK, log.slates)
        found = beside(log, affine_value(log, TRUST, rankings_BK), ips_B, dr_B, truth_B)
        assert holds(found, 0, 3)
        assert found.difference(1, 3).low > 0.05
        assert found.difference(2, 3).low > 0.05


def test_affine_credit_is_that_worked_by_hand_and_inverse_propensities_without_trust(people):
    # slopes 0.3, 0.3 and offsets 0.6, 0.15, as worked in the tests of the models
    users = TrustBias(right=0.9, wrong=0.6, attraction=AS_IS)
    two = Requests.of([[0, 1]], [[0.5, 0.5]], clicks=[[1, 0]], propensities=[[1, 0.5]])
    assert affine_credit(two, users)[0] == pytest.approx([0.4 / 0.3, -0.15 / 0.3])
    assert affine_credit(two, users, min_slope=0.6)[0] == pytest.approx([0.4 / 0.6, -0.15 / 0.6])
    assert affine_value(two, users, [[1, 0]]) == pytest.approx([(-0.5 + SECOND * 4 / 3) / (1 + SECOND)])
    assert affine_value(two, users, [[1, 0]], k=1) == pytest.approx([-0.5])
    log = logged(people, PBM, rng=np.random.default_rng(0))
    assert affine_credit(log, PBM) == pytest.approx(click_credit(log.slates, min_propensity=1e-6))
    answer_BK = random_rankings(log.sizes_B, 5, np.random.default_rng(1))
    assert affine_value(log, PBM, answer_BK, k=3) == pytest.approx(
        ClickCredit(k=3, min_propensity=1e-6)(answer_BK, log.slates)
    )


LOGS = 150
FEW = 300


@pytest.mark.parametrize("users", [PBM, DEPENDENT, TRUST], ids=str)
def test_95_percent_intervals_hold_the_truth_in_some_95_percent_of_logs(users):
    people = build(requests=FEW, slate_size=4, seed=2)["train"]
    told = replace(people, predictions_BK=users.attraction_BK(people))
    answer_BK = reversed_order(told)
    truth_B, snips_B = true_value(told, users, answer_BK), expected_reward(SNIPS, told, users, answer_BK)
    rng = np.random.default_rng(0)
    held = np.zeros((LOGS, 4), dtype=bool)
    for number in range(LOGS):
        log = logged(told, users, rng=rng)
        ips_B, dr_B, ratio_B, wrong_B = (reward(answer_BK, log.slates) for reward in (IPS, DR, SNIPS, PLAIN))
        if users is TRUST:  # under which inverse propensities are what is wrong, and doubly robust credit too
            ips_B, dr_B, wrong_B = affine_value(log, users, answer_BK), affine_value(log, users, answer_BK), ips_B
        errors_BC = np.stack([ips_B - truth_B, dr_B - truth_B, ratio_B - snips_B, wrong_B - truth_B], axis=1)
        found = cluster_bootstrap(errors_BC, log.users_B, resamples=300, rng=rng)
        held[number] = [found.interval(column).low <= 0 <= found.interval(column).high for column in range(4)]
    shares = held.mean(axis=0)
    # a share of 150 logs has a standard error of 0.018, and percentile intervals of 300 users are a little short
    assert ((shares[:3] >= 0.89) & (shares[:3] <= 0.99)).all(), shares
    assert shares[3] < 0.05


def test_a_log_that_the_model_did_not_make_is_refused(people):
    log = logged(people, TRUST, rng=np.random.default_rng(0))
    with pytest.raises(
        InputError, match=r"the propensities of the log are not those of trust\(eta=2, .*\) on its lists"
    ):
        affine_credit(log, replace(TRUST, eta=2.0))
    with pytest.raises(InputError, match="and the log in the order that was shown"):
        affine_value(log.reordered(reversed_order(log)), TRUST)
    with pytest.raises(InputError, match=r"cascade\(.*\) does not click by place alone; give a pbm or trust model"):
        affine_credit(log, CASCADE)
    with pytest.raises(InputError, match="affine credit needs clicks"):
        affine_credit(people, TRUST)
    for slope in (0, -1, 2, "x"):
        with pytest.raises(InputError, match="min_slope is"):
            affine_credit(log, TRUST, min_slope=slope)


PLACES = {
    "eta": st.sampled_from([0.5, 1.0]),
    "curve": st.sampled_from(["power", (1.0, 0.5, 0.25)]),
    "attraction": st.sampled_from([AS_IS, CALM]),
}
BY_PLACE = st.one_of(
    st.builds(PositionBased, **PLACES),
    st.builds(TrustBias, right=st.sampled_from([0.98, (0.9, 0.8, 0.7)]), wrong=st.sampled_from([0.65, 0.1]), **PLACES),
)


@given(BY_PLACE, BY_PLACE, st.booleans())
@settings(max_examples=80)
def test_clicks_are_corrected_by_the_model_that_made_them_whatever_its_attraction_and_by_no_other(made, given_, moved):
    three = Requests.of([[0, 1, 2]], [[0.8, 0.5, 0.2]])
    log = logged(three, made, rankings=[[2, 0, 1]] if moved else None, rng=np.random.default_rng(0), sessions=2)
    if replace(made, attraction=AS_IS) == replace(given_, attraction=AS_IS):
        assert (affine_credit(log, given_) == affine_credit(log, made)).all()
        assert (affine_credit(log.take([1]), given_) == affine_credit(log, made)[1:]).all()
    else:
        with pytest.raises(InputError, match="give the model that made"):
            affine_credit(log, given_)


def test_the_latest_model_made_the_clicks_and_a_log_from_elsewhere_names_none(people):
    told = logged(logged(people, TRUST, rng=np.random.default_rng(0)), PBM, rng=np.random.default_rng(1))
    assert np.isfinite(affine_credit(told, PBM)).all()
    with pytest.raises(
        InputError, match=r"were made up by pbm\(.*\), not by trust\(.*\); give the model that made them"
    ):
        affine_credit(told, TRUST)
    with pytest.raises(InputError, match=r"were made up by cascade\(.*\), not by pbm\(.*\)"):
        affine_credit(logged(people, Cascade(1, attraction=CALM), rng=np.random.default_rng(0)), replace(PBM, eta=0.0))
    assert np.isfinite(affine_credit(replace(told, notes=("bought",)), TRUST)).all()


def test_what_cannot_be_enumerated_or_valued_is_refused(people):
    wide = Requests.of([range(15)], [[0.0] * 15])
    with pytest.raises(InputError, match="lists are up to 15 long, too long to enumerate; give lists of at most 14"):
        expected_reward(IPS, wide, PositionBased())
    with pytest.raises(InputError, match="needs predictions"):
        expected_reward(DR, people, PBM)
    with pytest.raises(InputError, match="row 0 is no ranking of 5 candidates"):
        true_value(people, PBM, np.zeros((len(people), 5), dtype=int))
    with pytest.raises(InputError, match="k is 0"):
        true_value(people, PBM, k=0)
