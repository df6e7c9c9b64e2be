"""Supervised fine-tuning with a weight for every token, on TRL's own trainer.

May import torch, transformers, TRL, and `rerank_env`. What is minimised is the weighted mean

    L = sum_t w_t * -log P(token t) / sum_t w_t

over the whole batch of an update: all its accumulated parts, on all processes. With all weights 1 that is what TRL's
`SFTTrainer` minimises; a batch whose weights are all 0 has loss 0 and gradient 0.

    examples = training_examples(requests, traces, writer, tokenizer, seed=0)
    result = run(policy, None, examples, directory=Path("runs/sft"), config=SftConfig(lr=1e-4))
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rerank_env.agents.language.models import base_of, own_forward
from rerank_env.rewards.errors import InputError, MissingExtraError
from rerank_env.training.language.batches import IGNORED, Collator, LengthSortedSampler
from rerank_env.training.language.checkpoints import DurableCheckpoints, FiniteUpdates, begin, train
from rerank_env.training.language.sft_settings import (
    COLUMNS,
    EpochTold,
    SftConfig,
    arguments,
    check_lengths,
    fingerprint,
    lengths,
)

try:
    from transformers import PrinterCallback
    from trl import SFTConfig, SFTTrainer
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'supervised fine-tuning needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

OnLog = Callable[[int, Mapping[str, float]], None]
"""Called with the number of updates and what is reported of them."""

_FILLED_IN = ("auto_mapping", "base_model_name_or_path", "peft_version")
"""Settings of an adapter that say where it is from and not what is trained."""

_ROLES = ("reasoning", "answer", "format")


@dataclass(frozen=True)
class SftResult:
    """A finished run: the `model`, trained in place; `steps` updates; the `log`, one entry a report."""

    model: Any
    steps: int
    log: Sequence[Mapping[str, float]]
    directory: Path


class WeightedSFTTrainer(DurableCheckpoints, FiniteUpdates, SFTTrainer):
    """TRL's trainer for prepared examples, with the column `loss_weights`; see the module for the loss.

    Logs the mean negative log-likelihood of `reasoning`, `answer` and `format` tokens by themselves, unweighted, over
    everything since the last report, and, in an evaluation, the loss over the whole evaluation set. A loss or gradient
    that is not finite raises `DivergedError` before it reaches the weights; checkpoints are then untouched.
    """

    loss_is_scaled_for_ga = True
    _tag_names: ClassVar[list[str]] = ["trl", "sft"]

    def __init__(
        self, model: Any, args: SFTConfig, train_dataset: Any, *, on_log: OnLog | None = None, **others: Any
    ) -> None:
        self._on_log = on_log
        self._sums: dict[str, dict[str, Tensor]] = {"train": {}, "eval": {}}
        signs = others["processing_class"]
        collator = Collator(signs.eos_token_id if signs.pad_token_id is None else signs.pad_token_id)
        super().__init__(model=model, args=args, train_dataset=train_dataset, data_collator=collator, **others)
        self.remove_callback(PrinterCallback)
        self._keeps_logits = "logits_to_keep" in inspect.signature(base_of(self.model).forward).parameters

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = list(COLUMNS)

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthSortedSampler:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        rows = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        sampler = LengthSortedSampler(lengths(dataset), rows, seed=self.args.seed)
        self.add_callback(EpochTold(sampler))
        return sampler

    def _get_num_items_in_batch(self, batch_samples: list[Mapping[str, Tensor]], device: torch.device) -> Tensor:
        """The sum of the weights of one update, over its parts and all processes."""
        total = torch.zeros((), dtype=torch.float64)
        for batch in batch_samples:
            total = total + _weights(batch).double().sum().cpu()
        total = total.float().to(device)
        return self.accelerator.gather(total).sum() if self.args.world_size > 1 else total

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """The part of the loss that these examples bring; without a total, their own weighted mean."""
        if return_outputs:
            raise InputError("this trainer keeps no logits to return; evaluate with prediction_loss_only")
        weights_BT = _weights(inputs)
        nll_BT = self._nll(model, inputs, weights_BT > 0)
        share = (weights_BT * nll_BT).sum()
        total = weights_BT.sum() if num_items_in_batch is None else num_items_in_batch
        loss = share / torch.where(total > 0, total, 1.0)
        self._count(inputs, weights_BT, nll_BT.detach())
        return self.for_update(model, loss, whole=num_items_in_batch is None)

    def for_update(self, model: Any, loss: Tensor, *, whole: bool) -> Tensor:
        """The loss as it goes back through the model: checked, and a share of an update (not `whole`) times the number
        of processes, whose gradients are averaged. In evaluation as it is.
        """
        if model.training:
            if not whole:
                loss = loss * self.accelerator.num_processes
            self.check_finite("the loss", loss)
        return loss

    def _nll(self, model: Any, inputs: Mapping[str, Tensor], counted_BT: Tensor) -> Tensor:
        """The negative log-likelihood of every token that counts, [B, T - 1], 0 elsewhere, with a graph in any case.

        On accelerators TRL's fused head scores them without ever holding the logits. It scores every place of the
        batch on a CPU, so there the logits of the places that some example counts are taken, and no others.
        """
        labels_BT = inputs["labels"].masked_fill(~functional.pad(counted_BT, (1, 0)), IGNORED)
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")} | {"use_cache": False}
        if labels_BT.device.type != "cpu" or not self._keeps_logits:
            return -model(**given, labels=labels_BT, fused_lm_head=True).log_probs
        places = counted_BT.any(dim=0).nonzero().flatten()
        if not len(places):
            places = torch.zeros(1, dtype=torch.int64)
        logits_BPV = model(**given, logits_to_keep=places).logits
        kept_BP = counted_BT[:, places]
        nll_N = functional.cross_entropy(
            logits_BPV[kept_BP].float(), labels_BT[:, 1:][:, places][kept_BP], reduction="none"
        )
        connected = logits_BPV[:, :1, :1].float().sum() * 0.0
        return (connected + torch.zeros(counted_BT.shape)).masked_scatter(counted_BT, nll_N)

    def _count(self, inputs: Mapping[str, Tensor], weights_BT: Tensor, nll_BT: Tensor) -> None:
        """Add up what is reported."""
        sums = self._sums["train" if self.model.training else "eval"]
        parts = {"loss": weights_BT}
        if "roles" in inputs:
            counted = weights_BT > 0
            parts |= {name: (inputs["roles"][:, 1:] == role) & counted for role, name in enumerate(_ROLES)}
        for name, part_BT in parts.items():
            pairs_B2 = torch.stack([(part_BT * nll_BT).sum(1), part_BT.sum(1).to(nll_BT.dtype)], dim=1)
            if not self.model.training:  # what was repeated to make the processes' last batches even is left out
                pairs_B2 = self.accelerator.gather_for_metrics(pairs_B2)
            pair = pairs_B2.double().sum(0)
            sums[name] = sums[name] + pair if name in sums else pair

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Report, with the means of the module's docstring."""
        mode = "train" if self.model.training else "eval"
        prefix = "" if mode == "train" else "eval_"
        for name, pair in self._sums[mode].items():
            value, count = (self.accelerator.reduce(pair, reduction="sum") if mode == "train" else pair).tolist()
            if count > 0 and (name != "loss" or (mode == "eval" and "eval_loss" in logs)):
                logs[prefix + name] = value / count
        self._sums[mode] = {}
        super().log(logs, start_time)
        if self._on_log is not None and self.accelerator.is_main_process:
            self._on_log(self.state.global_step, logs)


