"""A trained autoregressive policy made a block-diffusion policy: the same weights, and a token that hides others.

May import torch, transformers (through the model and the tokenizer that are given) and the layers below. Suffixes: `_V`
vocabulary, `_N` places.

Every weight is copied one to one; what changes is who sees whom, in blocks of some size, and the vocabulary, by the
mask token (Diffusion-GR2, 2607.01170: weight-preserving conversion). Its row is the mean of those of all tokens there
were, a token that says nothing in particular (see `rerank_env.agents.language.vocabulary`; ours, the paper does not say
how its row begins).

Whether a model can be converted is tried rather than looked up: asked block by block with one token a block it must say
what it says as a causal model, and with more tokens a block it must look at what comes later in one.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.decoding import BlockDecoding
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits
from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.agents.language.models import base_of, evaluated
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.prefix import cache_name, can_share, parameters_of
from rerank_env.agents.language.vocabulary import tables
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError

MASK = "<|mask|>"
"""The text of a mask token that is added."""

_PROMPT, _COMPLETION = 4, 6
"""Tokens that a model is tried with."""


def convert(
    policy: LanguagePolicy,
    *,
    blocks: Blocks | None = None,
    decoding: BlockDecoding | None = None,
    mask_token: str | None = None,
    in_place: bool = False,
) -> BlockDiffusionPolicy:
    """The block-diffusion policy of the same weights, words and remarks; what it says is yet to be fine-tuned.

    `blocks` of 32 tokens with the token shift where None. `decoding` as `BlockDecoding` has it where None, with the
    `max_tokens` and the `batch_size` of the policy's own. `mask_token` is a token that the tokenizer has and texts do
    not, whose row stays as it is; where None, `MASK` is added as a special token, in a row that the vocabulary was
    padded with where there is one. Model and tokenizer are copied, so that the policy itself stays what it is, a
    teacher for instance; with `in_place` they are taken over and it can be used no longer.

    Raises as `check_convertible` does, and `InputError` for a model in adapters, which must be merged first, for a mask
    token that the tokenizer does not have, that ends or pads texts, or that is there without having been named, and for
    a model with fewer rows than the tokenizer has tokens.
    """
    if hasattr(policy.model, "peft_config"):
        raise InputError(
            "the model is wrapped in adapters, and the mask token needs a row of its own below them; merge them first, "
            "policy.model = policy.model.merge_and_unload(), and add others after the conversion"
        )
    blocks = Blocks() if blocks is None else blocks
    own = policy.decoding
    decoding = BlockDecoding(max_tokens=own.max_tokens, batch_size=own.batch_size) if decoding is None else decoding
    check_convertible(policy.model, tokens=decoding.max_tokens + 1)
    _check_mask(policy, mask_token)
    model, tokenizer = policy.model, policy.tokenizer
    if not in_place:
        model, tokenizer = copy.deepcopy(model), copy.deepcopy(tokenizer)
    if mask_token is None:
        _add_mask(model, tokenizer)
    else:
        tokenizer.mask_token = mask_token
    return BlockDiffusionPolicy(
        model, tokenizer, policy.writer, blocks=blocks, remarks=policy.remarks, decoding=decoding
    )


def check_convertible(model: Any, *, tokens: int = 1) -> None:
    """Raise `InputError`, with the reason, where a model cannot be asked block by block, on rows of so many tokens.

    A PEFT model is judged with its adapter. A few passes over some twenty tokens are made, in evaluation mode, without
    gradients, with the attention that the model was loaded with.
    """
    whole("tokens", tokens, least=1)
    name = type(base_of(model)).__name__
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise InputError(
            f"{name} has an adapter that puts virtual tokens before the prompt, which have no place in blocks; convert "
            "the model without it, or use LoRA"
        )
    config = base_of(model).config
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{name} has an encoder beside its decoder, and blocks need a decoder alone; take another model"
        )
    missing = sorted({"position_ids", cache_name(type(base_of(model)))} - parameters_of(model))
    if missing:
        raise InputError(
            f"the forward of {name} does not take {' and '.join(missing)}, so noisy copies cannot stand where their "
            "blocks do; take a model with rotary or other positions that can be given"
        )
    if not can_share(model):
        raise InputError(
            f"{name} does not keep every token of every layer (sliding windows, recurrent states or convolutions), so "
            "blocks cannot look at all that is before them; take a model with full attention in every layer"
        )
    with torch.no_grad(), evaluated(model):
        _try(model, name, tokens)


def _try(model: Any, name: str, tokens: int) -> None:
    """The part of `check_convertible` that asks the model."""
    ids = torch.randperm(min(_rows(model), 1 << 15), generator=torch.Generator().manual_seed(0)).tolist()
    needed = _PROMPT + _COMPLETION + 2
    ids = (ids * needed)[:needed]  # a vocabulary may be smaller than that
    mask, other, told = ids[0], ids[1], ids[2:]
    prompt, completion = told[:_PROMPT], told[_PROMPT:]

    def known(logits_NV: Tensor) -> Tensor:
        """Without the logit of the token that stands in for the mask token, which no block gives."""
        return logits_NV.float().index_fill(1, torch.tensor([mask], device=logits_NV.device), 0.0)

    def asked(size: int, canvases: list[Canvas]) -> Tensor:
        row = Row(prompt, completion, canvases)
        logits_NV = canvas_logits(model, [row], blocks=Blocks(size), mask_id=mask, pad_id=mask)[0]
        return known(logits_NV)

    def causal(first: int) -> Tensor:
        text = torch.tensor([told], device=model.device)
        places = torch.arange(first, first + len(told), device=model.device)[None]
        logits_NV = model(input_ids=text, position_ids=places, use_cache=False).logits[0, _PROMPT - 1 : -1]
        return known(logits_NV)

    half = _COMPLETION // 2
    try:
        straight_NV = causal(0)
        one_NV = asked(1, [Canvas(block, [mask], [0]) for block in range(_COMPLETION)])
        seen_NV, unseen_NV = (asked(half, [Canvas(1, [mask] * (half - 1) + [last], [1])]) for last in (other, mask))
    except Exception as error:  # forwards fail in as many ways as there are models
        raise InputError(
            f"{name} cannot be asked who sees whom, token by token and head by head ({error}); load it with "
            "attn_implementation='sdpa', or take a model whose attention takes a mask of four dimensions"
        ) from error
    if not _apart(one_NV, straight_NV) <= _tolerance(model):
        raise InputError(
            f"{name}, asked with one token a block, does not say what it says as a causal model, so its layers mix "
            "tokens by more than attention and its mask; take a model with full causal attention in every layer"
        )
    if not _apart(seen_NV, unseen_NV) > torch.finfo(model.dtype).eps:
        raise InputError(
            f"{name} does not look at what comes later in a block although its mask says so, as its attention is "
            "causal whatever it is told; load it with attn_implementation='sdpa', or take another model"
        )
    limit = getattr(base_of(model).config, "max_position_embeddings", None)
    if limit is None or tokens <= limit:
        return
    if limit <= len(told) or _apart(causal(1), straight_NV) > _tolerance(model):  # not the same wherever it stands
        raise InputError(
            f"{name} knows positions by their numbers, and only {limit} of them, but rows of {tokens} tokens are to be "
            "read; give a decoding with fewer max_tokens, or take a model with relative positions"
        )


def _rows(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _apart(one_NV: Tensor, other_NV: Tensor) -> float:
    """How far two sets of laws lie apart, as a share of how far the tokens of one do."""
    spread = (other_NV - other_NV.mean(dim=-1, keepdim=True)).norm()
    return float((one_NV - other_NV).norm() / spread.clamp(min=torch.finfo(torch.float32).tiny))


def _tolerance(model: Any) -> float:
    """What the rounding of sums may make of `_apart`; a mask that is read in another way makes far more of it."""
    return float(torch.finfo(model.dtype).eps ** 0.5)


def _check_mask(policy: LanguagePolicy, mask_token: str | None) -> None:
    vocabulary = policy.tokenizer.get_vocab()
    if _rows(policy.model) < len(policy.tokenizer):
        raise InputError(
            f"the tokenizer has {len(policy.tokenizer)} tokens but the model has {_rows(policy.model)} rows for them; "
            "give the model that goes with it"
        )
    if mask_token is None:
        known = policy.tokenizer.mask_token or (MASK if MASK in vocabulary else None)
        if known is not None:
            raise InputError(f"the tokenizer has the token {known!r} already; take it by mask_token={known!r}")
        return
    if mask_token not in vocabulary:
        raise InputError(
            f"mask_token {mask_token!r} is no token of the tokenizer; name one that texts do not have, or none and "
            f"{MASK!r} is added"
        )
    if vocabulary[mask_token] in {*policy.eos_ids, policy.pad_id}:
        raise InputError(f"mask_token {mask_token!r} ends or pads texts; name another, or none and {MASK!r} is added")


def _add_mask(model: Any, tokenizer: Any) -> None:
    """Add `MASK` and its row, in place."""
    from transformers import AddedToken

    known = len(tokenizer)
    tokenizer.add_special_tokens({"mask_token": AddedToken(MASK, normalized=False, special=True)})
    if len(tokenizer) > _rows(model):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    new = int(tokenizer.mask_token_id)
    for table in tables(model):
        table.data[new] = table.data[:known].float().mean(dim=0).to(table.dtype)
    bias = getattr(model.get_output_embeddings(), "bias", None)
    if bias is not None:
        bias.data[new] = bias.data[:known].float().mean().to(bias.dtype)
