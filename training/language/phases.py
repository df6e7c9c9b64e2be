"""One phase of mid-training on transformers' trainer: which weights move, and what is measured on the way.

May import torch, transformers and `rerank_env`. The trainer is transformers' and not TRL's, because blocks are packed
already and have no turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rerank_env.agents.language.models import evaluated
from rerank_env.agents.language.vocabulary import tables
from rerank_env.rewards.errors import MissingExtraError
from rerank_env.training.language.batches import divided
from rerank_env.training.language.checkpoints import KEPT, DurableCheckpoints, FiniteUpdates, begin
from rerank_env.training.language.exam import RECALL, Exam
from rerank_env.training.language.packing import Blocks, collated

try:
    from transformers import EarlyStoppingCallback, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'mid-training needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

OnPhaseLog = Callable[[str, Mapping[str, float]], None]
"""Called as `on_log(phase, entry)` for every entry of the log, on the main process."""


class MidTrainer(DurableCheckpoints, FiniteUpdates, Trainer):
    """Transformers' trainer with an exam for an evaluation.

    A loss or a gradient that is not finite raises `DivergedError` before it reaches the weights; a disk that refuses a
    checkpoint raises `CheckpointError`.
    """

    control: Any

    def __init__(self, exam: Exam | None, **others: Any) -> None:
        self._exam = exam
        super().__init__(data_collator=collated, eval_dataset=None if exam is None else exam.blocks, **others)

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        """Loss and recall of the exam, over all processes; each takes a share of the questions."""
        assert self._exam is not None, "evaluations are asked for where there is an exam"
        model = self.accelerator.unwrap_model(self.model)
        part = slice(self.args.process_index, None, self.args.world_size)
        with evaluated(model):
            sums = torch.cat(
                [self._exam.loss(model, self.args.eval_batch_size, part=part), self._exam.found(model, part=part)]
            )
        total = self.accelerator.reduce(sums.to(self.args.device, torch.float32), reduction="sum").tolist()
        names = f"{metric_key_prefix}_loss", f"{metric_key_prefix}_{RECALL}"
        metrics = dict(zip(names, (total[0] / max(1.0, total[1]), total[2] / max(1.0, total[3])), strict=True))
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The model's own loss: the mean over the learned tokens of the whole update."""
        found: Any = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self.check_finite("the loss", found[0] if return_outputs else found)
        return found


@contextmanager
def only_rows(model: Any, new_ids: Sequence[int]) -> Iterator[None]:
    """Inside, nothing gets a gradient but these rows of the tables of words; afterwards, what did before does again."""
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    model.requires_grad_(False)
    hooks = []
    for table in tables(model):
        table.requires_grad_(True)
        free_V1 = torch.zeros(len(table), 1, dtype=table.dtype, device=table.device)
        free_V1[list(new_ids)] = 1.0
        hooks.append(table.register_hook(lambda grad, free=free_V1: grad * free.to(grad.device)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])


class _Logs(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Hands the log on."""

    def __init__(self, phase: str, on_log: OnPhaseLog) -> None:
        self._phase, self._on_log = phase, on_log

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Called by the trainer, on every process."""
        if state.is_world_process_zero:
            self._on_log(self._phase, {**logs, "step": state.global_step})


@dataclass(frozen=True, kw_only=True)
class Phase:
    """How one phase trains: its name, its number of updates, and what transformers is told.

    `new_ids` None: everything moves; otherwise only these rows of the tables of words. `patience` evaluations without
    a better recall end it.
    """

    name: str
    steps: int
    options: Mapping[str, Any]
    new_ids: Sequence[int] | None = None
    patience: int | None = None

    def run(
        self,
        model: Any,
        tokenizer: Any,
        blocks: Blocks,
        exam: Exam | None,
        *,
        directory: Path,
        identity: Mapping[str, Any],
        resume: bool,
        on_log: OnPhaseLog | None,
    ) -> list[dict[str, float]]:
        """Train `model` in place, or load what an earlier run left; gives the log.

        Goes on from the newest whole checkpoint in `directory` where `resume`. Raises what `begin` raises and
        `DivergedError`.
        """
        args = TrainingArguments(output_dir=str(directory), max_steps=self.steps, **self.options)
        start = begin(directory, identity, resume=resume, main=args.process_index == 0)
        state = {} if start is None else json.loads((start / "trainer_state.json").read_text())
        if start is not None and self._has_ended(state):
            load(model, self._best(directory, state) or start)
            return list(state["log_history"])
        with nullcontext() if self.new_ids is None else only_rows(model, self.new_ids):
            trainer = MidTrainer(exam, model=model, args=args, train_dataset=blocks, processing_class=tokenizer)
            trainer.remove_callback(PrinterCallback)
            if self.patience is not None:
                trainer.add_callback(EarlyStoppingCallback(self.patience))
            if on_log is not None:
                trainer.add_callback(_Logs(self.name, on_log))
            trainer.train(resume_from_checkpoint=None if start is None else str(start))
        return list(trainer.state.log_history)

    def _has_ended(self, state: Mapping[str, Any]) -> bool:
        """Whether the phase was over where this state was saved."""
        if state["global_step"] >= self.steps:
            return True
        counted = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback", {}).get("attributes", {})
        return self.patience is not None and counted.get("early_stopping_patience_counter", 0) >= self.patience

    def _best(self, directory: Path, state: Mapping[str, Any]) -> Path | None:
        step = state.get("best_global_step")
        return None if self.patience is None or not step else directory / f"checkpoint-{step}"


def load(model: Any, checkpoint: Path) -> None:
    """Put the weights of a checkpoint into `model`."""
    dtype = next(model.parameters()).dtype
    model.load_state_dict(type(model).from_pretrained(checkpoint, dtype=dtype).state_dict())


def options_of(config: Any, model: Any, *, evaluates: bool) -> dict[str, Any]:
    """What both phases tell transformers, for a `MidtrainConfig`.

    Raises `InputError` where the batch cannot be divided among processes as asked.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    every = config.validate_every if evaluates else None
    common: dict[str, Any] = {
        "max_grad_norm": config.max_grad_norm,
        "save_strategy": "steps",
        "save_steps": config.save_every,
        "save_total_limit": KEPT,
        "logging_steps": config.log_every,
        "logging_nan_inf_filter": False,
        "eval_strategy": "no" if every is None else "steps",
        "eval_steps": every,
        "gradient_checkpointing": config.gradient_checkpointing,
        "bf16": not on_cpu if config.bf16 is None else config.bf16,
        "use_cpu": on_cpu,
        "seed": config.seed,
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": not on_cpu,
    }
    processes = TrainingArguments(output_dir=".", **common).world_size
    return common | divided(config.batch, config.micro_batch, processes=processes, what="blocks")
