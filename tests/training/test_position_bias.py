"""The position-bias report: known values for policies that copy, read or guess, and plain loops beside it."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from rerank_env.agents import Incoming, Random
from rerank_env.data import Requests, load
from rerank_env.rewards import parse_reward, rankings
from rerank_env.rewards.counterfactual import shuffled_groups
from rerank_env.rewards.errors import InputError
from rerank_env.training.position_bias import position_bias

SHUFFLES = 4


class ByScore:
    """Sorts by the earlier stage's scores, which travel with the candidates."""

    def rank(self, requests, *, rng):
        del rng
        answers_BK, _ = rankings.from_scores(requests.scores_BK, requests.sizes_B, ties="refuse")
        return answers_BK


class FirstSlotElseByScore:
    """Always answers the first slot first, and sorts the rest by score."""

    def rank(self, requests, *, rng):
        del rng
        scores_BK = requests.scores_BK.copy()
        scores_BK[:, 0] = 1e9
        answers_BK, _ = rankings.from_scores(scores_BK, requests.sizes_B, ties="refuse")
        return answers_BK


class Sloppy:
    """Answers at random, half the time with a candidate named twice; remembers what it said."""

    def __init__(self) -> None:
        self.said: list[np.ndarray] = []

    def rank(self, requests, *, rng):
        answers_BK = Random().rank(requests, rng=rng)
        spoilt_B = rng.random(len(answers_BK)) < 0.5
        answers_BK[spoilt_B, 1] = answers_BK[spoilt_B, 0]
        self.said.append(answers_BK)
        return answers_BK


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", split="test", requests=400, slate_size=6)


@pytest.fixture(scope="module")
def ragged() -> Requests:
    return load("synthetic", split="test", requests=400, slate_size=6, min_slate_size=2)


def test_a_policy_that_copies_has_all_the_lift_in_the_first_slot(requests) -> None:
    found = position_bias(Incoming(), requests, shuffles=8, resamples=200)
    assert [slot.lift.value for slot in found.slots] == [6.0, 0, 0, 0, 0, 0]
    assert [slot.mean_place.value for slot in found.slots] == [1, 2, 3, 4, 5, 6]
    assert {slot.chance_place for slot in found.slots} == {3.5}
    assert found.copying == (1.0, 1.0, 1.0)
    # its two answers are two random orders: tau 0, half of the pairs flipped, places of variance (36 - 1) / 12
    assert found.kendall_tau.low < 0.02 and found.kendall_tau.high > -0.02
    assert found.flip_rate.value == pytest.approx(0.5, abs=0.01)
    assert found.chance_place_variance == pytest.approx(35 / 12)
    assert found.place_variance.value == pytest.approx(35 / 12, rel=0.03)
    assert found.metric_variance.low > 0.01


def test_a_policy_that_sorts_by_score_does_not_notice_the_order(requests) -> None:
    found = position_bias(ByScore(), requests, shuffles=8, resamples=200)
    for interval in (found.kendall_tau, found.flip_rate, found.place_variance, found.metric_variance):
        assert interval.low == interval.value == interval.high
    assert (found.kendall_tau.value, found.flip_rate.value, found.place_variance.value) == (1.0, 0.0, 0.0)
    assert found.metric_variance.value == 0.0
    assert found.metric_mean.value == pytest.approx(parse_reward("ndcg@10")(*_kept(requests)).mean())
    for slot in found.slots:  # 200 requests under 8 orders: the lift has a standard deviation of sqrt(5 / 1600)
        assert slot.lift.value == pytest.approx(1, abs=4 * np.sqrt(5 / 1600))
    assert found.copying.identity_rate < 0.02


def _kept(requests):
    """The requests in the order of their scores, which is the incoming one."""
    return ByScore().rank(requests, rng=None), requests.slates


def test_random_answers_have_no_lift_and_no_agreement(requests) -> None:
    found = position_bias(Random(), requests, shuffles=8, resamples=200)
    assert found.kendall_tau.value == pytest.approx(0, abs=0.02)
    assert found.place_variance.value == pytest.approx(35 / 12, rel=0.03)
    for slot in found.slots:
        assert slot.lift.value == pytest.approx(1, abs=4 * np.sqrt(5 / 1600))
        assert slot.mean_place.value == pytest.approx(3.5, abs=4 * np.sqrt(35 / 12 / 1600))
    # of 720 orders one is the identity, and 1 + 5 + 14 are within two swaps (Mahonian numbers)
    assert found.copying.near_identity_rate == pytest.approx(20 / 720, abs=4 * np.sqrt(20 / 720 / 1600))


def test_a_bias_for_one_slot_shows_in_that_slot(requests) -> None:
    found = position_bias(FirstSlotElseByScore(), requests, shuffles=8, resamples=200)
    assert [slot.lift.value for slot in found.slots] == [6.0, 0, 0, 0, 0, 0]
    assert found.slots[0].mean_place.value == 1
    assert found.slots[5].mean_place.low > found.slots[5].chance_place
    assert 0.3 < found.kendall_tau.value < 0.9


def test_requests_of_any_size_weigh_alike(ragged) -> None:
    assert len(np.unique(ragged.sizes_B)) == 5
    found = position_bias(Incoming(), ragged, shuffles=SHUFFLES, resamples=50)
    assert [slot.answers for slot in found.slots] == [
        SHUFFLES * int((ragged.sizes_B >= place).sum()) for place in range(1, 7)
    ]
    assert found.slots[0].lift.value == pytest.approx(ragged.sizes_B.mean())  # each request's own size
    assert [slot.mean_place.value for slot in found.slots] == pytest.approx([1, 2, 3, 4, 5, 6])
    assert found.slots[4].chance_place == pytest.approx((ragged.sizes_B[ragged.sizes_B >= 5].mean() + 1) / 2)


