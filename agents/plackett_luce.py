"""The exact likelihood of a ranking: the generalised Plackett-Luce law (GPL), its sampler, mode, entropy and KL.

May import torch and `rerank_env.rewards`. Suffixes: `_B` requests, `_G` or `_N` rankings of each, `_K` candidates or
places. `logits_BKK[b, i, j]` is the score of candidate j for place i: row i is a slot, column j a candidate.

    log pi(ranking) = sum_i [ S[i, ranking_i] - logsumexp over the j not yet placed of S[i, j] ]

With all rows equal this is the law of Plackett (1975) and Luce (1959); free rows make it strictly more expressive, as
in SymmetricDiffusers (2410.02942). Nothing is approximated: each place is a softmax over the candidates that are left,
so the probabilities of all K! rankings sum to one. Where only the first k places matter, sum the first k places.

Row b has `sizes_B[b]` real candidates, columns 0..size-1; what stands in padded rows and columns is never read. Logits
of real candidates must be finite; float16 and bfloat16 are raised to float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rerank_env.agents.subsets import MOST_CANDIDATES, expectation, log_conditionals
from rerank_env.rewards.errors import InputError, RankingError


def plain(scores_BK: Tensor) -> Tensor:
    """The logits [B, K, K] of the plain Plackett-Luce law: one score a candidate, the same at every place."""
    return scores_BK.unsqueeze(1).expand(-1, scores_BK.shape[1], -1)


def log_prob(logits_BKK: Tensor, rankings_BGK: Tensor, sizes_B: Tensor) -> Tensor:
    """Log-probability of each place of each ranking, [B, G, K]; the sum over K is that of the ranking.

    `rankings_BGK` int64: the first `size` entries are a permutation of 0..size-1; what follows is ignored and its
    places are exactly 0, value and gradient. The last real place is exactly 0 too: one candidate is left.
    Raises `RankingError` on an illegal ranking, which has no probability. Source: module docstring.
    """
    return _along(logits_BKK, rankings_BGK, sizes_B).diagonal(dim1=-2, dim2=-1)


@torch.no_grad()
def sample(logits_BKK: Tensor, sizes_B: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """Draw `n` rankings of each request, independently: int64 [B, n, K], tails -1.

    Masked Gumbel-argmax, place by place, with fresh noise for every place: one noise vector shared by all places
    samples the right law only where the rows of the logits are equal. Noise is drawn in float64 on the generator's
    own device and moved, so that a CPU generator gives the same numbers to a model on any device. No gradient.
    """
    logits_BKK, sizes_B = _checked(logits_BKK, sizes_B)
    _check_finite(logits_BKK)
    if n < 1:
        raise InputError(f"cannot draw {n} rankings a request; ask for at least 1")
    rows, width, _ = logits_BKK.shape

    def noisy(slot: int) -> Tensor:
        arrivals_BNK = torch.empty(rows, n, width, dtype=torch.float64, device=generator.device)
        noise_BNK = -arrivals_BNK.exponential_(generator=generator).log()
        return logits_BKK[:, None, slot] + noise_BNK.to(device=logits_BKK.device, dtype=logits_BKK.dtype)

    return _fill(noisy, sizes_B, (rows, n, width))


@torch.no_grad()
def greedy(logits_BKK: Tensor, sizes_B: Tensor) -> Tensor:
    """The best candidate that is left, place by place: int64 [B, K], tails -1. Equal scores keep the incoming order.

    For plain Plackett-Luce this is the sort by score and the mode of the law; for unequal rows it is the mode in most
    cases only, and far cheaper than a search.
    """
    logits_BKK, sizes_B = _checked(logits_BKK, sizes_B)
    _check_finite(logits_BKK)
    rows, width, _ = logits_BKK.shape
    return _fill(lambda slot: logits_BKK[:, None, slot], sizes_B, (rows, 1, width)).squeeze(1)


def entropy(logits_BKK: Tensor, sizes_B: Tensor) -> Tensor:
    """Exact entropy of each request's law over rankings, in nats, [B]: 0 when certain, log K! when uniform.

    The entropy of the next choice at each set of placed candidates, weighted by the chance of passing through that
    set (`subsets.py`). Raises `InputError` where a request has more than 12 candidates. Differentiable.
    """

    def cost(_slot: int, log_p_BCK: Tensor, _open: Tensor) -> Tensor:
        return -(log_p_BCK.exp() * log_p_BCK).sum(-1)

    logits_BKK, sizes_B = _trimmed(logits_BKK, sizes_B, "average path_entropy over sampled rankings instead")
    return expectation(logits_BKK, sizes_B, cost)


def kl(p_logits_BKK: Tensor, q_logits_BKK: Tensor, sizes_B: Tensor) -> Tensor:
    """Exact KL(p || q) between two laws over the rankings of each request, in nats, [B]; below zero by rounding only.

    As `entropy`, with the KL of the next choice at each set, weighted by p. Raises `InputError` where a request has
    more than 12 candidates or the shapes differ. Differentiable in both.
    """
    _check_same_shape(p_logits_BKK, q_logits_BKK)
    advice = "average path_kl over rankings sampled from p instead"
    q_BKK, _ = _trimmed(q_logits_BKK, sizes_B, advice)

    def cost(slot: int, log_p_BCK: Tensor, open_BCK: Tensor) -> Tensor:
        log_q_BCK = log_conditionals(q_BKK[:, None, slot], open_BCK)
        return (log_p_BCK.exp() * (log_p_BCK - log_q_BCK)).sum(-1)

    p_BKK, sizes_B = _trimmed(p_logits_BKK, sizes_B, advice)
    return expectation(p_BKK, sizes_B, cost)


def path_entropy(logits_BKK: Tensor, rankings_BGK: Tensor, sizes_B: Tensor) -> Tensor:
    """Entropy of the choice at each place, given the places before it, along each ranking: [B, G, K], tails 0.

    Summed over K and averaged over rankings drawn from the same logits, it is an unbiased estimate of `entropy` for
    any number of candidates. Its gradient takes the rankings as given: it leaves out how the logits steer them.
    """
    log_p_BGKK = _along(logits_BKK, rankings_BGK, sizes_B)
    return -(log_p_BGKK.exp() * log_p_BGKK).sum(-1)


def path_kl(p_logits_BKK: Tensor, q_logits_BKK: Tensor, rankings_BGK: Tensor, *, sizes_B: Tensor) -> Tensor:
    """KL(p || q) of the choice at each place, given the places before it, along each ranking: [B, G, K], tails 0.

    Summed over K and averaged over rankings drawn from p, it is an unbiased estimate of `kl` for any number of
    candidates. Its gradient takes the rankings as given.
    """
    _check_same_shape(p_logits_BKK, q_logits_BKK)
    log_p_BGKK = _along(p_logits_BKK, rankings_BGK, sizes_B)
    return (log_p_BGKK.exp() * (log_p_BGKK - _along(q_logits_BKK, rankings_BGK, sizes_B))).sum(-1)


def _fill(scores_at: Callable[[int], Tensor], sizes_B: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Fill the places one by one with the best open candidate under `scores_at(slot)` [B, n or 1, K]: [B, n, K]."""
    rows, n, width = shape
    real_BK = _real(sizes_B, width)
    closed_BNK = (~real_BK)[:, None].repeat(1, n, 1)
    rankings_BNK = torch.full((rows, n, width), -1, dtype=torch.int64, device=sizes_B.device)
    for slot in range(width):
        best_BN1 = scores_at(slot).masked_fill(closed_BNK, -torch.inf).argmax(-1, keepdim=True)
        closed_BNK.scatter_(-1, best_BN1, True)
        rankings_BNK[..., slot] = best_BN1.squeeze(-1)
    return rankings_BNK.masked_fill_(~real_BK[:, None], -1)


