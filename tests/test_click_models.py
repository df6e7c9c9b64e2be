"""Users who click: worked by hand, against enumeration in plain Python, and as properties of any list."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.clicks import Cascade, ClickModel, Grades, PositionBased, TrustBias
from rerank_env.data import Requests
from rerank_env.rewards.errors import InputError, RankingError
from rerank_env.rewards.kernels import discounts
from rerank_env.rewards.rankings import identity_rankings, padded
from rerank_env.rewards.testing import rankings_of, slates

AS_IS = Grades(least=0, most=1, gains="linear")
"""Relevance is the attraction."""

TOP = Grades(max_grade=5)
CHANCES = st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1)
ATTRACTIONS = st.sampled_from([AS_IS, Grades(), Grades(least=0.3, most=0.31), Grades(gains="linear")])
PLACE = {"eta": st.floats(0, 3), "curve": st.sampled_from(["power", "log2"]), "attraction": ATTRACTIONS}
MODELS: st.SearchStrategy[ClickModel] = st.one_of(
    st.builds(PositionBased, **PLACE),
    st.builds(Cascade, after_click=CHANCES, after_skip=CHANCES, attraction=ATTRACTIONS),
    st.builds(TrustBias, right=st.floats(0.7, 1), wrong=st.floats(0, 0.69), **PLACE),
)


def asked(*rows: list[float]) -> Requests:
    return Requests.of([range(len(row)) for row in rows], rows)


@st.composite
def requests(draw: st.DrawFn, max_candidates: int = 6) -> Requests:
    drawn = draw(slates(relevance=CHANCES, max_candidates=max_candidates))
    return asked(*(row[:size].tolist() for row, size in zip(drawn.relevance_BK, drawn.sizes_B, strict=True)))


def test_a_position_based_user_is_that_worked_by_hand():
    # the list 2 0 1 has attractions 0.2, 0.8, 0.5 and is looked at 1, 1/2, 1/3
    users, three = PositionBased(attraction=AS_IS), asked([0.8, 0.5, 0.2])
    assert users.examination_BK(three, [[2, 0, 1]])[0] == pytest.approx([1 / 2, 1 / 3, 1])
    assert users.click_probability_BK(three, [[2, 0, 1]])[0] == pytest.approx([0.4, 0.5 / 3, 0.2])
    assert users.expected_clicks_B(three, [[2, 0, 1]]) == pytest.approx([0.4 + 0.5 / 3 + 0.2])
    # a click on 2 and on nothing else: 0.2 * (1 - 0.4) * (1 - 0.5 / 3)
    assert users.log_likelihood_B(three, [[0, 0, 1]], [[2, 0, 1]]) == pytest.approx([math.log(0.2 * 0.6 * (2.5 / 3))])


@pytest.mark.parametrize(
    ("users", "examination"),
    [
        (PositionBased(eta=2), [1, 1 / 4, 1 / 9]),
        (PositionBased(eta=0), [1, 1, 1]),
        (PositionBased(curve="log2"), [1, 1 / math.log2(3), 1 / 2]),
        (PositionBased(curve=(0.9, 0.4, 0.6, 0.1)), [0.9, 0.4, 0.6]),
        (PositionBased(curve=(0.9, 0.4, 0.6), eta=2), [0.81, 0.16, 0.36]),
        # attractions 0.8, 0.5: the cascade stops at a click, so 1, 0.2, 0.2 * 0.5
        (Cascade(attraction=AS_IS), [1, 0.2, 0.1]),
        # after a click half go on: 0.8 / 2 + 0.2 = 0.6, then 0.6 * (0.5 / 2 + 0.5)
        (Cascade(after_click=0.5, attraction=AS_IS), [1, 0.6, 0.45]),
        # half go on after the first click, a quarter after the second: 0.6, then 0.6 * (0.5 / 4 + 0.5)
        (Cascade(after_click=(0.5, 0.25, 0.0), attraction=AS_IS), [1, 0.6, 0.375]),
        # and nine in ten where nothing was clicked: 0.2 * 0.9, then 0.18 * 0.5 * 0.9
        (Cascade(after_skip=0.9, attraction=AS_IS), [1, 0.18, 0.081]),
        (Cascade(after_skip=(0.9, 0.5, 0.1), attraction=AS_IS), [1, 0.18, 0.045]),
        (Cascade(after_click=1, attraction=AS_IS), [1, 1, 1]),
    ],
)
def test_how_far_users_look_is_that_worked_by_hand(users, examination):
    assert users.examination_BK(asked([0.8, 0.5, 0.2]))[0] == pytest.approx(examination)


def test_trust_makes_clicks_of_what_does_not_please_as_worked_by_hand():
    # looked at 1, 1/2; of 0.5 who are pleased 0.9 click; of the others 0.6 at the first place and 0.3 at the second
    users = TrustBias(right=0.9, wrong=0.6, attraction=AS_IS)
    assert users.click_probability_BK(asked([0.5, 0.5]))[0] == pytest.approx([0.45 + 0.3, (0.45 + 0.15) / 2])
    slope_K, offset_K = users.affine_K(2)
    assert slope_K == pytest.approx([0.3, 0.3])
    assert offset_K == pytest.approx([0.6, 0.15])
    measured = TrustBias(right=(0.9, 0.8), wrong=(0.5, 0.1), eta=0, attraction=AS_IS)
    assert measured.click_probability_BK(asked([0.5, 0.25]))[0] == pytest.approx([0.7, 0.2 + 0.075])
    assert TrustBias(wrong=0, right=1, attraction=AS_IS).click_probability_BK(asked([0.5, 0.25]))[0] == pytest.approx(
        PositionBased(attraction=AS_IS).click_probability_BK(asked([0.5, 0.25]))[0]
    )


def test_attraction_is_the_stated_map_of_relevance():
    # (2^1 - 1) / (2^2 - 1) = 1/3 of the way from 0.1 to 0.7, and half of it where gains are linear
    graded = asked([0, 1, 2])
    assert Grades(max_grade=2, most=0.7).probabilities_BK(graded)[0] == pytest.approx([0.1, 0.3, 0.7])
    assert Grades(max_grade=2, most=0.7, gains="linear").probabilities_BK(graded)[0] == pytest.approx([0.1, 0.4, 0.7])


@given(
    st.lists(st.floats(0, 30), min_size=2, max_size=6),
    st.floats(0, 0.5),
    st.floats(0.5, 1, exclude_min=True),
    st.sampled_from(["exp2", "linear"]),
)
def test_attraction_rises_with_relevance_from_least_to_most(relevance, least, most, gains):
    relevance = sorted([0, *relevance, 30])
    (values_K,) = Grades(30, least, most, gains).probabilities_BK(asked(relevance))
    assert (np.diff(values_K) >= 0).all()
    assert values_K[0] == least
    assert values_K[-1] == pytest.approx(most)
    assert ((values_K >= least) & (values_K <= most)).all()


def outcomes_by_place(see, right, wrong, attractions):
    """Every set of clicks with its probability, places independent: written out from the definition."""
    chances = [e * (r * g + w * (1 - g)) for e, r, w, g in zip(see, right, wrong, attractions, strict=True)]
    return {
        clicks: math.prod(p if click else 1 - p for click, p in zip(clicks, chances, strict=True))
        for clicks in itertools.product([0, 1], repeat=len(attractions))
    }


def outcomes_down_the_list(after_click, after_skip, attractions):
    """Every set of clicks with its probability: one user at a time down the list, every branch followed."""
    found = dict.fromkeys(itertools.product([0, 1], repeat=len(attractions)), 0.0)

    def follow(clicks, chance):
        if len(clicks) == len(attractions):
            found[clicks] += chance
            return
        g = attractions[len(clicks)]
        for click, p in ((1, g), (0, 1 - g)):
            onward = after_click[len(clicks)] if click else after_skip
            follow((*clicks, click), chance * p * onward)
            left = (*clicks, click, *[0] * (len(attractions) - len(clicks) - 1))
            found[left] += chance * p * (1 - onward)

    # whoever looks at the last place has nowhere to go on to, so both branches above end in the same outcome
    follow((), 1.0)
    return found


HARMONIC = [1 / i for i in range(1, 7)]
ENUMERATED: list[tuple[ClickModel, Callable[[list[float]], dict[tuple[int, ...], float]]]] = [
    (PositionBased(attraction=AS_IS), partial(outcomes_by_place, HARMONIC, [1] * 6, [0] * 6)),
    (TrustBias(attraction=AS_IS), partial(outcomes_by_place, HARMONIC, [0.98] * 6, [0.65 / i for i in range(1, 7)])),
    (Cascade(attraction=AS_IS), partial(outcomes_down_the_list, [0] * 6, 1)),
    (Cascade(0.6, attraction=AS_IS), partial(outcomes_down_the_list, [0.6] * 6, 1)),
    (
        Cascade((0.9, 0.5, 0.0, 1.0, 0.2, 0.7), 0.8, attraction=AS_IS),
        partial(outcomes_down_the_list, [0.9, 0.5, 0.0, 1.0, 0.2, 0.7], 0.8),
    ),
]
SIX = asked([0.3, 0.9, 0.0, 0.6, 0.45, 1.0], [0.2, 0.7, 0.1, 0.5], [0.5, 0.8])
SHOWN = np.array([[4, 0, 3, 1, 5, 2], [2, 3, 0, 1, -1, -1], [1, 0, -1, -1, -1, -1]])


@pytest.mark.parametrize(("users", "outcomes"), ENUMERATED, ids=lambda x: str(x) if isinstance(x, ClickModel) else "")
def test_probabilities_are_those_of_enumerating_every_session(users, outcomes):
    for row, size in enumerate(SIX.sizes_B.tolist()):
        order = SHOWN[row, :size]
        short = {
            "pbm": lambda g: outcomes_by_place(HARMONIC[: len(g)], [1] * len(g), [0] * len(g), g),
            "trust": lambda g: outcomes_by_place(
                HARMONIC[: len(g)], [0.98] * len(g), [0.65 / i for i in range(1, len(g) + 1)], g
            ),
        }.get(users.name, outcomes)
        chances = short(SIX.relevance_BK[row, order].tolist())
        assert sum(chances.values()) == pytest.approx(1, abs=1e-12)
        alone, sets = SIX.take([row]), np.array(list(chances))
        clicked_K = np.array(list(chances.values())) @ sets
        ranking = SHOWN[row : row + 1]
        assert users.click_probability_BK(alone, ranking)[0, order] == pytest.approx(clicked_K, abs=1e-12)
        assert users.expected_clicks_B(alone, ranking) == pytest.approx(clicked_K.sum(), abs=1e-12)
        logs_BK = np.zeros((len(sets), 6))
        logs_BK[:, order] = sets
        many = SIX.take(np.full(len(sets), row))
        found_B = np.exp(users.log_likelihood_B(many, logs_BK, np.repeat(ranking, len(sets), axis=0)))
        assert found_B == pytest.approx(list(chances.values()), abs=1e-12)


@given(st.data(), MODELS)
def test_everything_is_a_probability_and_0_where_padded(data, users):
    some = data.draw(requests())
    shown_BK = data.draw(rankings_of(some.slates))
    seen_BK, clicked_BK = users.examination_BK(some, shown_BK), users.click_probability_BK(some, shown_BK)
    drawn_BK = users.sample(some, shown_BK, rng=np.random.default_rng(0))
    real_BK = some.slates.mask_BK
    for values_BK in (users.attraction_BK(some), seen_BK, clicked_BK, drawn_BK):
        assert ((values_BK >= 0) & (values_BK <= 1)).all()
        assert (values_BK[~real_BK] == 0).all()
    assert (clicked_BK <= seen_BK * (1 + 1e-12)).all()
    assert set(np.unique(drawn_BK)) <= {0.0, 1.0}
    # what was drawn is possible
    assert (users.log_likelihood_B(some, drawn_BK, shown_BK) > -np.inf).all()


STEEP = st.sampled_from([0.0, 5e-324, 1.0, 700.0, 1000.0, 2000.0, 1e308]) | st.floats(0, 1e6)
TINY = st.sampled_from([5e-324, 1e-300, 0.5, 1.0]) | st.floats(0, 1, exclude_min=True)
ANY_CHANCE = TINY | st.just(0.0)
EXTREME_PLACE = {
    "eta": STEEP,
    "curve": st.sampled_from(["power", "log2"]) | st.lists(TINY, min_size=6, max_size=6).map(tuple),
    "attraction": ATTRACTIONS,
}
EXTREME: st.SearchStrategy[ClickModel] = st.one_of(
    st.builds(PositionBased, **EXTREME_PLACE),
    st.builds(TrustBias, right=st.floats(1e-300, 1), wrong=st.sampled_from([0.0, 5e-324]), **EXTREME_PLACE),
    st.builds(TrustBias, right=st.just(1.0), wrong=st.floats(0, 1, exclude_max=True), **EXTREME_PLACE),
    st.builds(
        Cascade,
        after_click=ANY_CHANCE,
        after_skip=st.lists(ANY_CHANCE, min_size=6, max_size=6).map(tuple),
        attraction=ATTRACTIONS,
    ),
)


@given(st.data(), EXTREME)
def test_probabilities_stay_probabilities_however_steep_examination_is(data, users):
    some = data.draw(requests())
    shown_BK = data.draw(rankings_of(some.slates))
    seen_BK, clicked_BK = users.examination_BK(some, shown_BK), users.click_probability_BK(some, shown_BK)
    drawn_BK = users.sample(some, shown_BK, rng=np.random.default_rng(0))
    for values_BK in (users.attraction_BK(some), seen_BK, clicked_BK, drawn_BK):
        assert np.isfinite(values_BK).all()
        assert ((values_BK >= 0) & (values_BK <= 1)).all()
    assert (clicked_BK <= seen_BK).all()
    assert np.isfinite(users.expected_clicks_B(some, shown_BK)).all()
    assert (users.log_likelihood_B(some, drawn_BK, shown_BK) > -np.inf).all()


def test_places_that_no_float_can_say_how_few_look_at_get_no_clicks():
    # 2^-2000 and less are 0 in floats; the first place is looked at by all, clicked by 0.8 and by 0.8 * 0.9 + 0.2 * 0.6
    two = asked([0.8, 0.5])
    assert PositionBased(eta=2000, attraction=AS_IS).click_probability_BK(two).tolist() == [[0.8, 0.0]]
    trusting = TrustBias(eta=2000, right=0.9, wrong=0.6, attraction=AS_IS)
    assert trusting.click_probability_BK(two)[0] == pytest.approx([0.84, 0.0])


@given(st.data(), MODELS)
def test_nobody_looks_at_a_lower_place_more(data, users):
    some = data.draw(requests())
    shown_BK = data.draw(rankings_of(some.slates))
    seen_BK = users.examination_BK(some, shown_BK)
    for row, size in enumerate(some.sizes_B.tolist()):
        assert (np.diff(seen_BK[row, shown_BK[row, :size]]) <= 1e-15).all()


@given(st.data(), MODELS)
def test_what_matters_is_what_is_shown_and_not_how_candidates_are_numbered(data, users):
    some = data.draw(requests())
    shown_BK = data.draw(rankings_of(some.slates))
    listed, incoming_BK = some.reordered(shown_BK), identity_rankings(some.sizes_B, some.candidates_BK.shape[1])
    clicks_BK = users.sample(some, shown_BK, rng=np.random.default_rng(1))
    again_BK = users.sample(listed, rng=np.random.default_rng(1))
    for row, size in enumerate(some.sizes_B.tolist()):
        order = shown_BK[row, :size]
        assert (clicks_BK[row, order] == again_BK[row, :size]).all()
        for question in (users.examination_BK, users.click_probability_BK):
            assert (question(some, shown_BK)[row, order] == question(listed)[row, :size]).all()
    assert (users.expected_clicks_B(listed) == users.expected_clicks_B(listed, incoming_BK)).all()
    assert users.log_likelihood_B(some, clicks_BK, shown_BK) == pytest.approx(users.log_likelihood_B(listed, again_BK))


@given(st.data(), MODELS)
def test_a_request_is_judged_the_same_in_any_batch_and_under_any_padding(data, users):
    some = data.draw(requests())
    together_BK = users.click_probability_BK(some)
    for row, size in enumerate(some.sizes_B.tolist()):
        alone = asked(some.relevance_BK[row, :size].tolist())
        assert (users.click_probability_BK(alone)[0] == together_BK[row, :size]).all()


FOUR = asked([0.3, 0.9, 0.05, 0.6])
DRAWN = 40_000
STANDARD_ERRORS = 4.5


@pytest.mark.parametrize("users", [users for users, _ in ENUMERATED[:4]], ids=str)
def test_sampled_frequencies_are_those_of_the_exact_probabilities(users):
    many = FOUR.take(np.zeros(DRAWN, dtype=int))
    shown_BK = np.tile([2, 1, 3, 0], (DRAWN, 1))
    clicks_BK = users.sample(many, shown_BK, rng=np.random.default_rng(7))
    p_K = users.click_probability_BK(FOUR, [[2, 1, 3, 0]])[0]
    assert (np.abs(clicks_BK.mean(axis=0) - p_K) <= STANDARD_ERRORS * np.sqrt(p_K * (1 - p_K) / DRAWN)).all()
    # and so is every one of the 16 sets of clicks, which says that they depend on each other as they should
    sets = np.array(list(itertools.product([0, 1], repeat=4)))
    p_O = np.exp(users.log_likelihood_B(FOUR.take(np.zeros(16, dtype=int)), sets, shown_BK[:16]))
    found_O = np.bincount((clicks_BK @ [8, 4, 2, 1]).astype(int), minlength=16) / DRAWN
    assert (np.abs(found_O - p_O) <= STANDARD_ERRORS * np.sqrt(p_O * (1 - p_O) / DRAWN)).all()


def test_clicks_under_dcg_examination_are_the_dcg_of_the_attraction():
    users = PositionBased(curve="log2", attraction=AS_IS)
    dcg_B = (np.take_along_axis(SIX.relevance_BK, np.maximum(SHOWN, 0), axis=1) * (SHOWN >= 0)) @ discounts(6)
    assert users.expected_clicks_B(SIX, SHOWN) == pytest.approx(dcg_B)


def test_long_lists_and_hopeless_clicks_have_a_likelihood_too():
    # 400 candidates that please half the users: nobody clicks with probability 0.5^400, in logarithms -277.26
    long = asked([0.5] * 400)
    assert Cascade(1.0, attraction=AS_IS).log_likelihood_B(long, np.zeros((1, 400))) == pytest.approx(
        [400 * math.log(0.5)]
    )
    assert Cascade(attraction=AS_IS).log_likelihood_B(asked([0.5, 0.5]), [[1, 1]]).tolist() == [-math.inf]
    assert PositionBased(attraction=AS_IS).log_likelihood_B(asked([1, 0]), [[0, 0]]).tolist() == [-math.inf]


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: PositionBased(eta=-1), "eta is -1.0; give 0 for no position bias"),
        (lambda: PositionBased(eta="x"), "eta is 'x'; expected a number"),
        (lambda: PositionBased(curve=(1.0, 0.0)), "curve is 0.0; give a probability above 0"),
        (lambda: PositionBased(curve=()), "curve names no place"),
        (lambda: PositionBased(curve="linear"), "unknown curve 'linear'"),
        (lambda: PositionBased(attraction=0.5), "attraction is 0.5; give one such as"),
        (lambda: Cascade(after_click=1.5), "after_click is 1.5; give a probability"),
        (lambda: Cascade(after_skip=-0.1), "after_skip is -0.1; give a probability"),
        (lambda: TrustBias(wrong=0.98), "at place 1 wrong is 0.98 and right 0.98; give less for wrong"),
        (lambda: TrustBias(right=(0.9, 0.2), wrong=(0.1, 0.3)), "at place 2 wrong is 0.3 and right 0.2"),
        (lambda: Grades(least=0.5, most=0.5), "least is 0.5 and most 0.5; give 0 <= least < most <= 1"),
        (lambda: Grades(max_grade=0), "max_grade is 0.0; give the top of your scale"),
        (lambda: Grades(max_grade=2000), "no more than 1000 with gains='exp2'"),
        (lambda: Grades(gains="exp"), "unknown gain 'exp'; did you mean 'exp2'"),
    ],
)
def test_parameters_that_make_no_users_are_refused(build, sentence):
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        build()


def test_requests_that_do_not_fit_are_refused():
    with pytest.raises(
        InputError, match=r"relevance of request 0, candidate 1 is 2.0, above max_grade 1.0; give grades"
    ):
        PositionBased().click_probability_BK(asked([0, 2]))
    with pytest.raises(InputError, match="curve has numbers for 2 places but lists have 3; give one a place"):
        PositionBased(curve=(1.0, 0.5)).examination_BK(asked([0, 1, 0]))
    with pytest.raises(RankingError, match="row 0 is no ranking of 2 candidates"):
        Cascade().sample(asked([0, 1]), [[0, 0]], rng=np.random.default_rng(0))
    for clicks in ([[0, 2]], [[0, 1, 0]], [[0.5, 0]]):
        with pytest.raises(InputError, match="give 0 or 1 a candidate"):
            Cascade().log_likelihood_B(asked([0, 1]), clicks)
    with pytest.raises(InputError, match="0 where padded"):
        Cascade().log_likelihood_B(asked([0, 1], [0, 1, 0]), [[0, 0, 1], [0, 0, 0]])


def test_an_empty_batch_has_empty_answers():
    nobody = asked([0, 1]).take([])
    for users in (PositionBased(), Cascade(), TrustBias()):
        assert users.click_probability_BK(
            nobody, padded(np.zeros((0, 2), dtype=int), np.zeros(0, dtype=int))
        ).shape == (0, 2)
        assert users.expected_clicks_B(nobody).shape == (0,)
        assert users.sample(nobody, rng=np.random.default_rng(0)).shape == (0, 2)
