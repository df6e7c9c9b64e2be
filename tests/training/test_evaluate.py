"""The comparison table: its numbers by hand, its baselines, and how it unmasks a policy that copies its input."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rerank_env.agents import Popularity
from rerank_env.data import Catalog, Requests, load
from rerank_env.rewards import rankings
from rerank_env.rewards.errors import InputError, RerankError
from rerank_env.training.evaluate import METRICS, evaluate


class Scripted:
    """Answers with given rankings on the requests as they came, and with the incoming order on shuffled ones."""

    def __init__(self, *answers) -> None:
        self.answers = [np.array(answer) for answer in answers]

    def rank(self, requests, *, rng):
        del rng
        incoming = rankings.identity_rankings(requests.sizes_B, requests.candidates_BK.shape[1])
        return self.answers.pop(0) if self.answers else incoming


class ByItem:
    """Reads the items: candidates by descending item number, whatever order they arrive in."""

    def rank(self, requests, *, rng):
        del rng
        keys = np.where(requests.candidates_BK >= 0, -requests.candidates_BK, 10_000)
        return rankings.padded(np.argsort(keys, axis=1, kind="stable"), requests.sizes_B)


def two_requests() -> Requests:
    return Requests(
        catalog=Catalog(
            texts=tuple("abcdef"),
            features_IF=np.zeros((6, 1), dtype=np.float32),
            feature_names=("zero",),
            popularity_I=np.arange(6.0),
        ),
        users_B=np.array([4, 9]),
        history_BH=np.array([[0], [1]]),
        feedback_BH=np.ones((2, 1), dtype=np.float32),
        candidates_BK=np.array([[1, 2, 3], [4, 5, -1]]),
        scores_BK=np.zeros((2, 3), dtype=np.float32),
        relevance_BK=np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]]),
        sizes_B=np.array([3, 2]),
        name="two by hand",
    )


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", split="test", requests=400, slate_size=7, min_slate_size=3)


def test_means_are_those_worked_by_hand() -> None:
    # request 0, gains (0, 1, 2), answer 2, 1, 0: ideal, so ndcg@3 = 1, recall@1 = 1/2, recall@3 = 1, mrr = 1
    # request 1, gains (1, 0), answer 1, 0: ndcg@3 = 1 / log2(3), recall@1 = 0, recall@3 = 1, mrr = 1/2, auc = 0
    found = evaluate(two_requests(), {"hand": Scripted([[2, 1, 0], [1, 0, -1]])}, seed=0, resamples=20)
    expected = {
        "ndcg@3": (1 + 1 / np.log2(3)) / 2,
        "recall@1": (0.5 + 0.0) / 2,
        "recall@3": 1.0,
        "mrr": (1.0 + 0.5) / 2,
        "auc": (1.0 + 0.0) / 2,
    }
    for metric, value in expected.items():
        assert found.mean("hand", metric).value == pytest.approx(value, abs=1e-12)
    # the incoming order: request 0 has ndcg@3 = (1 / log2(3) + 2 / 2) / (2 + 1 / log2(3)), request 1 is ideal
    discount = 1 / np.log2(3)
    incoming = ((discount + 1) / (2 + discount) + 1) / 2
    assert found.mean("incoming", "ndcg@3").value == pytest.approx(incoming, abs=1e-12)
    assert found.gain("hand", "ndcg@3").value == pytest.approx(expected["ndcg@3"] - incoming, abs=1e-12)
    row = found.rows["hand"]
    # kendall tau to the incoming order is -1 for both reversals, and neither equals it
    assert (row.validity, row.identity_rate, row.kendall_tau) == (1.0, 0.0, -1.0)
    # three candidates reversed are three swaps away, two candidates one, of which two count as near
    assert row.near_identity_rate == 0.5


def test_invalid_answers_are_counted_score_zero_and_leave_the_signs_of_copying_alone() -> None:
    found = evaluate(two_requests(), {"half": Scripted([[0, 0, 1], [0, 1, -1]])}, seed=0, resamples=20)
    row = found.rows["half"]
    assert (row.validity, row.identity_rate, row.near_identity_rate, row.kendall_tau) == (0.5, 1.0, 1.0, 1.0)
    assert row.values["ndcg@10"].tolist() == [0.0, 1.0]
    none = evaluate(two_requests(), {"none": Scripted([[7, 7, 7], [-1, -1, -1]])}, seed=0, resamples=20)
    assert none.rows["none"].validity == 0.0
    nothing = none.to_dict()["rows"]["none"]
    assert nothing["identity_rate"] is nothing["near_identity_rate"] is None


def test_the_baselines_are_what_they_are_called(requests) -> None:
    found = evaluate(requests, {}, seed=0, resamples=200)
    assert list(found.rows) == ["incoming", "random", "oracle"]
    assert found.rows["incoming"].identity_rate == 1.0
    for metric in METRICS:
        assert found.mean("oracle", metric).value >= found.mean("incoming", metric).value
        zero = found.gain("incoming", metric)
        assert (zero.value, zero.low, zero.high) == (0.0, 0.0, 0.0)
    assert found.mean("oracle", "ndcg@10").value == 1.0
    assert found.gain("oracle", "ndcg@10").is_gain
    assert not found.difference("incoming", "oracle", "ndcg@10").is_gain
    assert abs(found.rows["random"].kendall_tau) < 0.1


def test_shuffling_unmasks_a_policy_that_copies_and_spares_one_that_reads(requests) -> None:
    found = evaluate(requests, {"reader": ByItem()}, seed=0, resamples=200)
    reader = found.rows["reader"]
    assert reader.agreement == 1.0
    for metric in METRICS:
        np.testing.assert_allclose(reader.shuffled[metric], reader.values[metric], rtol=1e-12)
        assert found.drop("reader", metric).value == pytest.approx(0.0, abs=1e-12)
    # echoing the order is worth as much as a random order once the order is random
    assert found.drop("incoming", "ndcg@10").low > 0
    same = found.bootstrap.difference(
        found._column("incoming", "ndcg@10", shuffled=True), found._column("random", "ndcg@10")
    )
    assert same.low < 0 < same.high
    assert abs(found.rows["incoming"].agreement) < 0.1


def test_several_seeds_of_one_policy_are_averaged_request_by_request() -> None:
    def one() -> Scripted:
        return Scripted([[2, 1, 0], [1, 0, -1]])

    def other() -> Scripted:
        return Scripted([[0, 1, 2], [0, 1, -1]])

    pooled = evaluate(two_requests(), {"p": [one(), other()]}, seed=0, resamples=50)
    first = evaluate(two_requests(), {"p": one()}, seed=0, resamples=50)
    second = evaluate(two_requests(), {"p": other()}, seed=0, resamples=50)
    assert pooled.rows["p"].seeds == 2
    for metric in METRICS:
        mean = (first.rows["p"].values[metric] + second.rows["p"].values[metric]) / 2
        np.testing.assert_allclose(pooled.rows["p"].values[metric], mean, rtol=1e-12)
    assert pooled.rows["p"].identity_rate == 0.5
    assert pooled.rows["p"].near_identity_rate == (0.5 + 1.0) / 2


def test_adding_a_policy_leaves_every_other_row_as_it_was(requests) -> None:
    alone = evaluate(requests, {"popularity": Popularity()}, seed=3, resamples=50).to_dict()["rows"]
    beside = evaluate(requests, {"reader": ByItem(), "popularity": Popularity()}, seed=3, resamples=50).to_dict()[
        "rows"
    ]
    for name in ("incoming", "random", "oracle", "popularity"):
        assert_close(beside[name], alone[name])


def assert_close(one, two) -> None:
    """Equal up to the last bits of a matrix product whose width differs."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_close(one[key], two[key])
    else:
        assert one == pytest.approx(two, abs=1e-12)


