"""Completions by `model.generate` of transformers, for models whose cache cannot be copied.

On the same law as our own loop, without sharing; what a row draws depends on its batch, as transformers draws. May
import torch, transformers and the modules below. Suffixes: `_R` rows, `_S` places, `_V` vocabulary, `_T` steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.writing import Constraint, Text


def by_transformers(
    model: Any,
    prompts: Sequence[list[int]],
    numbers: Sequence[int],
    pad_id: int,
    ends: Sequence[int],
    decoding: Decoding,
    generator: torch.Generator | None,
    constraint: Constraint | None,
    n: int,
) -> list[Text]:
    """`n` completions of each prompt, whose `numbers` are those the constraint knows; greedy ones are written once."""
    from transformers import GenerationConfig, LogitsProcessorList

    width = max(map(len, prompts))
    ids_RS = torch.tensor([[pad_id] * (width - len(p)) + p for p in prompts], device=model.device)
    counts_R = torch.tensor([len(p) for p in prompts], device=model.device)
    mask_RS = (torch.arange(width, device=model.device) >= width - counts_R[:, None]).long()
    law_settings: dict[str, Any] = {"do_sample": False}
    if not decoding.is_greedy:
        law_settings = {"do_sample": True, "temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
    settings = GenerationConfig(
        max_new_tokens=decoding.max_tokens, eos_token_id=list(ends), pad_token_id=pad_id,
        return_dict_in_generate=True, output_scores=True, **law_settings,
    )  # fmt: skip
    copies = 1 if decoding.is_greedy else n
    processors = LogitsProcessorList()
    if constraint is not None:
        processors.append(constraint.processor(width, numbers, copies))
    with torch.random.fork_rng(enabled=generator is not None):
        if generator is not None:
            torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator, device=generator.device)))
        out = model.generate(
            input_ids=ids_RS, attention_mask=mask_RS, generation_config=settings, logits_processor=processors,
            num_return_sequences=copies,
        )  # fmt: skip
    tokens_RT = out.sequences[:, width:]
    scores_TRV = torch.stack(out.scores).float().log_softmax(-1)
    logprobs_RT = scores_TRV.gather(2, tokens_RT.T[..., None]).squeeze(-1).T
    stops = frozenset(ends)
    texts = []
    for tokens, logprobs in zip(tokens_RT.tolist(), logprobs_RT.tolist(), strict=True):
        end = next((place + 1 for place, token in enumerate(tokens) if token in stops), len(tokens))
        texts += [(tokens[:end], logprobs[:end])] * (n // copies)
    return texts
