"""Answers filled in behind what a model wrote: their signs stand, their slots are decoded by an answer decoder.

May import torch and the layers below. Suffixes: `_S` slots that are wanted, `_K` candidates.

An answer of a known form, such as "[3] > [1] > [2]", is laid behind the completion with its slots hidden, and its
blocks are decoded one after the other: each round reads the block's canvas, takes the scores of the candidates at its
open slots, and commits what the decoder says. A candidate that an earlier block or round used is not used again. Where
the decoder is `PlackettLuce` a block takes one round, and the sum of the scores is the exact log-probability of the
ranking: the rows of a later block are given those before it. Each candidate must be one token.

A round is one pass of `canvas_logits` over prompt, completion and canvas, without a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.answers import AnswerDecoder, Board
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits
from rerank_env.agents.language.models import evaluated
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError


@dataclass(frozen=True, eq=False)
class Form:
    """An answer to be filled in: the `prompt`, what was `written` behind it, which may be nothing, the `answer` behind
    that with the mask token in each slot, and the token that names each candidate.
    """

    prompt: Sequence[int]
    written: Sequence[int]
    answer: Sequence[int]
    names: Sequence[int]


@dataclass(frozen=True)
class Filled:
    """A filled answer. `tokens`: all of it; of each slot, in order, the number of its candidate, the round in its block
    in which it was committed, the log-probability and whether that was forced.
    """

    tokens: tuple[int, ...]
    candidates: tuple[int, ...]
    rounds: tuple[int, ...]
    scores: tuple[float, ...]
    forced: tuple[bool, ...]


@dataclass(eq=False)
class _Filling:
    """A form that is being filled: the places of its slots in the completion, and what they were given."""

    form: Form
    mask_id: int
    size: int

    def __post_init__(self) -> None:
        """Find the slots."""
        self.tokens = [*map(int, self.form.written), *map(int, self.form.answer)]
        behind = len(self.form.written)
        self.slots = [place for place, token in enumerate(self.tokens) if place >= behind and token == self.mask_id]
        self.made: dict[int, tuple[int, int, float, bool]] = {}
        """Of a slot: candidate, round, log-probability and whether it was forced."""
        self.block, self.round = -1, 0
        self.turn()

    def turn(self) -> None:
        """Go to the block of the first open slot; a new block starts with round 0."""
        open_slots = [place for slot, place in enumerate(self.slots) if slot not in self.made]
        block = open_slots[0] // self.size if open_slots else self.block
        self.round = self.round + 1 if block == self.block else 0
        self.block = block

    def in_block(self) -> list[int]:
        """The slots of the block that is being decoded, open or not."""
        return [slot for slot, place in enumerate(self.slots) if place // self.size == self.block]

    def canvas(self, block: int, slots: Sequence[int]) -> Canvas:
        """A block as it stands, with these slots wanted."""
        start = block * self.size
        return Canvas(block, self.tokens[start : start + self.size], [self.slots[slot] - start for slot in slots])

    def filled(self) -> Filled:
        told = [self.made[slot] for slot in range(len(self.slots))]
        candidates, rounds, scores, forced = zip(*told, strict=True)
        return Filled(tuple(self.tokens[len(self.form.written) :]), candidates, rounds, scores, forced)


@torch.no_grad()
def fill(
    model: Any,
    forms: Sequence[Form],
    *,
    decoder: AnswerDecoder,
    blocks: Blocks,
    mask_id: int,
    pad_id: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    seeds: Sequence[int] | None = None,
    batch_size: int = 64,
) -> list[Filled]:
    """Every form filled by `decoder`; the model is in evaluation mode meanwhile.

    With a temperature each form draws from a generator of its own, seeded before anything is read, so that what it
    draws does not depend on batches: by `seeds`, one a form, or where there are none by `generator`. Raises
    `InputError` for a form without a slot, with more slots than candidates, with candidates of the same name or of that
    of the mask token, for a hidden token in what was written, and as `canvas_logits` and the decoder do.
    """
    whole("batch_size", batch_size, least=1)
    _check(forms, mask_id)
    drawn_from: list[torch.Generator | None] = [None] * len(forms)
    if temperature:
        if seeds is None:
            if generator is None:
                raise InputError(f"temperature is {temperature} but nothing was given to draw from; pass a generator")
            seeds = torch.randint(2**62, (len(forms),), generator=generator, device=generator.device).tolist()
        drawn_from = [torch.Generator().manual_seed(seed) for seed in seeds]
    fillings = [_Filling(form, mask_id, blocks.size) for form in forms]
    with evaluated(model):
        for at in range(0, len(forms), batch_size):
            some = list(zip(fillings[at : at + batch_size], drawn_from[at : at + batch_size], strict=True))
            while going := [(filling, own) for filling, own in some if len(filling.made) < len(filling.slots)]:
                rows = [
                    Row(
                        filling.form.prompt,
                        filling.tokens[: filling.block * blocks.size],
                        [filling.canvas(filling.block, filling.in_block())],
                    )
                    for filling, _ in going
                ]
                logits = canvas_logits(model, rows, blocks=blocks, mask_id=mask_id, pad_id=pad_id)
                for (filling, own), logits_SV in zip(going, logits, strict=True):
                    _commit(filling, logits_SV, decoder, temperature, own)
    return [filling.filled() for filling in fillings]


def _commit(
    filling: _Filling, logits_SV: Tensor, decoder: AnswerDecoder, temperature: float, generator: torch.Generator | None
) -> None:
    """One round of one form."""
    slots, names = filling.in_block(), filling.form.names
    device = logits_SV.device
    used = {candidate for candidate, *_ in filling.made.values()}
    board = Board(
        logits_SV[:, torch.tensor(list(names), device=device)],
        torch.tensor([slot not in filling.made for slot in slots], device=device),
        torch.tensor([candidate not in used for candidate in range(len(names))], device=device),
        filling.round,
    )
    for pair in decoder.pairs(board, temperature=temperature, generator=generator):
        slot = slots[pair.slot]
        filling.made[slot] = (pair.candidate, filling.round, pair.score, pair.forced)
        filling.tokens[filling.slots[slot]] = int(names[pair.candidate])
    filling.turn()


def filled_log_probs(
    model: Any,
    forms: Sequence[Form],
    filled: Sequence[Filled],
    *,
    decoder: AnswerDecoder,
    blocks: Blocks,
    mask_id: int,
    pad_id: int,
    temperature: float = 0.0,
) -> list[Tensor]:
    """The log-probability of each slot of filled answers, float64 [S] a form, with gradients unless
    `torch.no_grad()` is around: each on the canvas and over the candidates that it was committed with.

    Equal to the `scores` of `fill` for the same model, decoder and temperature: importance ratios need the law that was
    sampled, constraints included. One pass over all forms. Raises `InputError` as `fill` does, and where there is not
    one filled answer a form.
    """
    _check(forms, mask_id)
    if len(forms) != len(filled):
        raise InputError(f"{len(filled)} filled answers came with {len(forms)} forms; give one a form")
    rows, told = [], []
    for form, answer in zip(forms, filled, strict=True):
        filling = _Filling(form, mask_id, blocks.size)
        if len(answer.candidates) != len(filling.slots):
            raise InputError(
                f"an answer has {len(answer.candidates)} candidates but its form {len(filling.slots)} slots; give the "
                "form that was filled"
            )
        canvases, rounds, used = [], [], set[int]()
        turns = sorted(
            {(place // blocks.size, number) for place, number in zip(filling.slots, answer.rounds, strict=True)}
        )
        for turn in turns:
            own = [
                slot for slot, place in enumerate(filling.slots) if (place // blocks.size, answer.rounds[slot]) == turn
            ]
            canvases.append(filling.canvas(turn[0], own))
            rounds.append((own, [candidate not in used for candidate in range(len(form.names))]))
            for slot in own:
                used.add(answer.candidates[slot])
                filling.tokens[filling.slots[slot]] = int(form.names[answer.candidates[slot]])
        rows.append(Row(form.prompt, filling.tokens, canvases))
        told.append(rounds)
    logits = canvas_logits(model, rows, blocks=blocks, mask_id=mask_id, pad_id=pad_id)
    found = []
    for form, answer, rounds, logits_NV in zip(forms, filled, told, logits, strict=True):
        device = logits_NV.device
        scores: dict[int, Tensor] = {}
        at = 0
        for own, unused in rounds:
            scores_S = decoder.log_prob(
                logits_NV[at : at + len(own)][:, torch.tensor(list(form.names), device=device)],
                torch.tensor([answer.candidates[slot] for slot in own], device=device),
                torch.tensor(unused, device=device),
                temperature=temperature,
            )
            scores |= dict(zip(own, scores_S, strict=True))
            at += len(own)
        found.append(torch.stack([scores[slot] for slot in range(len(scores))]))
    return found


def _check(forms: Sequence[Form], mask_id: int) -> None:
    for number, form in enumerate(forms):
        slots = sum(token == mask_id for token in form.answer)
        if not 0 < slots <= len(form.names) or len({*form.names, mask_id}) <= len(form.names):
            raise InputError(
                f"the answer of form {number} has {slots} slots for {len(form.names)} candidates named by tokens "
                f"{list(form.names)}; give 1 slot or more, at most one a candidate, and a token of its own for each"
            )
        if mask_id in form.written:
            raise InputError(
                f"what was written in form {number} has the hidden token {mask_id} in it; give text whose every token "
                "is committed, such as Trajectory.tokens"
            )
