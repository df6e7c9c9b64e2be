"""Mid-training: a language model learns what semantic IDs mean, on transformers' own trainer.

May import torch, transformers and `rerank_env`. Two phases, each in a folder of its own: `warmup` trains the rows of
the new words in the embeddings and nothing else (all others keep every bit), `joint` trains everything. After each
evaluation the loss on held-out next IDs and their recall by beam search are logged; with `patience` the joint phase
stops where the recall no longer rises, and the best weights are kept. The trainer is transformers' and not TRL's,
because blocks are packed already and TRL would add chat templates and metrics of its own.

    corpus = Corpus.of(log, targets, semantic_ids, general=general_texts(requests, writer))
    result = run(model, tokenizer, corpus, directory=Path("runs/midtrain"), config=MidtrainConfig(steps=2000))
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.language.next_items import next_items
from rerank_env.agents.language.vocabulary import extend, identity, tables
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.errors import CheckpointError, DivergedError, InputError, MissingExtraError
from rerank_env.training.language.checkpoints import KEPT, DurableCheckpoints, begin
from rerank_env.training.language.corpus import Corpus, Question, Text, bought
from rerank_env.training.language.mixture import WEIGHTS, encoded, mix
from rerank_env.training.language.packing import Blocks, check_apart, collated, pack

try:
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'mid-training needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

WARMUP, JOINT = "warmup", "joint"
"""The phases, and their folders."""

RECALL_AT = 10

RECALL = f"recall@{RECALL_AT}"
"""What early stopping looks at: the share of questions whose answer is among the ten likeliest items."""

OnLog = Callable[[str, Mapping[str, float]], None]
"""Called as `on_log(phase, entry)` for every entry of the log, on the main process."""


@dataclass(frozen=True, kw_only=True)
class MidtrainConfig:
    """How to mid-train.

    `warmup_steps` updates of the new rows at a constant `warmup_lr` (0: none), then `steps` of everything at `lr`,
    which rises over `lr_warmup` of them and falls by a cosine. An update is `batch` blocks of `length` tokens, of which
    `micro_batch` go through the model at once on each process (None: the process's share). `weights` and `tokens` as
    in `mix`. Checkpoints come every `save_every` updates and at the end of a phase, evaluations every
    `validate_every` (None: at the end of a phase) on at most `questions` users with `beams` beams (at least 10).
    `patience` evaluations of the joint phase without a better recall end it (None: never), and the best weights are
    the result; `validate_every` must then be a multiple of `save_every`. `bf16` None: where the model is on an accelerator.

    Raises `InputError` naming the field.
    """

    warmup_steps: int = 200
    warmup_lr: float = 5e-4
    steps: int = 2000
    lr: float = 1e-4
    lr_warmup: float = 0.03
    batch: int = 32
    micro_batch: int | None = None
    length: int = 512
    tokens: int | None = None
    weights: Mapping[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    save_every: int = 200
    validate_every: int | None = None
    questions: int = 1000
    beams: int = 10
    patience: int | None = None
    log_every: int = 10
    gradient_checkpointing: bool = False
    bf16: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("warmup_steps", "steps", "seed", "questions"):
            whole(name, getattr(self, name), least=0)
        for name in ("batch", "save_every", "log_every"):
            whole(name, getattr(self, name), least=1)
        for name in ("micro_batch", "validate_every", "patience", "tokens"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=1)
        whole("length", self.length, least=2)
        whole("beams", self.beams, least=RECALL_AT)
        for name in ("warmup_lr", "lr", "max_grad_norm"):
            if finite(name, getattr(self, name)) <= 0.0:
                raise InputError(f"{name} is {getattr(self, name)}; give a number above 0")
        if finite("weight_decay", self.weight_decay) < 0.0 or not 0.0 <= finite("lr_warmup", self.lr_warmup) <= 1.0:
            raise InputError(
                f"weight_decay is {self.weight_decay} and lr_warmup {self.lr_warmup}; give one of at least 0, and a "
                "share"
            )
        if self.patience is not None and (self.validate_every is None or self.save_every % self.validate_every):
            raise InputError(
                f"patience is {self.patience}, validate_every {self.validate_every} and save_every {self.save_every}; "
                "the best weights are among those saved, so give a save_every that is a multiple of validate_every"
            )


@dataclass(frozen=True)
class MidtrainResult:
    """A finished run: the `model`, trained in place; the last `loss` and `recall` on questions, NaN without any.

    `shares` of the tasks in the tokens, `split` documents longer than a block, `blocks` there were; `log` holds the
    trainer's entries by phase.
    """

    model: Any
    loss: float
    recall: float
    shares: Mapping[str, float]
    blocks: int
    split: int
    log: Mapping[str, Sequence[Mapping[str, float]]]
    directory: Path
