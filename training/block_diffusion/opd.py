"""On-policy distillation of a block-diffusion policy from the autoregressive one that it was made of, or another.

May import numpy, torch, TRL, and `rerank_env`. The student writes block by block; a frozen teacher reads the prompt and
what was written in the end, from left to right, and says of every token what it would have been (clean fill). With S
and T the laws of student and teacher, D a divergence that `training.language.divergences` names,

    L = reward_weight * L_DAPO + distill_weight * sum over parts of weight_part / n_part * sum over targets i of
                                      D(T(token i | prompt, tokens before it), S(token i | prompt, canvas of i))

Diffusion-GR2 (2607.01170, its second stage) has D = KL(T || S) and no rewards. Which canvas is that of a token, say
`targets`; how far a completion has targets, `cuts`: the first token that is wrong is learned from, nothing behind it.
So a step without one valid answer teaches something, too. Reasoning and answer are divided each by its own number of
targets in an update, as in `trainer`.

The teacher reads a rollout once, when its part of the step is learned from; no rollout is in two. It has no logit for
the student's mask token, or one that means something else: both laws are over all other tokens, as is what the student
draws. Suffixes: `_N` rollouts of one process, `_T` tokens of one, `_S` targets of all, `_V` vocabulary, `_P` the two
parts, `_U` updates of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.likelihood import Written
from rerank_env.agents.block_diffusion.model import Row, canvas_logits
from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked
from rerank_env.rewards import Reward
from rerank_env.rewards.arrays import BoolArray
from rerank_env.rewards.errors import InputError
from rerank_env.training.block_diffusion import dapo
from rerank_env.training.block_diffusion.cuts import learned
from rerank_env.training.block_diffusion.dapo import BlockDapoTrainer, DapoResult, OnLog
from rerank_env.training.block_diffusion.opd_settings import BlockOpdConfig
from rerank_env.training.block_diffusion.parts import PARTS, parts_of
from rerank_env.training.block_diffusion.targets import Targets, targets
from rerank_env.training.language.divergences import token_divergence
from rerank_env.training.language.resampling import trimmed
from rerank_env.training.language.signals import Outcomes
from rerank_env.training.language.teaching import FrozenTeacher

__all__ = ["BlockOpdConfig", "BlockOpdTrainer", "DapoResult", "OnLog", "run"]

_ROUNDS = 3
"""What the draw of rounds is keyed with, besides what its completion was drawn by."""


@dataclass(frozen=True, eq=False)
class _Taught:
    """What is asked of a rollout: its targets, the part of each, int64 [S], and how many of its tokens were cut off."""

    targets: Targets
    parts_S: Tensor
    cut: int


class BlockOpdTrainer(BlockDapoTrainer):
    """As `BlockDapoTrainer`, with `teacher`: a policy whose `model` is read and never trained.

    Logs `divergence`, the mean over targets before any weight, `divergence_reasoning` and `divergence_answer`, those of
    each part where it has any, and `cut`, the share of tokens behind a wrong one. Raises `InputError` before anything
    is trained where teacher and student do not have the same tokens, and where answers are filled in by a decoder: they
    are not on the canvases that a model writes freely.
    """

    config: BlockOpdConfig

    def __init__(
        self, policy: BlockDiffusionPolicy, requests: Requests, reward: str | Reward, *, teacher: Any, **others: Any
    ) -> None:
        """Check the teacher and the decoding first, then as `BlockDapoTrainer`."""
        if policy.decoding.answer is not None:
            raise InputError(
                f"answers are filled in by {policy.decoding.answer}, but a teacher is compared on what the student "
                "writes freely; distil with answer=None, and decode by it afterwards"
            )
        self.frozen = FrozenTeacher(teacher, policy, mask_id=policy.mask_id)
        self._taught: list[_Taught] = []
        self._targets_UP = torch.zeros(0)
        self._said = torch.zeros(2 * len(PARTS) + 2, dtype=torch.float64)
        super().__init__(policy, requests, reward, **others)

    @property
    def is_rewarded(self) -> bool:
        """Whether rewards weigh anything."""
        return self.config.reward_weight > 0

    def advantages(self, answers: Outcomes) -> Tensor:
        """Those of the rewards times their weight; the surrogate is proportional to them."""
        return super().advantages(answers) * self.config.reward_weight

    def _dead(self, answers: Outcomes) -> BoolArray:
        found = super()._dead(answers)
        return found if self.is_rewarded else np.zeros_like(found)

    def drawn(
        self, model: Any, prompts: list[list[int]], *, n: int, generator: torch.Generator
    ) -> tuple[list[list[int]], list[list[float]]]:
        """As `BlockDrawingTrainer.drawn`; the targets of what was written are kept, too."""
        before = len(self.written)
        made = super().drawn(model, prompts, n=n, generator=generator)
        asked = self._asked[2].asked
        for number in range(before, len(self.written)):
            request = (number - before) // n
            self._taught.append(self._taught_of(self.written[number], asked, request, self.keys[number]))
        return made

    def _taught_of(self, written: Written, asked: Asked, request: int, key: tuple[int, int, int]) -> _Taught:
        assert written.trajectory is not None, "answers are written freely"
        policy, tokens = self.policy, written.completion
        most = learned(
            tokens,
            decode=lambda some: policy.texts([some])[0],
            text_format=asked.text_format,
            size=int(asked.shown.sizes_B[request]),
            ids=None if asked.answer_ids is None else asked.answer_ids[request],
        )
        rng = np.random.default_rng([self.config.seed, *key, _ROUNDS])
        found = targets(written.trajectory, most, places=self.config.places, rng=rng)
        parts_T = parts_of(policy.tokenizer, tokens, asked.text_format)
        return _Taught(found, torch.from_numpy(parts_T[found.places_N]), len(tokens) - most)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._taught.clear()
        whole = super()._generate_and_score_completions(inputs)
        parts = [self._taught[number].parts_S for number in whole["written"].tolist()]
        counts = [torch.bincount(parts_S, minlength=len(PARTS)) for parts_S in parts]
        self._targets_UP = self.update_totals(torch.stack(counts).float())
        return whole

    def extra_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The divergence of these rollouts at their targets, weighted."""
        config, mask_id, size = self.config, self.policy.mask_id, self.frozen.size
        taught = [self._taught[number] for number in inputs["written"].tolist()]
        student_SV = common(self._student(model, inputs, taught), mask_id, size)
        teacher_SV = common(self._teacher(inputs, taught).to(student_SV.device), mask_id, size)
        terms_S = token_divergence(
            student_SV / config.temperature,
            teacher_SV / config.teacher_temperature,
            kind=config.divergence,
            form=config.form,
            beta=config.jsd_beta,
            k=config.topk,
        )
        parts_S = torch.cat([one.parts_S for one in taught]).to(terms_S.device)
        sums_P = torch.zeros(len(PARTS), device=terms_S.device).index_add(0, parts_S, terms_S)
        tokens = torch.tensor([sum(one.cut for one in taught), int(inputs["completion_mask"].sum())])
        counts_P = torch.bincount(parts_S, minlength=len(PARTS))
        self._said += torch.cat([sums_P.detach().cpu(), counts_P.cpu(), tokens])
        return config.distill_weight * self.part_loss(sums_P, self._targets_UP[int(inputs["update"][0])])

    def _student(self, model: Any, inputs: dict[str, Any], taught: list[_Taught]) -> Tensor:
        """What the student says at every target, on its canvas: [S, V], with gradients, in one pass."""
        policy = self.policy
        rows = [
            Row(
                written.prompt,
                written.completion[: one.targets.canvases[-1].block * policy.blocks.size],
                one.targets.canvases,
            )
            for written, one in zip(self.written_of(inputs), taught, strict=True)
        ]
        with self.accelerator.autocast():
            logits = canvas_logits(model, rows, blocks=policy.blocks, mask_id=policy.mask_id, pad_id=policy.pad_id)
        return torch.cat(logits)

    def _teacher(self, inputs: dict[str, Any], taught: list[_Taught]) -> Tensor:
        """What the teacher says at every target, having read all before it: [S, V]."""
        said_NTV = self.frozen.logits(trimmed(inputs))
        places = [torch.from_numpy(one.targets.places_N).to(said_NTV.device) for one in taught]
        return torch.cat([said_TV[places_S] for said_TV, places_S in zip(said_NTV, places, strict=True)])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Report, with what was said of the targets of all processes since the last time."""
        device = self.accelerator.device
        told = self.accelerator.reduce(self._said.float().to(device), reduction="sum").tolist()
        self._said.zero_()
        sums, counts, (cut, tokens) = told[: len(PARTS)], told[len(PARTS) : -2], told[-2:]
        if tokens:
            logs |= {"divergence": sum(sums) / sum(counts), "cut": cut / tokens}
            logs |= {
                f"divergence_{name}": one / count for name, one, count in zip(PARTS, sums, counts, strict=True) if count
            }
        super().log(logs, start_time)


def common(logits_SV: Tensor, mask_id: int, size: int) -> Tensor:
    """Logits of the tokens that student and teacher have in common, [S, V]: the first `size`, without the mask token's.

    >>> common(torch.tensor([[1.0, 2.0, 3.0]]), 1, 3).tolist(), common(torch.tensor([[1.0, 2.0, 3.0]]), 2, 2).tolist()
    ([[1.0, 3.0]], [[1.0, 2.0]])
    """
    if mask_id >= size:
        return logits_SV[:, :size]
    return torch.cat([logits_SV[:, :mask_id], logits_SV[:, mask_id + 1 : size]], dim=1)


def run(
    policy: BlockDiffusionPolicy,
    requests: Requests,
    teacher: Any,
    *,
    directory: Path | str,
    config: BlockOpdConfig,
    reward: str | Reward = "gain",
    validation: Requests | None = None,
    resume: bool = True,
    on_log: OnLog | None = None,
) -> DapoResult:
    """Distil the policy `teacher` into `policy`, in place, on what it writes to `requests`; else as `dapo.run`.

    `reward` is watched also where its weight is 0. A run is not resumed with another teacher. Raises as `dapo.run` and
    `BlockOpdTrainer` do.
    """
    known = replace(config, teacher=FrozenTeacher(teacher, policy, mask_id=policy.mask_id).fingerprint())
    return dapo.run(
        policy,
        requests,
        reward,
        directory=directory,
        config=known,
        validation=validation,
        resume=resume,
        on_log=on_log,
        trainer=BlockOpdTrainer,
        teacher=teacher,
    )
