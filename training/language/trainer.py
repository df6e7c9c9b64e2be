"""DAPO for language models that re-rank, on TRL's own GRPO trainer.

May import torch, transformers, TRL, and `rerank_env`. TRL does sampling's bookkeeping, the clipped surrogate
(`loss_type="dapo"`: one normaliser over all tokens of a step), metrics and checkpoints. Ours is what it lacks:
candidates shuffled anew (`shuffles`), answers generated from prompts that are read once a group, dead groups by a raw
metric, replaced and then left out (`resampling`), one rule for length (`lengths`), and a step without signal that is no
update (`updates`).

    J = 1 / sum_i |o_i| * sum_i sum_t min(rho_it A_i, clip(rho_it, 1 - e_low, 1 + e_high) A_i)

over the answers i of all groups of a step that are alive, on all processes. With several updates a step TRL divides by
the mean number of tokens of its updates, not by that of the update at hand.

To add a term to the loss, override `token_terms`; to train on answers whose group is dead, `counted` as well. Suffixes:
`_N` rollouts of one process, `_B` groups, `_T` tokens of an answer, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rerank_env.training.language import resampling
from rerank_env.training.language.rollouts import DrawingTrainer
from rerank_env.training.language.sharing import completion_logits
from rerank_env.training.language.updates import SignalledUpdates


class DapoTrainer(SignalledUpdates, DrawingTrainer):
    """Trains `policy` (its model in place) on `requests` for `reward`, as `config` says; checkpoints go to `directory`.

    Logs what `DrawingTrainer` does, and `skipped` (updates without signal). Raises `DivergedError` for a loss or
    gradient that is not finite, before it reaches the weights; the last checkpoint is then untouched.
    """

    keeps_logits: ClassVar[bool] = False
    """Whether `token_terms` is given logits; without, they are dropped as soon as they were read."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._logits: Tensor | None = None

    def token_terms(
        self,
        inputs: Mapping[str, Tensor],  # noqa: ARG002 - for those who override it
        logits_NTV: Tensor | None,  # noqa: ARG002
    ) -> Tensor | None:
        """What is added to the loss of each token, [N, T], besides the reward's; None for nothing.

        `inputs` are rollouts of this process as TRL has them, `logits_NTV` the model's, before temperature, where
        `keeps_logits`. The terms are averaged over the tokens of all answers of a step, dead groups included.
        """
        return None

    def counted(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Which tokens the loss looks at, [N, T]; rollouts without any do not go through the model."""
        return inputs["completion_mask"] * inputs["tool_mask"]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, batch_size: int | None = None,
        compute_entropy: bool = False, compute_aux_loss: bool = False, **others: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
        """As TRL's, which on a CPU scores every place of the prompt, too; here only the answer's are."""
        if compute_aux_loss or (input_ids.device.type != "cpu" and not self.keeps_logits):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, compute_aux_loss,
                **others,
            )  # fmt: skip
        prompt = slice(None), slice(None, -logits_to_keep)
        answer = slice(None), slice(-logits_to_keep, None)
        # Wrapped models are called once a loss, and checkpointing drops caches.
        share = self.accelerator.num_processes == 1 and not self.config.gradient_checkpointing
        logps, entropies = [], []
        size = batch_size or len(input_ids)
        for start in range(0, len(input_ids), size):
            ids, mask = input_ids[start : start + size], attention_mask[start : start + size]
            with self.accelerator.autocast():
                logits = completion_logits(model, ids[prompt], mask[prompt], ids[answer], mask[answer], share=share)
            self._logits = logits if self.keeps_logits else None
            log_p = (logits.float() / self.temperature).log_softmax(-1)
            logps.append(log_p.gather(-1, ids[answer][..., None]).squeeze(-1))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(-(log_p.exp() * log_p).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        counted_N = self.counted(inputs).any(dim=1)
        kept = self.largest(max(int(counted_N.sum()), 1))  # processes compare their rollouts, so all keep as many
        rows_N = torch.argsort(counted_N.int(), descending=True, stable=True)[:kept]
        inputs = resampling.trimmed(resampling.taken(inputs, rows_N))
        self._counted += float(self.counted(inputs).sum())
        loss: Tensor = super()._compute_loss(model, inputs)
        terms_NT = self.token_terms(inputs, self._logits)
        self._logits = None
        if terms_NT is not None:
            loss = loss + (terms_NT * inputs["completion_mask"]).sum() / self._share(inputs["num_tokens_in_batch"])
        self.check_finite("the loss", loss)
        return loss

    def _share(self, total: Tensor) -> Tensor:
        """What a sum over this process' part of a step is divided by, as in TRL's loss."""
        parts = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        return total.clamp(min=1.0) / self.accelerator.num_processes * parts
