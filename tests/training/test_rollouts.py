"""Rollouts come from the real environment, and what they say of themselves is true."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rerank_env.agents import TokenPolicy, plackett_luce  # noqa: E402
from rerank_env.agents.observations import tensors  # noqa: E402
from rerank_env.agents.token_policy import rankings_of  # noqa: E402
from rerank_env.rewards import parse_reward, rankings  # noqa: E402
from rerank_env.training.rollouts import Sampler  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def sampler(requests, new_policy):
    made = Sampler(new_policy().eval(), requests, "gain", metric="ndcg@3", requests_per_step=6, group_size=4)
    yield made
    made.close()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rewards_raw_metric_and_flags_are_those_of_the_sampled_rankings(sampler, requests) -> None:
    rows = np.array([5, 0, 17, 5, 199, 44])
    found = sampler.sample(rows, generator())
    flat = found.rankings_BGK.reshape(24, -1)
    slates = requests.slates.take(rows.repeat(4))
    np.testing.assert_array_equal(found.rewards_BG.ravel(), parse_reward("gain")(flat, slates))
    np.testing.assert_array_equal(found.raw_BG.ravel(), parse_reward("ndcg@3")(flat, slates))
    np.testing.assert_array_equal(found.identity_BG.ravel(), rankings.is_identity(flat, slates.sizes_B))
    assert found.valid_BG.all()
    assert (rankings.verdicts(flat, slates.sizes_B) == rankings.Verdict.OK).all()
    np.testing.assert_array_equal(found.tokens_BGT, found.rankings_BGK)


def test_log_probabilities_are_those_of_the_policy_that_sampled(sampler, requests) -> None:
    rows = np.arange(6)
    found = sampler.sample(rows, generator())
    observation = tensors(requests.take(rows))
    with torch.no_grad():
        logits = sampler.policy(observation)
    sampled = torch.from_numpy(found.rankings_BGK)
    expected = plackett_luce.log_prob(logits, sampled, observation.sizes_B)
    torch.testing.assert_close(found.logprobs_BGT, expected, rtol=0, atol=1e-6)
    entropies = plackett_luce.path_entropy(logits, sampled, observation.sizes_B)
    torch.testing.assert_close(found.entropy_BGT, entropies, rtol=0, atol=1e-6)


def test_the_policy_looks_at_each_request_once_whatever_the_size_of_the_group(sampler) -> None:
    looked_at = []
    sampler.policy.register_forward_hook(lambda module, inputs, output: looked_at.append(len(output)))
    sampler.sample(np.arange(5), generator())
    assert looked_at == [5]


def test_fewer_requests_than_environments_give_the_answers_they_would_have_given_anyway(sampler, requests) -> None:
    found = sampler.sample(np.array([3, 8]), generator())
    assert found.rows_B.tolist() == [3, 8]
    assert found.rewards_BG.shape == (2, 4)
    slates = requests.slates.take(np.repeat([3, 8], 4))
    expected = parse_reward("gain")(found.rankings_BGK.reshape(8, -1), slates)
    np.testing.assert_array_equal(found.rewards_BG.ravel(), expected)


def test_the_generator_alone_decides_the_answers(sampler) -> None:
    rows = np.arange(6)
    one, same, other = (sampler.sample(rows, generator(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.rankings_BGK, same.rankings_BGK)
    assert (one.rankings_BGK != other.rankings_BGK).any()


def test_groups_can_be_taken_and_joined(sampler) -> None:
    found = sampler.sample(np.arange(6), generator())
    even = np.arange(6) % 2 == 0
    joined = found.take(even).joined(found.take(~even))
    assert joined.rows_B.tolist() == [0, 2, 4, 1, 3, 5]
    np.testing.assert_array_equal(joined.rewards_BG, found.rewards_BG[joined.rows_B])
    assert torch.equal(joined.logprobs_BGT, found.logprobs_BGT[joined.rows_B])
    assert len(found.take(np.zeros(6, dtype=bool))) == 0


def test_a_group_is_dead_where_the_raw_metric_never_differs(sampler) -> None:
    found = sampler.sample(np.arange(6), generator())
    assert found.dead().tolist() == [len(set(group)) == 1 for group in found.raw_BG.tolist()]


@pytest.mark.parametrize("reward", ["naive", "gr2", "gr2_industrial", "gain", "ndcg(invalid=-0.5)"])
def test_answers_that_are_no_ranking_are_paid_the_declared_score(requests, reward) -> None:
    policy = TokenPolicy.for_requests(requests, generator=generator(2), dim=8, heads=2)
    sampler = Sampler(policy, requests, reward, metric="ndcg@3", requests_per_step=20, group_size=100)
    rows = np.argsort(requests.sizes_B, kind="stable")[:20]  # three candidates: even a beginner is right at times
    found = sampler.sample(rows, generator())
    sampler.close()
    flat, sizes_A = found.rankings_BGK.reshape(2000, -1), requests.sizes_B[rows].repeat(100)
    verdicts_A = rankings.verdicts(flat, sizes_A)
    np.testing.assert_array_equal(found.valid_BG.ravel(), verdicts_A == rankings.Verdict.OK)
    assert 10 < found.valid_BG.sum() < 1000
    paid = parse_reward(reward)
    assert (found.rewards_BG[~found.valid_BG] == paid.invalid).all()
    assert (found.raw_BG[~found.valid_BG] == 0.0).all()
    assert not found.identity_BG[~found.valid_BG].any()
    expected = paid(flat, requests.slates.take(rows.repeat(100)))
    np.testing.assert_array_equal(found.rewards_BG.ravel(), expected)


def test_words_are_kept_beside_what_the_environment_was_told(requests) -> None:
    policy = TokenPolicy.for_requests(requests, generator=generator(2), dim=8, heads=2)
    sampler = Sampler(policy, requests, "naive", metric="ndcg@3", requests_per_step=5, group_size=4)
    found = sampler.sample(np.arange(5), generator())
    sampler.close()
    assert found.tokens_BGT.shape == found.logprobs_BGT.shape == found.entropy_BGT.shape == (5, 4, 7)
    sizes_B = torch.from_numpy(requests.sizes_B[:5])
    np.testing.assert_array_equal(rankings_of(found.tokens_BGT, sizes_B), found.rankings_BGK)
    log_p_BGT = policy.log_prob(requests.take(np.arange(5)), found.tokens_BGT)
    torch.testing.assert_close(found.logprobs_BGT, log_p_BGT, rtol=0, atol=1e-6)
