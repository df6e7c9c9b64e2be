"""Surrogates of the likelihood from a few masks that have nothing to do with how the completion was decoded.

May import torch, `rerank_env.rewards` and the modules below. With T the tokens of a block, and blocks before it clean:

    mean_field   sum_i log p(o_i | all hidden)                                                      (d1, 2504.12216)
    elbo         E over l ~ U{1..T} and m of l places [ T / l * sum over i in m of log p(o_i | o without m) ]
                                                                    (LLaDA 2502.09992; ESPO 2512.03759; per block: ours)
    coupled      1/2 log p(o_i | all hidden) + w_i / 2 log p(o_i | o without m or without its complement, in which i is)
                 each place in m with probability t, t ~ U(low, high), w_i = 1/t in m and 1/(1 - t) in the complement
                                                                                   (coupled-GRPO, 2506.20639)

`mean_field` is the exact law of decoding all places of a block in one round, and else leaves out what they have to do
with each other. The expectation of `elbo` is that of the log-probability over uniformly random orders of one place a
round, so by Jensen it is at most the log-probability of decoding in random order. `coupled` is on the scale of about
one and a half log-probabilities, as published; only differences of it are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from rerank_env.agents.block_diffusion.likelihood.plans import Plan, Setting, Written, blocks_of
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import Expression


@dataclass(frozen=True, repr=False)
class MeanField(Expression):
    """All places of each block at once, each by itself: a canvas a block.

    `prompt_masking`: the probability with which each token of the prompt is hidden, 0.15 in d1. Raises `InputError`.
    """

    prompt_masking: float = 0.0
    name: ClassVar[str] = "mean_field"
    level: ClassVar[str] = "token"

    def __post_init__(self) -> None:
        """Check the field."""
        share = finite("the share of a prompt that is hidden", self.prompt_masking)
        if not 0 <= share <= 1:
            raise InputError(f"the share of a prompt that is hidden is {share}; give a number from 0 to 1")
        object.__setattr__(self, "prompt_masking", share)

    def plan(self, written: Sequence[Written], setting: Setting) -> list[Plan]:
        """See `plans.Likelihood`; draws where a part of the prompt is hidden."""
        return [
            Plan(
                self._prompt(one.prompt, setting),
                one.completion,
                [block.look(range(len(block.text)), 1.0) for block in blocks_of(one, setting)],
            )
            for one in written
        ]

    def _prompt(self, prompt: Sequence[int], setting: Setting) -> Sequence[int]:
        if not self.prompt_masking:
            return prompt
        hidden = _uniform(len(prompt), setting.source(self)) < self.prompt_masking
        return [setting.mask_id if gone else token for token, gone in zip(prompt, hidden.tolist(), strict=True)]


@dataclass(frozen=True, repr=False)
class Elbo(Expression):
    """The lower bound in its form without replacement, averaged over `draws` masks of every block: as many canvases.

    The values sum to an unbiased estimate of the bound; each by itself means little, so ratios are of whole
    completions. Raises `InputError`.
    """

    draws: int = 2
    name: ClassVar[str] = "elbo"
    level: ClassVar[str] = "sequence"

    def __post_init__(self) -> None:
        """Check the field."""
        object.__setattr__(self, "draws", whole("the draws of a lower bound", self.draws, least=1))

    def plan(self, written: Sequence[Written], setting: Setting) -> list[Plan]:
        """See `plans.Likelihood`."""
        source = setting.source(self)
        plans = []
        for one in written:
            looks = []
            for block in blocks_of(one, setting):
                length = len(block.text)
                for _ in range(self.draws):
                    count = int(torch.randint(1, length + 1, (), generator=source, device=source.device))
                    order = torch.randperm(length, generator=source, device=source.device).tolist()
                    looks.append(block.look(sorted(order[:count]), length / count / self.draws))
            plans.append(Plan(one.prompt, one.completion, looks))
        return plans


@dataclass(frozen=True, repr=False)
class Coupled(Expression):
    """All places hidden, then a random part of them, then the others: three canvases a block at most.

    The share that is hidden is drawn between `low` and `high`, once a completion. Raises `InputError`.
    """

    low: float = 0.2
    high: float = 0.8
    name: ClassVar[str] = "coupled"
    level: ClassVar[str] = "token"

    def __post_init__(self) -> None:
        """Check the fields."""
        low, high = finite("the least share that is hidden", self.low), finite("the largest share", self.high)
        if not 0 < low <= high < 1:
            raise InputError(f"shares from {low} to {high} are to be hidden; give two between 0 and 1, in order")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def plan(self, written: Sequence[Written], setting: Setting) -> list[Plan]:
        """See `plans.Likelihood`."""
        source = setting.source(self)
        plans = []
        for one in written:
            share = self.low + (self.high - self.low) * float(_uniform(1, source))
            looks = []
            for block in blocks_of(one, setting):
                everywhere = range(len(block.text))
                first = (_uniform(len(block.text), source) < share).tolist()
                parts = [([place for place in everywhere if first[place]], share)]
                parts.append(([place for place in everywhere if not first[place]], 1 - share))
                looks.append(block.look(everywhere, 0.5))
                looks += [block.look(part, 0.5 / weight) for part, weight in parts if part]
            plans.append(Plan(one.prompt, one.completion, looks))
        return plans


def _uniform(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
