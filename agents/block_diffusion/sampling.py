"""Completions by block diffusion: block by block behind a cached prompt, many rows at once, every commit recorded.

May import torch, numpy, transformers and the layers below. Suffixes: `_R` rows, `_S` places of a block, `_W` tokens
read at a time, `_N` open places of all rows, `_T` places of a completion, `_V` vocabulary.

A block starts hidden. In a round the model reads it once, a token is drawn for every hidden place, and a rule says
which are committed (`rules`); the others stay hidden, and are drawn anew. Once all are committed the block is clean:
its keys and values are made in the same pass as the first round of the next block, so that a completion costs as many
passes as it has rounds, and prompts are read once for all that begin with them (`agents.language.prefix`).

Draws are independent between rounds, so that a round depends on the canvas alone and a completion has the probability
of its rounds, as replay assumes (2509.06949; 2607.01170). They invert the cumulative law at a uniform number. That of a
place's first round is drawn before anything is read, for every row and place, as `agents.language.generation` draws
them; those of later rounds are made from it by mixing its bits with the round (the finaliser of SplitMix64, Steele, Lea
and Flood 2014). So what a row writes depends on its own numbers, and not on batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.cache import PlacedCache
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.rules import Look, Rule, commits
from rerank_env.agents.block_diffusion.trajectory import NEVER, Trajectory
from rerank_env.agents.language.decoding import Decoding, drawn, law
from rerank_env.agents.language.generation import in_batches, read_batch
from rerank_env.agents.language.models import evaluated
from rerank_env.agents.language.prefix import can_share
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.errors import InputError

ENDS = ("block", "prefix")
"""When a completion with an end of text is done; see `sample`."""

_KEPT = 0.875
"""Finished rows are dropped once fewer than this share of the batch goes on; a drop copies the cache once."""

_WAITING = 0.25
"""Rows that finished a block wait until they are this share of the batch, as a pass that has clean blocks in it is
twice as wide for all rows. Of shares between 0 and 1 this costs the fewest tokens, at hardly more passes.
"""


class Sampled(NamedTuple):
    """Completions in row-major order: prompt by prompt, its `n` samples one after the other.

    `forwards`: passes of the model behind the prompts, of all batches. A row alone needs one a round, and none for a
    round whose only open place is read from the clean token before the block.
    """

    trajectories: list[Trajectory]
    forwards: int


@torch.no_grad()
def sample(
    model: Any,
    pad_id: int,
    eos_ids: int | Sequence[int],
    mask_id: int,
    prompt_ids: Sequence[Sequence[int]],
    *,
    blocks: Blocks,
    rule: Rule,
    max_tokens: int,
    temperature: float = 0.0,
    end: str = "block",
    max_rounds: int | None = None,
    batch_size: int = 64,
    generator: torch.Generator | None = None,
    n: int = 1,
) -> Sampled:
    """`n` completions of every prompt with how they were decoded; an empty list of prompts has none.

    `temperature` 0 takes the likeliest token of each place, with the model's own probability as its confidence; else
    confidence is the probability of the drawn token under the law it was drawn from. The mask token is never drawn.
    `end`: with "block" the block with an end of text is finished; with "prefix" a completion is done once everything
    before an end of text is committed, and what stands behind one is not decoded any further. `max_rounds` of a block:
    its last one commits all that is hidden, marked as forced where the rule would not have. `max_tokens` cuts the last
    block. The model is in evaluation mode meanwhile.

    Raises `InputError` for an empty prompt, for sampling without a generator, for a mask token that ends texts, for a
    model whose cache cannot be copied (see `prefix.can_share`) and for logits that are not finite.
    """
    settings = Decoding(max_tokens=max_tokens, temperature=temperature, batch_size=batch_size)
    n = whole("n", n, least=1)
    one_of("end of decoding", end, ENDS)
    task = _Task(
        blocks, rule, settings, frozenset([eos_ids] if isinstance(eos_ids, int) else eos_ids), end == "prefix",
        blocks.size if max_rounds is None else whole("max_rounds", max_rounds, least=1), mask_id, pad_id,
    )  # fmt: skip
    prompts = [list(map(int, prompt)) for prompt in prompt_ids]
    _check(model, prompts, task, generator)
    uniforms_RT: npt.NDArray[np.float64] | None = None
    if generator is not None and not settings.is_greedy:
        shape = (len(prompts) * n, settings.max_tokens)
        numbers_RT = torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device)
        uniforms_RT = numbers_RT.cpu().numpy()
    rows = [_Row(row // n, row, task) for row in range(len(prompts) * n)]
    forwards = 0
    if prompts:
        with evaluated(model):
            root, batches = in_batches(model, prompts, settings, n, pad_id)
            for batch in batches:
                prefilled = read_batch(model, root, [prompts[p] for p in batch], settings, pad_id)
                places = [(place, rows[p * n + copy]) for place, p in enumerate(batch) for copy in range(n)]
                for at in range(0, len(places), settings.batch_size):
                    some = places[at : at + settings.batch_size]
                    which_R = torch.tensor([place for place, _ in some], device=model.device)
                    cache = PlacedCache.of(prefilled, which_R)
                    last_RV = prefilled.logits_RV.index_select(0, which_R)
                    batch_rows = [row for _, row in some]
                    forwards += _Batch(model, cache, last_RV, batch_rows, uniforms_RT, task).write()
    return Sampled([row.trajectory() for row in rows], forwards)


@dataclass(frozen=True)
class _Task:
    """What is the same for all rows."""

    blocks: Blocks
    rule: Rule
    settings: Decoding
    stops: frozenset[int]
    stops_early: bool
    max_rounds: int
    mask_id: int
    pad_id: int


@dataclass(eq=False)
class _Row:
    """A completion that is being written: what `Trajectory` will have, and the block and round that it is in."""

    prompt: int
    number: int
    task: _Task
    tokens: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    pushed: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    start: int = 0
    round: int = 0
    length: int | None = None

    def __post_init__(self) -> None:
        """Begin the first block."""
        self._begin()

    def _begin(self) -> None:
        self.start, self.round = len(self.tokens), 0
        size = min(self.task.blocks.size, self.task.settings.max_tokens - self.start)
        self.tokens += [self.task.mask_id] * size
        self.committed += [NEVER] * size
        self.pushed += [False] * size
        self.scores += [0.0] * size

    @property
    def is_done(self) -> bool:
        return self.length is not None

    @property
    def is_fresh(self) -> bool:
        """Whether the block before this one has still to be read clean."""
        return self.start > 0 and self.round == 0

    def _end(self) -> int | None:
        """The first place of the block with an end of text."""
        stops = self.task.stops
        return next((place for place in range(self.start, len(self.tokens)) if self.tokens[place] in stops), None)

    def open(self) -> list[int]:
        """The hidden places that are decoded in this round, counted from the start of the block."""
        end = self._end() if self.task.stops_early else None
        until = len(self.tokens) if end is None else end
        return [place - self.start for place in range(self.start, until) if self.committed[place] == NEVER]

    def commit(self, place: int, token: int, score: float, *, forced: bool) -> None:
        """Write a token at a place of the block."""
        at = self.start + place
        self.tokens[at], self.committed[at], self.scores[at], self.pushed[at] = token, self.round, score, forced

    def advance(self) -> None:
        """Go on to the next round, to the next block where this one is finished, or to the end."""
        if self.open():
            self.round += 1
            return
        end = self._end()
        if end is not None:
            self.length = end + 1
        elif len(self.tokens) == self.task.settings.max_tokens:
            self.length = len(self.tokens)
        else:
            self._begin()

    def trajectory(self) -> Trajectory:
        assert self.length is not None, "the row is done"
        return Trajectory(
            tuple(self.tokens), tuple(self.committed), tuple(self.pushed), tuple(self.scores), self.length,
            self.tokens[self.length - 1] in self.task.stops, self.task.blocks.size, self.task.mask_id,
        )  # fmt: skip


def _check(model: Any, prompts: Sequence[Sequence[int]], task: _Task, generator: torch.Generator | None) -> None:
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError(f"prompt {number} has no tokens; give at least one, such as a begin-of-text token")
    if generator is None and not task.settings.is_greedy:
        raise InputError(
            f"temperature is {task.settings.temperature} but nothing was given to draw from; pass a generator"
        )
    if task.mask_id in task.stops:
        raise InputError(f"token {task.mask_id} is the mask token and ends texts; give a mask token of its own")
    if not can_share(model):
        raise InputError(
            f"the cache of {type(model).__name__} cannot hold finished blocks, as it does not keep every token of "
            "every layer, or its forward takes no cache and positions; convert a model with plain attention only"
        )


def redrawn(uniform_N: npt.NDArray[np.float64], round_N: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) for rounds of places, float64 [N], from the number of each place's first round.

    Round 0 has that number itself; each later one a number that has nothing to do with it but follows from it. Source:
    SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    bits_N = (uniform_N * 2.0**53).astype(np.uint64) + round_N.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits_N = (bits_N ^ (bits_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits_N = (bits_N ^ (bits_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_N = ((bits_N ^ (bits_N >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return np.where(round_N == 0, uniform_N, mixed_N)


@dataclass(eq=False)
class _Batch:
    """Rows that are written together. `last_RV`: the logits behind the last clean token of each, which with `shift` are
    those of the first place of its block.
    """

    model: Any
    cache: PlacedCache
    last_RV: Tensor
    rows: list[_Row]
    uniforms_RT: npt.NDArray[np.float64] | None
    task: _Task
    forwards: int = 0

    def write(self) -> int:
        """Write all rows to their end; gives the passes of the model."""
        while going := [row for row in self.rows if not row.is_done]:
            if len(going) < _KEPT * len(self.rows):
                kept = [place for place, row in enumerate(self.rows) if not row.is_done]
                kept_R = torch.tensor(kept, device=self.last_RV.device)
                self.cache, self.last_RV = self.cache.selected(kept_R), self.last_RV.index_select(0, kept_R)
                self.rows = going
            fresh = sum(row.is_fresh for row in going)
            waiting = fresh < _WAITING * len(going) and fresh < len(going)
            self._round([not row.is_done and not (waiting and row.is_fresh) for row in self.rows])
        return self.forwards

    def _round(self, acting: list[bool]) -> None:
        """One round of the rows that act."""
        hidden = [row.open() if acts else [] for row, acts in zip(self.rows, acting, strict=True)]
        at_N = [(number, place) for number, places in enumerate(hidden) for place in places]
        logits_NV = self._logits(hidden, [acts and row.is_fresh for row, acts in zip(self.rows, acting, strict=True)])
        device = logits_NV.device
        law_NV = law(logits_NV, self.task.settings)
        tokens_N = drawn(law_NV, self._uniforms(at_N, device))
        log_p_N = law_NV.gather(1, tokens_N[:, None]).squeeze(1)
        scores = log_p_N.tolist()
        for (number, _), score in zip(at_N, scores, strict=True):
            if not score > -torch.inf:  # true of NaN too
                raise InputError(
                    f"the logits for prompt {self.rows[number].prompt} are not finite, so nothing can be written by "
                    "them; the model has diverged: go back to an earlier checkpoint or lower the learning rate"
                )
        open_RS = torch.zeros((len(self.rows), self.task.blocks.size), dtype=torch.bool)
        open_RS[tuple(torch.tensor(at_N).unbind(1))] = True
        open_RS = open_RS.to(device)
        look = Look(
            open_RS,
            torch.zeros(open_RS.shape, device=device).masked_scatter(open_RS, log_p_N),
            law_NV,
            torch.tensor([row.round for row in self.rows], device=device),
            torch.tensor([len(row.tokens) - row.start for row in self.rows], device=device),
        )
        now, forced = (made_RS.tolist() for made_RS in commits(self.task.rule, look))
        for (number, place), token, score in zip(at_N, tokens_N.tolist(), scores, strict=True):
            row = self.rows[number]
            vouched = now[number][place] and not forced[number][place]
            if now[number][place] or row.round + 1 == self.task.max_rounds:
                row.commit(place, token, score, forced=not vouched)
        for row, acts in zip(self.rows, acting, strict=True):
            if acts:
                row.advance()

    def _uniforms(self, at_N: list[tuple[int, int]], device: torch.device) -> Tensor | None:
        """The numbers that places of rows are drawn with in this round."""
        if self.uniforms_RT is None:
            return None
        rows = [self.rows[number] for number, _ in at_N]
        places_N = [row.start + place for row, (_, place) in zip(rows, at_N, strict=True)]
        first_N = self.uniforms_RT[[row.number for row in rows], places_N]
        return torch.from_numpy(redrawn(first_N, np.array([row.round for row in rows]))).to(device)

    def _logits(self, hidden: list[list[int]], clean: list[bool]) -> Tensor:
        """The logits [N, V] of the hidden places of every row, -inf for the mask token; the block before a row's own
        is read first where it is `clean`.

        Nothing is read where all that is wanted is known: with `shift`, the law of the first place of a block stays
        what it was in the first round.
        """
        size, shift = self.task.blocks.size, int(self.task.blocks.shift)
        looks = any(place >= shift for places in hidden for place in places)
        width = size * (any(clean) + looks)
        rows_N = [number for number, places in enumerate(hidden) for _ in places]
        columns_N = [size * clean[number] + place - shift for number, places in enumerate(hidden) for place in places]
        device = self.last_RV.device
        if width:
            kept = sorted({column for column in columns_N if column >= 0})
            logits_RKV = self._read(clean, width, looks=looks, kept_K=torch.tensor(kept, device=device))
            where = {column: number for number, column in enumerate(kept)}
            if shift and any(clean):
                clean_R = torch.tensor(clean, device=device)
                self.last_RV[clean_R] = logits_RKV[clean_R, where[size - 1]]
            known = [column < 0 for column in columns_N]
            logits_NV = logits_RKV[rows_N, [where.get(column, 0) for column in columns_N]]
            if any(known):
                logits_NV[known] = self.last_RV[rows_N][known]
        else:
            logits_NV = self.last_RV[rows_N]
        logits_NV = logits_NV.float()
        logits_NV[:, self.task.mask_id] = -torch.inf
        return logits_NV

    def _read(self, clean: list[bool], width: int, *, looks: bool, kept_K: Tensor) -> Tensor:
        """One pass: of each row the clean block, where there is one, and its canvas, where any row looks at its own."""
        size, task, device = self.task.blocks.size, self.task, self.last_RV.device
        ids, first, reach = [], [], []
        for row, is_clean in zip(self.rows, clean, strict=True):
            before = row.tokens[row.start - size : row.start] if is_clean else []
            tokens = before + (row.tokens[row.start :] if looks else [])
            ids.append(tokens + [task.pad_id] * (width - len(tokens)))
            first.append(row.start - len(before))
            seen = [row.start if task.blocks.clean == "block" else first[-1] + own + 1 for own in range(len(before))]
            reach.append(seen + [len(row.tokens)] * (width - len(before)))
        self.forwards += 1
        return self.cache.forward(
            self.model,
            torch.tensor(ids, device=device),
            torch.tensor(first, device=device),
            torch.tensor(reach, device=device),
            limit=task.settings.max_tokens,
            kept_N=kept_K,
        )
