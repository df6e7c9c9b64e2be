"""The losses of both trainers as pure functions of log-probabilities and logits.

May import torch and `rerank_env.rewards`. Suffixes: `_B` requests, `_G` answers to one request, `_K` slots (or
candidates): a logits tensor `_BKK` is [request, slot, candidate].

Clipped surrogate (DAPO 2503.14476 equations 8 and 10; the token of that paper is the slot of a ranking here):

    J = 1 / (sum of |o_i|) * sum_i sum_t min(rho_it A_i, clip(rho_it, 1 - e_low, 1 + e_high) A_i)
    rho_it = exp(log p(slot t of answer i) - log p_old(slot t of answer i))

The loss is -J. `mask` takes slots out of the numerator AND of the denominator, so that a masked answer, a padded slot
or a dead group leaves the loss as if it had never been sampled.

Listwise cross-entropy (ListNet, Cao et al. 2007, equation for the top-one cross-entropy), applied at every slot:

    L = - mean over slots t of sum_j P_tj log softmax_j(S_tj),   j over the candidates not yet placed at slot t
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rerank_env.rewards.errors import InputError

LARGEST_LOG_RATIO = 20.0
"""Ratios are cut at e^20: a larger one would be infinite in float32 soon after, and infinity times zero is NaN."""


@dataclass(frozen=True)
class ClippedLoss:
    """`loss` to be minimised (0 with a graph if nothing is selected), and what to log, detached scalars.

    `clip_fraction`: share of selected slots whose gradient the clip removed. `ratio_max`: largest ratio among them.
    """

    loss: Tensor
    clip_fraction: float
    ratio_max: float


def clipped_surrogate(
    logprobs_BGK: Tensor,
    old_logprobs_BGK: Tensor,
    advantages_BG: Tensor,
    mask_BGK: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> ClippedLoss:
    """DAPO's loss: slot-level ratios, decoupled clip, one normaliser for the whole batch; never NaN.

    `logprobs_BGK` carries the gradient, the old ones are those of the sampling policy, `mask_BGK` (bool) selects the
    slots that count. Advantages are per answer and shared by its slots. Raises `InputError` where shapes disagree.
    """
    _check_shapes(logprobs_BGK, old_logprobs_BGK, advantages_BG, mask_BGK)
    selected = mask_BGK.to(logprobs_BGK.dtype)
    slots = int(mask_BGK.sum())
    log_ratio_BGK = torch.where(mask_BGK, logprobs_BGK - old_logprobs_BGK, 0.0)
    ratio_BGK = log_ratio_BGK.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    gain_BG1 = advantages_BG.to(logprobs_BGK.dtype)[:, :, None]
    plain_BGK = ratio_BGK * gain_BG1
    clipped_BGK = ratio_BGK.clamp(1.0 - epsilon_low, 1.0 + epsilon_high) * gain_BG1
    objective = (torch.minimum(plain_BGK, clipped_BGK) * selected).sum() / max(slots, 1)
    with torch.no_grad():
        held_back = int(((clipped_BGK < plain_BGK) & mask_BGK).sum())
        ratio_max = float(ratio_BGK.masked_fill(~mask_BGK, 0.0).max()) if slots else 1.0
    return ClippedLoss(loss=-objective, clip_fraction=held_back / max(slots, 1), ratio_max=ratio_max)


def _check_shapes(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> None:
    if logprobs.ndim != 3 or old_logprobs.shape != logprobs.shape or mask.shape != logprobs.shape:
        raise InputError(
            f"log-probabilities have shape {tuple(logprobs.shape)}, the old ones {tuple(old_logprobs.shape)} and the "
            f"mask {tuple(mask.shape)}; all three must be [requests, answers, slots]"
        )
    if advantages.shape != logprobs.shape[:2]:
        raise InputError(
            f"advantages have shape {tuple(advantages.shape)} but the log-probabilities need "
            f"{tuple(logprobs.shape[:2])}; give one advantage an answer"
        )


def listwise_cross_entropy(logits_BKK: Tensor, targets_BKK: Tensor, open_BKK: Tensor) -> Tensor:
    """ListNet's cross-entropy at every slot, averaged over the slots that have a target; a scalar, 0 if none has.

    `targets_BKK` [request, slot, candidate]: a distribution over the open candidates at each slot that teaches, all
    zero at a slot that does not. `open_BKK` (bool): the candidates not yet placed. Raises `InputError` on shapes.
    """
    if logits_BKK.ndim != 3 or targets_BKK.shape != logits_BKK.shape or open_BKK.shape != logits_BKK.shape:
        raise InputError(
            f"logits have shape {tuple(logits_BKK.shape)}, targets {tuple(targets_BKK.shape)} and open candidates "
            f"{tuple(open_BKK.shape)}; all three must be [requests, slots, candidates]"
        )
    teaches_BK = targets_BKK.sum(-1) > 0
    floor = torch.finfo(logits_BKK.dtype).min
    logprobs_BKK = torch.log_softmax(logits_BKK.masked_fill(~open_BKK, floor), dim=-1)
    per_slot_BK = -(targets_BKK * logprobs_BKK.masked_fill(~open_BKK, 0.0)).sum(-1)
    return (per_slot_BK * teaches_BK).sum() / teaches_BK.sum().clamp(min=1)
