"""Which candidates may be the target, the hint that tells a teacher which is, and requests as a teacher may see them.

May import numpy, `rerank_env.data`, `rerank_env.prompts` and `rerank_env.rewards`. A hint stands at the end of the
user's message, after everything that a student sees too, so that a cached prefix serves both. Wording: ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, Message, Prompt, PromptWriter
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.errors import InputError

HINT = "It is known that this user chose candidate "
"""What every hint begins with, and no other prompt holds."""

REST = (
    ". Put it first. Give the reasons that speak for it in what stands above, weigh it against the next best, and "
    "write as somebody who has to find out: never say that the choice is known, or that you were told."
)
"""What every hint ends with."""


def best(requests: Requests) -> BoolArray:
    """Which candidates have the highest gain of their request, bool [B, K]; none where all have the same."""
    real_BK = np.arange(requests.relevance_BK.shape[1]) < requests.sizes_B[:, None]
    high_B1 = requests.relevance_BK.max(axis=1, keepdims=True, initial=0.0)
    best_BK = real_BK & (requests.relevance_BK == high_B1)
    return np.asarray(best_BK & (best_BK.sum(axis=1) < requests.sizes_B)[:, None], dtype=np.bool_)


def shown(requests: Requests, order_BK: IntArray, writer: PromptWriter) -> Asked:
    """The requests asked with their candidates in the order `order_BK`, rankings padded with -1: `ask` without chance.

    Raises as `PromptWriter.write` does.
    """
    moved = requests.reordered(order_BK)
    return Asked(moved, order_BK, tuple(writer.write(moved)), writer.answer_ids(moved), writer.text_format)


def some(asked: Asked, rows_B: npt.ArrayLike) -> Asked:
    """Those of the rows, in that order."""
    rows = np.asarray(rows_B, dtype=np.int64)
    ids = None if asked.answer_ids is None else [asked.answer_ids[row] for row in rows.tolist()]
    prompts = tuple([asked.prompts[row] for row in rows.tolist()])
    return Asked(asked.shown.take(rows), asked.order_BK[rows], prompts, ids, asked.text_format)


def blinded(asked: Asked) -> Asked:
    """The same without what only a reward may look at: relevance 0 and no clicks. The prompts are as they were."""
    blind = replace(
        asked.shown,
        relevance_BK=np.zeros_like(asked.shown.relevance_BK),
        clicks_BK=None,
        propensities_BK=None,
        predictions_BK=None,
    )
    return replace(asked, shown=blind)


def targeted(asked: Asked, targets_B: npt.ArrayLike) -> Asked:
    """The same with a hint in every prompt that names the target, `targets_B` [B] in shown places.

    The hint names it as answers do: by its number or its ID. Raises `InputError` for a target that is not shown.
    """
    targets = np.asarray(targets_B)
    if targets.shape != (len(asked.prompts),) or targets.dtype.kind not in "iu":
        raise InputError(
            f"targets have shape {targets.shape} and dtype {targets.dtype}; give one shown place a prompt, of "
            f"{len(asked.prompts)}"
        )
    sizes_B = asked.shown.sizes_B
    for row in np.flatnonzero((targets < 0) | (targets >= sizes_B))[:1]:
        raise InputError(f"target {int(targets[row])} of prompt {row} is not one of its {int(sizes_B[row])} places")
    hinted = [
        _hinted(prompt, str(target + 1) if asked.answer_ids is None else asked.answer_ids[row][target])
        for row, (prompt, target) in enumerate(zip(asked.prompts, targets.tolist(), strict=True))
    ]
    return replace(asked, prompts=tuple(hinted))


def hinted_rows(prompts: Sequence[Prompt]) -> list[int]:
    """The rows whose prompt holds a hint."""
    return [row for row, prompt in enumerate(prompts) if HINT in prompt.text]


def _hinted(prompt: Prompt, name: str) -> Prompt:
    role, content = prompt.messages[-1]
    return replace(prompt, messages=(*prompt.messages[:-1], Message(role, f"{content}\n\n{HINT}{name}{REST}")))
