"""Which tokens of a completion are hidden for masked-diffusion training, and how much each of them counts.

May import numpy, `rerank_env.agents.block_diffusion` and `rerank_env.rewards`. Suffixes: `_T` tokens of a completion,
`_S` places of a block, `_B` blocks, `_N` hidden tokens that count.

Minus the log-likelihood of a block of T tokens is at most (BD3-LM, 2503.09573, section 3)

    E_t (1 / t) sum over hidden i of -log P(token i | what of the block is not hidden, the blocks before it)

with t uniform on (0, 1] and each token hidden with probability t ("bernoulli"). The same number for every model is

    E_l (T / l) sum over hidden i of ...,   l uniform on 1..T, and l tokens hidden, drawn without replacement

(the form in which LLaDA, 2502.09992, is evaluated), which varies less from draw to draw ("without_replacement"). Here
l = ceil(t T), which is the same where t is uniform on (0, 1]. With t on (low, high] instead both leave out the ends of
the range: the gradient varies less, and the bound is no longer exact.

What is ours, or differs from its source:

- **The rates of a completion are antithetic**: of B blocks each has its own of B equal parts of (low, high], in random
  order, and the rates of the k-th part from below and the k-th from above add up to low + high. BD3-LM spreads rates
  over a batch; here they are spread inside each completion, because which completions come together must not matter.
- **Complementary pairs** (Fast-dLLM v2, 2509.26328): what one copy of a block hides, a second one shows, and the other
  way round, so that every token counts exactly once. Each copy is an estimate of the bound, at rate t and 1 - t, and
  has half the weight; a copy that hides all has no partner, and the whole weight. 1 / (rate) is at most 1 / low, which
  cuts the second copy's weight where t is above 1 - low.
- **Masks of names**: in a share of the blocks that name candidates only tokens of the names are hidden, and the signs
  between them stay visible in both copies. So blocks look while a model decodes: signs are sure, and are there first.
- **The last block is filled up with the end.** Whoever decodes starts from a block of full size and does not know how
  much of it is used. The end and what is filled in behind it are treated alike and together count as one token, so that
  a short last block does not teach the end more than a long one.
- **The end comes after the names.** It is a target at places behind the last name only; `numbered` refuses examples in
  which it stands before one. While names of its block are still hidden there are two ways. "with_names": it is hidden
  and learned as other tokens are, so that the law of its place is known in every state that decoding meets.
  "after_names": it may be hidden, too, but counts only in a further copy of the block that hides the end alone, so that
  it is never learned beside a name that is not decided; each token still counts exactly once. Nothing is learned of
  those places in between, then, and a decoder that commits what is confident must not commit them. In a block without
  names there is no difference: the names are all in clean blocks before it.

Everything is drawn from a key of a seed, an epoch and the number of an example, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.model import Canvas
from rerank_env.rewards.arguments import finite, one_of
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import InputError

DRAWS = ("bernoulli", "without_replacement")
WEIGHTS = ("bound", "even")
ENDS = ("with_names", "after_names")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How completions are hidden.

    Rates are on (`low`, `high`], or all `high` where the two are equal. `draw`: one of `DRAWS`. `weights`: "bound" as
    in the module, or "even", where each hidden token counts 1 whatever the rate is. `complementary`: whether blocks
    come in pairs. `names_share`: of the blocks that name candidates, those that hide names only. `end`: one of `ENDS`,
    see the module. Raises `InputError`.
    """

    low: float = 0.05
    high: float = 1.0
    draw: str = "without_replacement"
    weights: str = "bound"
    complementary: bool = True
    names_share: float = 0.5
    end: str = "with_names"

    def __post_init__(self) -> None:
        """Check every field."""
        if not 0.0 <= finite("low", self.low) <= finite("high", self.high) <= 1.0 or not self.high:
            raise InputError(f"low is {self.low} and high {self.high}; give rates with 0 <= low <= high <= 1, high > 0")
        if not 0.0 <= finite("names_share", self.names_share) <= 1.0:
            raise InputError(f"names_share is {self.names_share}; give a share from 0 to 1")
        if not isinstance(self.complementary, bool):
            raise InputError(f"complementary is {self.complementary!r}; give True or False")
        one_of("draw of masks", self.draw, DRAWS)
        one_of("weighting of masks", self.weights, WEIGHTS)
        one_of("learning of the end", self.end, ENDS)


@dataclass(frozen=True, eq=False)
class Completion:
    """A completion of at least one token: `tokens_T`; which are `learned_T`, others are never hidden; which are parts
    of names of candidates, `named_T`; and whether it `ends`, that is, whether its last token is the end of the text.
    """

    tokens_T: IntArray
    learned_T: BoolArray
    named_T: BoolArray
    ends: bool


@dataclass(frozen=True, eq=False)
class Noised:
    """Copies of blocks of a completion, and what they are to be asked.

    One entry for every wanted place of all `canvases`, canvas by canvas, in the order of `wanted`: `places_N`, the
    token of the completion that it stands for, that of the end where the block was filled up; `targets_N`, the token
    itself; `weights_N`, how much minus its log-probability counts. Copies that hide nothing that counts are left out.
    """

    canvases: Sequence[Canvas]
    places_N: IntArray
    targets_N: IntArray
    weights_N: FloatArray


