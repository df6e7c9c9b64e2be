"""What conversion fine-tuning is told, and its examples with what it must know of each.

May import numpy, `rerank_env.agents` and `rerank_env.training.language`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.language.models import context_of
from rerank_env.agents.language.spans import token_roles
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import PAD
from rerank_env.rewards.errors import InputError
from rerank_env.training.block_diffusion.noise import Noise
from rerank_env.training.language.batches import IGNORED, Collator
from rerank_env.training.language.sft_settings import COLUMNS, SftConfig, check_lengths

SLOTS, NUMBER = "slots", "example"
"""The columns that say which candidate a token names, and which example this is."""

READ = (*COLUMNS, SLOTS, NUMBER)
"""What the trainer reads of an example."""


@dataclass(frozen=True, kw_only=True)
class CftConfig(SftConfig):
    """How to convert: as `SftConfig`, with the weights of `reasoning` and of the `answer`, and the `noise`.

    What is neither reasoning nor answer, the tags and the end, counts as the answer does. Raises `InputError` naming
    the field.
    """

    reasoning: float = 0.3
    answer: float = 1.0
    noise: Noise = field(default_factory=Noise)

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        for name in ("reasoning", "answer"):
            if finite(name, getattr(self, name)) < 0.0:
                raise InputError(f"{name} is {getattr(self, name)}; give a weight of at least 0")
        if not self.reasoning and not self.answer:
            raise InputError("reasoning and answer both weigh 0, so nothing is learned; raise one of them")
        if not isinstance(self.noise, Noise):
            raise InputError(f"noise is {self.noise!r}; give a Noise")


@dataclass(frozen=True)
class NumberedCollator(Collator):
    """As `Collator`, with `slots` [B, T], `PAD` where there is none, and `example` [B]."""

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """One tensor a field."""
        batch = super().__call__(examples)
        slots_BT = np.full(batch["input_ids"].shape, PAD, dtype=np.int64)
        for row, example in enumerate(examples):
            slots_BT[row, : len(example[SLOTS])] = example[SLOTS]
        batch[SLOTS] = torch.from_numpy(slots_BT)
        batch[NUMBER] = torch.tensor([example[NUMBER] for example in examples])
        return batch


def numbered(dataset: Any, tokenizer: Any, model: Any, *, blocks: Blocks, mask_id: int) -> Any:
    """The examples with their number and, where it is missing, with the slots of their tokens, read from their text.

    `dataset` has `input_ids`, `labels` and `roles`, and may have `loss_weights`, as `training_examples` makes them; and
    `slots`, which candidate of the answer each token names, -1 where none, or `text_format`, by which they are found.

    Raises `InputError` where a column is missing, and for an example without a prompt, with the mask token in it, whose
    answer is none in its format or ends before its last candidate is named (the end would be learned too early), or
    that the model cannot read up to the end of its last block.
    """
    whole("mask_id", mask_id, least=0)
    check_lengths(dataset, model)
    missing = [name for name in ("input_ids", "labels", "roles") if name not in dataset.column_names]
    if missing or not {SLOTS, "text_format"} & {*dataset.column_names}:
        raise InputError(
            f"the examples have the columns {dataset.column_names}; give input_ids, labels and roles, and slots (which "
            "candidate a token names, -1 for none) or the text_format of the answers, as training_examples does"
        )
    context = context_of(model)
    slots: list[list[int]] = []
    for number, example in enumerate(dataset):
        ids, start = example["input_ids"], begin_of(example["labels"])
        _check(number, ids, start, mask_id)
        end = start + blocks.count(len(ids) - start) * blocks.size
        if context is not None and end > context:
            raise InputError(
                f"example {number} ends a block of {blocks.size} at token {end} but the model reads {context}; give "
                "the writer a prompt_budget, or leave such examples out"
            )
        if SLOTS in dataset.column_names:
            slots.append(example[SLOTS])
        else:
            slots.append([*[PAD] * start, *_slots(number, tokenizer, ids[start:], example["text_format"])])
        _check_end(number, ids[start:], slots[-1][start:], tokenizer.eos_token_id)
    kept = dataset.select_columns([name for name in COLUMNS if name in dataset.column_names])
    return kept.add_column(SLOTS, slots).add_column(NUMBER, list(range(len(kept))))


def begin_of(labels: Sequence[int]) -> int:
    """How many tokens come before the first that is learned, all of them where none is."""
    return next((place for place, label in enumerate(labels) if label != IGNORED), len(labels))


def _check(number: int, ids: Sequence[int], start: int, mask_id: int) -> None:
    if not start:
        raise InputError(f"example {number} has no prompt; give at least one token that is not learned before the rest")
    if mask_id in ids:
        raise InputError(
            f"example {number} has the mask token {mask_id} in it; give a mask_id that no text is made of, such as "
            "that of a token added for it"
        )


def _check_end(number: int, completion: Sequence[int], slots: Sequence[int], end_id: int) -> None:
    if end_id in completion and max(slots[completion.index(end_id) :]) >= 0:
        raise InputError(
            f"the end of the text, token {end_id}, stands before the last candidate of example {number}; give whole "
            "answers with one end, behind them"
        )


def _slots(number: int, tokenizer: Any, completion: Sequence[int], text_format: str) -> list[int]:
    """Which candidate each token names; nothing is said of an example of which nothing is learned."""
    if not completion:
        return []
    ends = completion[-1] == tokenizer.eos_token_id
    told = completion[:-1] if ends else completion
    slots: list[int] = token_roles(tokenizer, told, text_format).slots_T.tolist()
    if max(slots, default=PAD) < 0:
        raise InputError(
            f"the answer of example {number} names no candidate in the format {text_format!r}; give its text_format, "
            "or a column of slots"
        )
    return [*slots, PAD] if ends else slots
