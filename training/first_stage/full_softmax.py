"""Cross-entropy over a whole catalogue without holding the logits of more than a block of states.

The gradient is computed together with the loss, block by block, so that memory stays at `BLOCK` x items. Ours; the idea
of fusing the last layer with its loss is common (2411.09009). May import torch. Suffixes: `_N` states, `_D` width, `_I`
items.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = 256
"""States whose logits are held at once: 20 MB with 20,000 items; glibc maps blocks above 32 MB anew each time."""


class _FullSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states_ND: Tensor, items_ID: Tensor, bias_I: Tensor, targets_N: Tensor, dtype: torch.dtype
    ) -> Tensor:
        count, total = len(states_ND), states_ND.new_zeros(())
        low_ID = items_ID.to(dtype)
        by_state, by_item, by_bias = torch.empty_like(states_ND), torch.zeros_like(items_ID), torch.zeros_like(bias_I)
        for start in range(0, count, BLOCK):
            part_ND, part_N = states_ND[start : start + BLOCK].to(dtype), targets_N[start : start + BLOCK, None]
            logits_NI = (part_ND @ low_ID.T).float().add_(bias_I)
            normaliser_N = torch.logsumexp(logits_NI, dim=1, keepdim=True)
            total += (normaliser_N - logits_NI.gather(1, part_N)).sum()
            slope_NI = logits_NI.sub_(normaliser_N).exp_()
            slope_NI.scatter_add_(1, part_N, slope_NI.new_full(part_N.shape, -1.0))
            by_bias += slope_NI.sum(0)
            low_NI = slope_NI.to(dtype)
            by_state[start : start + BLOCK] = (low_NI @ low_ID).float()
            by_item += (low_NI.T @ part_ND).float()
        ctx.save_for_backward(by_state / count, by_item / count, by_bias / count)
        return total / count

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return (*(slope * gradient for gradient in ctx.saved_tensors), None, None)


def full_softmax_loss(
    states_ND: Tensor, items_ID: Tensor, bias_I: Tensor, targets_N: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Mean over states of -log softmax(states . items + bias)[target], a scalar with gradients to the first three.

    `dtype` is that of the matrix products; logits, softmax and sums over blocks are float32. At least one state.
    """
    loss: Tensor = _FullSoftmax.apply(states_ND, items_ID, bias_I, targets_N, dtype)  # type: ignore[no-untyped-call]
    return loss