def keyed(seed: int, epoch: int, example: int) -> np.random.Generator:
    """The generator of that example in that epoch; all of at least 0."""
    return np.random.default_rng([seed, epoch, example])


def rates(count: int, noise: Noise, rng: np.random.Generator) -> FloatArray:
    """Rates of `count` blocks, [B] on (low, high], each uniform by itself, antithetic together; see the module."""
    parts_B = np.arange(count)
    inside_B = 1.0 - rng.random(count)  # on (0, 1], so that no rate is 0
    mirrored_B = parts_B >= (count + 1) // 2
    inside_B[mirrored_B] = 1.0 - inside_B[count - 1 - parts_B[mirrored_B]]
    spread_B = rng.permutation((parts_B + inside_B) / count)
    return noise.low + (noise.high - noise.low) * spread_B


def hide(may_S: BoolArray, rate: float, draw: str, rng: np.random.Generator) -> tuple[BoolArray, float]:
    """Which of the places that may be are hidden, bool [S], and at what rate, l / T without replacement."""
    if draw == "bernoulli":
        return may_S & (rng.random(len(may_S)) < rate), rate
    hidden_S = np.zeros(len(may_S), dtype=bool)
    places = np.flatnonzero(may_S)
    if not len(places):
        return hidden_S, rate
    count = min(max(1, int(np.ceil(rate * len(places)))), len(places))
    hidden_S[rng.permutation(places)[:count]] = True
    return hidden_S, count / len(places)


def noised(completion: Completion, *, blocks: Blocks, noise: Noise, mask_id: int, rng: np.random.Generator) -> Noised:
    """Noisy copies of every block, as the module says.

    With one copy a block, and rate 1, everything that is learned is hidden and counts 1. With weights "bound" and
    without masks of names the weights add up to the number of learned tokens, in expectation over draws, or in each
    draw of a pair without replacement that nothing is cut off from and whose block has no end.
    """
    copies = _Copies(mask_id)
    count = blocks.count(len(completion.tokens_T))
    for block, rate in enumerate(rates(count, noise, rng).tolist()):
        _add_block(copies, _cut(completion, block, blocks.size), float(rate), noise, rng)
    return copies.noised()


@dataclass(frozen=True, eq=False)
class _Cut:
    """One block of a completion, the last one filled up with the end: all [S], `end_S` the end and what is filled in.

    `share_S` is how much a place counts: 1, or that of one token shared by all of `end_S`.
    """

    block: int
    tokens_S: IntArray
    places_S: IntArray
    learned_S: BoolArray
    named_S: BoolArray
    end_S: BoolArray
    share_S: FloatArray


def _cut(completion: Completion, block: int, size: int) -> _Cut:
    last = len(completion.tokens_T) - 1
    ends = completion.ends and bool(completion.learned_T[last])
    stop = (block + 1) * size if ends else min((block + 1) * size, last + 1)
    places_S = np.minimum(np.arange(block * size, stop), last)
    end_S = (places_S == last) & ends
    return _Cut(
        block,
        completion.tokens_T[places_S],
        places_S,
        completion.learned_T[places_S],
        completion.named_T[places_S],
        end_S,
        np.where(end_S, 1.0 / max(1, int(end_S.sum())), 1.0),
    )


class _Copies:
    """Copies as they are made."""

    def __init__(self, mask_id: int) -> None:
        self.mask_id = mask_id
        self.canvases: list[Canvas] = []
        self.parts: list[tuple[IntArray, IntArray, FloatArray]] = []

    def add(self, cut: _Cut, hidden_S: BoolArray, counted_S: BoolArray, weight: float) -> None:
        """One copy in which `counted_S`, all of them hidden, count `weight` each."""
        if counted_S.any():
            tokens = np.where(hidden_S, self.mask_id, cut.tokens_S).tolist()
            self.canvases.append(Canvas(cut.block, tokens, np.flatnonzero(counted_S).tolist()))
            self.parts.append((cut.places_S[counted_S], cut.tokens_S[counted_S], weight * cut.share_S[counted_S]))

    def noised(self) -> Noised:
        """All of them."""
        if not self.parts:
            return Noised([], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
        places, targets, weights = zip(*self.parts, strict=True)
        return Noised(self.canvases, np.concatenate(places), np.concatenate(targets), np.concatenate(weights))


def _add_block(copies: _Copies, cut: _Cut, rate: float, noise: Noise, rng: np.random.Generator) -> None:
    """One copy, its partner, and that of the end alone, as far as they are asked for."""
    names = bool((cut.named_S & cut.learned_S).any())
    names_only = names and rng.random() < noise.names_share
    waiting_S = cut.end_S & (names and noise.end == "after_names")
    may_S = cut.learned_S & ~waiting_S & (cut.named_S if names_only else True)
    hidden_S, rate = hide(may_S, rate, noise.draw, rng)
    late_S = waiting_S & (rng.random(len(waiting_S)) < rate) & (not names_only)
    pair = [(hidden_S, late_S, rate)]
    if noise.complementary and rate < 1.0:
        pair.append((may_S & ~hidden_S, waiting_S & ~late_S & (not names_only), 1.0 - rate))
    for counted_S, with_it_S, at in pair:
        weight = 1.0 if noise.weights == "even" else 1.0 / (len(pair) * max(at, noise.low))
        copies.add(cut, counted_S | with_it_S, counted_S, weight)
    copies.add(cut, waiting_S, waiting_S, 1.0)
