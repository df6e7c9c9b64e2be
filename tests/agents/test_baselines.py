"""The yardsticks are where they should be: oracle at 1, incoming at the identity, random and popularity as named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.agents import Incoming, Oracle, Policy, Popularity, Random
from rerank_env.data.synthetic import synthetic
from rerank_env.rewards.metrics import ndcg
from rerank_env.rewards.rankings import Verdict, is_identity, random_rankings, verdicts

BASELINES = (Incoming, Oracle, Popularity, Random)
REQUESTS = synthetic(requests=200, slate_size=6, min_slate_size=2, history=3)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), baseline=st.sampled_from(BASELINES))
def test_every_baseline_is_a_policy_that_answers_with_padded_permutations(seed: int, baseline: type[Policy]) -> None:
    policy = baseline()
    assert isinstance(policy, Policy)
    rankings_BK = policy.rank(REQUESTS, rng=rng(seed))
    assert rankings_BK.dtype == np.int64
    assert (verdicts(rankings_BK, REQUESTS.sizes_B) == Verdict.OK).all()
    assert (rankings_BK[~REQUESTS.slates.mask_BK] == -1).all()


def test_the_oracle_has_an_ndcg_of_one_and_nobody_has_more() -> None:
    scores = {kind: ndcg(kind().rank(REQUESTS, rng=rng()), REQUESTS.slates, k=10) for kind in BASELINES}
    assert scores[Oracle].tolist() == pytest.approx([1.0] * len(REQUESTS), abs=1e-12)
    assert all((scores[Oracle] >= others - 1e-12).all() for others in scores.values())
    assert scores[Random].mean() < scores[Incoming].mean() < 1.0


def test_incoming_is_the_identity_whatever_the_order() -> None:
    order_BK = random_rankings(REQUESTS.sizes_B, 6, rng())
    for requests in (REQUESTS, REQUESTS.reordered(order_BK)):
        assert is_identity(Incoming().rank(requests, rng=rng()), requests.sizes_B).all()


def test_random_is_uniform_over_the_orders_and_repeats_with_its_generator() -> None:
    one = synthetic(requests=4, slate_size=3, history=1).take(np.zeros(12_000, dtype=np.int64))
    rankings_BK = Random().rank(one, rng=rng(1))
    _, observed = np.unique(rankings_BK @ [9, 3, 1], return_counts=True)
    assert len(observed) == 6
    assert ((observed - 2000) ** 2 / 2000).sum() < 20.5  # the 99.9 % point of chi-square with 5 degrees of freedom
    assert np.array_equal(rankings_BK, Random().rank(one, rng=rng(1)))


def test_popularity_puts_often_seen_items_first_in_any_incoming_order() -> None:
    order_BK = random_rankings(REQUESTS.sizes_B, 6, rng(2))
    for requests in (REQUESTS, REQUESTS.reordered(order_BK)):
        rankings_BK = Popularity().rank(requests, rng=rng())
        for row, size in enumerate(requests.sizes_B):
            counts_K = requests.catalog.popularity_I[requests.candidates_BK[row, rankings_BK[row, :size]]]
            assert (np.diff(counts_K) <= 0).all()


def test_equally_popular_items_come_in_random_order() -> None:
    catalog = replace(REQUESTS.catalog, popularity_I=np.ones(len(REQUESTS.catalog)))
    rankings_BK = Popularity().rank(replace(REQUESTS, catalog=catalog), rng=rng())
    assert is_identity(rankings_BK, REQUESTS.sizes_B).mean() < 0.4  # 2 of 5 sizes are 2 or 3; the chance is about 0.14


def test_the_oracle_keeps_the_incoming_order_between_equal_gains() -> None:
    flat = replace(REQUESTS, relevance_BK=REQUESTS.slates.mask_BK.astype(np.float64))
    assert is_identity(Oracle().rank(flat, rng=rng()), REQUESTS.sizes_B).all()
