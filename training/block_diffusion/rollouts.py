"""What a step of DAPO is made of where answers are written by block diffusion: each rollout keeps how it was decoded.

May import torch, TRL, and `rerank_env`. Requests, groups, rewards, dead groups and numbers are those of
`training.language.rollouts`; answers are written by the policy's own blocks, rule and decoder of answers, at the
temperature that is trained. Suffixes: `_N` rollouts of one process, `_U` updates of a step, `_P` columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.decoding import BlockDecoding
from rerank_env.agents.block_diffusion.filling import Form
from rerank_env.agents.block_diffusion.likelihood import Written
from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.agents.block_diffusion.trajectory import Trajectory
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.training.block_diffusion.dapo_settings import BlockDapoConfig, drawing
from rerank_env.training.language.rollouts import DrawingTrainer, keyed
from rerank_env.training.language.signals import Outcomes

_FILLING = 1
"""What the numbers that answers are filled in by are keyed with, besides those that texts are drawn by."""


class BlockDrawingTrainer(DrawingTrainer):
    """`DrawingTrainer` for a `BlockDiffusionPolicy`.

    Every batch has two more columns, int64 [N]: `written`, by which `written_of` finds how a rollout came to be, and
    `update`, the update of its step that it belongs to, counted from 0. Both are about the step at hand only.

    Logs, of the first draw of every step, also: `no_valid` (1.0 where not one rollout was a ranking), `forwards` (the
    rounds that a rollout alone takes; those that fill an answer in not counted), `tokens_per_forward` of what was
    written so, and `forced` (the share of its tokens that the rule did not vouch for).
    """

    config: BlockDapoConfig
    policy: BlockDiffusionPolicy

    def __init__(self, policy: BlockDiffusionPolicy, *args: Any, **settings: Any) -> None:
        self.written: list[Written] = []
        self.keys: list[tuple[int, int, int]] = []
        """Of each: the draw, the round and the place among the rollouts of all processes."""
        self._decoded = torch.zeros(0)
        super().__init__(policy, *args, **settings)

    def written_of(self, inputs: dict[str, Any]) -> list[Written]:
        """The prompt, completion, trajectory and form of each rollout of a batch."""
        return [self.written[number] for number in inputs["written"].tolist()]

    @property
    def validating(self) -> BlockDecoding:
        """The policy's own decoding, with nothing drawn."""
        return replace(self.policy.decoding, temperature=0.0)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self.written.clear()
        self.keys.clear()
        whole = super()._generate_and_score_completions(inputs)
        share = len(whole["written"]) // self.config.updates_per_step
        return whole | {"update": torch.arange(len(whole["written"])) // share}

    def _rollouts(self, rows_B: IntArray, draw: int, round_: int) -> dict[str, Any]:
        before = len(self.written)
        batch = super()._rollouts(rows_B, draw, round_)
        return batch | {"written": torch.arange(before, len(self.written))}

    def drawn(
        self,
        model: Any,  # noqa: ARG002 - it is the policy's own
        prompts: list[list[int]],
        *,
        n: int,
        generator: torch.Generator,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """As `DrawingTrainer.drawn`, by the policy; how each answer was written is kept."""
        draw, round_, shown = self._asked
        count = len(prompts) * n
        first = self.accelerator.process_index * count
        seeds = torch.randint(2**62, (first + count,), generator=keyed(self.config.seed, draw, round_, _FILLING))
        made = self.policy.written(
            shown.asked,
            prompts,
            n=n,
            decoding=drawing(self.policy, self.config),
            generator=generator,
            seeds=seeds[first:].tolist(),
        )
        ids, trajectories, forms = (_flat(rows) for rows in (made.ids_BN, made.trajectories_BN, made.forms_BN))
        for row, (tokens, trajectory, form) in enumerate(zip(ids, trajectories, forms, strict=True)):
            self.written.append(Written(prompts[row // n], tokens, _kept(trajectory, form), form))
            self.keys.append((draw, round_, first + row))
        if round_ == 0:
            told = [(sum(one.block_rounds), one.length, sum(one.forced)) for one in trajectories]
            self._decoded = torch.tensor(told, dtype=torch.float64).sum(dim=0)
        return ids, _flat(made.logprobs_BN)

    def update_totals(self, counts_NP: Tensor) -> Tensor:
        """Sums over the rollouts of each update of a step, on all processes: [U, P], on this process' device.

        `counts_NP` has a row for every rollout of a step on this process, in the order of its batch. All processes must
        call it.
        """
        own_UP = counts_NP.reshape(self.config.updates_per_step, -1, counts_NP.shape[-1]).sum(dim=1)
        total: Tensor = self.accelerator.reduce(own_UP.to(self.accelerator.device), reduction="sum")
        return total

    def _report(self, answers: Outcomes, rows_B: IntArray, dead_B: BoolArray, missing: int, rounds: int) -> None:
        super()._report(answers, rows_B, dead_B, missing, rounds)
        counts = torch.tensor([float(answers.valid_N.sum()), float(len(answers.valid_N))])
        sums = torch.cat([counts, self._decoded.float()]).to(self.accelerator.device)
        valid, rollouts, forwards, tokens, forced = self.accelerator.reduce(sums, reduction="sum").tolist()
        said = self._metrics["train"]
        said["no_valid"].append(float(valid == 0))
        said["forwards"].append(forwards / rollouts)
        said["tokens_per_forward"].append(tokens / forwards)
        said["forced"].append(forced / tokens)


def _flat(rows: list[list[Any]]) -> list[Any]:
    return [value for row in rows for value in row]


def _kept(trajectory: Trajectory, form: Form | None) -> Trajectory | None:
    """How that was decoded which stands before an answer that was filled in; None where nothing does."""
    if form is None:
        return trajectory
    length = len(form.written)
    return replace(trajectory, length=length, finished=False) if length else None
