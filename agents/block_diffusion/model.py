"""A causal language model as a block-diffusion model: the same weights, asked with other masks.

May import torch, transformers and the layers below. Suffixes: `_R` rows, `_W` tokens of a row, `_V` vocabulary, `_N`
places that are asked for.

    law(token at place i of a noisy block | prompt, clean blocks before it, what of the block is not hidden)

for any number of noisy blocks of a row in one pass. A hidden token reads as the mask token, which no law gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.masks import CLEAN_COPY, PROMPT, Blocks, Places, allowed, flex_mask
from rerank_env.agents.language.models import base_of
from rerank_env.agents.language.prefix import parameters_of
from rerank_env.rewards.errors import InputError


@dataclass(frozen=True, eq=False)
class Canvas:
    """One block of a row with some of its tokens hidden: its number, its `tokens`, hidden ones as the mask token.

    The last block of a completion may be shorter than the others. `wanted`: the places in it whose law is asked for.
    """

    block: int
    tokens: Sequence[int]
    wanted: Sequence[int]


@dataclass(frozen=True, eq=False)
class Row:
    """A `prompt`, the clean `completion` behind it, as far as any canvas looks at it, and the canvases."""

    prompt: Sequence[int]
    completion: Sequence[int]
    canvases: Sequence[Canvas]


def canvas_logits(model: Any, rows: Sequence[Row], *, blocks: Blocks, mask_id: int, pad_id: int) -> list[Tensor]:
    """The logits of every wanted place, float32 [N, V] a row: canvas by canvas, in the order of `wanted`.

    One pass of the model over all rows. The logit of the mask token is -inf. Gradients are kept unless
    `torch.no_grad()` is around. Raises `InputError` for an empty prompt, for a canvas beyond the completion and for a
    wanted place that the canvas does not have.
    """
    _check(rows, blocks)
    if not rows:
        return []
    ids_RW, places, wanted = _laid_out(rows, blocks, pad_id)
    device = model.device
    ids_RW = ids_RW.to(device)
    places = Places(*(getattr(places, name).to(device) for name in ("position_RW", "block_RW", "copy_RW", "real_RW")))
    kept_N = torch.tensor(sorted({place for row in wanted for place in row}), device=device, dtype=torch.int64)
    if not len(kept_N):
        return [torch.zeros((0, model.get_output_embeddings().weight.shape[0]), device=device) for _ in rows]
    logits_RNV = _forward(model, ids_RW, places, blocks, kept_N)
    where = {place: number for number, place in enumerate(kept_N.tolist())}
    hidden = torch.zeros(logits_RNV.shape[-1], device=device).index_fill(
        0, torch.tensor([mask_id], device=device), -torch.inf
    )
    return [logits_RNV[number, [where[place] for place in row]].float() + hidden for number, row in enumerate(wanted)]


def _check(rows: Sequence[Row], blocks: Blocks) -> None:
    for number, row in enumerate(rows):
        if not len(row.prompt):
            raise InputError(f"the prompt of row {number} has no tokens; give at least one, such as a begin-of-text")
        for canvas in row.canvases:
            if not 0 <= canvas.block * blocks.size <= len(row.completion):
                raise InputError(
                    f"a canvas of row {number} is of block {canvas.block}, but the {len(row.completion)} tokens of the "
                    f"completion are too few for blocks of {blocks.size} before it; give the clean tokens before it"
                )
            if not 0 < len(canvas.tokens) <= blocks.size or not all(
                0 <= place < len(canvas.tokens) for place in canvas.wanted
            ):
                raise InputError(
                    f"a canvas of row {number} has {len(canvas.tokens)} tokens of at most {blocks.size}, and places "
                    f"{list(canvas.wanted)} are wanted; give 1 to {blocks.size} tokens, and places among them"
                )


def _laid_out(rows: Sequence[Row], blocks: Blocks, pad_id: int) -> tuple[Tensor, Places, list[list[int]]]:
    """Tokens and places of [prompt | completion | canvases], each part padded to the same width in all rows, and where
    in a row the law of each wanted place is read.
    """
    prompt = max(len(row.prompt) for row in rows)
    clean = max(len(row.completion) for row in rows)
    noisy = max(sum(len(canvas.tokens) for canvas in row.canvases) for row in rows)
    shape = (len(rows), prompt + clean + noisy)
    ids, position = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.int64)
    block, copy = torch.full(shape, PROMPT), torch.full(shape, CLEAN_COPY)
    real = torch.zeros(shape, dtype=torch.bool)
    wanted: list[list[int]] = []
    for number, row in enumerate(rows):
        length = len(row.prompt)

        def put(at: int, tokens: Sequence[int], first: int, of: Tensor | int, which: int, number: int = number) -> None:
            span = slice(at, at + len(tokens))
            ids[number, span] = torch.tensor(list(tokens), dtype=torch.int64)
            position[number, span] = torch.arange(first, first + len(tokens))
            block[number, span], copy[number, span], real[number, span] = of, which, True

        put(prompt - length, row.prompt, 0, PROMPT, CLEAN_COPY)
        if len(row.completion):
            put(prompt, row.completion, length, torch.arange(len(row.completion)) // blocks.size, CLEAN_COPY)
        at, read = prompt + clean, []
        for which, canvas in enumerate(row.canvases):
            start = canvas.block * blocks.size
            put(at, canvas.tokens, length + start, canvas.block, which)
            for place in canvas.wanted:
                if not blocks.shift:
                    read.append(at + place)
                else:
                    read.append(at + place - 1 if place else prompt + start - 1)  # the last of the prompt, at start 0
            at += len(canvas.tokens)
        wanted.append(read)
    return ids, Places(position, block, copy, real), wanted


def _forward(model: Any, ids_RW: Tensor, places: Places, blocks: Blocks, kept_N: Tensor) -> Tensor:
    """The logits [R, N, V] behind the tokens `kept_N` of every row."""
    config = base_of(model).config
    if getattr(config, "_attn_implementation", "sdpa") == "flex_attention":
        mask = flex_mask(places, blocks)
    else:
        seen_RQK = allowed(places, blocks)
        mask = torch.zeros(seen_RQK.shape, dtype=base_of(model).dtype, device=ids_RW.device)
        mask = mask.masked_fill(~seen_RQK, torch.finfo(base_of(model).dtype).min)[:, None]
    options: dict[str, Any] = {}
    keeps = "logits_to_keep" in parameters_of(model)
    if keeps:
        options["logits_to_keep"] = kept_N
    out = model(input_ids=ids_RW, attention_mask=mask, position_ids=places.position_RW, use_cache=False, **options)
    logits: Tensor = out.logits if keeps else out.logits[:, kept_N]
    return logits
