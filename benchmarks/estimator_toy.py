"""Block diffusion so small that every completion, and every way to decode it, can be written down.

A tiny transformer writes a few tokens of three or four in short blocks. Its laws are read one canvas at a time with a
mask made by a plain loop, so that nothing is shared with what is checked against them, and all decodings are enumerated
with their probabilities, which carry gradients: the gradient of an expected reward is then exact. Which of two places
is surer has no derivative of its own: it is constant almost everywhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.likelihood.masked import Coupled, Elbo
from rerank_env.agents.block_diffusion.likelihood.plans import Plan, Setting, Written, blocks_of
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.trajectory import Trajectory

Tokens = tuple[int, ...]
Path = tuple[Tokens, Tokens]
"""What was written, and the round in which each token was committed."""

Order = Callable[[Sequence[int], Sequence[float]], list[tuple[float, Sequence[int]]]]
"""Of open places and the probabilities of what was drawn there: which are committed, and with what probability."""

ORDERS: dict[str, Order] = {
    "left to right": lambda places, _sure: [(1.0, places[:1])],
    "static(1)": lambda places, _sure: [(1.0, places)],
    "threshold(0.6)": lambda places, sure: [(1.0, above(places, sure, 0.6))],
    "surest first": lambda places, sure: [(1.0, surest(places, sure)[:1])],
    "random order": lambda places, _sure: [(1 / len(places), [place]) for place in places],
}
"""Ways to decode blocks of two: in the first two and the last the order owes nothing to the parameters. The last two
may leave the first place of a block for later, as no rule does where tokens are shifted; they are here to compare with.
"""


def surest(places: Sequence[int], sure: Sequence[float]) -> list[int]:
    """The places, the most confident first, of equal ones that on the left."""
    return [place for _, place in sorted(zip([-one for one in sure], places, strict=True))]


def above(places: Sequence[int], sure: Sequence[float], least: float) -> list[int]:
    """The places that are confident enough, the most confident where none is; the first of a block never waits."""
    enough = [place for place, one in zip(places, sure, strict=True) if one >= least] or surest(places, sure)[:1]
    return enough if 0 in enough or 0 not in places else [0]


class Toy:
    """A tiny model of `tokens` real tokens that writes `length` of them behind `prompt`; the mask token is the next."""

    def __init__(self, seed: int, *, size: int = 2, length: int = 4, tokens: int = 3, sharpness: float = 0.4) -> None:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(seed)
        self.blocks, self.length, self.tokens, self.mask_id = Blocks(size), length, tokens, tokens
        self.prompt = [1, 0, 2]
        config = Qwen3Config(
            vocab_size=tokens + 1, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=32, initializer_range=sharpness,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        self.model: Any = Qwen3ForCausalLM(config).double().eval()
        self.parameters = [weights for weights in self.model.parameters() if weights.requires_grad]
        self.setting = Setting(self.blocks, self.mask_id, max_tokens=length)
        self.laws: dict[tuple[Tokens, Tokens], Tensor] = {}
        self.completions = list(itertools.product(range(tokens), repeat=length))

    def law(self, before: Tokens, canvas: Tokens) -> Tensor:
        """Log-probabilities [places, tokens] of a canvas behind clean tokens, read by itself; with a graph, kept."""
        if (before, canvas) not in self.laws:
            ids = [*self.prompt, *before, *canvas]
            clean, size = len(self.prompt) + len(before), self.blocks.size
            block = [-1] * len(self.prompt) + [place // size for place in range(len(before))]
            mask = torch.full((len(ids), len(ids)), torch.finfo(torch.float64).min, dtype=torch.float64)
            for looking, seen in itertools.product(range(len(ids)), repeat=2):
                if looking >= clean or seen <= looking or (seen < clean and block[looking] == block[seen] >= 0):
                    mask[looking, seen] = 0.0
            out = self.model(
                input_ids=torch.tensor([ids]), attention_mask=mask[None, None],
                position_ids=torch.arange(len(ids))[None], use_cache=False,
            )  # fmt: skip
            logits = out.logits[0, clean - 1 : clean - 1 + len(canvas), : self.tokens]
            self.laws[before, canvas] = logits.log_softmax(-1)
        return self.laws[before, canvas]

    def paths(self, order: Order) -> dict[Path, Tensor]:
        """The probability of every decoding that can happen, with a graph; they sum to one."""
        found: dict[Path, Tensor] = {((), ()): torch.ones((), dtype=torch.float64)}
        for start in range(0, self.length, self.blocks.size):
            width = min(self.blocks.size, self.length - start)
            further: dict[Path, Tensor] = {}
            for (written, rounds), p in found.items():
                for (tokens, when), q in self._block(written, width, order).items():
                    further[(*written, *tokens), (*rounds, *when)] = p * q
            found = further
        return found

    def _block(self, before: Tokens, width: int, order: Order) -> dict[Path, Tensor]:
        going: dict[Path, Tensor] = {((self.mask_id,) * width, (-1,) * width): torch.ones((), dtype=torch.float64)}
        done: dict[Path, Tensor] = {}
        number = 0
        while going:
            further: dict[Path, Tensor] = {}
            for (canvas, rounds), p in going.items():
                law, places = self.law(before, canvas), [place for place in range(width) if rounds[place] < 0]
                for drawn in itertools.product(range(self.tokens), repeat=len(places)):
                    terms = [law[place, token] for place, token in zip(places, drawn, strict=True)]
                    q = p * torch.stack(terms).sum().exp()
                    for share, now in order(places, [float(term.detach().exp()) for term in terms]):
                        told = dict(zip(places, drawn, strict=True))
                        tokens = tuple(told[place] if place in now else canvas[place] for place in range(width))
                        when = tuple(number if place in now else rounds[place] for place in range(width))
                        into = done if -1 not in when else further
                        into[tokens, when] = into.get((tokens, when), 0.0) + share * q
            going, number = further, number + 1
        return done

    def committed(self, path: Path) -> Tensor:
        """The log-probability of what a decoding committed, each token on its canvas, by a plain loop; with a graph."""
        written, rounds = path
        terms = []
        for place, token in enumerate(written):
            start = place // self.blocks.size * self.blocks.size
            end = min(start + self.blocks.size, self.length)
            canvas = tuple(
                written[other] if rounds[other] < rounds[place] else self.mask_id for other in range(start, end)
            )
            terms.append(self.law(written[:start], canvas)[place - start, token])
        return torch.stack(terms).sum()

    def written(self, path: Path) -> Written:
        """A decoding as it is handed to an estimator."""
        tokens, rounds = path
        zeros = (0.0,) * len(tokens)
        trajectory = Trajectory(
            tokens, rounds, (False,) * len(tokens), zeros, len(tokens), False, self.blocks.size, self.mask_id
        )
        return Written(self.prompt, list(tokens), trajectory)

    def gradient(self, value: Tensor) -> Tensor:
        """The gradient of a value with respect to all weights, [P], the graph kept."""
        parts = torch.autograd.grad(value, self.parameters, retain_graph=True, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(weights) if part is None else part).reshape(-1)
                for part, weights in zip(parts, self.parameters, strict=True)
            ]
        )


def expected(estimator: Elbo | Coupled, written: Written, setting: Setting) -> Plan:
    """Every mask that an estimator may draw, weighted by its probability: scored, it gives the estimate's expectation.

    Of `Elbo` a set of l of T places counts 1 / (l * (T choose l)). Of `Coupled` a set of k of n counts for each share t
    that is hidden t^(k-1) (1-t)^(n-k) / 2 as the first part and, t and 1 - t exchanged, as the second; the average over
    t is that of a polynomial, exact by the rule of Gauss and Legendre.
    """
    looks = []
    for block in blocks_of(written, setting):
        everywhere, size = range(len(block.text)), len(block.text)
        if isinstance(estimator, Coupled):
            looks.append(block.look(everywhere, 0.5))
        for count in range(1, size + 1):
            for hidden in itertools.combinations(everywhere, count):
                if isinstance(estimator, Elbo):
                    weight = 1 / (count * math.comb(size, count))
                else:
                    nodes, shares = np.polynomial.legendre.leggauss(size)
                    t = estimator.low + (estimator.high - estimator.low) * (nodes + 1) / 2
                    part = t ** (count - 1) * (1 - t) ** (size - count)
                    other = (1 - t) ** (count - 1) * t ** (size - count)
                    weight = float((shares / 2 * (part + other)).sum() / 2)
                looks.append(block.look(hidden, weight))
    return Plan(written.prompt, written.completion, looks)