def test_the_seed_decides_everything(requests) -> None:
    one, same, other = (evaluate(requests, {}, seed=seed, resamples=50).to_dict() for seed in (1, 1, 2))
    assert one == same
    assert one["rows"]["random"] != other["rows"]["random"]


def test_the_numbers_are_ready_for_json(requests) -> None:
    found = evaluate(requests, {"reader": ByItem()}, seed=0, resamples=50, metrics=("ndcg@10", "hit@1"))
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["n_requests"] == len(requests)
    assert record["n_users"] == len(np.unique(requests.users_B))
    row = record["rows"]["reader"]
    assert set(row["metrics"]) == {"ndcg@10", "hit@1"}
    for view in ("metrics", "gain", "shuffled", "drop"):
        assert row[view]["ndcg@10"]["low"] <= row[view]["ndcg@10"]["value"] <= row[view]["ndcg@10"]["high"]


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"oracle": ByItem()}, "name of a baseline"),
        ({"empty": []}, "has no seeds"),
        ({"flat": Scripted([0, 1, 2])}, r"policy 'flat' gave no rankings: .*shape \(3,\)"),
        ({"real": Scripted([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])}, "policy 'real' .*dtype float64"),
    ],
)
def test_a_policy_that_cannot_be_compared_is_named(policies, message) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(two_requests(), policies, seed=0, resamples=20)


def test_nothing_to_evaluate_on_and_unknown_names_are_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="no requests to evaluate on"):
        evaluate(two_requests().take([]), {}, seed=0)
    found = evaluate(two_requests(), {}, seed=0, resamples=20)
    with pytest.raises(InputError, match="it has rows incoming, random, oracle and metrics recall@1"):
        found.mean("polciy", "ndcg@10")
    with pytest.raises(RerankError, match="unknown"):
        evaluate(two_requests(), {}, seed=0, metrics=("ndgc@10",))


@pytest.mark.parametrize("metrics", [(), ("recall@1", "recall@1")])
def test_metrics_that_are_missing_or_named_twice_are_refused(metrics) -> None:
    with pytest.raises(InputError, match="each once"):
        evaluate(load("synthetic", requests=20), {}, seed=0, resamples=10, metrics=metrics)


def test_requests_that_were_put_in_another_order_can_be_evaluated(requests) -> None:
    order = rankings.random_rankings(requests.sizes_B, 7, np.random.default_rng(5))
    moved = evaluate(requests.reordered(order), {"reader": ByItem()}, seed=0)
    plain = evaluate(requests, {"reader": ByItem()}, seed=0)
    # who reads the items ranks them alike in any order, and equal gains keep the metric
    assert moved.mean("reader", "mrr").value == pytest.approx(plain.mean("reader", "mrr").value, abs=1e-12)
    assert moved.rows["reader"].agreement == 1.0
