"""Logits of answers with gradients, where prompts that several answers have in common go through the model once.

May import torch, transformers, and `rerank_env.agents`. The answers of a group are to one prompt, and a prompt is much
longer than an answer: read once for all of them, with gradients through its keys and values, a batch of N answers of T
tokens to U distinct prompts of P costs U * P + N * T tokens instead of N * (P + T). The numbers are those of the plain
way up to the rounding of sums. Suffixes: `_N` answers, `_P` tokens of a prompt, `_T` of an answer, `_U` distinct
prompts, `_V` vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rerank_env.agents.language.models import base_of
from rerank_env.agents.language.prefix import cache_name, can_share, parameters_of
from rerank_env.rewards.errors import MissingExtraError

try:
    from transformers import DynamicCache
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'DAPO needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error


def completion_logits(
    model: Any,
    prompt_ids_NP: Tensor,
    prompt_mask_NP: Tensor,
    completion_ids_NT: Tensor,
    completion_mask_NT: Tensor,
    *,
    share: bool = True,
) -> Tensor:
    """What the model says each token of an answer will be, before it is read: logits [N, T, V], with gradients.

    Prompts are padded on the left, answers on the right; masks are 1 where there is a token. Logits of places that are
    padding mean nothing. A model is read the plain way where `share` is False, which it must be under gradient
    checkpointing, where no two prompts are the same, and where its cache cannot be copied.
    """
    if share and can_share(model):
        keys_NQ = torch.cat([prompt_ids_NP, prompt_mask_NP], dim=1)
        distinct_UQ, which_N = torch.unique(keys_NQ, dim=0, return_inverse=True)
        if len(distinct_UQ) < len(keys_NQ):
            width = prompt_ids_NP.shape[1]
            prompts = distinct_UQ[:, :width], distinct_UQ[:, width:]
            return _shared(model, *prompts, which_N, completion_ids_NT, completion_mask_NT)
    ids = torch.cat([prompt_ids_NP, completion_ids_NT], dim=1)
    mask = torch.cat([prompt_mask_NP, completion_mask_NT], dim=1)
    return _read(model, ids, mask, keep=completion_ids_NT.shape[1] + 1)[:, :-1]


def _shared(
    model: Any, ids_UP: Tensor, mask_UP: Tensor, which_N: Tensor, completion_ids_NT: Tensor, completion_mask_NT: Tensor
) -> Tensor:
    cache = DynamicCache(config=base_of(model).config)
    first_U1V = _read(model, ids_UP, mask_UP, keep=1, cache=cache)
    first_N1V = first_U1V.index_select(0, which_N)
    if completion_ids_NT.shape[1] == 1:
        return first_N1V
    layers: Any = cache.layers
    for layer in layers:
        layer.keys, layer.values = layer.keys.index_select(0, which_N), layer.values.index_select(0, which_N)
    mask = torch.cat([mask_UP.index_select(0, which_N), completion_mask_NT[:, :-1]], dim=1)
    rest = _read(model, completion_ids_NT[:, :-1], mask, keep=completion_ids_NT.shape[1] - 1, cache=cache)
    return torch.cat([first_N1V, rest], dim=1)


def _read(model: Any, ids_NW: Tensor, mask_NS: Tensor, *, keep: int, cache: DynamicCache | None = None) -> Tensor:
    """Logits of the last `keep` places; positions are counted without padding, as where answers are generated."""
    kind = type(base_of(model))
    known = parameters_of(model)
    width = ids_NW.shape[1]
    options: dict[str, Any] = {"use_cache": cache is not None}
    if cache is not None:
        options[cache_name(kind)] = cache
    if "position_ids" in known:
        options["position_ids"] = (mask_NS.long().cumsum(dim=1) - 1).clamp(min=0)[:, -width:]
    if "logits_to_keep" in known:
        options["logits_to_keep"] = keep
    logits: Tensor = model(input_ids=ids_NW, attention_mask=mask_NS, **options).logits[:, -keep:]
    return logits
