"""The ranking likelihood: it is a probability, it is exact where padded, and sampler and mode agree with it."""

from itertools import permutations
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rerank_env.agents import plackett_luce as pl  # noqa: E402
from rerank_env.rewards.errors import InputError, RankingError  # noqa: E402

pytestmark = pytest.mark.torch
SETTINGS = settings(max_examples=40, deadline=None)


def random_logits(rows: int, width: int, *, seed: int, scale: float = 1.5) -> "torch.Tensor":
    noise = torch.randn(rows, width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * noise


def all_rankings(size: int) -> "torch.Tensor":
    return torch.tensor(list(permutations(range(size))))


def full(rows: int, width: int) -> "torch.Tensor":
    return torch.full((rows,), width)


def test_log_prob_of_hand_worked_rankings() -> None:
    # Weights 1, 2, 3 at place one and 5, 1, 1 at place two. Ranking 2 0 1: 3/(1+2+3) * 5/(5+1) * 1 = 5/12;
    # ranking 1 2 0: 2/6 * 1/(5+1) = 1/18.
    logits_BKK = torch.tensor([[1.0, 2, 3], [5, 1, 1], [1, 1, 1]], dtype=torch.float64).log()[None]
    logprobs_BGK = pl.log_prob(logits_BKK, torch.tensor([[[2, 0, 1], [1, 2, 0]]]), full(1, 3))
    expected = [[[log(3 / 6), log(5 / 6), 0.0], [log(2 / 6), log(1 / 6), 0.0]]]
    torch.testing.assert_close(logprobs_BGK, torch.tensor(expected, dtype=torch.float64))


def test_plain_plackett_luce_is_the_case_of_equal_rows() -> None:
    # Weights 1, 2, 3 at every place: ranking 2 0 1 has 3/6 * 1/3 = 1/6.
    scores_BK = torch.tensor([[1.0, 2, 3]], dtype=torch.float64).log()
    logprobs_BGK = pl.log_prob(pl.plain(scores_BK), torch.tensor([[[2, 0, 1]]]), full(1, 3))
    assert float(logprobs_BGK.sum().exp()) == pytest.approx(1 / 6, abs=1e-15)


@SETTINGS
@given(size=st.integers(1, 6), seed=st.integers(0, 2**32), scale=st.sampled_from([0.0, 1.0, 5.0, 100.0]))
def test_probabilities_of_all_rankings_sum_to_one(size: int, seed: int, scale: float) -> None:
    logits_BKK = random_logits(2, size, seed=seed, scale=scale)
    logprobs_BGK = pl.log_prob(logits_BKK, all_rankings(size).expand(2, -1, -1), full(2, size))
    torch.testing.assert_close(
        logprobs_BGK.sum(-1).exp().sum(-1), torch.ones(2, dtype=torch.float64), atol=1e-12, rtol=0
    )


@SETTINGS
@given(size=st.integers(2, 6), extra=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_what_stands_in_the_padding_is_never_read(size: int, extra: int, seed: int) -> None:
    width = size + extra
    logits_BKK = random_logits(1, width, seed=seed)
    ranking_K = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    short_BGK = pl.log_prob(logits_BKK[:, :size, :size], ranking_K[None, None], full(1, size))
    wild_BKK = logits_BKK.clone()
    wild_BKK[:, size:], wild_BKK[:, :, size:] = torch.nan, torch.inf
    wild_BKK.requires_grad_()
    for tail in (-1, 0, 99):
        padded_BGK = torch.cat([ranking_K, torch.full((extra,), tail)])[None, None]
        long_BGK = pl.log_prob(wild_BKK, padded_BGK, full(1, size))
        assert torch.equal(long_BGK[..., size:], torch.zeros(1, 1, extra, dtype=torch.float64))
        torch.testing.assert_close(long_BGK[..., :size], short_BGK, atol=1e-12, rtol=0)
    losses = (
        long_BGK.sum(),
        pl.path_entropy(wild_BKK, padded_BGK, full(1, size)).sum(),
        pl.entropy(wild_BKK, full(1, size)).sum(),
        pl.kl(wild_BKK, 2 * wild_BKK, full(1, size)).sum(),
    )
    for loss in losses:
        (gradient_BKK,) = torch.autograd.grad(loss, wild_BKK)
        assert gradient_BKK.isfinite().all()
        assert not gradient_BKK[:, size:].any()
        assert not gradient_BKK[:, :, size:].any()


@SETTINGS
@given(size=st.integers(2, 6), seed=st.integers(0, 2**32), shift=st.floats(-50, 50))
def test_adding_a_number_to_a_whole_row_changes_nothing(size: int, seed: int, shift: float) -> None:
    logits_BKK = random_logits(1, size, seed=seed)
    rankings_BGK, sizes_B = all_rankings(size)[None], full(1, size)
    shifted_BKK = logits_BKK.clone()
    shifted_BKK[:, size // 2] += shift
    before_BGK = pl.log_prob(logits_BKK, rankings_BGK, sizes_B)
    torch.testing.assert_close(pl.log_prob(shifted_BKK, rankings_BGK, sizes_B), before_BGK, atol=1e-10, rtol=0)


@SETTINGS
@given(size=st.integers(2, 6), seed=st.integers(0, 2**32))
def test_relabelling_candidates_relabels_the_law(size: int, seed: int) -> None:
    logits_BKK = random_logits(1, size, seed=seed)
    order_K = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    rankings_BGK, sizes_B = all_rankings(size)[None], full(1, size)
    relabelled_BGK = pl.log_prob(logits_BKK[:, :, order_K], rankings_BGK, sizes_B)
    torch.testing.assert_close(
        relabelled_BGK, pl.log_prob(logits_BKK, order_K[rankings_BGK], sizes_B), rtol=0, atol=1e-12
    )


def test_expected_gradient_of_the_log_probability_is_zero() -> None:
    # sum over rankings of pi * grad log pi = grad of 1 = 0: what makes a policy gradient with a baseline unbiased.
    logits_BKK = random_logits(1, 4, seed=0).requires_grad_()
    totals_G = pl.log_prob(logits_BKK, all_rankings(4)[None], full(1, 4)).sum(-1)[0]
    (gradient_BKK,) = torch.autograd.grad(totals_G, logits_BKK, grad_outputs=totals_G.detach().exp())
    torch.testing.assert_close(gradient_BKK, torch.zeros_like(gradient_BKK), atol=1e-14, rtol=0)


def test_gradient_agrees_with_finite_differences_on_ragged_requests() -> None:
    sizes_B = torch.tensor([4, 2, 3])
    rankings_BGK = torch.tensor(
        [[[2, 0, 3, 1], [0, 1, 2, 3]], [[1, 0, -1, -1], [0, 1, -1, -1]], [[2, 1, 0, -1], [1, 2, 0, -1]]]
    )
    logits_BKK = random_logits(3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: pl.log_prob(x, rankings_BGK, sizes_B), logits_BKK)
    assert torch.autograd.gradcheck(lambda x: pl.path_entropy(x, rankings_BGK, sizes_B), logits_BKK)
    other_BKK = random_logits(3, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda p, q: pl.path_kl(p, q, rankings_BGK, sizes_B=sizes_B), (logits_BKK, other_BKK)
    )


def chi_square(logits_BKK: "torch.Tensor", rankings_NK: "torch.Tensor") -> float:
    """Pearson's statistic of drawn rankings against the exact probabilities; K! - 1 degrees of freedom."""
    everything_GK = all_rankings(logits_BKK.shape[-1])
    base_K = logits_BKK.shape[-1] ** torch.arange(logits_BKK.shape[-1])
    index_N = (rankings_NK @ base_K)[:, None].eq(everything_GK @ base_K).int().argmax(-1)
    observed_G = torch.bincount(index_N, minlength=len(everything_GK)).double()
    probability_G = pl.log_prob(logits_BKK, everything_GK[None], full(1, logits_BKK.shape[-1]))[0].sum(-1).exp()
    expected_G = len(rankings_NK) * probability_G.double()
    return float(((observed_G - expected_G) ** 2 / expected_G).sum())


# The 99.9 % points of chi-square with 3! - 1 = 5 and 4! - 1 = 23 degrees of freedom.
@pytest.mark.parametrize(("size", "limit"), [(3, 20.5), (4, 49.7)])
def test_sampling_frequencies_are_the_exact_probabilities(size: int, limit: float) -> None:
    logits_BKK = random_logits(1, size, seed=3, scale=1.0)
    drawn_BNK = pl.sample(logits_BKK, full(1, size), 50_000, generator=torch.Generator().manual_seed(4))
    assert chi_square(logits_BKK, drawn_BNK[0]) < limit


def test_the_frequency_test_notices_noise_that_is_shared_between_places() -> None:
    logits_BKK = random_logits(1, 3, seed=3, scale=1.0)
    noise_NK = (
        -torch.empty(50_000, 3, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(4)).log()
    )
    closed_NK = torch.zeros(50_000, 3, dtype=torch.bool)
    places = []
    for slot in range(3):
        best_N1 = (logits_BKK[0, slot] + noise_NK).masked_fill(closed_NK, -torch.inf).argmax(-1, keepdim=True)
        closed_NK.scatter_(1, best_N1, True)
        places.append(best_N1)
    assert chi_square(logits_BKK, torch.cat(places, dim=1)) > 200


@SETTINGS
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    extra=st.integers(0, 2),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1.0, 1e6]),
)
def test_samples_and_greedy_are_legal_rankings(sizes: list[int], extra: int, seed: int, scale: float) -> None:
    width, sizes_B = max(sizes) + extra, torch.tensor(sizes)
    logits_BKK = random_logits(len(sizes), width, seed=seed, scale=scale).float()
    drawn_BNK = pl.sample(logits_BKK, sizes_B, 3, generator=torch.Generator().manual_seed(seed))
    for rankings_BNK in (drawn_BNK, pl.greedy(logits_BKK, sizes_B)[:, None]):
        assert rankings_BNK.dtype == torch.int64
        for row, size in enumerate(sizes):
            for ranking in rankings_BNK[row].tolist():
                assert sorted(ranking[:size]) == list(range(size))
                assert ranking[size:] == [-1] * (width - size)