def _weights(batch: Mapping[str, Tensor]) -> Tensor:
    """The weight of every token that has one before it, [B, T - 1]; 0 where there is nothing to learn."""
    learned = batch["labels"][:, 1:] != IGNORED
    return batch["loss_weights"][:, 1:] * learned if "loss_weights" in batch else learned.float()


def _adapter(peft_config: Any) -> dict[str, Any]:
    """The settings of an adapter, JSON-ready, without what PEFT itself fills in."""
    told = {name: value for name, value in peft_config.to_dict().items() if name not in _FILLED_IN}
    plain = json.dumps(
        told, sort_keys=True, default=lambda value: sorted(map(str, value)) if isinstance(value, set) else str(value)
    )
    found: dict[str, Any] = json.loads(plain)
    return found


def run(
    model: Any,
    tokenizer: Any,
    dataset: Any,
    *,
    directory: Path,
    config: SftConfig | None = None,
    resume: bool = True,
    eval_dataset: Any = None,
    peft_config: Any = None,
    on_log: OnLog | None = None,
    trainer: Callable[..., WeightedSFTTrainer] = WeightedSFTTrainer,
    also: Mapping[str, Any] | None = None,
) -> SftResult:
    """Fine-tune `model` in place, where it is, on examples as `training_examples` makes them.

    `model`: a causal language model, or a policy that has one as `model`, whose `tokenizer` is taken where None is
    given. `on_log` is called on the main process. `peft_config`: train adapters of that kind instead; the result's
    `model`, and then the policy's, has them. Goes on from the newest whole checkpoint in `directory` if `resume`: a run
    that was killed ends with the weights of one that was not. `trainer`: another that is called as
    `WeightedSFTTrainer` is; `also`: what else decides its outcome, JSON-ready.

    Raises `InputError` where an example is longer than the model reads, where `batch` cannot be divided as asked and
    where `directory` holds another run; `DivergedError` where the loss is no longer finite; `CheckpointError` where the
    disk refuses.
    """
    settings = SftConfig() if config is None else config
    own = getattr(model, "tokenizer", None)
    inner, signs = (model if own is None else model.model), (own if tokenizer is None else tokenizer)
    if signs is None:
        raise InputError("no tokenizer was given, and the model has none; give the one that made the examples")
    check_lengths(dataset, inner)
    args = arguments(settings, directory, inner, evaluates=eval_dataset is not None)
    identity = {
        "config": asdict(settings),
        "examples": fingerprint(dataset),
        "parameters": sum(parameter.numel() for parameter in inner.parameters()),
        "processes": args.world_size,
        "adapter": None if peft_config is None else _adapter(peft_config),
        **(also or {}),
    }
    start = begin(directory, identity, resume=resume, main=args.process_index == 0)
    with own_forward(inner):  # TRL puts its fused head into the model, which nobody else asks for
        tuner = trainer(
            inner,
            args,
            dataset,
            eval_dataset=eval_dataset,
            processing_class=signs,
            peft_config=copy.deepcopy(peft_config),  # PEFT writes into it
            on_log=on_log,
        )
        train(tuner, start)
    trained = tuner.accelerator.unwrap_model(tuner.model)
    trained.eval()
    if own is not None:
        model.model = trained
    return SftResult(trained, tuner.state.global_step, tuner.state.log_history, directory)
