"""Exact log-probabilities of completions that are given, token by token, with gradients where they are wanted.

May import torch, `rerank_env.rewards` and the modules below. Suffixes: `_R` rows, `_W` places, `_V` vocabulary.

    log p(y | x) = sum_t log softmax(logits_t / temperature)[y_t]

Rows are padded on the left, so that completions end together and only their logits are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rerank_env.agents.language.prefix import parameters_of
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError


def token_log_probs(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
    *,
    pad_id: int,
    temperature: float = 1.0,
    batch_size: int = 64,
) -> list[Tensor]:
    """The log-probability of every token of every completion behind its prompt, float32 [T] a row, T its tokens.

    Their sum is the log-probability of the whole; an empty completion has none. Under `torch.no_grad()` no gradient is
    kept. The mode of the model (training, with dropout, or evaluation) is left as it is. Raises `InputError` where
    there is not one completion a prompt, for an empty prompt, and for a temperature that is not positive.
    """
    whole("batch_size", batch_size, least=1)
    if len(prompt_ids) != len(completion_ids):
        raise InputError(f"{len(completion_ids)} completions came with {len(prompt_ids)} prompts; give one a prompt")
    if not temperature > 0:
        raise InputError(f"temperature is {temperature}; give a positive number, 1.0 for the model's own law")
    for row, prompt in enumerate(prompt_ids):
        if not len(prompt):
            raise InputError(f"prompt {row} has no tokens; give at least one, such as a begin-of-text token")
    lengths = [len(prompt) + len(completion) for prompt, completion in zip(prompt_ids, completion_ids, strict=True)]
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    found: list[Tensor] = [torch.empty(0)] * len(lengths)
    for at in range(0, len(order), batch_size):
        rows = order[at : at + batch_size]
        texts = [[*prompt_ids[row], *completion_ids[row]] for row in rows]
        counts = [len(completion_ids[row]) for row in rows]
        for row, logprobs in zip(rows, _scored(model, texts, counts, pad_id, temperature), strict=True):
            found[row] = logprobs
    return found


def _scored(model: Any, texts: list[list[int]], counts: list[int], pad_id: int, temperature: float) -> list[Tensor]:
    """The log-probabilities of the last `counts` tokens of each text."""
    device, width, most = model.device, max(map(len, texts)), max(counts)
    if not most:
        return [torch.empty(0, device=device)] * len(texts)
    ids_RW = torch.tensor([[pad_id] * (width - len(text)) + text for text in texts], device=device)
    real_R = torch.tensor([len(text) for text in texts], device=device)
    mask_RW = torch.arange(width, device=device) >= width - real_R[:, None]
    known = parameters_of(model)
    options: dict[str, Any] = {}
    if "position_ids" in known:
        options["position_ids"] = (mask_RW.cumsum(1) - 1).clamp(min=0)
    if "logits_to_keep" in known:
        options["logits_to_keep"] = most + 1
    out = model(input_ids=ids_RW, attention_mask=mask_RW.long(), use_cache=False, **options)
    logits_RWV = out.logits[:, -most - 1 : -1].float() / temperature
    chosen_RW1 = ids_RW[:, -most:, None]
    logprobs_RW = logits_RWV.gather(-1, chosen_RW1).squeeze(-1) - logits_RWV.logsumexp(-1)
    return [logprobs[most - count :] for logprobs, count in zip(logprobs_RW, counts, strict=True)]
