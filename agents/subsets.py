"""Exact expectations over all orders of K candidates, by a dynamic programme over the sets already placed.

May import torch and numpy. Suffixes: `_B` requests, `_K` candidates or places, `_C` sets of one layer.

K! rankings pass through only 2^K sets, because what comes next depends on which candidates are placed and not on
their order. With P(A) the chance that the first |A| places hold exactly the set A:

    P({}) = 1,   P(A) = sum over k in A of P(A - k) p(k | A - k),   E[sum of costs] = sum_A P(A) cost(A)

The sets of one size form a layer, and a layer is one batched tensor operation. Source: the subset programme of Held
and Karp (1962), here for sums instead of minima.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

MOST_CANDIDATES = 12
"""The largest K that `expectation` is meant for: 4,096 sets a request."""

Cost = Callable[[int, Tensor, Tensor], Tensor]
"""(slot, log-conditionals [B, C, K], open mask [B, C, K]) -> the cost of the choice at each of the C sets, [B, C]."""


@dataclass(frozen=True)
class Layer:
    """The C sets that hold as many candidates as there are places before one slot.

    `open_CK` bool: candidate k is not in set c. `parents` int64 [C, slot], or [1, 1] for the empty set: where the
    mass of set c comes from, as flat indices into what leaves the layer before, laid out [C', K].
    """

    open_CK: Tensor
    parents: Tensor


@lru_cache(maxsize=MOST_CANDIDATES)
def layers(width: int) -> tuple[Layer, ...]:
    """The sets of 0, 1, ..., width - 1 out of `width` candidates, one layer for each slot."""
    sets = np.arange(2**width)
    holds = (sets[:, None] >> np.arange(width)) & 1 == 1
    sizes = holds.sum(axis=1)
    place_in_layer = np.zeros(2**width, dtype=np.int64)
    result = []
    for size in range(width):
        chosen = np.flatnonzero(sizes == size)
        place_in_layer[chosen] = np.arange(len(chosen))
        rows, candidates = np.nonzero(holds[chosen])
        parents = place_in_layer[chosen[rows] - (1 << candidates)] * width + candidates
        parents = parents.reshape(len(chosen), size) if size else np.zeros((1, 1), dtype=np.int64)
        result.append(Layer(open_CK=torch.from_numpy(~holds[chosen]), parents=torch.from_numpy(parents)))
    return tuple(result)


def log_conditionals(logits: Tensor, open_mask: Tensor) -> Tensor:
    """Log-softmax over the open entries of the last axis and 0 at closed ones; rows with nothing open are all 0.

    Zeros rather than -inf keep `p log p` and its gradient finite. A closed entry then has exp(0) = 1, so
    probabilities must be multiplied by the mask while `p log p` is already 0 there.
    """
    something = open_mask | ~open_mask.any(-1, keepdim=True)
    return torch.log_softmax(logits.masked_fill(~something, -torch.inf), dim=-1).masked_fill(~open_mask, 0.0)


def expectation(logits_BKK: Tensor, sizes_B: Tensor, cost: Cost) -> Tensor:
    """Expected sum of `cost` over the places of rankings drawn from `logits_BKK`, exactly: [B]. Differentiable.

    Rows with fewer than K candidates use their first `size` columns and places. The work grows as K 2^K: callers
    refuse more than `MOST_CANDIDATES`.
    """
    width, device = logits_BKK.shape[2], logits_BKK.device
    real_BK = torch.arange(width, device=device) < sizes_B[:, None]
    leaving = logits_BKK.new_ones(len(sizes_B), 1)
    total_B = logits_BKK.new_zeros(len(sizes_B))
    for slot, layer in enumerate(layers(width)):
        reached_BC = leaving[:, layer.parents.to(device)].sum(-1)
        open_BCK = layer.open_CK.to(device) & real_BK[:, None]
        log_conditionals_BCK = log_conditionals(logits_BKK[:, None, slot], open_BCK)
        step_B = (reached_BC * cost(slot, log_conditionals_BCK, open_BCK)).sum(-1)
        total_B = total_B + torch.where(slot < sizes_B, step_B, 0.0)
        leaving = (reached_BC.unsqueeze(-1) * log_conditionals_BCK.exp() * open_BCK).flatten(1)
    return total_B
