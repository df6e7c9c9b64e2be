"""The losses: values worked by hand, masks that leave no trace, and gradients against exact enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rerank_env.agents.plackett_luce import log_prob  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402
from rerank_env.training.losses import clipped_surrogate, listwise_cross_entropy  # noqa: E402

SETTINGS = settings(max_examples=40, deadline=None)

pytestmark = pytest.mark.torch

CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.28}


def surrogate(ratios, advantages, mask=None):
    """The loss of given slot ratios, [B, G, K] nested lists, old log-probabilities all zero."""
    logprobs = torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()
    selected = torch.ones(logprobs.shape, dtype=torch.bool) if mask is None else torch.tensor(mask)
    old = torch.zeros_like(logprobs)
    return logprobs, clipped_surrogate(logprobs, old, torch.tensor(advantages, dtype=torch.float64), selected, **CLIP)


def test_the_clip_is_decoupled_and_pessimistic() -> None:
    # slots of the answer with A = +1: min(1.5, 1.28) = 1.28; min(0.5, 0.8) = 0.5; min(1.1, 1.1) = 1.1
    # slots of the answer with A = -2: min(-3.0, -2.56) = -3.0; min(-1.0, -1.6) = -1.6; min(-2.2, -2.2) = -2.2
    # J = (1.28 + 0.5 + 1.1 - 3.0 - 1.6 - 2.2) / 6 = -3.92 / 6
    logprobs, clipped = surrogate([[[1.5, 0.5, 1.1], [1.5, 0.5, 1.1]]], [[1.0, -2.0]])
    assert clipped.loss.item() == pytest.approx(3.92 / 6)
    assert clipped.clip_fraction == pytest.approx(2 / 6)  # 1.5 with A > 0 and 0.5 with A < 0
    assert clipped.ratio_max == pytest.approx(1.5)
    clipped.loss.backward()
    # the gradient of a slot is -ratio * A / 6 where the plain term is the smaller one, 0 where the clip holds it
    expected = [[[0.0, -0.5 / 6, -1.1 / 6], [3.0 / 6, 0.0, 2.2 / 6]]]
    torch.testing.assert_close(logprobs.grad, torch.tensor(expected, dtype=torch.float64))


def test_long_answers_weigh_by_their_slots_and_not_each_answer_alike() -> None:
    # 3 slots with A = 1 and 1 slot with A = -1, all ratios 1: J = (3 - 1) / 4 at slot level (answer level would be 0)
    mask = [[[True, True, True], [True, False, False]]]
    _, clipped = surrogate([[[1.0] * 3, [1.0] * 3]], [[1.0, -1.0]], mask)
    assert clipped.loss.item() == pytest.approx(-0.5)


@SETTINGS
@given(st.integers(0, 2**31 - 1))
def test_masked_groups_leave_loss_and_gradient_unchanged(seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    logprobs = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64).requires_grad_()
    old = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    advantages = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    mask = torch.ones(3, 4, 5, dtype=torch.bool)
    mask[1] = False
    kept = torch.tensor([0, 2])
    whole = clipped_surrogate(logprobs, old, advantages, mask, **CLIP)
    apart = clipped_surrogate(logprobs[kept], old[kept], advantages[kept], mask[kept], **CLIP)
    assert whole.loss.item() == pytest.approx(apart.loss.item(), rel=1e-12)
    assert (whole.clip_fraction, whole.ratio_max) == (apart.clip_fraction, apart.ratio_max)
    (gradient,) = torch.autograd.grad(whole.loss, logprobs)
    assert (gradient[1] == 0).all()


def test_a_fully_masked_batch_is_zero_and_never_nan() -> None:
    mask = [[[False] * 3] * 2]
    logprobs, clipped = surrogate([[[float("inf"), 1.0, 1.0], [1.0, 1.0, 1.0]]], [[1.0, -1.0]], mask)
    clipped.loss.backward()
    assert clipped.loss.item() == 0.0
    assert clipped.clip_fraction == 0.0
    assert (logprobs.grad == 0).all()


def test_a_runaway_ratio_with_a_zero_advantage_is_not_nan() -> None:
    logprobs = torch.full((1, 1, 1), 200.0, requires_grad=True)
    clipped = clipped_surrogate(logprobs, torch.zeros(1, 1, 1), torch.zeros(1, 1), torch.ones(1, 1, 1) > 0, **CLIP)
    assert clipped.loss.item() == 0.0


def test_on_policy_the_gradient_is_that_of_reinforce_with_a_baseline_by_exact_enumeration() -> None:
    # With all 6 rankings of 3 candidates as one group and A_i = 6 p_i (R_i - b), the surrogate at ratio 1 has
    # gradient -(1 / 18) sum_i A_i grad log p_i = -(1 / 3) sum_i p_i (R_i - b) grad log p_i = -(1 / 3) grad E[R],
    # because sum_i p_i grad log p_i = 0 removes the baseline b.
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 3, 3, generator=generator, dtype=torch.float64).requires_grad_()
    everything = torch.tensor([list(itertools.permutations(range(3)))])
    rewards = torch.tensor([0.1, 0.9, -0.4, 0.3, 1.2, -1.0], dtype=torch.float64)
    sizes = torch.tensor([3])
    logprobs = log_prob(logits, everything, sizes)
    chances = logprobs.sum(-1).exp().squeeze(0)
    (exact,) = torch.autograd.grad((chances * rewards).sum(), logits, retain_graph=True)
    for baseline in (0.0, 0.37):
        advantages = (6 * chances.detach() * (rewards - baseline))[None]
        mask = torch.ones(1, 6, 3, dtype=torch.bool)
        clipped = clipped_surrogate(logprobs, logprobs.detach(), advantages, mask, **CLIP)
        (gradient,) = torch.autograd.grad(clipped.loss, logits, retain_graph=True)
        torch.testing.assert_close(gradient, -exact / 3, rtol=1e-12, atol=1e-14)
        assert clipped.clip_fraction == 0.0


def test_listwise_cross_entropy_of_three_candidates() -> None:
    # Slot 0: scores (0, ln 2, ln 5), softmax (1, 2, 5) / 8, target (1/4, 1/4, 1/2):
    #   -(1/4 ln 1/8 + 1/4 ln 2/8 + 1/2 ln 5/8). Slot 1: candidate 2 is placed, scores (0, ln 3), target (1, 0):
    #   -ln 1/4. Slot 2 has no target. Mean over the two slots that teach.
    logits = torch.tensor([[[0.0, math.log(2), math.log(5)], [0.0, math.log(3), 9.0], [0.0, 0.0, 0.0]]])
    targets = torch.tensor([[[0.25, 0.25, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    open_ = torch.tensor([[[True, True, True], [True, True, False], [False, True, False]]])
    first = -(0.25 * math.log(1 / 8) + 0.25 * math.log(2 / 8) + 0.5 * math.log(5 / 8))
    expected = (first - math.log(1 / 4)) / 2
    assert listwise_cross_entropy(logits, targets, open_).item() == pytest.approx(expected, rel=1e-6)


def test_listwise_cross_entropy_without_any_target_is_zero_with_a_zero_gradient() -> None:
    logits = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = listwise_cross_entropy(logits, torch.zeros(2, 3, 3), torch.zeros(2, 3, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0.0
    assert (logits.grad == 0).all()


def test_shapes_that_disagree_are_refused_in_a_sentence() -> None:
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    with pytest.raises(InputError, match="one advantage an answer"):
        clipped_surrogate(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), torch.zeros(2, 4), mask, **CLIP)
    with pytest.raises(InputError, match=r"requests, answers, slots"):
        clipped_surrogate(torch.zeros(2, 3, 4), torch.zeros(2, 4), torch.zeros(2, 3), mask, **CLIP)
    with pytest.raises(InputError, match=r"requests, slots, candidates"):
        listwise_cross_entropy(torch.zeros(2, 3, 4), torch.zeros(2, 3, 3), torch.zeros(2, 3, 3) > 0)