def _along(logits_BKK: Tensor, rankings_BGK: Tensor, sizes_B: Tensor) -> Tensor:
    """Log-conditionals [B, G, K, K] along rankings, the last axis in ranking order, 0 at closed candidates.

    In that order the candidates open at place i are i..size-1 and the one taken is i itself. A padded place is given
    its own column only, which makes it a certain choice.
    """
    logits_BKK, sizes_B = _checked(logits_BKK, sizes_B)
    rows, width, _ = logits_BKK.shape
    if rankings_BGK.ndim != 3 or rankings_BGK.shape[0] != rows or rankings_BGK.shape[2] != width:
        raise RankingError(
            f"rankings have shape {tuple(rankings_BGK.shape)} but the logits need ({rows}, any number, {width}); "
            "give every request a group of rankings padded to the same width"
        )
    place_K = torch.arange(width, device=logits_BKK.device)
    real_BK = _real(sizes_B, width)
    order_BGK = torch.where(real_BK[:, None], rankings_BGK.to(logits_BKK.device), place_K)
    illegal_BG = (order_BGK.sort(-1).values != place_K).any(-1)
    if illegal_BG.any():
        row, which = (int(x) for x in illegal_BG.nonzero()[0])
        raise RankingError(
            f"ranking {which} of request {row} is {rankings_BGK[row, which].tolist()}, not a permutation of "
            f"0..{int(sizes_B[row]) - 1}; an illegal ranking has no probability, leave it out"
        )
    shape_BGKK = (rows, rankings_BGK.shape[1], width, width)
    ordered_BGKK = logits_BKK[:, None].expand(shape_BGKK).gather(-1, order_BGK[:, :, None].expand(shape_BGKK))
    open_BKK = (place_K >= place_K[:, None]) & real_BK[:, None] | (place_K == place_K[:, None])
    return log_conditionals(ordered_BGKK, open_BKK[:, None])


