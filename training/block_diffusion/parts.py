"""The two parts of a completion, reasoning and answer, and how what was found in each comes to one loss.

May import numpy, torch, and `rerank_env.agents`. A part is divided by its own number of tokens, so that hundreds of
tokens of reasons do not drown the ten that name candidates (Diffusion-GR2, 2607.01170, weights the parts of its
fine-tuning so; design section 7 for rewards). Suffixes: `_T` tokens, `_P` the two parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.answering import opening_of
from rerank_env.agents.language.spans import ANSWER, REASONING, decoded, token_roles
from rerank_env.rewards.arrays import IntArray

PARTS = ("reasoning", "answer")


def parts_of(tokenizer: Any, completion: Sequence[int], text_format: str) -> IntArray:
    """The part that each token of a completion is in, int64 [T]: 0 for reasoning, 1 for the answer.

    What is neither, the tags and the end, counts as the answer does, as in conversion fine-tuning. A completion that is
    no text of its format is reasoning up to where its answer opens (`answering.opening_of`), all of it where none does;
    in a format whose answer begins with the text it is all answer.
    """
    roles_T = token_roles(tokenizer, completion, text_format).roles_T
    if (roles_T == ANSWER).any():
        return (roles_T != REASONING).astype(np.int64)
    opening = opening_of(text_format)
    if opening is None:
        return np.ones(len(completion), dtype=np.int64)
    text, ends = decoded(tokenizer, [int(token) for token in completion])
    found = opening.search(text)
    if found is None:
        return np.zeros(len(completion), dtype=np.int64)
    return (np.array(ends, dtype=np.int64) > found.start()).astype(np.int64)


def combined(sums_P: Tensor, totals_P: Tensor, weights_P: Tensor) -> Tensor:
    """The sum over parts of weight * sum / total; a part of which there is nothing adds nothing.

    >>> import torch
    >>> combined(torch.tensor([8.0, 3.0]), torch.tensor([4.0, 0.0]), torch.tensor([0.5, 1.0])).item()
    1.0
    """
    some_P = totals_P > 0
    return (weights_P * sums_P * some_P / torch.where(some_P, totals_P, 1.0)).sum()
