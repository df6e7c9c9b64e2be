"""Dead groups replaced: which requests are asked instead, and rollouts of several draws put together.

May import numpy, torch, and `rerank_env`. DAPO (2503.14476 section 3.2) samples until the batch is full of groups that
say something. Ours is bounded: `max_resamples` rounds, each of which asks as many fresh requests as the process with
the most dead groups needs; what is still dead then is left out of the loss, of the sum and of the count. A group is
dead by the raw metric (see `groups`), because a shaped reward keeps groups alive in which every ranking is equally
good.

Suffixes: `_N` rollouts, `_T` tokens. A batch is a dictionary of tensors as `trl.GRPOTrainer` makes it: one row a
rollout, prompts padded on the left, completions on the right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rerank_env.rewards.arrays import IntArray
from rerank_env.training.epochs import RequestEpochs

_PROMPTS = frozenset({"prompt_ids", "prompt_mask"})


def schedule(requests: int, *, steps: int, groups: int, seed: int) -> IntArray:
    """The rows of every step, int64 [steps, groups]: each request once before any comes again."""
    epochs = RequestEpochs(requests, seed)
    return epochs.draw(steps * groups).reshape(steps, groups)


def fresh_rows(used: Sequence[int] | IntArray, count: int, *, requests: int, key: Sequence[int]) -> IntArray:
    """`count` rows out of `requests`, int64, by chance that `key` alone decides: unused ones first, no row twice.

    Where there are not enough requests, rows come again, those of `used` last.
    """
    order = np.random.default_rng(list(key)).permutation(requests)
    was_used = np.isin(order, np.asarray(used, dtype=np.int64))
    return np.resize(np.concatenate([order[~was_used], order[was_used]]), count)


def rows_of_groups(groups: Sequence[int] | IntArray, group_size: int) -> IntArray:
    """The rollouts of these groups, in their order."""
    return (np.asarray(groups, dtype=np.int64)[:, None] * group_size + np.arange(group_size)).ravel()


def taken(batch: Mapping[str, Any], rows_N: IntArray | Tensor) -> dict[str, Any]:
    """These rollouts of a batch; numbers about the whole batch stay as they are."""
    index_N = torch.as_tensor(rows_N)
    return {
        name: value[index_N.to(value.device)] if isinstance(value, Tensor) and value.ndim else value
        for name, value in batch.items()
    }


def joined(batches: Sequence[Mapping[str, Any]], *, pad_id: int) -> dict[str, Any]:
    """The rollouts of several batches one after the other, padded to the longest; other numbers are the first's.

    Only what all batches have is kept.
    """
    first = batches[0]
    whole: dict[str, Any] = {}
    for name, value in first.items():
        parts = [batch[name] for batch in batches if name in batch]
        if len(parts) < len(batches):
            continue
        if not isinstance(value, Tensor) or not value.ndim:
            whole[name] = value
        elif value.ndim == 1:
            whole[name] = torch.cat(parts)
        else:
            width = max(part.shape[1] for part in parts)
            fill = pad_id if name.endswith("_ids") else 0
            whole[name] = torch.cat([_widened(part, width, fill, left=name in _PROMPTS) for part in parts])
    return whole


def arranged(batch: Mapping[str, Any], group_size: int, *, updates: int, key: Sequence[int]) -> dict[str, Any]:
    """The groups of a batch dealt to its updates by chance, and in each those of like length side by side.

    A group stays together, so that its prompt is read once; groups that are not learned from come last. `place` says
    where each rollout was put.
    """
    count = len(batch["advantages"]) // group_size
    order = np.random.default_rng([*key, count]).permutation(count)
    if count % updates == 0:
        prompt_B = batch["prompt_mask"].sum(dim=1).cpu().numpy()[::group_size]
        lengths_B = batch["completion_mask"].sum(dim=1).cpu().numpy().reshape(count, group_size).max(axis=1)
        idle_B = ~batch["tool_mask"].any(dim=1).cpu().numpy().reshape(count, group_size).any(axis=1)
        parts = [
            part[np.lexsort((lengths_B[part], prompt_B[part], idle_B[part]))] for part in order.reshape(updates, -1)
        ]
        order = np.concatenate(parts)
    rows_N = rows_of_groups(order, group_size)
    return taken(batch, rows_N) | {"place": torch.arange(len(rows_N))}


def in_order(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same parts with their rollouts put back to where `place` says."""
    whole = joined(parts, pad_id=0)
    whole = taken(whole, whole["place"].argsort())
    size = len(parts[0]["place"])
    return [taken(whole, torch.arange(start, start + size)) for start in range(0, len(whole["place"]), size)]


def trimmed(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The same without the columns that are padding in every row; at least one column of each kind stays."""
    prompt_columns = batch["prompt_mask"].any(dim=0)
    skipped = int(prompt_columns.int().argmax())
    width = max(int(batch["completion_mask"].sum(dim=1).max()), 1)
    full = batch["completion_mask"].shape[1]
    return {
        name: value[:, skipped:]
        if name in _PROMPTS
        else value[:, :width]
        if isinstance(value, Tensor) and value.ndim >= 2 and value.shape[1] == full
        else value
        for name, value in batch.items()
    }


def _widened(values: Tensor, width: int, fill: float, *, left: bool) -> Tensor:
    missing = width - values.shape[1]
    tail = [0, 0] * (values.ndim - 2)
    return functional.pad(values, [*tail, *([missing, 0] if left else [0, missing])], value=fill)