@SETTINGS
@given(size=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_greedy_of_plain_plackett_luce_is_the_sort_by_score(size: int, seed: int) -> None:
    scores_BK = torch.randn(4, size, generator=torch.Generator().manual_seed(seed))
    expected_BK = scores_BK.argsort(-1, descending=True)
    assert torch.equal(pl.greedy(pl.plain(scores_BK), full(4, size)), expected_BK)


def test_greedy_keeps_the_incoming_order_between_equal_scores() -> None:
    scores_BK = torch.tensor([[1.0, 2.0, 1.0, 2.0]])
    assert pl.greedy(pl.plain(scores_BK), full(1, 4)).tolist() == [[1, 3, 0, 2]]


def test_a_group_is_drawn_independently_and_a_seed_repeats_it() -> None:
    logits_BKK = torch.zeros(1, 8, 8)
    first, again = (pl.sample(logits_BKK, full(1, 8), 6, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, again)
    assert len(set(map(tuple, first[0].tolist()))) == 6  # 8! orders: an accidental repeat has chance 4e-4


def test_fifty_candidates_are_no_different() -> None:
    logits_BKK = random_logits(2, 50, seed=6).float().requires_grad_()
    rankings_BNK = pl.sample(logits_BKK.detach(), full(2, 50), 4, generator=torch.Generator().manual_seed(0))
    total = pl.log_prob(logits_BKK, rankings_BNK, full(2, 50)).sum()
    (gradient_BKK,) = torch.autograd.grad(total, logits_BKK)
    assert total < 0
    assert gradient_BKK.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_single_precision(dtype: "torch.dtype") -> None:
    logits_BKK = random_logits(1, 5, seed=7).to(dtype)
    rankings_BGK = all_rankings(5)[None]
    logprobs_BGK = pl.log_prob(logits_BKK, rankings_BGK, full(1, 5))
    assert logprobs_BGK.dtype == torch.float32
    torch.testing.assert_close(logprobs_BGK, pl.log_prob(logits_BKK.float(), rankings_BGK, full(1, 5)))


def test_extreme_logits_give_finite_log_probabilities_and_gradients() -> None:
    logits_BKK = torch.tensor([[[1e30, -1e30, 0.0], [0.0, 1e30, -1e30], [0.0, 0.0, 0.0]]], requires_grad=True)
    logprobs_BGK = pl.log_prob(logits_BKK, all_rankings(3)[None], full(1, 3))
    (gradient_BKK,) = torch.autograd.grad(logprobs_BGK.sum(), logits_BKK)
    assert logprobs_BGK.isfinite().all()
    assert gradient_BKK.isfinite().all()


def test_no_requests_give_no_rankings() -> None:
    none_BKK, none_B = torch.zeros(0, 4, 4), torch.zeros(0, dtype=torch.int64)
    rankings_BNK = pl.sample(none_BKK, none_B, 2, generator=torch.Generator())
    assert rankings_BNK.shape == (0, 2, 4)
    assert pl.log_prob(none_BKK, rankings_BNK, none_B).shape == (0, 2, 4)
    assert pl.greedy(none_BKK, none_B).shape == (0, 4)
    assert pl.entropy(none_BKK, none_B).shape == (0,)


@pytest.mark.parametrize(
    ("ranking", "given_text"),
    [([0, 0, 1], "[0, 0, 1]"), ([0, 1, 3], "[0, 1, 3]"), ([0, 1, -1], "[0, 1, -1]")],
)
def test_an_illegal_ranking_is_refused_by_row(ranking: list[int], given_text: str) -> None:
    rankings_BGK = torch.tensor([[[0, 1, 2], [2, 1, 0]], [[0, 1, 2], ranking]])
    with pytest.raises(RankingError, match=r"ranking 1 of request 1 is .*not a permutation of 0\.\.2") as caught:
        pl.log_prob(torch.zeros(2, 3, 3), rankings_BGK, full(2, 3))
    assert given_text in str(caught.value)


def test_shapes_that_disagree_are_refused() -> None:
    logits_BKK, ranking_BGK = torch.zeros(1, 3, 3), torch.tensor([[[0, 1, 2]]])
    with pytest.raises(RankingError, match="rankings have shape"):
        pl.log_prob(logits_BKK, ranking_BGK[0], full(1, 3))
    with pytest.raises(InputError, match="logits have shape"):
        pl.log_prob(torch.zeros(1, 3, 4), ranking_BGK, full(1, 3))
    with pytest.raises(InputError, match="sizes have shape"):
        pl.log_prob(logits_BKK, ranking_BGK, torch.tensor([4]))
    with pytest.raises(InputError, match="sizes have shape"):
        pl.greedy(logits_BKK, torch.tensor([3, 3]))
    with pytest.raises(InputError, match="at least 1"):
        pl.sample(logits_BKK, full(1, 3), 0, generator=torch.Generator())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_is_ranked_by_logits_that_are_not_finite(bad: float) -> None:
    logits_BKK = torch.zeros(2, 3, 3)
    logits_BKK[1, 0, 2] = bad
    with pytest.raises(InputError, match="request 1 are not finite"):
        pl.greedy(logits_BKK, full(2, 3))
    with pytest.raises(InputError, match="request 1 are not finite"):
        pl.sample(logits_BKK, full(2, 3), 1, generator=torch.Generator())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cpu_generator_draws_the_same_rankings_on_a_gpu() -> None:
    logits_BKK = random_logits(8, 10, seed=8)
    on_cpu = pl.sample(logits_BKK, full(8, 10), 16, generator=torch.Generator().manual_seed(9))
    on_gpu = pl.sample(logits_BKK.cuda(), full(8, 10).cuda(), 16, generator=torch.Generator().manual_seed(9))
    assert torch.equal(on_gpu.cpu(), on_cpu)
    torch.testing.assert_close(
        pl.entropy(logits_BKK.cuda(), full(8, 10).cuda()).cpu(), pl.entropy(logits_BKK, full(8, 10))
    )
