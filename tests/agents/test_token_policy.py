"""The token policy: what it writes is as likely as it says, it can be wrong in every way, and it is saved whole."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rerank_env.agents import ListwisePolicy, Policy, TokenConfig, TokenPolicy  # noqa: E402
from rerank_env.agents.token_policy import END, rankings_of  # noqa: E402
from rerank_env.data import Requests  # noqa: E402
from rerank_env.data.synthetic import synthetic  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError  # noqa: E402
from rerank_env.rewards.rankings import Verdict, random_rankings, verdicts  # noqa: E402

pytestmark = pytest.mark.torch

RAGGED = synthetic(requests=12, slate_size=5, min_slate_size=2, history=4)
PAIRS = synthetic(requests=4, slate_size=2, history=3)
RNG = np.random.default_rng(0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def new_policy(requests: Requests = RAGGED, **settings: object) -> TokenPolicy:
    return TokenPolicy.for_requests(requests, generator=generator(3), **{"dim": 8, "heads": 2, **settings}).eval()


def shaken(policy: TokenPolicy) -> TokenPolicy:
    """Choices far from even, but none of them certain."""
    with torch.no_grad():
        for number, parameter in enumerate(policy.parameters()):
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator(number))
    return policy


def all_answers(size: int) -> torch.Tensor:
    """Every answer to a request of `size` candidates, int64 [N, T]: words up to the end or to one too many."""
    written: set[tuple[int, ...]] = set()
    for words in product(range(size + 1), repeat=size + 1):
        stop = words.index(END) + 1 if END in words else size + 1
        written.add(words[:stop] + (-1,) * (size + 1 - stop))
    return torch.tensor(sorted(written))


def slow_log_prob(policy: TokenPolicy, requests: Requests, row: int, answer: list[int]) -> list[float]:
    """One answer to one request word by word, the recurrent cell, the keys and the softmax written out in float64."""
    weights = {name: value.detach().double() for name, value in policy.state_dict().items()}
    dim = policy.config.dim

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", torch.zeros(()))

    seen = policy._received(requests.take([row]))
    tokens_1TD, real_1T, _ = policy.tokens(seen)
    width, size = seen.candidates_BK.shape[1], int(seen.sizes_B[0])
    tokens_1TD = tokens_1TD.clone()
    for place in range(width):
        tokens_1TD[0, -width + place] += policy.place.weight[min(place, policy.config.places - 1)]
    read_TD = policy.encoder(tokens_1TD, real_1T)[0].detach().double()
    candidates, context = read_TD[-width:], read_TD[0]
    words = [weights["end"][0], *(linear("word", c) for c in candidates[:size])]
    keys = [weights["end"][1], *(linear("key", c) for c in candidates[:size])]
    state, before, found = torch.tanh(linear("start", context)), END, []
    for word in (w for w in answer if w >= 0):
        inputs = weights["writer.weight_ih_l0"] @ words[before] + weights["writer.bias_ih_l0"]
        hidden = weights["writer.weight_hh_l0"] @ state + weights["writer.bias_hh_l0"]
        reset = torch.sigmoid(inputs[:dim] + hidden[:dim])
        update = torch.sigmoid(inputs[dim : 2 * dim] + hidden[dim : 2 * dim])
        new = torch.tanh(inputs[2 * dim :] + reset * hidden[2 * dim :])
        state = (1 - update) * new + update * state
        query = linear("query", state) + linear("context", context)
        logits = [float(query @ key) / dim**0.5 for key in keys]
        total = sum(np.exp(logit) for logit in logits)
        found.append(logits[word] - np.log(total))
        before = word
    return found


def test_it_is_a_policy() -> None:
    assert isinstance(new_policy(), Policy)


def test_log_probabilities_equal_a_computation_word_by_word() -> None:
    policy = shaken(new_policy())
    samples = policy.sample(RAGGED, 3, generator=generator())
    given = policy.log_prob(RAGGED, samples.tokens_BNT)
    torch.testing.assert_close(given, samples.logprobs_BNT, rtol=0, atol=1e-6)
    for row, which in product(range(len(RAGGED)), range(3)):
        answer = samples.tokens_BNT[row, which].tolist()
        expected = slow_log_prob(policy, RAGGED, row, answer)
        np.testing.assert_allclose(given[row, which, : len(expected)].detach(), expected, atol=2e-5)
        assert (given[row, which, len(expected) :] == 0).all()


def test_the_probabilities_of_all_answers_sum_to_one() -> None:
    # 3 words (end, 1, 2) and up to 3 of them: 1 + 2 + 4 answers that end in time and 2 * 2 * 2 that do not
    answers_NT = all_answers(2)
    assert len(answers_NT) == 15
    policy = shaken(new_policy(PAIRS))
    total_B = policy.log_prob(PAIRS, answers_NT.expand(4, -1, -1)).sum(-1).exp().sum(-1)
    torch.testing.assert_close(total_B, torch.ones(4))


def test_sampling_frequencies_match_the_exact_probabilities() -> None:
    answers_NT = all_answers(2)
    policy = shaken(new_policy(PAIRS))
    exact_N = policy.log_prob(PAIRS.take([0]), answers_NT[None]).sum(-1).exp()[0].detach().numpy()
    draws = 40_000
    drawn_MT = policy.sample(PAIRS.take([0]), draws, generator=generator(8)).tokens_BNT[0]
    counts_N = (drawn_MT[:, None] == answers_NT).all(-1).sum(0).numpy()
    assert counts_N.sum() == draws  # nothing else is ever written
    # four standard deviations of a binomial count
    np.testing.assert_array_less(np.abs(counts_N - draws * exact_N), 4 * np.sqrt(draws * exact_N * (1 - exact_N)) + 1)
    assert (counts_N > 0).sum() > 10


def test_entropies_are_those_of_the_choices_along_the_way() -> None:
    policy = shaken(new_policy())
    samples = policy.sample(RAGGED, 4, generator=generator(1))
    with torch.no_grad():
        p_BNTV = policy(RAGGED, samples.tokens_BNT).double().exp()
    expected_BNT = -torch.special.xlogy(p_BNTV, p_BNTV).sum(-1).masked_fill(samples.tokens_BNT < 0, 0.0)
    torch.testing.assert_close(samples.entropies_BNT.double(), expected_BNT, rtol=0, atol=1e-5)


def test_it_can_repeat_omit_stop_early_and_fail_to_stop() -> None:
    samples = new_policy().sample(RAGGED, 200, generator=generator(2))
    tokens_ANT, sizes_B = samples.tokens_BNT, RAGGED.sizes_B
    repeats = stops_early = never_stops = complete = 0
    for row, size in enumerate(sizes_B):
        for answer in tokens_ANT[row].tolist():
            words = [word for word in answer if word > END]
            never_stops += len(words) == size + 1
            stops_early += len(words) < size
            repeats += len(set(words)) < len(words) == size
            complete += sorted(words) == list(range(1, size + 1))
    assert min(repeats, stops_early, never_stops, complete) > 20
    flat = samples.rankings_BNK.reshape(len(RAGGED) * 200, -1).numpy()
    found = verdicts(flat, sizes_B.repeat(200))
    assert (found == Verdict.OK).sum() == complete
    assert {int(code) for code in found} == {Verdict.OK, Verdict.UNKNOWN, Verdict.DUPLICATE}


@pytest.mark.parametrize(
    ("tokens", "ranking"),
    [
        ([2, 3, 1, 0], [1, 2, 0]),
        ([2, 2, 1, 0], [1, 1, 0]),  # as written, not mended
        ([2, 0, -1, -1], [1, -1, -1]),
        ([0, -1, -1, -1], [-1, -1, -1]),
        ([2, 3, 1, 1], [-1, -1, -1]),  # a word too many: there is no place for it
    ],
)
def test_what_an_environment_is_told(tokens: list[int], ranking: list[int]) -> None:
    assert rankings_of(torch.tensor([[tokens]]), torch.tensor([3])).tolist() == [[ranking]]


def test_a_shorter_request_ends_sooner() -> None:
    tokens_BNT = torch.tensor([[[2, 1, 0, -1]], [[2, 1, 2, -1]]])
    assert rankings_of(tokens_BNT, torch.tensor([2, 2])).tolist() == [[[1, 0, -1]], [[-1, -1, -1]]]


def test_rankings_spelled_and_read_back_are_the_same() -> None:
    rankings_BNK = torch.from_numpy(
        np.stack([random_rankings(RAGGED.sizes_B, 5, np.random.default_rng(s)) for s in range(3)], 1)
    )
    sizes_B = torch.from_numpy(RAGGED.sizes_B)
    policy = new_policy()
    tokens_BNT = policy.spelled(rankings_BNK, sizes_B)
    assert torch.equal(rankings_of(tokens_BNT, sizes_B), rankings_BNK)
    assert (policy.log_prob(RAGGED, tokens_BNT) < 0).sum() == 3 * (RAGGED.sizes_B + 1).sum()


def test_no_word_is_written_that_a_request_does_not_have() -> None:
    samples = shaken(new_policy()).sample(RAGGED, 300, generator=generator(5))
    assert (samples.tokens_BNT <= torch.from_numpy(RAGGED.sizes_B)[:, None, None]).all()


def test_greedy_takes_the_likeliest_word_each_time() -> None:
    policy = shaken(new_policy())
    answers_BK = policy.rank(RAGGED, rng=RNG)
    assert answers_BK.dtype == np.int64
    greedy = policy._answered(policy._received(RAGGED), 1, None)
    np.testing.assert_array_equal(greedy.rankings_BNK[:, 0], answers_BK)
    with torch.no_grad():
        best_BNT = policy(RAGGED, greedy.tokens_BNT).argmax(-1)
    written = greedy.tokens_BNT >= 0
    assert torch.equal(best_BNT[written], greedy.tokens_BNT[written])


def test_it_is_told_the_place_of_a_candidate_and_the_listwise_policy_is_not() -> None:
    # two candidates that differ in nothing but their place
    twins = replace(PAIRS, scores_BK=np.zeros_like(PAIRS.scores_BK))
    features_IF = np.broadcast_to(twins.catalog.features_IF[:1], twins.catalog.features_IF.shape).copy()
    twins = replace(twins, catalog=replace(twins.catalog, features_IF=features_IF))
    first_BT = new_policy(twins)(twins, torch.tensor([[[1, 2, 0]]] * 4))[:, 0, 0]
    assert (first_BT[:, 1] != first_BT[:, 2]).all()
    listwise = ListwisePolicy.for_requests(twins, generator=generator(), dim=8, heads=2)
    logits_BKK = listwise(twins)
    torch.testing.assert_close(logits_BKK[..., 0], logits_BKK[..., 1])


def test_requests_do_not_reach_into_each_other() -> None:
    policy = shaken(new_policy())
    tokens_BNT = policy.sample(RAGGED, 2, generator=generator()).tokens_BNT
    together = policy.log_prob(RAGGED, tokens_BNT)
    for row in range(len(RAGGED)):
        alone = policy.log_prob(RAGGED.take([row]), tokens_BNT[[row]])
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-5)


def test_the_gradient_of_the_log_probability_reaches_every_weight_and_is_finite() -> None:
    policy = shaken(new_policy()).train()
    policy.log_prob(RAGGED, policy.sample(RAGGED, 4, generator=generator()).tokens_BNT).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_the_generator_alone_decides_and_dropout_is_off_in_sampling() -> None:
    policy = new_policy(dropout=0.5).train()
    one, same, other = (policy.sample(RAGGED, 2, generator=generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.tokens_BNT, same.tokens_BNT)
    assert torch.equal(one.logprobs_BNT, same.logprobs_BNT)
    assert not torch.equal(one.tokens_BNT, other.tokens_BNT)
    assert policy.training


def test_a_saved_policy_answers_as_before(tmp_path: Path) -> None:
    policy = shaken(new_policy())
    policy.save_pretrained(tmp_path)
    loaded = TokenPolicy.from_pretrained(tmp_path)
    assert loaded.config == policy.config
    one, two = (p.sample(RAGGED.observation(), 3, generator=generator(4)) for p in (policy, loaded))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    with pytest.raises(CheckpointError, match="holds a 'token' policy"):
        ListwisePolicy.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "answer",
    [
        [1, 2, 0, 1, -1, -1],  # goes on behind the end
        [1, 2, -1, -1, -1, -1],  # breaks off without an end
        [9, 1, 2, 0, -1, -1],  # a word there is not
        [-2, 1, 2, 0, -1, -1],
    ],
)
def test_answers_that_the_policy_cannot_write_have_no_probability(answer: list[int]) -> None:
    requests = synthetic(requests=4, slate_size=5, history=3).take([0])
    with pytest.raises(InputError, match="answer 0 to request 0 is"):
        new_policy(requests).log_prob(requests, torch.tensor([[answer]]))


def test_answers_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"shape \(12, 1, 5\) but \(12, any number, 6\)"):
        new_policy().log_prob(RAGGED, torch.zeros(12, 1, 5, dtype=torch.int64))
    with pytest.raises(InputError, match="cannot draw 0 answers"):
        new_policy().sample(RAGGED, 0, generator=generator())


def test_a_policy_that_diverged_says_so() -> None:
    policy = new_policy()
    with torch.no_grad():
        policy.query.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="diverged"):
        policy.rank(RAGGED, rng=RNG)


def test_sizes_that_cannot_be_built_are_refused() -> None:
    with pytest.raises(InputError, match="places is 0"):
        TokenConfig(item_features=4, places=0)
    with pytest.raises(InputError, match="does not divide into 3 heads"):
        TokenConfig(item_features=4, heads=3)


def test_requests_over_another_catalogue_are_refused() -> None:
    turned = replace(RAGGED.catalog, features_IF=RAGGED.catalog.features_IF[::-1].copy())
    with pytest.raises(InputError, match="other item features"):
        new_policy().rank(replace(RAGGED, catalog=turned), rng=RNG)


def test_no_requests_give_no_answers() -> None:
    nothing = RAGGED.take([])
    assert new_policy().rank(nothing, rng=RNG).shape == (0, 5)
