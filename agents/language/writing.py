"""The loop that writes behind prompts that were read, one token a row and step; rows that are finished leave it.

May import torch and the modules below. Suffixes: `_R` rows, `_S` slots of the cache, `_V` vocabulary, `_T` steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from rerank_env.agents.language.decoding import Decoding, drawn, law
from rerank_env.agents.language.prefix import Prefilled, forward, selected_cache

Text = tuple[list[int], list[float]]
"""The tokens of a completion, and the log-probability of each."""

_KEPT = 0.875
"""Finished rows are dropped once fewer than this share of the batch goes on; a drop copies the cache once."""


class Constraint(Protocol):
    """What may be written to each prompt: an automaton, whose states the loop carries along with the rows."""

    def start(self, prompt: int) -> Any:
        """The state before the first token of an answer to that prompt."""

    def after(self, state: Any, token: int) -> Any:
        """The state behind one more token, which was allowed."""

    def masked(self, states: Sequence[Any], scores_RV: Tensor) -> Tensor:
        """The scores with -inf for every token that is not allowed in the state of its row."""

    def processor(self, prompt_length: int, prompts: Sequence[int], copies: int) -> Any:
        """The same as a `LogitsProcessor` of transformers."""


def written(
    model: Any,
    started: Prefilled,
    uniforms_RT: Tensor | None,
    ends: Sequence[int],
    decoding: Decoding,
    constraint: Constraint | None,
    states: list[Any] | None,
) -> list[Text]:
    """What is written behind prompts that were read: tokens and their log-probabilities, one pair a row."""
    stops = frozenset(ends)
    cache, logits_RV, positions_R = started.cache, started.logits_RV, started.lengths_R
    rows, slots = started.mask_RS.shape
    texts: list[Text] = [([], []) for _ in range(rows)]
    has_holes = not bool(started.mask_RS.all())
    mask_RS = torch.cat([started.mask_RS, started.mask_RS.new_ones(rows, decoding.max_tokens)], dim=1)
    live = list(range(rows))  # the row each row of the batch writes
    writing = [True] * rows
    for step in range(decoding.max_tokens):
        if constraint is not None and states is not None:
            logits_RV = constraint.masked(states, logits_RV)
        log_p_RV = law(logits_RV, decoding)
        tokens_R = drawn(log_p_RV, None if uniforms_RT is None else uniforms_RT[:, step])
        logprobs_R = log_p_RV.gather(1, tokens_R[:, None]).squeeze(1)
        for place, (row, token, logprob) in enumerate(zip(live, tokens_R.tolist(), logprobs_R.tolist(), strict=True)):
            if writing[place]:
                texts[row][0].append(token)
                texts[row][1].append(logprob)
                writing[place] = token not in stops
                if writing[place] and constraint is not None and states is not None:
                    states[place] = constraint.after(states[place], token)
        going_on = sum(writing)
        if not going_on or step + 1 == decoding.max_tokens:
            break
        if going_on < _KEPT * len(live):
            kept = [place for place, goes_on in enumerate(writing) if goes_on]
            kept_R = torch.tensor(kept, device=tokens_R.device)
            cache = selected_cache(cache, kept_R)
            mask_RS, positions_R, tokens_R = mask_RS[kept_R], positions_R[kept_R], tokens_R[kept_R]
            uniforms_RT = None if uniforms_RT is None else uniforms_RT[kept_R]
            states = None if states is None else [states[place] for place in kept]
            live, writing = [live[place] for place in kept], [True] * len(kept)
        seen_RS = mask_RS[:, : slots + step + 1] if has_holes else None
        logits_RV = forward(model, tokens_R[:, None], seen_RS, positions_R[:, None], cache)
        positions_R = positions_R + 1
    return texts
