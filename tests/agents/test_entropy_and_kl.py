"""Exact entropy and KL against enumeration, and the along-a-path estimators against the exact values."""

from itertools import permutations
from math import factorial, lgamma, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rerank_env.agents import plackett_luce as pl  # noqa: E402
from rerank_env.agents.subsets import expectation, layers  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch
SETTINGS = settings(max_examples=40, deadline=None)


def random_logits(rows: int, width: int, seed: int) -> "torch.Tensor":
    return 1.5 * torch.randn(rows, width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def enumerated(logits_BKK: "torch.Tensor", row: int, size: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """All rankings [size!, size] of one row, and their log-probabilities by a loop that shares no code with ours."""
    rankings = list(permutations(range(size)))
    totals = []
    for ranking in rankings:
        total = torch.zeros((), dtype=torch.float64)
        for place, candidate in enumerate(ranking):
            left = list(ranking[place:])
            total = total + logits_BKK[row, place, candidate] - torch.logsumexp(logits_BKK[row, place, left], dim=0)
        totals.append(total)
    return torch.tensor(rankings), torch.stack(totals)


ragged = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@SETTINGS
@given(sizes=ragged, seed=st.integers(0, 2**32))
def test_entropy_equals_enumeration(sizes: list[int], seed: int) -> None:
    logits_BKK = random_logits(len(sizes), max(sizes), seed)
    entropy_B = pl.entropy(logits_BKK, torch.tensor(sizes))
    for row, size in enumerate(sizes):
        _, log_p_G = enumerated(logits_BKK, row, size)
        assert float(entropy_B[row]) == pytest.approx(float(-(log_p_G.exp() * log_p_G).sum()), abs=1e-12)


@SETTINGS
@given(sizes=ragged, seed=st.integers(0, 2**32))
def test_kl_equals_enumeration_and_is_not_negative(sizes: list[int], seed: int) -> None:
    p_BKK, q_BKK = (random_logits(len(sizes), max(sizes), seed + step) for step in (0, 1))
    kl_B = pl.kl(p_BKK, q_BKK, torch.tensor(sizes))
    assert (kl_B > -1e-12).all()
    for row, size in enumerate(sizes):
        log_p_G, log_q_G = (enumerated(logits_BKK, row, size)[1] for logits_BKK in (p_BKK, q_BKK))
        assert float(kl_B[row]) == pytest.approx(float((log_p_G.exp() * (log_p_G - log_q_G)).sum()), abs=1e-12)


@SETTINGS
@given(sizes=ragged, seed=st.integers(0, 2**32))
def test_path_estimates_average_to_the_exact_values(sizes: list[int], seed: int) -> None:
    # Weighting every ranking by its exact probability is the average over infinitely many samples.
    p_BKK, q_BKK = (random_logits(len(sizes), max(sizes), seed + step) for step in (0, 1))
    sizes_B = torch.tensor(sizes)
    entropy_B, kl_B = pl.entropy(p_BKK, sizes_B), pl.kl(p_BKK, q_BKK, sizes_B)
    for row, size in enumerate(sizes):
        rankings_GK, log_p_G = enumerated(p_BKK, row, size)
        padded_GK = torch.nn.functional.pad(rankings_GK, (0, max(sizes) - size), value=-1)
        p_1KK, q_1KK, size_1 = p_BKK[row : row + 1], q_BKK[row : row + 1], sizes_B[row : row + 1]
        path_GK = pl.path_entropy(p_1KK, padded_GK[None], size_1)[0]
        assert float((log_p_G.exp() * path_GK.sum(-1)).sum()) == pytest.approx(float(entropy_B[row]), abs=1e-12)
        path_GK = pl.path_kl(p_1KK, q_1KK, padded_GK[None], sizes_B=size_1)[0]
        assert float((log_p_G.exp() * path_GK.sum(-1)).sum()) == pytest.approx(float(kl_B[row]), abs=1e-12)
        assert not path_GK[:, size - 1 :].any()


def test_hand_worked_entropies() -> None:
    # Weights 3 and 1: the ranking is a coin with 3/4, entropy 2 log 2 - 3/4 log 3. KL to the fair coin: log 2 - that.
    logits_BKK = torch.tensor([[[3.0, 1.0], [1.0, 1.0]]], dtype=torch.float64).log()
    two_B = torch.tensor([2])
    expected = 2 * log(2) - 0.75 * log(3)
    assert float(pl.entropy(logits_BKK, two_B)) == pytest.approx(expected, abs=1e-15)
    assert float(pl.kl(logits_BKK, torch.zeros_like(logits_BKK), two_B)) == pytest.approx(log(2) - expected, abs=1e-15)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
def test_uniform_entropy_is_the_logarithm_of_the_number_of_rankings(size: int) -> None:
    entropy_B = pl.entropy(torch.zeros(2, size, size, dtype=torch.float64), torch.full((2,), size))
    assert entropy_B.tolist() == pytest.approx([lgamma(size + 1)] * 2, abs=1e-10)


def test_a_certain_ranking_has_no_entropy_and_no_distance_to_itself() -> None:
    logits_BKK = 1e4 * torch.eye(6)[None]
    sizes_B = torch.tensor([6])
    assert float(pl.entropy(logits_BKK, sizes_B)) == 0.0
    assert float(pl.kl(logits_BKK, logits_BKK, sizes_B)) == 0.0


def test_gradients_agree_with_finite_differences_on_ragged_requests() -> None:
    sizes_B = torch.tensor([4, 2, 3])
    p_BKK, q_BKK = (random_logits(3, 4, seed).requires_grad_() for seed in (0, 1))
    assert torch.autograd.gradcheck(lambda p: pl.entropy(p, sizes_B), p_BKK)
    assert torch.autograd.gradcheck(lambda p, q: pl.kl(p, q, sizes_B), (p_BKK, q_BKK))


def test_entropy_gradient_is_finite_where_choices_are_certain() -> None:
    logits_BKK = (1e6 * torch.eye(5)[None]).requires_grad_()
    (gradient_BKK,) = torch.autograd.grad(pl.entropy(logits_BKK, torch.tensor([5])).sum(), logits_BKK)
    assert gradient_BKK.isfinite().all()


def test_too_many_candidates_are_refused_with_the_way_out() -> None:
    logits_BKK, sizes_B = torch.zeros(1, 13, 13), torch.tensor([13])
    with pytest.raises(InputError, match=r"13 candidates .* stops at 12; average path_entropy"):
        pl.entropy(logits_BKK, sizes_B)
    with pytest.raises(InputError, match=r"13 candidates .* stops at 12; average path_kl"):
        pl.kl(logits_BKK, logits_BKK, sizes_B)


def test_the_limit_counts_candidates_and_not_padding() -> None:
    entropy_B = pl.entropy(torch.zeros(2, 30, 30, dtype=torch.float64), torch.tensor([4, 3]))
    assert entropy_B.tolist() == pytest.approx([log(24), log(6)])


def test_laws_over_different_requests_are_not_compared() -> None:
    with pytest.raises(InputError, match="the two laws"):
        pl.kl(torch.zeros(1, 3, 3), torch.zeros(1, 4, 4), torch.tensor([3]))
    with pytest.raises(InputError, match="the two laws"):
        pl.path_kl(torch.zeros(1, 3, 3), torch.zeros(2, 3, 3), torch.tensor([[[0, 1, 2]]]), sizes_B=torch.tensor([3]))


@pytest.mark.parametrize("width", [1, 2, 5, 10])
def test_layers_hold_every_set_once_and_reach_it_from_each_member(width: int) -> None:
    found = layers(width)
    sizes = [len(layer.open_CK) for layer in found]
    assert sizes == [factorial(width) // factorial(size) // factorial(width - size) for size in range(width)]
    for size, layer in enumerate(found[1:], start=1):
        before_CK = found[size - 1].open_CK
        source, taken = layer.parents // width, layer.parents % width
        reached_CK = before_CK[source].clone()
        assert reached_CK.gather(2, taken[..., None]).all()  # what is taken was open,
        reached_CK.scatter_(2, taken[..., None], False)
        assert torch.equal(reached_CK, layer.open_CK[:, None].expand_as(reached_CK))  # and taking it gives this set


def test_expectation_of_one_a_place_is_the_number_of_places() -> None:
    # The chances of the sets of one layer sum to one, whatever the law.
    sizes_B = torch.tensor([6, 3])
    count_B = expectation(random_logits(2, 6, 0), sizes_B, lambda _slot, log_p, _open: torch.ones_like(log_p[..., 0]))
    torch.testing.assert_close(count_B, sizes_B.double(), atol=1e-12, rtol=0)
