"""Logs that users made up: what is shown and kept, the same in any batches, at any size, under any text of a model."""

import re
import tracemalloc
from dataclasses import dataclass, fields, replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.clicks import (
    Cascade,
    Given,
    Grades,
    PositionBased,
    TrustBias,
    logged,
    logged_in_batches,
    parse_click_model,
)
from rerank_env.clicks.models import ClickModel
from rerank_env.clicks.names import MODEL_OF
from rerank_env.data import Requests, load
from rerank_env.data.synthetic import build
from rerank_env.rewards import ClickCredit
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.rankings import random_rankings

GRADED = Grades(max_grade=2)
USERS = [PositionBased(attraction=GRADED), Cascade(0.3, attraction=GRADED), TrustBias(attraction=GRADED)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def ragged() -> Requests:
    return build(requests=200, slate_size=8, min_slate_size=3, seed=3)["train"]


@pytest.mark.parametrize("users", USERS, ids=str)
def test_a_log_holds_what_was_shown_with_clicks_and_the_exact_examination(users, ragged):
    shown_BK = random_rankings(ragged.sizes_B, 8, rng(1))
    log = logged(ragged, users, rankings=shown_BK, rng=rng())
    for row, size in enumerate(ragged.sizes_B.tolist()):
        order = shown_BK[row, :size]
        for field in ("candidates_BK", "scores_BK", "relevance_BK"):
            assert (getattr(log, field)[row, :size] == getattr(ragged, field)[row, order]).all()
        assert (log.canonical_BK[row, :size] == order).all()
        assert (log.propensities_BK[row, :size] == users.examination_BK(ragged, shown_BK)[row, order]).all()
        assert (log.clicks_BK[row, :size] == users.sample(ragged, shown_BK, rng=rng())[row, order]).all()
    assert 0 < log.clicks_BK.mean() < 1
    assert log.notes[-1] == f"clicks made up by {users} on rankings of the requests, 1 a request"
    assert ragged.clicks_BK is None


def test_the_incoming_order_is_shown_where_nothing_else_is_said(ragged):
    log = logged(ragged, "pbm(attraction=grades(max_grade=2))", rng=rng())
    assert log.candidates_BK is ragged.candidates_BK
    assert log.canonical_BK is None
    assert (log.propensities_BK == np.where(ragged.slates.mask_BK, 1 / np.arange(1, 9), 0)).all()
    assert "on the incoming order" in log.notes[-1]


def test_every_session_shows_the_request_anew(ragged):
    shown_BK = random_rankings(ragged.sizes_B, 8, rng(1))
    log = logged(ragged, USERS[0], rankings=shown_BK, rng=rng(), sessions=3)
    assert log.origins.tolist() == np.repeat(np.arange(200), 3).tolist()
    assert log.users_B.tolist() == np.repeat(ragged.users_B, 3).tolist()
    assert (log.canonical_BK == np.repeat(shown_BK, 3, axis=0)).all()
    first_BK, second_BK, third_BK = (log.clicks_BK[session::3] for session in range(3))
    assert (first_BK != second_BK).any()
    assert (second_BK != third_BK).any()


def test_predictions_stay_with_their_candidates_and_older_clicks_are_dropped(ragged):
    right = replace(ragged, predictions_BK=USERS[0].attraction_BK(ragged))
    shown_BK = random_rankings(ragged.sizes_B, 8, rng(1))
    log = logged(right, USERS[0], rankings=shown_BK, rng=rng())
    assert (log.predictions_BK == USERS[0].attraction_BK(log)).all()
    again = logged(log, USERS[1], rng=rng(5))
    assert (again.clicks_BK == USERS[1].sample(log, rng=rng(5))).all()
    assert (again.propensities_BK == USERS[1].examination_BK(log)).all()


@pytest.mark.parametrize("users", USERS, ids=str)
@pytest.mark.parametrize(("rows", "sessions"), [(1, 1), (7, 1), (7, 3), (64, 2), (10_000, 1)])
def test_a_log_is_the_same_wherever_its_batches_end(users, rows, sessions, ragged):
    whole = logged(ragged, users, rng=rng(), sessions=sessions)
    parts = list(logged_in_batches(ragged, users, rng=rng(), sessions=sessions, rows=rows))
    assert max(len(part) for part in parts) <= max(rows, sessions)
    for field in ("clicks_BK", "propensities_BK", "candidates_BK", "users_B", "origins"):
        assert (np.concatenate([getattr(part, field) for part in parts]) == getattr(whole, field)).all()
    halves = (ragged.take(np.arange(first, first + 100)) for first in (0, 100))
    streamed = list(logged_in_batches(halves, users, rng=rng(), sessions=sessions, rows=rows))
    assert (np.concatenate([part.clicks_BK for part in streamed]) == whole.clicks_BK).all()


def test_batches_can_be_shown_in_the_order_of_a_policy(ragged):
    def popular_first(requests: Requests) -> np.ndarray:
        order_BK = np.argsort(np.where(requests.slates.mask_BK, -requests.popularity_BK, np.inf), kind="stable")
        return np.where(requests.slates.mask_BK, order_BK, -1)

    whole = logged(ragged, USERS[1], rankings=popular_first(ragged), rng=rng())
    parts = list(logged_in_batches(ragged, USERS[1], rank=popular_first, rng=rng(), rows=30))
    assert (np.concatenate([part.clicks_BK for part in parts]) == whole.clicks_BK).all()
    assert (np.concatenate([part.candidates_BK for part in parts]) == whole.candidates_BK).all()
    assert (np.diff(whole.popularity_BK) <= 0).all()


def test_memory_does_not_grow_with_the_log():
    piece = load("synthetic", requests=4000, split="train")
    peaks = {}
    for pieces in (2, 12):
        tracemalloc.start()
        stream = logged_in_batches((piece for _ in range(pieces)), USERS[1], rng=rng(), rows=2000)
        assert sum(len(part) for part in stream) == 4000 * pieces
        peaks[pieces] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[12] < 1.2 * peaks[2]


def test_a_list_that_nobody_reads_to_the_end_cannot_be_logged(ragged):
    certain = Cascade(attraction=Grades(max_grade=2, most=1))
    with pytest.raises(InputError, match=r"nobody under cascade\(.*\) ever looks at place \d of request \d+; give an"):
        logged(ragged, certain, rng=rng())
    for sessions in (0, 1.5):
        with pytest.raises(InputError, match="sessions is"):
            logged(ragged, USERS[0], rng=rng(), sessions=sessions)
        with pytest.raises(InputError, match="sessions is"):
            logged_in_batches(ragged, USERS[0], rng=rng(), sessions=sessions)
    with pytest.raises(InputError, match="rows is 0"):
        logged_in_batches(ragged, USERS[0], rng=rng(), rows=0)


def test_given_attraction_follows_its_candidates_through_batches_shuffles_and_sessions(ragged):
    given_BK = rng(2).random(ragged.candidates_BK.shape)
    users = PositionBased(attraction=Given(ragged, given_BK))
    of = {
        (row, item): given_BK[row, column]
        for row in range(200)
        for column, item in enumerate(ragged.candidates_BK[row].tolist())
    }
    shuffled = ragged.reordered(random_rankings(ragged.sizes_B, 8, rng(4)))
    taken = shuffled.take(rng(5).permutation(200)[:50])
    log = logged(taken, users, rankings=random_rankings(taken.sizes_B, 8, rng(6)), rng=rng(), sessions=2)
    for requests in (ragged, shuffled, taken, log):
        found_BK = users.attraction_BK(requests)
        for row, origin in enumerate(requests.origins.tolist()):
            for column in range(int(requests.sizes_B[row])):
                assert found_BK[row, column] == of[origin, int(requests.candidates_BK[row, column])]
    # given for shuffled requests, asked of those that they came from
    late = Given(taken, users.attraction_BK(taken))
    assert (late.probabilities_BK(log) == np.where(log.slates.mask_BK, users.attraction_BK(log), 0)).all()
    assert str(users) == "pbm(attraction=given)"


def test_given_attraction_that_does_not_fit_is_refused(ragged):
    right_BK = np.full(ragged.candidates_BK.shape, 0.5)
    with pytest.raises(InputError, match=r"attraction has shape \(2, 2\)"):
        Given(ragged, np.zeros((2, 2)))
    with pytest.raises(InputError, match="attraction of request 0, candidate 1 is 1.5; expected a probability"):
        Given(ragged, right_BK + np.eye(200, 8, k=1))
    with pytest.raises(InputError, match="two of the requests are copies of one"):
        Given(ragged.take([0, 0]), right_BK[:2])
    users = PositionBased(attraction=Given(ragged, right_BK))
    other = build(requests=200, slate_size=8, min_slate_size=3, seed=4)["train"]
    for strangers in (other, build(requests=300, slate_size=8, seed=3)["train"], load("synthetic", requests=20)):
        with pytest.raises(InputError, match=r"request \d+ is none of those that the attraction was given for"):
            users.attraction_BK(strangers)


@dataclass(frozen=True)
class Broken:
    """An attraction of somebody else's that is wrong at one candidate."""

    value: float

    def probabilities_BK(self, requests: Requests) -> np.ndarray:
        return np.full(requests.candidates_BK.shape, self.value)


def test_attraction_of_your_own_is_checked(ragged):
    assert PositionBased(attraction=Broken(0.5)).expected_clicks_B(load("synthetic", requests=4))[0] == pytest.approx(
        0.5 * sum(1 / i for i in range(1, 11))
    )
    for value in (1.5, -0.1, float("nan")):
        with pytest.raises(InputError, match=r"of request 0, candidate 0 is .*; expected a probability"):
            PositionBased(attraction=Broken(value)).attraction_BK(ragged)
    with pytest.raises(InputError, match=r"has shape \(200, 8\) and dtype <U1; give one probability a candidate"):
        PositionBased(attraction=Broken("x")).attraction_BK(ragged)


CHANCE = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)
BY_PLACE = CHANCE | st.lists(CHANCE, min_size=1, max_size=3).map(tuple)
GRADES = st.builds(
    Grades,
    max_grade=st.integers(1, 5) | st.floats(0.5, 1000),
    least=st.floats(0, 0.4),
    most=st.floats(0.5, 1),
    gains=st.sampled_from(["exp2", "linear"]),
)
CURVE = st.sampled_from(["power", "log2"]) | st.lists(st.floats(0.1, 1), min_size=1, max_size=3).map(tuple)
PLACE = {"eta": st.floats(0, 9) | st.integers(0, 3), "curve": CURVE, "attraction": GRADES}
MODELS: st.SearchStrategy[ClickModel] = st.one_of(
    st.builds(PositionBased, **PLACE),
    st.builds(Cascade, after_click=BY_PLACE, after_skip=BY_PLACE, attraction=GRADES),
    st.builds(TrustBias, right=st.floats(0.7, 1), wrong=st.sampled_from([0.1, (0.5, 0.2)]), **PLACE),
)


