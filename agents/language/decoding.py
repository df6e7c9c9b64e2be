"""How tokens are drawn: the settings of decoding, and the law that logits stand for under them.

May import torch and `rerank_env.rewards`. Suffixes: `_R` rows that are being written, `_V` vocabulary.

    p_RV = softmax(logits / temperature), the smallest set of tokens with mass >= top_p kept and renormalised

A token is drawn by inverting the cumulative law at one uniform number a row and step, so that what a row draws depends
on its own numbers and its own logits, not on who else is in the batch. Nucleus sampling is that of Holtzman et al.
2019 (1904.09751).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.errors import InputError


@dataclass(frozen=True)
class Decoding:
    """How completions are written.

    `max_tokens` at most, the end-of-text token included; `temperature` 0 is greedy; `top_p` keeps the likeliest tokens
    that have this much of the mass between them. `constrained`: answers can only be legal rankings, see
    `rerank_env.agents.language.constraints`. `batch_size`: rows written at a time, all copies of a prompt counted.
    `share_prefix`: what prompts begin with in common is computed once, see `rerank_env.agents.language.prefix`.

    Raises `InputError` naming the field.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    constrained: bool = False
    batch_size: int = 64
    share_prefix: bool = True

    def __post_init__(self) -> None:
        """Check every field."""
        object.__setattr__(self, "max_tokens", whole("max_tokens", self.max_tokens, least=1))
        object.__setattr__(self, "batch_size", whole("batch_size", self.batch_size, least=1))
        temperature, top_p = finite("temperature", self.temperature), finite("top_p", self.top_p)
        if temperature < 0:
            raise InputError(f"temperature is {temperature}; give 0 for greedy decoding, or a positive number")
        if not 0 < top_p <= 1:
            raise InputError(f"top_p is {top_p}; give a number above 0 and at most 1")
        object.__setattr__(self, "temperature", temperature)
        object.__setattr__(self, "top_p", top_p)
        for name in ("constrained", "share_prefix"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; give True or False")

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0


def law(logits_RV: Tensor, decoding: Decoding) -> Tensor:
    """Log-probabilities float32 [R, V] of the law that tokens are drawn from; -inf for what cannot be drawn.

    Greedy decoding draws from nothing; what is reported there is the model's own law, temperature 1 and all tokens.
    """
    logits_RV = logits_RV.float()
    if decoding.is_greedy:
        return logits_RV.log_softmax(-1)
    log_p_RV = (logits_RV / decoding.temperature).log_softmax(-1)
    if decoding.top_p == 1:
        return log_p_RV
    sorted_RV, order_RV = log_p_RV.sort(dim=-1, descending=True)
    p_RV = sorted_RV.exp()
    beyond_RV = p_RV.cumsum(-1) - p_RV >= decoding.top_p  # the mass before a token is enough without it
    beyond_RV[:, 0] = False
    kept_RV = sorted_RV.masked_fill(beyond_RV, -torch.inf).log_softmax(-1)
    return torch.empty_like(kept_RV).scatter_(-1, order_RV, kept_RV)


def drawn(log_p_RV: Tensor, uniform_R: Tensor | None) -> Tensor:
    """A token each, int64 [R]: the likeliest where there are no numbers, else that at which the cumulative law is.

    `uniform_R` float64 in [0, 1). A token of probability 0 is never drawn.
    """
    if uniform_R is None:
        return log_p_RV.argmax(-1)
    mass_RV = log_p_RV.double().exp().cumsum(-1)
    places_R1 = torch.searchsorted(mass_RV, uniform_R[:, None] * mass_RV[:, -1:], right=True)
    return places_R1.squeeze(1).clamp(max=log_p_RV.shape[1] - 1)  # beyond the end only where a logit is not a number
