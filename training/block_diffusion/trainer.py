"""DAPO for language models that write by block diffusion, with any estimator of their log-probabilities.

May import torch, TRL, and `rerank_env`. Diffusion-GR2 (2607.01170, its third stage) scores every token on the canvas on
which it was committed (`likelihood` "replay"); the other estimators of `agents.block_diffusion.likelihood` take its
place by name. With rho the ratio of the model at hand to the one that drew, from an estimator's values on one plan,

    J_t = min(rho_t A, clip(rho_t, 1 - e_low, 1 + e_high) A)
    L = - sum over parts of weight_part / n_part * sum over tokens t of that part of (J_t - beta * KL_t)

over the answers of all groups of an update that are alive, on all processes; n_part counts the tokens of a part (ours:
the paper has one normaliser for all). KL, which the paper has not, is k3 to the model that training started from, on
the same plans. A token counts where its estimator looks at it: the signs of an answer that was filled in were never
drawn. Where a ratio is of the whole completion, all tokens count.

Plans are made once a step. The rollouts of its first update were drawn by the very model that is updated, so their
ratios are exactly 1, and nothing is scored twice; those of later updates are scored before the first. An invalid answer
stays in its group, at what the reward pays for it. A step without one valid answer has only dead groups, is reported as
`no_valid` and changes nothing (`training.language.updates`). Suffixes: `_N` rollouts of one process, `_T` tokens of
one, `_S` tokens of all that are scored, `_P` the two parts, `_U` updates of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.likelihood import Plan, Setting, likelihood_of, log_ratios, score
from rerank_env.agents.block_diffusion.likelihood.plans import Look
from rerank_env.agents.block_diffusion.model import Canvas
from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward
from rerank_env.training.block_diffusion.dapo_settings import BlockDapoConfig, check_scored, drawing
from rerank_env.training.block_diffusion.parts import PARTS, combined, parts_of
from rerank_env.training.block_diffusion.plans import Planned, looked_at, planned
from rerank_env.training.block_diffusion.rollouts import BlockDrawingTrainer
from rerank_env.training.language.rollouts import keyed
from rerank_env.training.language.updates import SignalledUpdates

_MASKS = 2
"""What the masks of an estimator are keyed with, besides what its completion was drawn by."""


class BlockDapoTrainer(SignalledUpdates, BlockDrawingTrainer):
    """Trains `policy` (its model in place) on `requests` for `reward`, as `config` says; checkpoints go to `directory`.

    Logs what `BlockDrawingTrainer` does, `skipped` (updates without signal), and of the tokens that count `ratio_max`,
    `clipped` (the share at the clip, from where there is no gradient) and with `beta` `kl`. To add a term to the loss,
    override `extra_loss`. Raises `InputError` where the likelihood does not score what the policy writes, and
    `DivergedError` for a loss or gradient that is not finite, before it reaches the weights.
    """

    def __init__(
        self,
        policy: BlockDiffusionPolicy,
        requests: Requests,
        reward: str | Reward,
        *,
        config: BlockDapoConfig,
        **others: Any,
    ) -> None:
        self.config = config
        self.likelihood = likelihood_of(config.likelihood)
        if self.is_rewarded:
            check_scored(self.likelihood, drawing(policy, config))
        self._planned: dict[int, Planned] = {}
        self._totals_UP = torch.zeros(0)
        self._sums = torch.zeros(3)
        self._largest = 0.0
        super().__init__(policy, requests, reward, config=config, **others)

    @property
    def is_rewarded(self) -> bool:
        """Whether rewards are learned from; where they are not, nothing is planned or scored for them."""
        return True

    def extra_loss(
        self,
        model: Any,  # noqa: ARG002 - for those who override it
        inputs: dict[str, Any],  # noqa: ARG002
    ) -> Tensor | None:
        """What is added to the loss of a part of a step, dead groups included; None for nothing.

        `model` is to be asked as often on every process. Finish with `part_loss`, as the rewards' term is.
        """
        return None

    def part_loss(self, sums_P: Tensor, totals_P: Tensor) -> Tensor:
        """A loss from sums over the tokens of each part, here and now, and how many tokens the update has everywhere,
        as `update_totals` says: weighted, divided, and scaled for processes whose gradients are averaged.
        """
        weights_P = sums_P.new_tensor([self.config.reasoning, self.config.answer])
        return combined(sums_P, totals_P.to(sums_P), weights_P) * self.accelerator.num_processes

    def _get_per_token_logps_and_entropies(
        self, _model: Any, input_ids: Tensor, _mask: Tensor, logits_to_keep: int, *_: Any, **__: Any
    ) -> tuple[Tensor, None, None]:
        """Zeros that nobody reads: what TRL would ask a causal model, `_plan` and `_surrogate` ask otherwise."""
        return torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device), None, None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        whole = super()._generate_and_score_completions(inputs)
        self._planned.clear()
        if self.is_rewarded:
            self._plan(whole)
        return whole

    def _plan(self, whole: dict[str, Any]) -> None:
        """Make the plans of a step, count its tokens, and score what later updates will be compared with."""
        live = (whole["completion_mask"] * whole["tool_mask"]).any(dim=1).tolist()
        counts_NP = torch.zeros(len(live), len(PARTS))
        later = []
        rollouts = zip(whole["written"].tolist(), whole["update"].tolist(), live, strict=True)
        for row, (number, update, is_live) in enumerate(rollouts):
            if not is_live:
                continue
            made = self._planned[number] = self._planned_of(number)
            counts_NP[row].index_add_(0, made.parts_T, made.counted_T)
            if update:
                later.append(made)
        self._totals_UP = self.update_totals(counts_NP)
        for start in range(0, len(later), self.config.micro_batch):
            some = later[start : start + self.config.micro_batch]
            for made, old_T in zip(some, self._scored(self.policy.model, some), strict=True):
                made.old_T = old_T

    def _planned_of(self, number: int) -> Planned:
        written = self.written[number]
        setting = Setting(
            self.policy.blocks,
            self.policy.mask_id,
            max_tokens=self.config.max_tokens,
            generator=keyed(self.config.seed, *self.keys[number], _MASKS),
        )
        plan = planned(self.likelihood, written, setting)
        parts_T = torch.ones(len(plan.tokens), dtype=torch.int64)  # a tail behind the end belongs to the answer
        found = parts_of(self.policy.tokenizer, written.completion, self.policy.writer.text_format)
        parts_T[: len(found)] = torch.from_numpy(found)
        return Planned(plan, parts_T, looked_at(plan, self.likelihood.level, self.policy.blocks.size))

    def _values(self, model: Any, plans: Sequence[Plan]) -> list[Tensor]:
        """What a model says on these plans, with gradients, in one pass."""
        policy = self.policy
        with self.accelerator.autocast():
            return score(
                model,
                plans,
                blocks=policy.blocks,
                mask_id=policy.mask_id,
                pad_id=policy.pad_id,
                temperature=self.config.temperature,
                batch_size=len(plans),
            ).log_probs

    @torch.no_grad()
    def _scored(self, model: Any, rollouts: Sequence[Planned]) -> list[Tensor]:
        return self._values(model, [one.plan for one in rollouts])

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        terms = [self._surrogate(model, inputs)] if self.is_rewarded else []
        extra = self.extra_loss(model, inputs)
        if extra is not None:
            self._counted += 1.0
            terms.append(extra)
        loss = torch.stack(terms).sum() if terms else self._nothing(model, inputs)
        self.check_finite("the loss", loss)
        return loss

    def _surrogate(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss of the module over the rollouts of a part of a step."""
        rows = [row for row, number in enumerate(inputs["written"].tolist()) if number in self._planned]
        if not rows:
            return self._nothing(model, inputs)
        rollouts = [self._planned[int(inputs["written"][row])] for row in rows]
        new = self._values(model, [one.plan for one in rollouts])
        old = [now_T if one.old_T is None else one.old_T for one, now_T in zip(rollouts, new, strict=True)]
        device, level = new[0].device, self.likelihood.level
        ratio_S = torch.cat(log_ratios(new, old, level=level)).exp()
        lengths = torch.tensor([len(one_T) for one_T in new])
        advantage_S = inputs["advantages"][rows].to(device).repeat_interleave(lengths.to(device))
        clipped_S = ratio_S.clamp(1 - self.config.epsilon_low, 1 + self.config.epsilon_high) * advantage_S
        loss_S = -torch.minimum(ratio_S * advantage_S, clipped_S)
        counted_S = torch.cat([one.counted_T for one in rollouts]).to(device)
        kl_S = torch.zeros_like(ratio_S)
        if self.config.beta:
            start = self._scored(self.ref_model, rollouts)
            away_S = torch.cat(log_ratios(new, start, level=level))
            kl_S = (-away_S).exp() + away_S - 1
            loss_S = loss_S + self.config.beta * kl_S
        parts_S = torch.cat([one.parts_T for one in rollouts]).to(device)
        sums_P = torch.zeros(len(PARTS), device=device).index_add(0, parts_S, loss_S * counted_S)
        self._count(ratio_S.detach(), (ratio_S * advantage_S > clipped_S).float(), kl_S.detach(), counted_S)
        return self.part_loss(sums_P, self._totals_UP[int(inputs["update"][0])])

    def _nothing(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """A loss of 0: every process has to go through the model, and backwards."""
        prompt = self.written[int(inputs["written"][0])].prompt
        look = Look(Canvas(0, [self.policy.mask_id], [0]), [0.0])
        return self._values(model, [Plan(prompt, [self.policy.eos_ids[0]], [look])])[0].sum()

    def _count(self, ratio_S: Tensor, at_clip_S: Tensor, kl_S: Tensor, counted_S: Tensor) -> None:
        """Add up what is reported of an update, and that there was something to learn from."""
        told = torch.stack([counted_S.sum(), (at_clip_S * counted_S).sum(), (kl_S * counted_S).sum()])
        self._counted += float(told[0])
        self._sums = self._sums + told.cpu()
        self._largest = max(self._largest, float((ratio_S * counted_S).max()))

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        tokens, at_clip, kl = self.accelerator.reduce(self._sums.to(self.accelerator.device), reduction="sum").tolist()
        largest = torch.tensor([self._largest], device=self.accelerator.device)
        if tokens:
            said = self._metrics["train"]
            said["ratio_max"].append(float(self.accelerator.gather(largest).max()))
            said["clipped"].append(at_clip / tokens)
            if self.config.beta:
                said["kl"].append(kl / tokens)
        self._sums, self._largest = torch.zeros(3), 0.0
        return norm