@given(MODELS)
@settings(max_examples=200)
def test_the_text_of_a_model_reads_back(model):
    again = parse_click_model(str(model))
    assert again == model
    assert hash(again) == hash(model)
    assert str(again) == str(model)
    assert parse_click_model(model) is model


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("pbm", PositionBased()),
        ("pbm()", PositionBased()),
        (" cascade( after_click = [0.5, 0] ) ", Cascade(after_click=(0.5, 0))),
        ("pbm(eta=0.5, curve='log2')", PositionBased(eta=0.5, curve="log2")),
        ("trust(wrong=(0.4, 0.1), attraction=grades)", TrustBias(wrong=(0.4, 0.1))),
    ],
)
def test_texts_of_models_are_read_as_written(text, model):
    assert parse_click_model(text) == model


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "0 characters cannot be read"),
        ("pbm(eta=1", "is not an expression"),
        ("pbm(1)", r"pbm\(1\) is no click model; write its name with keywords"),
        ("pbm + cascade", "is no click model"),
        ("pbm(eta=-1)", "eta is -1.0"),
        ("pbm(eta=True)", "eta=True cannot be read"),
        ("pbm(eta=grades)", "eta=grades cannot be read; give a number"),
        ("pbm(attraction='grades')", "attraction is 'grades'; give one such as"),
        ("pbm(eta=__import__('os'))", "cannot be read"),
        ("(" * 3000 + ")" * 3000, "is not an expression"),
        ("pbm(eta=" + "-" * 5000 + "1)", "is not an expression"),
        ("pbm(eta=1" + "0" * 5000 + ")", "is not an expression"),
        ("pbm(eta=1if 1else 2)", "cannot be read"),
        ("x" * 20_000, "20000 characters cannot be read"),
        (7, "given as text or as a ClickModel, not as int"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_click_model(text)


@pytest.mark.parametrize(
    ("called", "field"),
    [(kind, field.name) for kind in (*MODEL_OF.values(), Grades) for field in fields(kind)],
    ids=lambda part: part if isinstance(part, str) else part.name,
)
def test_a_parameter_that_is_given_twice_is_refused_whichever_it_is(called, field):
    twice = f"{called.name}({field}=1, {field}=0)".replace("attraction=1", "attraction=grades")
    text = f"pbm(attraction={twice})" if called is Grades else twice
    with pytest.raises(InputError, match=rf"{re.escape(twice)} gives {field} twice; give it once"):
        parse_click_model(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cascad", "unknown click model 'cascad'; did you mean 'cascade'"),
        ("pbm(etta=1)", "unknown parameter of pbm 'etta'; did you mean 'eta'"),
        ("pbm(**eta)", r"unknown parameter of pbm '\*\*'"),
        ("pbm(attraction=grade())", "unknown attraction 'grade'; did you mean 'grades'"),
    ],
)
def test_names_that_do_not_exist_are_refused_with_the_nearest(text, sentence):
    with pytest.raises(UnknownNameError, match=sentence):
        parse_click_model(text)


def test_an_environment_pays_by_the_clicks_of_a_log(ragged):
    log = logged(ragged, USERS[0], rng=rng())
    env = gym.make("rerank_env:Rerank-v0", data=log, reward="click_credit(min_propensity=0.125)")
    _, info = env.reset(seed=1)
    row = int(info["request"])
    ranking = np.arange(8)[::-1]
    answer = np.concatenate([ranking[ranking < log.sizes_B[row]], np.zeros(8 - log.sizes_B[row], dtype=int)])
    _, reward, *_ = env.step(answer)
    paid = ClickCredit(min_propensity=0.125)(answer[None], log.slates.take([row]))
    assert reward == pytest.approx(paid[0])


def test_the_page_on_clicks_runs_and_names_every_model_with_what_reads_back():
    page = (Path(__file__).parent.parent / "docs" / "clicks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block, {})  # asserts by itself
    texts = re.findall(r"^\| `((?:pbm|cascade|trust).*?)` \|", page, re.MULTILINE)
    assert {parse_click_model(text).name for text in texts} == set(MODEL_OF)
    assert f"`{Grades(1, 0.1, 0.9)}(max_grade=1, least=0.1, most=0.9)`" in page  # the defaults, which print as nothing