def _real(sizes_B: Tensor, width: int) -> Tensor:
    """Which of `width` columns hold a candidate, bool [B, K]."""
    return torch.arange(width, device=sizes_B.device) < sizes_B[:, None]


def _checked(logits_BKK: Tensor, sizes_B: Tensor) -> tuple[Tensor, Tensor]:
    """The logits in at least float32, 0 where padded, and the sizes on their device; `InputError` on wrong shapes."""
    if logits_BKK.ndim != 3 or logits_BKK.shape[1] != logits_BKK.shape[2] or not logits_BKK.is_floating_point():
        raise InputError(
            f"logits have shape {tuple(logits_BKK.shape)} and type {logits_BKK.dtype} but must be a float tensor of "
            "(requests, places, candidates) with as many places as candidates"
        )
    rows, width, _ = logits_BKK.shape
    sizes_B = sizes_B.to(logits_BKK.device)
    if sizes_B.shape != (rows,) or ((sizes_B < 1) | (sizes_B > width)).any():
        raise InputError(
            f"sizes have shape {tuple(sizes_B.shape)} and start {sizes_B.flatten()[:4].tolist()} but the logits hold "
            f"{rows} requests of 1..{width} candidates; give one size a request"
        )
    real_BK = _real(sizes_B, width)
    logits_BKK = logits_BKK.to(torch.promote_types(logits_BKK.dtype, torch.float32))
    return logits_BKK.masked_fill(~(real_BK[:, None] & real_BK[:, :, None]), 0.0), sizes_B


def _check_finite(logits_BKK: Tensor) -> None:
    bad_B = ~logits_BKK.isfinite().flatten(1).all(-1)
    if bad_B.any():
        raise InputError(
            f"logits of request {int(bad_B.nonzero()[0])} are not finite, so nothing can be ranked by them; the model "
            "has diverged: go back to an earlier checkpoint or lower the learning rate"
        )


def _check_same_shape(p_logits_BKK: Tensor, q_logits_BKK: Tensor) -> None:
    if p_logits_BKK.shape != q_logits_BKK.shape:
        raise InputError(
            f"the two laws have logits of shape {tuple(p_logits_BKK.shape)} and {tuple(q_logits_BKK.shape)}; KL "
            "compares laws over the same requests"
        )


def _trimmed(logits_BKK: Tensor, sizes_B: Tensor, advice: str) -> tuple[Tensor, Tensor]:
    """`_checked`, without the columns and places that no request uses; `InputError` where too many are left."""
    logits_BKK, sizes_B = _checked(logits_BKK, sizes_B)
    width = max(sizes_B.tolist(), default=0)
    if width > MOST_CANDIDATES:
        raise InputError(
            f"a request has {width} candidates but the exact sum over subsets stops at {MOST_CANDIDATES}; {advice}"
        )
    return logits_BKK[:, :width, :width], sizes_B
