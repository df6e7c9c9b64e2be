"""Credit from clicks: worked by hand, unbiased by enumerating what may be clicked, and within its declared range."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import Ndcg, Slates, gain, parse_reward, rankings
from rerank_env.rewards.clicks import ClickCredit, click_credit
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.slates import ideal_rankings
from rerank_env.rewards.testing import rankings_of, slates

ESTIMATORS = ("ips", "snips", "dr")
SECOND = 1 / np.log2(3)  # the discount of place 2; that of place 1 is 1, of place 3 is 1/2
LOGGED = Slates.of(
    [[0, 0, 0]], clicks=[[1, 0, 1]], propensities=[[1, 0.5, 0.25]], predictions=[[0.5, 0.2, 0.8]]
)  # relevance does not matter


@pytest.mark.parametrize(
    ("reward", "value"),
    [
        # credit 1/1, 0, 1/0.25 = 4; the answer 2 0 1 has 4 + 1 / log2(3), of at most 1 + 1 / log2(3) + 1/2
        (ClickCredit(), (4 + SECOND) / (1 + SECOND + 0.5)),
        (ClickCredit(k=1), 4 / 1),
        (ClickCredit(k=2), (4 + SECOND) / (1 + SECOND)),
        # clipped at 1/2 the click at propensity 1/4 counts 2
        (ClickCredit(min_propensity=0.5), (2 + SECOND) / (1.5 + SECOND)),
        # clipped at 1: plain clicks
        (ClickCredit(min_propensity=1), (1 + SECOND) / (1.5 + SECOND)),
        # shares of the credit: 4/5 and 1/5
        (ClickCredit("snips"), 0.8 + 0.2 * SECOND),
        (ClickCredit("snips", k=1), 0.8),
        # r + (c - p r) / m with m = 1, 1/2, 1/2: 0.5 + 0.5 = 1; 0.2 - 0.1 / 0.5 = 0; 0.8 + (1 - 0.2) / 0.5 = 2.4
        (ClickCredit("dr", min_propensity=0.5), (2.4 + SECOND) / (1.5 + SECOND)),
        # m = 1: 0.5 + 0.5 = 1; 0.2 - 0.1 = 0.1; 0.8 + 0.8 = 1.6
        (ClickCredit("dr", min_propensity=1), (1.6 + SECOND + 0.1 / 2) / (1.5 + SECOND)),
    ],
)
def test_credit_is_that_worked_by_hand(reward, value):
    assert reward([[2, 0, 1]], LOGGED)[0] == pytest.approx(value, abs=1e-15)


def test_credit_of_each_candidate_is_that_worked_by_hand():
    assert click_credit(LOGGED, min_propensity=0.5).tolist() == [[1, 0, 2]]
    assert click_credit(LOGGED, "snips").tolist() == [[0.2, 0, 0.8]]
    assert click_credit(LOGGED, "dr", min_propensity=0.5)[0] == pytest.approx([1, 0, 2.4], abs=1e-15)


def test_without_a_click_there_is_no_credit_but_what_is_predicted_where_clipped():
    quiet = Slates.of([[1, 1]], clicks=[[0, 0]], propensities=[[1, 0.25]], predictions=[[0.5, 0.5]])
    assert click_credit(quiet).tolist() == click_credit(quiet, "snips").tolist() == [[0, 0]]
    # m = 1, 1/2: 0.5 - 0.5 = 0; 0.5 - 0.125 / 0.5 = 0.25
    assert click_credit(quiet, "dr", min_propensity=0.5).tolist() == [[0, 0.25]]


# A position-based model: candidate j is looked at with probability SEEN[j] and then clicked with probability LIKED[j].
SEEN = np.array([1.0, 0.6, 0.4, 0.2])
LIKED = np.array([0.3, 0.9, 0.0, 0.7])
CLICKS = np.array(list(itertools.product([0.0, 1.0], repeat=4)))
CHANCE = np.where(CLICKS == 1, SEEN * LIKED, 1 - SEEN * LIKED).prod(axis=1)
ORDER = np.array([1, 3, 0, 2])
TRUTH = float((LIKED[ORDER] / np.log2(np.arange(4) + 2)).sum() / (1 / np.log2(np.arange(4) + 2)).sum())


def expected(reward, *, logged=SEEN, predicted=None, order=ORDER):
    """What `reward` expects of `order` over every outcome of the click model, with its exact probability."""
    predicted = np.zeros(4) if predicted is None else predicted
    outcomes = Slates(
        relevance_BK=np.zeros((16, 4)),
        sizes_B=np.full(16, 4),
        clicks_BK=CLICKS,
        propensities_BK=np.tile(logged, (16, 1)),
        predictions_BK=np.tile(predicted, (16, 1)),
    )
    return float(reward(np.tile(order, (16, 1)), outcomes) @ CHANCE)


def test_inverse_propensities_give_the_full_information_value_where_nothing_is_clipped():
    for order in itertools.permutations(range(4)):
        truth = (LIKED[list(order)] / np.log2(np.arange(4) + 2)).sum() / (1 / np.log2(np.arange(4) + 2)).sum()
        assert expected(ClickCredit(), order=order) == pytest.approx(truth, abs=1e-14)


def test_clipping_underestimates_by_the_share_that_is_clipped():
    # at 0.5 the propensities 0.4 and 0.2 are clipped; candidate 3, liked 0.7, keeps 0.2 / 0.5 of it at place 2
    lost = 0.7 * (1 - 0.2 / 0.5) * SECOND / (1 / np.log2(np.arange(4) + 2)).sum()
    assert expected(ClickCredit(min_propensity=0.5)) == pytest.approx(TRUTH - lost, abs=1e-14)
    values = [expected(ClickCredit(min_propensity=clip)) for clip in (0.1, 0.2, 0.3, 0.5, 0.8, 1.0)]
    assert values[0] == pytest.approx(values[1], abs=1e-14)
    assert values[1:] == sorted(values[1:], reverse=True)


@pytest.mark.parametrize("clip", [0.1, 0.5, 1.0])
def test_doubly_robust_credit_is_unbiased_under_any_clip_if_the_predictions_are_right(clip):
    assert expected(ClickCredit("dr", min_propensity=clip), predicted=LIKED) == pytest.approx(TRUTH, abs=1e-14)


def test_doubly_robust_credit_is_unbiased_under_any_predictions_if_nothing_is_clipped():
    for predicted in (np.zeros(4), np.ones(4), LIKED[::-1]):
        assert expected(ClickCredit("dr"), predicted=predicted) == pytest.approx(TRUTH, abs=1e-14)
    # clipped at 0.5, candidates 2 and 3 get the shares 1 - 0.4 / 0.5 and 1 - 0.2 / 0.5 of what is predicted too much
    wrong = (0.2 * (1 - 0.0) / np.log2(5) + 0.6 * (1 - 0.7) * SECOND) / (1 / np.log2(np.arange(4) + 2)).sum()
    clipped = ClickCredit("dr", min_propensity=0.5)
    assert expected(clipped, predicted=np.ones(4)) == pytest.approx(TRUTH + wrong, abs=1e-14)


def test_wrong_propensities_bias_every_estimator_as_the_documentation_says():
    # logged as 1 throughout, every credit expects p * liked; right predictions do not help, as r + (c - 1 r) / 1 = c
    short = float((LIKED * SEEN)[ORDER] @ (1 / np.log2(np.arange(4) + 2)) / (1 / np.log2(np.arange(4) + 2)).sum())
    assert expected(ClickCredit(), logged=np.ones(4)) == pytest.approx(short, abs=1e-14)
    assert expected(ClickCredit("dr"), logged=np.ones(4), predicted=LIKED) == pytest.approx(short, abs=1e-14)


def test_plain_clicks_prefer_the_order_that_was_logged_and_adjusted_ones_do_not():
    # of two candidates the second is liked more, 0.4 against 0.3, but looked at half as often: clicks 0.2 against 0.3
    seen, liked = np.array([1.0, 0.5]), np.array([0.3, 0.4])
    clicks = np.array(list(itertools.product([0.0, 1.0], repeat=2)))
    chance = np.where(clicks == 1, seen * liked, 1 - seen * liked).prod(axis=1)
    outcomes = Slates(np.zeros((4, 2)), np.full(4, 2), clicks_BK=clicks, propensities_BK=np.tile(seen, (4, 1)))
    swap = np.tile([1, 0], (4, 1))
    assert gain(ClickCredit(min_propensity=1))(swap, outcomes) @ chance < -0.01
    assert gain(ClickCredit())(swap, outcomes) @ chance > 0.01


@given(st.data(), st.sampled_from(ESTIMATORS), st.sampled_from([1e-6, 0.1, 0.5, 1.0]))
def test_credit_stays_in_its_declared_range(data, estimator, clip):
    batch = data.draw(slates(logged=True))
    answers_BK = data.draw(rankings_of(batch, invalid=True))
    reward = ClickCredit(estimator, k=data.draw(st.none() | st.integers(1, 9)), min_propensity=clip, invalid=-2)
    valid_B = rankings.verdicts(answers_BK, batch.sizes_B) == 0
    scores_B = reward(answers_BK, batch)
    assert ((scores_B >= 0) & (scores_B <= reward.high))[valid_B].all()
    assert (scores_B[~valid_B] == -2).all()
    credit_BK = click_credit(batch, estimator, min_propensity=clip)
    assert (credit_BK >= 0).all()
    assert (credit_BK[~batch.mask_BK] == 0).all()


@pytest.mark.parametrize("clip", [1e-6, 0.1, 1.0])
def test_the_declared_range_is_no_wider_than_it_has_to_be(clip):
    tiny = 1e-300
    hardly_seen = Slates.of(
        [[0, 0, 0], [0, 0]],
        clicks=[[1, 1, 1], [1, 1]],
        propensities=[[tiny] * 3, [tiny] * 2],
        predictions=[[1] * 3, [1] * 2],
    )
    keep = rankings.identity_rankings(hardly_seen.sizes_B, 3)
    for estimator in ("ips", "dr"):
        reward = ClickCredit(estimator, min_propensity=clip)
        assert reward.high == {"ips": 1 / clip, "dr": 1 + 1 / clip}[estimator]
        assert reward(keep, hardly_seen) == pytest.approx([reward.high] * 2, rel=1e-12)
    one_click = Slates.of([[0, 0]], clicks=[[0, 1]], propensities=[[1, 0.5]])
    assert ClickCredit("snips")([[1, 0]], one_click).tolist() == [1.0] == [ClickCredit("snips").high]
    assert ClickCredit("snips", k=1)([[0, 1]], one_click).tolist() == [0.0] == [ClickCredit("snips").low]


@given(st.data(), st.sampled_from(ESTIMATORS), st.none() | st.integers(1, 9))
def test_an_answer_scores_the_same_bits_in_any_batch_and_under_any_padding(data, estimator, k):
    batch = data.draw(slates(logged=True))
    answers_BK = data.draw(rankings_of(batch))
    reward = ClickCredit(estimator, k=k)
    together_B = reward(answers_BK, batch)
    for row, size in enumerate(batch.sizes_B.tolist()):
        alone = Slates.of(
            [batch.relevance_BK[row, :size]],
            clicks=[batch.clicks_BK[row, :size]],
            propensities=[batch.propensities_BK[row, :size]],
            predictions=[batch.predictions_BK[row, :size]],
        )
        assert reward(answers_BK[row : row + 1, :size], alone)[0] == together_B[row]


@given(st.data())
def test_moving_a_candidate_of_more_credit_up_never_costs(data):
    batch = data.draw(slates(logged=True))
    answers_BK = data.draw(rankings_of(batch))
    reward = ClickCredit(data.draw(st.sampled_from(ESTIMATORS)), k=data.draw(st.none() | st.integers(1, 9)))
    credit_BK = click_credit(batch, reward.estimator)
    for row, size in enumerate(batch.sizes_B.tolist()):
        place = data.draw(st.integers(0, size - 2))
        up, down = answers_BK[row, place], answers_BK[row, place + 1]
        better_BK = answers_BK.copy()
        if credit_BK[row, down] > credit_BK[row, up]:
            better_BK[row, [place, place + 1]] = down, up
        assert reward(better_BK, batch)[row] >= reward(answers_BK, batch)[row] * (1 - 1e-12)


def test_credit_makes_labels_for_every_metric():
    labelled = Slates(click_credit(LOGGED), LOGGED.sizes_B)
    assert ideal_rankings(labelled).tolist() == [[2, 0, 1]]
    # the credit 1, 0, 4 in its own order, against 4, 1, 0
    assert Ndcg()([[0, 1, 2]], labelled)[0] == pytest.approx((1 + 4 / 2) / (4 + SECOND), abs=1e-15)


def test_copying_the_order_earns_nothing_net_and_an_invalid_answer_less():
    reward = gain(ClickCredit(min_propensity=0.5))
    assert reward([[0, 1, 2]], LOGGED).tolist() == [0.0]
    # the range is 2 either way, so an invalid answer scores -2.2
    assert reward([[0, 0, 0]], LOGGED).tolist() == pytest.approx([-2.2])
    assert reward.needs == {"clicks"}


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("click_credit(min_propensity=0.1)", ClickCredit()),
        ("click_credit(k=10, min_propensity=0.1)", ClickCredit(k=10)),
        ("click_credit(estimator='dr', min_propensity=0.05, invalid=-1)", ClickCredit("dr", None, 0.05, -1)),
    ],
)
def test_the_text_always_names_the_clipping_and_reads_back(text, reward):
    assert str(reward) == text
    assert parse_reward(text) == reward
    assert parse_reward("click_credit") == ClickCredit()


def test_what_the_log_lacks_is_named():
    with pytest.raises(InputError, match="needs clicks, which is not known here; give the slates clicks"):
        ClickCredit()([[0, 1]], Slates.of([[0, 1]]))
    no_model = Slates.of([[0, 1]], clicks=[[1, 0]], propensities=[[1, 1]])
    with pytest.raises(InputError, match="needs predictions"):
        ClickCredit("dr")([[0, 1]], no_model)
    with pytest.raises(InputError, match="click credit by 'dr' needs predictions"):
        click_credit(no_model, "dr")
    assert ClickCredit("dr").needs == {"clicks", "predictions"}


def test_useless_arguments_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'snips'"):
        ClickCredit("snip")
    for clip in (0, 1e-7, 1.5, float("nan"), "x"):
        with pytest.raises(InputError, match="min_propensity is"):
            ClickCredit(min_propensity=clip)
    with pytest.raises(InputError, match="k is 0"):
        ClickCredit(k=0)