def test_numbers_are_those_of_plain_loops_over_valid_answers(ragged) -> None:
    policy = Sloppy()
    found = position_bias(policy, ragged, shuffles=SHUFFLES, seed=3, resamples=20)
    groups = shuffled_groups(ragged.slates, SHUFFLES, np.random.default_rng([3, 0]))
    said_BSK = np.stack(policy.said, axis=1)
    metric = parse_reward("ndcg@10")
    taus, flips, squares, scores, gaps, lifts, valid = [], [], [], [], [], [], 0
    for b, size in enumerate(ragged.sizes_B.tolist()):
        places = {}
        for s in range(SHUFFLES):
            row = b * SHUFFLES + s
            answer = said_BSK[b, s, :size]
            if sorted(answer) != list(range(size)):
                continue
            valid += 1
            lifts.append(size * (answer[0] == 0))
            scores.append(metric(said_BSK[b, s][None], groups.slates.take([row]))[0])
            names = groups.slates.canonical_BK[row, answer]
            places[s] = (np.argsort(names), scores[-1])
        for (one, score), (other, second) in itertools.combinations(places.values(), 2):
            pairs = list(itertools.combinations(range(size), 2))
            flipped = np.mean([(one[i] < one[j]) != (other[i] < other[j]) for i, j in pairs])
            flips.append(flipped)
            taus.append(1 - 2 * flipped)
            squares.append(((one - other) ** 2).mean() / 2)
            gaps.append((score - second) ** 2 / 2)
    assert found.validity == pytest.approx(valid / (len(ragged) * SHUFFLES))
    assert 0.4 < found.validity < 0.6
    assert found.slots[0].lift.value == pytest.approx(np.mean(lifts))
    assert found.kendall_tau.value == pytest.approx(np.mean(taus), abs=1e-12)
    assert found.flip_rate.value == pytest.approx(np.mean(flips))
    assert found.place_variance.value == pytest.approx(np.mean(squares))
    assert found.metric_mean.value == pytest.approx(np.mean(scores))
    assert found.metric_variance.value == pytest.approx(np.mean(gaps))


def test_intervals_hold_the_value_and_the_seed_decides_everything(requests) -> None:
    one, same, other = (position_bias(Random(), requests, seed=seed, resamples=100) for seed in (1, 1, 2))
    assert one == same
    assert one.kendall_tau != other.kendall_tau
    for interval in (one.kendall_tau, one.flip_rate, one.place_variance, one.metric_mean, one.metric_variance):
        assert interval.low < interval.value < interval.high


def test_without_two_valid_answers_to_a_request_nothing_is_said_of_agreement() -> None:
    class Broken:
        def rank(self, requests, *, rng):
            return np.zeros(requests.candidates_BK.shape, dtype=np.int64)

    found = position_bias(Broken(), Requests.of([[0, 1, 2]], [[0, 0, 1]]), shuffles=2, resamples=10)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert found.validity == 0.0
    assert record["kendall_tau"] == {"value": None, "low": None, "high": None}
    assert record["slots"] == [] and record["copying"]["identity_rate"] is None
    assert "0.0% of the answers valid" in str(found)


def test_the_table_and_the_record_say_the_same(requests) -> None:
    found = position_bias(Incoming(), requests, shuffles=2, resamples=20, metric="mrr")
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["metric"] == "mrr" and record["n_requests"] == len(requests) and record["shuffles"] == 2
    assert record["slots"][0]["lift"] == {"value": 6.0, "low": 6.0, "high": 6.0}
    lines = str(found).splitlines()
    assert len(lines) == 2 + 6 + 1 + 6 + 3
    assert max(map(len, lines)) <= 80
    assert f"{found.metric_mean.value:.4f}" in lines[5] and lines[5].startswith("mrr")
    assert lines[9].split()[:2] == ["1", "6.0000"]
    assert [line.split(":")[0] for line in lines[-3:]] == ["lift", "variance", "flip rate"]


def test_useless_arguments_are_refused_in_a_sentence(requests) -> None:
    class Flat:
        def rank(self, requests, *, rng):
            return np.arange(6)

    with pytest.raises(InputError, match="no requests to ask about"):
        position_bias(Incoming(), requests.take([]))
    with pytest.raises(InputError, match="shuffles is 1"):
        position_bias(Incoming(), requests, shuffles=1)
    with pytest.raises(InputError, match=r"policy 'under test' gave no rankings: .*shape \(6,\)"):
        position_bias(Flat(), requests)
    with pytest.raises(InputError, match="needs clicks"):
        position_bias(Incoming(), requests, metric="click_credit")
    with pytest.raises(InputError, match="needs step, which is not known here; .*take a metric without a schedule"):
        position_bias(Incoming(), requests, metric="linear(start=1, end=0, steps=10)")
    with pytest.raises(InputError, match="needs tokens, .*take a metric of rankings"):
        position_bias(Incoming(), requests, metric="length(most=10)")


def test_requests_that_were_put_in_another_order_can_be_asked_about(requests) -> None:
    order = rankings.random_rankings(requests.sizes_B, requests.candidates_BK.shape[1], np.random.default_rng(5))
    found = position_bias(Incoming(), requests.reordered(order), shuffles=4)
    assert found.slots[0].lift.value == pytest.approx(requests.candidates_BK.shape[1])
