"""Divergences of a student from a teacher: values by hand, plain loops, TRL's numbers, and what gradients mean."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training.language.divergences import KINDS, of_laws, sampled_reverse_kl, token_divergence

pytestmark = pytest.mark.torch

STUDENT, TEACHER = (0.5, 0.25, 0.25), (0.25, 0.25, 0.5)


def logits(law: Any) -> Tensor:
    return torch.tensor(law, dtype=torch.float64).log() + 3.0  # a constant changes no law


def test_values_worked_out_by_hand() -> None:
    # reverse: .5 ln 2 + 0 + .25 ln .5 = .25 ln 2; by symmetry of the two laws the forward one is the same
    for kind in ("reverse_kl", "forward_kl"):
        assert token_divergence(logits(STUDENT), logits(TEACHER), kind=kind).item() == pytest.approx(
            0.25 * math.log(2), rel=1e-6
        )
    # m = (.375, .25, .375): KL(t || m) = .25 ln(2/3) + .5 ln(4/3), and KL(s || m) is the same
    expected = 0.25 * math.log(2 / 3) + 0.5 * math.log(4 / 3)
    assert token_divergence(logits(STUDENT), logits(TEACHER), kind="jsd").item() == pytest.approx(expected, rel=1e-6)


def test_the_direction_is_what_the_name_says() -> None:
    # s = (1/2, 1/2), t = (3/4, 1/4): KL(s || t) = .5 ln(2/3) + .5 ln 2, KL(t || s) = .75 ln(3/2) + .25 ln(1/2)
    student, teacher = logits((0.5, 0.5)), logits((0.75, 0.25))
    reverse = token_divergence(student, teacher, kind="reverse_kl").item()
    forward = token_divergence(student, teacher, kind="forward_kl").item()
    assert reverse == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2), rel=1e-6)
    assert forward == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-6)
    assert reverse != pytest.approx(forward, rel=1e-2)


def test_the_top_k_are_the_teachers_and_renormalised() -> None:
    # the teacher's two likeliest are 2 and 1: s = (2/3, 1/3) and t = (5/8, 3/8) there; what s says of 0 is not seen
    student, teacher = logits((0.7, 0.1, 0.2)), logits((0.2, 0.3, 0.5))
    expected = 2 / 3 * math.log((2 / 3) / (5 / 8)) + 1 / 3 * math.log((1 / 3) / (3 / 8))
    assert token_divergence(student, teacher, form="topk", k=2).item() == pytest.approx(expected, rel=1e-5)
    full = token_divergence(student, teacher).item()
    assert token_divergence(student, teacher, form="topk", k=99).item() == pytest.approx(full, rel=1e-6)


def test_sampled_values_worked_out_by_hand() -> None:
    # token 0: r = ln(.25 / .5) = -ln 2; token 2: r = ln 2; token 1: r = 0
    both = logits(STUDENT).expand(3, 3), logits(TEACHER).expand(3, 3)
    ids, ln2 = torch.arange(3), math.log(2)
    for estimator, expected in {
        "k1": [ln2, 0.0, -ln2],
        "k2": [ln2**2 / 2, 0.0, ln2**2 / 2],
        "k3": [0.5 - 1 + ln2, 0.0, 2 - 1 - ln2],
    }.items():
        found = token_divergence(*both, form="sampled", sampled_ids=ids, estimator=estimator)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_loop_finds_the_same(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 3, 7, generator=generator), torch.randn(2, 3, 7, generator=generator)
    found = token_divergence(student, teacher, kind=kind, beta=0.3)
    for place in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
        s, t = (x[tuple(place)].double().softmax(-1).tolist() for x in (student, teacher))
        expected = 0.0
        for p, q in zip(s, t, strict=True):
            m = 0.3 * q + 0.7 * p
            expected += {
                "reverse_kl": p * math.log(p / q),
                "forward_kl": q * math.log(q / p),
                "jsd": 0.3 * q * math.log(q / m) + 0.7 * p * math.log(p / m),
            }[kind]
        assert found[tuple(place)].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.skipif(find_spec("trl") is None, reason="needs the extra: pip install 'rerank-env[language]'")
@pytest.mark.parametrize(("kind", "beta"), [("forward_kl", 0.0), ("reverse_kl", 1.0), ("jsd", 0.3)])
def test_trl_finds_the_same_value_and_gradient(kind: str, beta: float) -> None:
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    generator = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(2, 5, 9, generator=generator) for _ in range(2))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    eye = torch.eye(9)  # hidden states that are the logits already
    theirs = student.clone().requires_grad_()
    loss, _, count = _chunked_divergence_loss(theirs, teacher, eye, eye, mask, beta)
    loss.backward()
    ours = student.clone().requires_grad_()
    mean = (token_divergence(ours, teacher, kind=kind, beta=beta or 0.5) * mask).sum() / count
    mean.backward()
    torch.testing.assert_close(mean, loss)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)


def expected_gradient(estimator: str, student: Tensor, teacher: Tensor) -> tuple[float, Tensor]:
    """The mean, over tokens drawn by the student, of an estimate and of its gradient, written out."""
    law, value, total = student.softmax(-1), 0.0, torch.zeros_like(student)
    for token in range(len(student)):
        given = student.clone().requires_grad_()
        log_s, log_t = given.log_softmax(-1)[token], teacher.log_softmax(-1)[token]
        estimate = sampled_reverse_kl(log_s, log_t, estimator=estimator)
        estimate.backward()
        assert given.grad is not None
        value += law[token].item() * estimate.item()
        total += law[token] * given.grad
    return value, total


def exact(kind: str, student: Tensor, teacher: Tensor) -> tuple[float, Tensor]:
    given = student.clone().requires_grad_()
    value = of_laws(given.log_softmax(-1), teacher.log_softmax(-1), kind=kind)
    value.backward()
    assert given.grad is not None
    return value.item(), given.grad


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_what_the_estimators_estimate_and_where_their_gradients_lead(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    reverse, to_reverse = exact("reverse_kl", student, teacher)
    _, to_forward = exact("forward_kl", student, teacher)
    k1, k1_gradient = expected_gradient("k1", student, teacher)
    _, k2_gradient = expected_gradient("k2", student, teacher)
    k3, k3_gradient = expected_gradient("k3", student, teacher)
    assert k1 == pytest.approx(reverse) and k3 == pytest.approx(reverse)
    torch.testing.assert_close(k1_gradient, torch.zeros_like(student))
    torch.testing.assert_close(k2_gradient, to_reverse)
    torch.testing.assert_close(k3_gradient, to_forward)


@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), k=st.integers(2, 8))
@settings(max_examples=50, deadline=None)
def test_no_divergence_is_negative_and_that_of_equal_laws_is_zero(seed: int, kind: str, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (4 * torch.randn(3, 8, generator=generator) for _ in range(2))
    for form in ("full", "topk"):
        assert (token_divergence(student, teacher, kind=kind, form=form, k=k) >= -1e-6).all()
        same = token_divergence(student, student + 1.5, kind=kind, form=form, k=k)
        torch.testing.assert_close(same, torch.zeros(3), atol=1e-6, rtol=0.0)


def test_jsd_leads_to_both_directions_at_its_ends() -> None:
    student, teacher = logits((0.5, 0.3, 0.2)), logits((0.2, 0.3, 0.5))
    forward, reverse = (token_divergence(student, teacher, kind=kind).item() for kind in ("forward_kl", "reverse_kl"))
    near = 1e-3
    low = token_divergence(student, teacher, kind="jsd", beta=near).item() / near
    high = token_divergence(student, teacher, kind="jsd", beta=1 - near).item() / near
    assert low == pytest.approx(forward, rel=5e-3)
    assert high == pytest.approx(reverse, rel=5e-3)


def test_tokens_that_cannot_be_said() -> None:
    student = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
    teacher = torch.tensor([0.0, 0.0, -torch.inf])
    for kind in KINDS:
        assert token_divergence(student, teacher, kind=kind).item() == 0.0
    covers = torch.tensor([0.0, 0.0, 0.0])
    found = token_divergence(student, covers, kind="reverse_kl")
    assert found.item() == pytest.approx(math.log(1.5))
    (gradient,) = torch.autograd.grad(found, student)
    assert torch.isfinite(gradient).all()
    assert token_divergence(student, covers, kind="forward_kl").item() == math.inf
    assert token_divergence(covers, teacher, kind="reverse_kl").item() == math.inf
    assert math.isfinite(token_divergence(covers, teacher, kind="jsd").item())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_law_that_is_no_number_has_no_divergence_of_zero(kind: str, broken: float) -> None:
    sound, harmed = torch.zeros(1, 3), torch.tensor([[0.0, broken, 0.0]])
    for student, teacher in ((sound, harmed), (harmed, sound)):
        assert token_divergence(student, teacher, kind=kind).isnan().all()


def test_what_makes_no_sense_is_refused() -> None:
    one, other = torch.zeros(2, 4), torch.zeros(2, 5)
    with pytest.raises(InputError, match=r"\(2, 4\) but the teacher's \(2, 5\)"):
        token_divergence(one, other)
    with pytest.raises(UnknownNameError, match="did you mean 'reverse_kl'"):
        token_divergence(one, one, kind="reverse-kl")
    with pytest.raises(UnknownNameError, match="form of a divergence"):
        token_divergence(one, one, form="top")
    with pytest.raises(UnknownNameError, match="estimator"):
        sampled_reverse_kl(one, one, estimator="k4")
    for beta in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match="beta"):
            token_divergence(one, one, kind="jsd", beta=beta)
    with pytest.raises(InputError, match="k is 0"):
        token_divergence(one, one, form="topk", k=0)
    with pytest.raises(InputError, match="k is 1"):  # renormalised over one token all laws are the same
        token_divergence(one, one, form="topk", k=1)
    with pytest.raises(InputError, match="cannot be estimated"):
        token_divergence(one, one, kind="forward_kl", form="sampled", sampled_ids=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InputError, match="sampled_ids has shape None"):
        token_divergence(one, one, form="sampled")
