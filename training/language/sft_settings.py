"""What fine-tuning is told, checked once, and how TRL and transformers are told it.

May import numpy, TRL, and `rerank_env`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env.agents.language.models import context_of
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError, MissingExtraError
from rerank_env.training.language.batches import LengthSortedSampler, divided
from rerank_env.training.language.checkpoints import KEPT

try:
    from transformers import TrainerCallback
    from trl import SFTConfig
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'fine-tuning needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

COLUMNS = ("input_ids", "labels", "loss_weights", "roles")
"""What a trainer reads of an example; `loss_weights` are 1, and nothing is said of `roles`, where they are missing."""


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """How to fine-tune: `epochs` over the examples, `batch` of them an update, learning rate `lr` at its peak.

    The rate warms up linearly over `warmup` (a share of all updates) and decays by a cosine. `max_steps` ends it
    earlier. `micro_batch` examples go through the model at once, on each process (None: as many as the batch has).
    Checkpoints come every `save_every` updates and at the end, evaluations every `eval_every` (None: at the end of each
    epoch). `bf16` None: where the model is on an accelerator. Raises `InputError` naming the field.
    """

    lr: float = 1e-4
    epochs: int = 3
    batch: int = 64
    micro_batch: int | None = None
    max_steps: int | None = None
    warmup: float = 0.03
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    save_every: int = 200
    eval_every: int | None = None
    log_every: int = 10
    gradient_checkpointing: bool = False
    bf16: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("epochs", "batch", "save_every", "log_every"):
            whole(name, getattr(self, name), least=1)
        for name in ("micro_batch", "max_steps", "eval_every"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=1)
        whole("seed", self.seed, least=0)
        for name in ("lr", "max_grad_norm"):
            if finite(name, getattr(self, name)) <= 0.0:
                raise InputError(f"{name} is {getattr(self, name)}; give a number above 0")
        if finite("weight_decay", self.weight_decay) < 0.0 or not 0.0 <= finite("warmup", self.warmup) <= 1.0:
            raise InputError(
                f"weight_decay is {self.weight_decay} and warmup {self.warmup}; give one of at least 0, and a share"
            )


def arguments(config: SftConfig, directory: Path, model: Any, *, evaluates: bool) -> SFTConfig:
    """The configuration of TRL's trainer for ours. Raises `InputError` where the batch cannot be divided as asked."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    common: dict[str, Any] = {
        "output_dir": str(directory),
        "learning_rate": config.lr,
        "num_train_epochs": config.epochs,
        "max_steps": -1 if config.max_steps is None else config.max_steps,
        "lr_scheduler_type": "cosine",
        "warmup_steps": config.warmup,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "save_strategy": "steps",
        "save_steps": config.save_every,
        "save_total_limit": KEPT,
        "logging_steps": config.log_every,
        "logging_nan_inf_filter": False,
        "eval_strategy": "no" if not evaluates else "epoch" if config.eval_every is None else "steps",
        "eval_steps": config.eval_every,
        "gradient_checkpointing": config.gradient_checkpointing,
        "bf16": not on_cpu if config.bf16 is None else config.bf16,
        "use_cpu": on_cpu,
        "seed": config.seed,
        "report_to": "none",
        "disable_tqdm": True,
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": not on_cpu,
    }
    processes = SFTConfig(**common).world_size
    return SFTConfig(**common, **divided(config.batch, config.micro_batch, processes=processes))


def fingerprint(dataset: Any) -> str:
    """What tells two data sets of examples apart: a hash of their tokens and weights, in order."""
    digest = hashlib.sha256()
    table = dataset.with_format("arrow")[:]
    for name in COLUMNS[:3]:
        if name in table.column_names:
            column = table[name].combine_chunks()
            for part in (column.value_lengths(), column.flatten()):
                digest.update(np.ascontiguousarray(part.to_numpy(zero_copy_only=False)).tobytes())
    return digest.hexdigest()


class EpochTold(TrainerCallback):
    """Tells the sampler the epoch, which resumed data loaders of several processes do not."""

    def __init__(self, sampler: LengthSortedSampler) -> None:
        """`sampler`: that of the trainer this is a callback of."""
        self.sampler = sampler

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Pass the number of the epoch on, that of an epoch which goes on included."""
        self.sampler.set_epoch(int(state.epoch or 0))


def lengths(dataset: Any) -> IntArray:
    """How many tokens each example has, int64 [N]."""
    column = dataset.select_columns(["input_ids"]).with_format("arrow")[:]["input_ids"].combine_chunks()
    return np.asarray(column.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)


def check_lengths(dataset: Any, model: Any) -> None:
    """Raise `InputError` where an example is longer than the model reads, or where there is none."""
    if not len(dataset):
        raise InputError("there are no examples to learn from; collect traces first")
    longest = int(lengths(dataset).max())
    context = context_of(model)
    if context is not None and longest > context:
        raise InputError(
            f"an example has {longest} tokens but the model reads {context}; give the writer a prompt_budget, or leave "
            "such examples out"
        )
