"""Completions by block diffusion: block by block behind a cached prompt, many rows at once, every commit recorded.

May import torch, numpy, transformers and the layers below. Suffixes: `_R` rows, `_S` places of a block, `_W` tokens
read at a time, `_K` those of them whose logits are made, `_N` open places of all rows, `_T` places of a completion,
`_V` vocabulary.

A block starts hidden. In a round the model reads it once, a token is drawn for every hidden place, and a rule says
which are committed (`rules`); the others stay hidden, and are drawn anew. Once all are committed the block is clean:
its keys and values are made in the same pass as the first round of the next block, so that a completion costs as many
passes as it has rounds, and prompts are read once for all that begin with them (`agents.language.prefix`).

Draws are independent between rounds, so that a round depends on the canvas alone and a completion has the probability
of its rounds, as replay assumes (2509.06949; 2607.01170). They invert the cumulative law at a uniform number (`draws`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.cache import PlacedCache
from rerank_env.agents.block_diffusion.drafts import Drafts
from rerank_env.agents.block_diffusion.draws import drawn_first, redrawn
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.rules import Look, Rule, commits
from rerank_env.agents.block_diffusion.trajectory import Trajectory
from rerank_env.agents.language.decoding import Decoding, drawn, law
from rerank_env.agents.language.generation import in_batches, read_batch
from rerank_env.agents.language.models import evaluated
from rerank_env.agents.language.prefix import can_share
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
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
        blocks, rule, settings, frozenset([eos_ids] if isinstance(eos_ids, int) else eos_ids),
        blocks.size if max_rounds is None else whole("max_rounds", max_rounds, least=1), mask_id, pad_id,
    )  # fmt: skip
    prompts = [list(map(int, prompt)) for prompt in prompt_ids]
    _check(model, prompts, task, generator)
    count = len(prompts) * n
    uniforms_RT = None
    if generator is not None and not settings.is_greedy:
        uniforms_RT = drawn_first(count, settings.max_tokens, generator)
    drafts = Drafts(
        count, blocks, max_tokens=settings.max_tokens, ends=sorted(task.stops), stops_early=end == "prefix",
        mask_id=mask_id,
    )  # fmt: skip
    forwards = 0
    if prompts:
        with evaluated(model):
            root, batches = in_batches(model, prompts, settings, n, pad_id)
            for batch in batches:
                prefilled = read_batch(model, root, [prompts[p] for p in batch], settings, pad_id)
                places = [(place, p * n + copy) for place, p in enumerate(batch) for copy in range(n)]
                for at in range(0, len(places), settings.batch_size):
                    read, rows = zip(*places[at : at + settings.batch_size], strict=True)
                    which_R = torch.tensor(read, device=model.device)
                    cache = PlacedCache.of(prefilled, which_R)
                    last_RV = prefilled.logits_RV.index_select(0, which_R)
                    written = _Batch(model, cache, last_RV, drafts, np.array(rows), n, uniforms_RT, task)
                    forwards += written.write()
    return Sampled([drafts.trajectory(row) for row in range(count)], forwards)


@dataclass(frozen=True)
class _Task:
    """What is the same for all rows."""

    blocks: Blocks
    rule: Rule
    settings: Decoding
    stops: frozenset[int]
    max_rounds: int
    mask_id: int
    pad_id: int


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


@dataclass(eq=False)
class _Batch:
    """Rows of `drafts` that are written together, `copies` of each prompt. `last_RV`: the logits behind the last clean
    token of each, which with `shift` are those of the first place of its block.
    """

    model: Any
    cache: PlacedCache
    last_RV: Tensor
    drafts: Drafts
    rows_R: IntArray
    copies: int
    uniforms_RT: FloatArray | None
    task: _Task
    forwards: int = 0

    def write(self) -> int:
        """Write all rows to their end; gives the passes of the model."""
        drafts = self.drafts
        while (goes_on_R := drafts.length_R[self.rows_R] == 0).any():
            going = int(goes_on_R.sum())
            if going < _KEPT * len(self.rows_R):
                kept_R = np.flatnonzero(goes_on_R)
                self._keep(kept_R)
                goes_on_R = goes_on_R[kept_R]
            fresh_R = goes_on_R & (drafts.block_R[self.rows_R] > 0) & (drafts.round_R[self.rows_R] == 0)
            fresh = int(fresh_R.sum())
            if fresh < _WAITING * going and fresh < going:
                self._round(goes_on_R & ~fresh_R, np.zeros_like(fresh_R))
            else:
                self._round(goes_on_R, fresh_R)
        return self.forwards

    def _keep(self, kept_R: IntArray) -> None:
        """Go on with these rows of the batch only."""
        chosen_R = torch.from_numpy(kept_R).to(self.last_RV.device)
        self.cache, self.last_RV = self.cache.selected(chosen_R), self.last_RV.index_select(0, chosen_R)
        self.rows_R = self.rows_R[kept_R]

    def _round(self, acting_R: BoolArray, clean_R: BoolArray) -> None:
        """One round of the rows that act; those of them that are `clean_R` have the block before read first."""
        drafts, rows_R = self.drafts, self.rows_R
        open_RS = drafts.open(rows_R) & acting_R[:, None]
        row_N, place_N = np.nonzero(open_RS)
        logits_NV = self._logits(open_RS, clean_R, row_N, place_N)
        law_NV = law(logits_NV, self.task.settings)
        drawn_N = drawn(law_NV, self._uniforms(row_N, place_N, law_NV.device))
        scores_N = law_NV.gather(1, drawn_N[:, None]).squeeze(1).cpu().numpy()
        tokens_N = drawn_N.cpu().numpy()
        if not (scores_N > -np.inf).all():  # false of NaN too
            worst = int(rows_R[row_N[int(np.argmin(scores_N > -np.inf))]]) // self.copies
            raise InputError(
                f"the logits for prompt {worst} are not finite, so nothing can be written by them; the model has "
                "diverged: go back to an earlier checkpoint or lower the learning rate"
            )
        log_p_RS, round_R = np.zeros(open_RS.shape, dtype=np.float32), drafts.round_R[rows_R]
        log_p_RS[row_N, place_N] = scores_N
        opened_RS, log_p, rounds_R, sizes_R = map(torch.from_numpy, (open_RS, log_p_RS, round_R, drafts.sizes(rows_R)))
        made = commits(self.task.rule, Look(opened_RS, log_p, law_NV, rounds_R, sizes_R), first=self.task.blocks.shift)
        now_N, forced_N = (made_RS.numpy()[row_N, place_N] for made_RS in made)
        chosen_N = now_N | (round_R[row_N] + 1 == self.task.max_rounds)
        drafts.commit(
            rows_R[row_N[chosen_N]],
            place_N[chosen_N],
            tokens_N=tokens_N[chosen_N],
            scores_N=scores_N[chosen_N],
            pushed_N=(forced_N | ~now_N)[chosen_N],
        )
        drafts.advance(rows_R[acting_R])

    def _uniforms(self, row_N: IntArray, place_N: IntArray, device: torch.device) -> Tensor | None:
        """The numbers that places of rows are drawn with in this round."""
        if self.uniforms_RT is None:
            return None
        rows_N = self.rows_R[row_N]
        first_N = self.uniforms_RT[rows_N, self.drafts.starts(rows_N) + place_N]
        return torch.from_numpy(redrawn(first_N, self.drafts.round_R[rows_N])).to(device)

    def _logits(self, open_RS: BoolArray, clean_R: BoolArray, row_N: IntArray, place_N: IntArray) -> Tensor:
        """The logits [N, V] of the open places of every row, -inf for the mask token; the block before a row's own
        is read first where it is `clean_R`.

        Nothing is read where all that is wanted is known: with `shift`, the law of the first place of a block stays
        what it was in the first round.
        """
        size, shift, device = self.task.blocks.size, int(self.task.blocks.shift), self.last_RV.device
        looks, cleans = bool(open_RS[:, shift:].any()), bool(clean_R.any())
        if not (looks or cleans):
            logits_NV = self.last_RV[torch.from_numpy(row_N).to(device)]
        else:
            column_N = size * clean_R[row_N] + place_N - shift
            is_kept_W = np.zeros(size * (1 + cleans), dtype=np.bool_)
            is_kept_W[column_N[column_N >= 0]] = True
            kept_K, number_W = np.flatnonzero(is_kept_W), np.cumsum(is_kept_W) - 1
            logits_RKV = self._read(clean_R, looks=looks, kept_K=torch.from_numpy(kept_K).to(device))
            if shift and cleans:
                clean = torch.from_numpy(np.flatnonzero(clean_R)).to(device)
                self.last_RV[clean] = logits_RKV[clean, int(number_W[size - 1])]
            logits_NV, known_N = logits_RKV.flatten(0, 1), np.flatnonzero(column_N < 0)
            if len(known_N) or len(column_N) < len(logits_NV):  # else all are wanted, in this order
                chosen_N = row_N * len(kept_K) + number_W[column_N]
                logits_NV = logits_NV[torch.from_numpy(chosen_N).to(device)]
            if len(known_N):
                known, rows = (torch.from_numpy(which).to(device) for which in (known_N, row_N[known_N]))
                logits_NV[known] = self.last_RV[rows]
        logits_NV = logits_NV.float()
        logits_NV[:, self.task.mask_id] = -torch.inf
        return logits_NV

    def _read(self, clean_R: BoolArray, *, looks: bool, kept_K: Tensor) -> Tensor:
        """One pass: of each row the clean block, where there is one, and its canvas, where any row looks at its own."""
        task, drafts, rows_R = self.task, self.drafts, self.rows_R
        size, starts_R = task.blocks.size, drafts.starts(rows_R)
        ids_RW, first_R, cleans = drafts.canvases(rows_R)[:, : size * looks], starts_R, bool(clean_R.any())
        reach_RW = np.repeat((starts_R + drafts.sizes(rows_R))[:, None], size * (looks + cleans), axis=1)
        if cleans:
            padding_RS = np.full((len(rows_R), size), task.pad_id)
            with_RW, without_RW = [drafts.before(rows_R), ids_RW], [ids_RW, padding_RS]
            ids_RW = np.where(clean_R[:, None], np.hstack(with_RW), np.hstack(without_RW))
            first_R = starts_R - size * clean_R
            own_RS = first_R[:, None] + np.arange(1, size + 1)
            seen_RS = starts_R[:, None] if task.blocks.clean == "block" else own_RS
            reach_RW[:, :size] = np.where(clean_R[:, None], seen_RS, reach_RW[:, :size])
        self.forwards += 1
        ids = torch.from_numpy(ids_RW).to(self.last_RV.device)
        return self.cache.forward(self.model, ids, first_R, reach_RW, limit=task.settings.max_tokens, kept_N=kept_K)
