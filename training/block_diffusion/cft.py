"""Conversion fine-tuning: a causal model learns to fill in hidden tokens of blocks, from accepted traces.

May import torch, transformers, TRL, and `rerank_env`. Diffusion-GR2 (2607.01170, its first stage) minimises

    L = lambda_r * L_reasoning + lambda_o * L_answer
    L_part = sum over hidden tokens i of that part of w_i u_i * -log P(i | ...) / sum over all its tokens of w_i

w_i are the `loss_weights` of the examples, so that each part is divided by how many tokens it has where all weigh
alike, and the weight that the examples give to a whole part cancels out; u_i is the noise's (`noise`). The sums are
over the whole batch of an update: all its accumulated parts, on all processes. A part that a batch has no tokens of
adds nothing.

An example is one row: its prompt and its completion once clean, then the noisy copies of all blocks, in one pass of the
model (`canvas_logits`). All else, the order of examples, checkpoints, adapters, reports, is as in fine-tuning
(`training.language.sft`), whose trainer this one extends.

    examples = training_examples(requests, traces, writer, tokenizer, seed=0)
    result = run(policy, None, examples, blocks=Blocks(32), mask_id=mask_id, directory=Path("runs/cft"))

Suffixes: `_B` examples of a batch, `_T` tokens, `_N` hidden tokens that count, `_P` the two parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits
from rerank_env.agents.language.spans import REASONING
from rerank_env.rewards.errors import InputError
from rerank_env.training.block_diffusion.cft_settings import NUMBER, READ, SLOTS, CftConfig, NumberedCollator, numbered
from rerank_env.training.block_diffusion.noise import Completion, Noised, keyed, noised
from rerank_env.training.block_diffusion.parts import PARTS, combined
from rerank_env.training.language.batches import IGNORED, LengthSortedSampler
from rerank_env.training.language.sft import OnLog, SftResult, WeightedSFTTrainer
from rerank_env.training.language.sft import run as fine_tuned
from rerank_env.training.language.sft_settings import fingerprint

HELD_OUT = 2**31
"""The epoch whose noise evaluations are made with, always the same, so that they can be compared."""


class ConversionTrainer(WeightedSFTTrainer):
    """The trainer of fine-tuning with the loss of the module, for examples that `numbered` made.

    Logs both parts of the loss by themselves, over everything since the last report, and, in an evaluation, the loss
    over the whole evaluation set. A loss or gradient that is not finite raises `DivergedError` before it reaches the
    weights; checkpoints are then untouched.
    """

    data_collator: Any

    def __init__(
        self,
        model: Any,
        args: Any,
        train_dataset: Any,
        *,
        blocks: Blocks,
        mask_id: int,
        config: CftConfig,
        on_log: OnLog | None = None,
        **others: Any,
    ) -> None:
        self._blocks, self._mask_id, self._config = blocks, mask_id, config
        self._end_id = others["processing_class"].eos_token_id
        super().__init__(model, args, train_dataset, on_log=on_log, **others)
        self._pad_id: int = self.data_collator.pad_token_id
        self.data_collator = NumberedCollator(self._pad_id)

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = list(READ)

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthSortedSampler:
        self._sampler = super()._get_train_sampler(train_dataset)
        return self._sampler

    def _get_num_items_in_batch(self, batch_samples: list[Mapping[str, Tensor]], device: torch.device) -> Tensor:
        """The sums of the weights of both parts over one update, [P], over its batches and all processes."""
        total_P = torch.zeros(len(PARTS), dtype=torch.float64)
        for batch in batch_samples:
            total_P = total_P + _totals(batch).double().sum(0).cpu()
        total_P = total_P.float().to(device)
        if self.args.world_size > 1:
            total_P = self.accelerator.gather(total_P[None]).sum(0)
        return total_P

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """What these examples bring to the loss; without the totals of an update, their own loss."""
        if return_outputs:
            raise InputError("this trainer keeps no logits to return; evaluate with prediction_loss_only")
        epoch = self._sampler.epoch if self.model.training else HELD_OUT
        drawn = [self._drawn(inputs, row, epoch) for row in range(len(inputs[NUMBER]))]
        shares_BP = self._shares(model, inputs, drawn)
        totals_BP = _totals(inputs)
        total_P = totals_BP.sum(0) if num_items_in_batch is None else num_items_in_batch
        weights_P = torch.tensor([self._config.reasoning, self._config.answer], device=shares_BP.device)
        loss = combined(shares_BP.sum(0), total_P, weights_P)
        self._count_parts(shares_BP.detach(), totals_BP)
        return self.for_update(model, loss, whole=num_items_in_batch is None)

    def _drawn(self, inputs: Mapping[str, Tensor], row: int, epoch: int) -> tuple[Row, Noised, int]:
        """One example as a row with noisy copies, what they are asked, and how long its prompt is."""
        length = int(inputs["attention_mask"][row].sum())
        ids, learned, slots = (
            values[row, :length].cpu().numpy()
            for values in (inputs["input_ids"], inputs["labels"] != IGNORED, inputs[SLOTS])
        )
        start = int(learned.argmax()) if learned.any() else length
        told = Completion(ids[start:], learned[start:], slots[start:] >= 0, ends=bool(ids[-1] == self._end_id))
        rng = keyed(self.args.seed, epoch, int(inputs[NUMBER][row]))
        found = noised(told, blocks=self._blocks, noise=self._config.noise, mask_id=self._mask_id, rng=rng)
        return Row(ids[:start].tolist(), ids[start:].tolist(), found.canvases), found, start

    def _shares(self, model: Any, inputs: Mapping[str, Tensor], drawn: list[tuple[Row, Noised, int]]) -> Tensor:
        """The weighted sums of minus log-probabilities, by example and part, [B, P], with a graph in any case."""
        rows = [row for row, _, _ in drawn]
        asked = any(row.canvases for row in rows)
        if not asked:  # every process has to go through the model, and backwards
            rows[0] = Row(rows[0].prompt, rows[0].completion, [Canvas(0, [self._mask_id], [0])])
        logits = canvas_logits(model, rows, blocks=self._blocks, mask_id=self._mask_id, pad_id=self._pad_id)
        device = logits[0].device
        shares_BP = torch.zeros(len(rows), len(PARTS), device=device)
        if not asked:
            return shares_BP + logits[0][0, :1].sum() * 0.0
        at_N = torch.cat([torch.from_numpy(found.places_N) + start for _, found, start in drawn]).to(device)
        row_N = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(f.places_N) for _, f, _ in drawn]))
        row_N = row_N.to(device)
        targets_N = torch.cat([torch.from_numpy(found.targets_N) for _, found, _ in drawn]).to(device)
        noise_N = torch.cat([torch.from_numpy(found.weights_N) for _, found, _ in drawn]).float().to(device)
        nll_N = functional.cross_entropy(torch.cat(logits), targets_N, reduction="none")
        share_N = _weights(inputs)[row_N, at_N] * noise_N * nll_N
        part_N = (inputs["roles"][row_N, at_N] != REASONING).long()
        return shares_BP.index_put((row_N, part_N), share_N, accumulate=True)

    def _count_parts(self, shares_BP: Tensor, totals_BP: Tensor) -> None:
        """Add up what is reported."""
        sums = self._sums["train" if self.model.training else "eval"]
        for part, name in enumerate(PARTS):
            pairs_B2 = torch.stack([shares_BP[:, part], totals_BP[:, part]], dim=1)
            if not self.model.training:  # what was repeated to make the processes' last batches even is left out
                pairs_B2 = self.accelerator.gather_for_metrics(pairs_B2)
            pair = pairs_B2.double().sum(0)
            sums[name] = sums[name] + pair if name in sums else pair

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Report, with the loss over a whole evaluation set where it is one."""
        if not self.model.training and "eval_loss" in logs:
            pairs = [self._sums["eval"][name].tolist() for name in PARTS]
            weights = (self._config.reasoning, self._config.answer)
            logs["eval_loss"] = sum(
                weight * value / count for weight, (value, count) in zip(weights, pairs, strict=True) if count > 0
            )
        super().log(logs, start_time)


