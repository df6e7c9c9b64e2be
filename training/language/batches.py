"""Examples as batches: of like length together, padded at the end, in an order that seed and epoch alone decide.

May import numpy, torch and its neighbours. A batch of short examples beside one long one is mostly padding, which costs
as much as text. So every epoch is shuffled, cut into pools of `POOL_BATCHES` batches, sorted by length inside a pool,
and the batches are shuffled again: what comes together is still random, and little of it is padding.

The order does not depend on any global random state, so a run that is resumed in its third epoch sees the batches it
would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError

IGNORED = -100
"""The label of a token that nothing is learned from, as in PyTorch."""

POOL_BATCHES = 50
"""How many batches are sorted by length together."""

NO_ROLE = -1
"""The role of a token of the prompt, and of padding."""

_FILLS: Mapping[str, float] = {"labels": IGNORED, "loss_weights": 0.0, "roles": NO_ROLE}


@dataclass(frozen=True)
class Collator:
    """Examples with `input_ids`, and any of `labels`, `loss_weights` and `roles`, as tensors [B, T] padded at the end.

    `attention_mask` is 1 where there is a token, told by the length of the example and never by the token's number,
    because the padding may be a token that also ends an answer.
    """

    pad_token_id: int

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """One tensor a field, int64 but for `loss_weights`, float32."""
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        width = int(lengths.max())
        batch = {"attention_mask": (torch.arange(width) < lengths[:, None]).long()}
        for name in ("input_ids", *_FILLS):
            if name in examples[0]:
                dtype = np.float32 if name == "loss_weights" else np.int64
                values = np.full((len(examples), width), _FILLS.get(name, self.pad_token_id), dtype=dtype)
                for row, example in enumerate(examples):
                    values[row, : len(example[name])] = example[name]
                batch[name] = torch.from_numpy(values)
        return batch


def divided(batch: int, micro_batch: int | None, *, processes: int, what: str = "examples") -> dict[str, int]:
    """What transformers is told so that an update has `batch` of `what`: how many go through the model at once.

    `micro_batch` of them on each of the `processes`, None for its share. Raises `InputError` where that does not divide
    the batch.
    """
    micro = min(micro_batch or batch, max(1, batch // processes))
    if batch % (micro * processes):
        raise InputError(
            f"batch is {batch} but {processes} processes take {micro} {what} at once; give a batch that is a multiple "
            "of both"
        )
    return {
        "per_device_train_batch_size": micro,
        "per_device_eval_batch_size": micro,
        "gradient_accumulation_steps": batch // (micro * processes),
    }


class LengthSortedSampler(Sampler[int]):
    """The rows of a data set, every one once an epoch, so that consecutive runs of `batch` rows are of like length."""

    def __init__(self, lengths: Sequence[int] | IntArray, batch: int, *, seed: int) -> None:
        """`batch`: how many rows make one step, over all processes and accumulated batches."""
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch, self.seed, self.epoch = whole("batch", batch, least=1), seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of that epoch, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """How many rows."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Row numbers; an incomplete batch, where there is one, comes last, as data loaders take it."""
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self.lengths))
        pool = self.batch * POOL_BATCHES
        batches: list[IntArray] = []
        rest: list[IntArray] = []
        for start in range(0, len(order), pool):
            rows = order[start : start + pool]
            rows = rows[np.argsort(-self.lengths[rows], kind="stable")]
            for first in range(0, len(rows), self.batch):
                cut = rows[first : first + self.batch]
                (batches if len(cut) == self.batch else rest).append(cut)
        for number in [*rng.permutation(len(batches)).tolist(), *range(len(batches), len(batches) + len(rest))]:
            yield from ([*batches, *rest][number]).tolist()
