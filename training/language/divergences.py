"""How far a student's law of the next token is from a teacher's: named divergences, token by token.

May import torch and `rerank_env.rewards`. Pure functions. With student s and teacher t, sums over the vocabulary:

    reverse_kl  KL(s || t) = sum s log(s / t)      the student avoids what the teacher would not say (GR2, 2606.31984)
    forward_kl  KL(t || s) = sum t log(t / s)      the student covers all that the teacher says
    jsd         b KL(t || m) + (1 - b) KL(s || m),  m = b t + (1 - b) s     (GKD 2306.13649, equation 1)

As b goes to 0, jsd / b goes to KL(t || s); as it goes to 1, jsd / (1 - b) goes to KL(s || t). TRL's `beta` 0 and 1 mean
these two. Three ways to compute them:

    full     over the whole vocabulary, exact
    topk     over the k tokens that the teacher finds likeliest, both laws renormalised there; what the student says
             outside of them is not seen
    sampled  from the one token that the student drew, reverse_kl only: unbiased where the token is drawn from the
             student's law, with r = log t - log s
                 k1 = -r                value unbiased; its gradient is zero in expectation, so it is for logs only
                 k2 = r^2 / 2           value biased; its gradient is that of KL(s || t) in expectation
                 k3 = e^r - 1 - r       value unbiased and never negative; its gradient is that of KL(t || s) (!)

The names are Schulman's ("Approximating KL divergence", 2020); the remarks on gradients can be checked by writing the
expectation out, as the tests do. Suffixes: `_V` vocabulary; every other axis is free and stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError

KINDS = ("forward_kl", "jsd", "reverse_kl")
FORMS = ("full", "sampled", "topk")
ESTIMATORS = ("k1", "k2", "k3")


def token_divergence(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    kind: str = "reverse_kl",
    form: str = "full",
    beta: float = 0.5,
    k: int = 16,
    sampled_ids: Tensor | None = None,
    estimator: str = "k2",
) -> Tensor:
    """The divergence at every place, [...] in float32 or finer, from logits [..., V]; the gradient flows to both.

    `beta`: b of "jsd". `k`: tokens of "topk", all of them where there are fewer. `sampled_ids` int64 [...]: the tokens
    that were drawn, for "sampled", whose `estimator` see. A token that neither can say counts for nothing; one that the
    student says and the teacher cannot makes the reverse divergence infinite, and the other way round.

    Raises `InputError` where shapes disagree and as `check` does.

    >>> token_divergence(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.0])).item()
    0.0
    """
    check(kind, form, beta=beta, k=k, estimator=estimator)
    if student_logits.shape != teacher_logits.shape:
        raise InputError(
            f"the student's logits have shape {tuple(student_logits.shape)} but the teacher's "
            f"{tuple(teacher_logits.shape)}; give both at the same places over the same vocabulary"
        )
    if form == "sampled":
        if sampled_ids is None or sampled_ids.shape != student_logits.shape[:-1]:
            given = None if sampled_ids is None else tuple(sampled_ids.shape)
            raise InputError(f"sampled_ids has shape {given}; give the token drawn at each place of the logits")
        log_s, log_t = (
            _log_law(logits).gather(-1, sampled_ids[..., None]).squeeze(-1)
            for logits in (student_logits, teacher_logits)
        )
        return sampled_reverse_kl(log_s, log_t, estimator=estimator)
    if form == "topk":
        places = teacher_logits.topk(min(k, teacher_logits.shape[-1]), dim=-1).indices
        student_logits, teacher_logits = student_logits.gather(-1, places), teacher_logits.gather(-1, places)
    return of_laws(_log_law(student_logits), _log_law(teacher_logits), kind=kind, beta=beta)


def of_laws(log_s_V: Tensor, log_t_V: Tensor, *, kind: str, beta: float = 0.5) -> Tensor:
    """The divergence [...] of two laws given as log-probabilities [..., V]; raises as `check` does."""
    check(kind, beta=beta)
    if kind == "reverse_kl":
        return _kl(log_s_V, log_t_V)
    if kind == "forward_kl":
        return _kl(log_t_V, log_s_V)
    weights = torch.tensor([1.0 - beta, beta], dtype=log_s_V.dtype, device=log_s_V.device).log()
    log_m_V = torch.logaddexp(log_s_V + weights[0], log_t_V + weights[1])
    return beta * _kl(log_t_V, log_m_V) + (1.0 - beta) * _kl(log_s_V, log_m_V)


def sampled_reverse_kl(log_s: Tensor, log_t: Tensor, *, estimator: str = "k2") -> Tensor:
    """KL(s || t) [...] estimated from the log-probabilities [...] of tokens that s drew; see the module.

    Raises `UnknownNameError` for an unknown estimator.
    """
    one_of("estimator", estimator, ESTIMATORS)
    log_ratio = log_t - log_s
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    return torch.expm1(log_ratio) - log_ratio


def check(kind: str, form: str = "full", *, beta: float = 0.5, k: int = 1, estimator: str = "k2") -> None:
    """Raise `UnknownNameError` for a name there is not, `InputError` for a number or a combination that makes no sense.

    Such as a `beta` that is not between 0 and 1, a `k` below 1, and a sampled divergence other than the reverse one.
    """
    one_of("divergence", kind, KINDS)
    one_of("form of a divergence", form, FORMS)
    one_of("estimator", estimator, ESTIMATORS)
    whole("k", k, least=2 if form == "topk" else 1)  # two laws over one token are the same
    if kind == "jsd" and not 0.0 < finite("beta", beta) < 1.0:
        raise InputError(f"beta is {beta}; give a number between 0 and 1, or name forward_kl or reverse_kl")
    if form == "sampled" and kind != "reverse_kl":
        raise InputError(f"{kind} cannot be estimated from the student's tokens; use the form full or topk")


def _log_law(logits_V: Tensor) -> Tensor:
    """Log-probabilities, in float32 at least."""
    return logits_V.to(torch.promote_types(logits_V.dtype, torch.float32)).log_softmax(-1)


def _kl(log_p_V: Tensor, log_q_V: Tensor) -> Tensor:
    """sum p (log p - log q) over the last axis; what p cannot say adds nothing and has no gradient, and what is no
    number stays none.
    """
    said_V = log_p_V != -torch.inf
    log_p_V = log_p_V.masked_fill(~said_V, 0.0)
    gap_V = log_p_V - log_q_V.masked_fill(~said_V, 0.0)
    return (log_p_V.exp() * gap_V * said_V).sum(-1)