def _weights(batch: Mapping[str, Tensor]) -> Tensor:
    """The weight of every token, [B, T]; 0 where there is nothing to learn."""
    learned_BT = batch["labels"] != IGNORED
    return batch["loss_weights"] * learned_BT if "loss_weights" in batch else learned_BT.float()


def _totals(batch: Mapping[str, Tensor]) -> Tensor:
    """The sums of the weights by example and part, [B, P]."""
    weights_BT, reasons_BT = _weights(batch), batch["roles"] == REASONING
    return torch.stack([(weights_BT * reasons_BT).sum(1), (weights_BT * ~reasons_BT).sum(1)], dim=1)


def run(
    model: Any,
    tokenizer: Any,
    dataset: Any,
    *,
    blocks: Blocks,
    mask_id: int,
    directory: Path,
    config: CftConfig | None = None,
    resume: bool = True,
    eval_dataset: Any = None,
    peft_config: Any = None,
    on_log: OnLog | None = None,
) -> SftResult:
    """Convert `model` in place, where it is, on examples as `training_examples` makes them.

    `model`: a causal language model, or a policy that has one as `model`, whose `tokenizer` is taken where None is
    given. `blocks` and `mask_id`: how completions are cut and seen, and what hidden tokens read as; a model that was
    trained so is asked in the same way. `on_log`, `peft_config`, `resume` and the rest are as in `sft.run`: a run that
    was killed ends with the weights of one that was not.

    Raises `InputError` as `sft.run` and `numbered` do, `DivergedError` where the loss is no longer finite, and
    `CheckpointError` where the disk refuses.
    """
    settings = CftConfig() if config is None else config
    own = getattr(model, "tokenizer", None)
    inner, signs = (model if own is None else model.model), (own if tokenizer is None else tokenizer)
    if signs is None:
        raise InputError("no tokenizer was given, and the model has none; give the one that made the examples")
    told = partial(numbered, tokenizer=signs, model=inner, blocks=blocks, mask_id=mask_id)
    examples, held_out = told(dataset), None if eval_dataset is None else told(eval_dataset)
    parts = examples.select_columns(["roles", SLOTS]).rename_columns({"roles": "input_ids", SLOTS: "labels"})
    return fine_tuned(
        model,
        signs,
        examples,
        directory=directory,
        config=settings,
        resume=resume,
        eval_dataset=held_out,
        peft_config=peft_config,
        on_log=on_log,
        trainer=partial(ConversionTrainer, blocks=blocks, mask_id=mask_id, config=settings),
        also={"blocks": asdict(blocks), "mask_id": mask_id, "parts": fingerprint(parts)},  # hashed by those names
    )
