"""On-policy distillation: the student writes, a frozen teacher says at every token what it would have said.

May import torch, TRL, and `rerank_env`. GR2's technical report (2606.31984), on the student's own rollouts:

    L = reward_weight * L_DAPO + distill_weight * mean over tokens of KL(student || teacher)

L_DAPO is the clipped surrogate of `trainer`, averaged over the tokens of the groups that are alive; the divergence, of
any kind that `divergences` names, is averaged over the tokens of ALL answers of a step, because a teacher has something
to say of an answer whose group has no signal. The teacher reads every rollout once; no gradient flows through which
tokens were drawn, as in TRL's `DistillationTrainer`. With `reward_weight` 0 the loss is that trainer's: no rewards are
compared, so groups may be of one, and nothing is resampled.

Both laws are taken at the temperature at which the student writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward
from rerank_env.rewards.arrays import BoolArray
from rerank_env.rewards.errors import InputError
from rerank_env.training.language import dapo
from rerank_env.training.language.dapo import DapoConfig, DapoResult, DapoTrainer, OnLog
from rerank_env.training.language.divergences import check, token_divergence
from rerank_env.training.language.signals import Outcomes
from rerank_env.training.language.teaching import FrozenTeacher

__all__ = ["OpdConfig", "OpdTrainer", "run"]


@dataclass(frozen=True, kw_only=True)
class OpdConfig(DapoConfig):
    """As `DapoConfig`, with the two weights and the divergence.

    `divergence`, `form`, `jsd_beta`, `topk`, `estimator`: see `divergences`; "full" holds the logits of both models of
    a micro batch, "topk" those of the teacher's likeliest tokens, whose gradients cost less. `teacher`: what tells the
    teacher from others, filled in by `run`. Raises as `DapoConfig` and `divergences.check` do, and `InputError` where
    both weights are 0 or rewards have nothing to be compared with.
    """

    reward_weight: float = 1.0
    distill_weight: float = 0.05
    divergence: str = "reverse_kl"
    form: str = "full"
    jsd_beta: float = 0.5
    topk: int = 16
    estimator: str = "k2"
    teacher: str = ""

    least_group: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        for name in ("reward_weight", "distill_weight"):
            self._set(name, self._number(name, zero=True))
        check(self.divergence, self.form, beta=self.jsd_beta, k=self.topk, estimator=self.estimator)
        if self.form == "sampled" and self.estimator == "k1":
            raise InputError("the gradient of the estimator k1 is zero in expectation; train with k2 or k3")
        check_weights(self.reward_weight, self.distill_weight, group_size=self.group_size)


def check_weights(reward_weight: float, distill_weight: float, *, group_size: int) -> None:
    """Raise `InputError` where both weights are 0 and where rewards count but have nothing to be compared with."""
    if not reward_weight and not distill_weight:
        raise InputError("reward_weight and distill_weight are both 0, so nothing is learned; raise one of them")
    if reward_weight and group_size < 2:
        raise InputError(
            f"group_size is {group_size} but rewards count; give at least 2 answers a request, or a reward_weight of 0"
        )


class OpdTrainer(DapoTrainer):
    """As `DapoTrainer`, with `teacher`: a policy whose `model` is read and never trained.

    Logs `divergence`, the mean over tokens before its weight. Raises `InputError` before anything is trained where
    teacher and student do not have the same tokens.
    """

    keeps_logits = True
    config: OpdConfig

    def __init__(self, policy: Any, requests: Requests, reward: str | Reward, *, teacher: Any, **others: Any) -> None:
        """Check the teacher first, then as `DapoTrainer`."""
        self.frozen = FrozenTeacher(teacher, policy)
        self._said = [0.0, 0.0]
        super().__init__(policy, requests, reward, **others)

    def counted(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """All tokens of all answers."""
        return inputs["completion_mask"]

    def advantages(self, answers: Outcomes) -> Tensor:
        """Those of the rewards times their weight; the surrogate is proportional to them."""
        found = super().advantages(answers)
        return found * self.config.reward_weight if self.config.reward_weight else torch.zeros_like(found)

    def _dead(self, answers: Outcomes) -> BoolArray:
        found = super()._dead(answers)
        return found if self.config.reward_weight else np.zeros_like(found)

    def token_terms(self, inputs: Mapping[str, Tensor], logits_NTV: Tensor | None) -> Tensor:
        """The divergence at every token, [N, T], times its weight; 0 where there is padding."""
        assert logits_NTV is not None, "keeps_logits"
        config, mask_NT = self.config, inputs["completion_mask"].bool()
        student_SV = logits_NTV[mask_NT] / config.temperature
        teacher_SV = self.frozen.logits(inputs).to(student_SV.device)[mask_NT] / config.temperature
        terms_S = token_divergence(
            student_SV,
            teacher_SV,
            kind=config.divergence,
            form=config.form,
            beta=config.jsd_beta,
            k=config.topk,
            sampled_ids=inputs["completion_ids"][mask_NT],
            estimator=config.estimator,
        )
        self._said[0] += float(terms_S.detach().sum())
        self._said[1] += len(terms_S)
        return torch.zeros_like(mask_NT, dtype=terms_S.dtype).masked_scatter(mask_NT, config.distill_weight * terms_S)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Report, with the mean divergence of all processes."""
        total, count = self.accelerator.reduce(
            torch.tensor(self._said, device=self.accelerator.device), reduction="sum"
        ).tolist()
        self._said = [0.0, 0.0]
        if count:
            logs["divergence"] = total / count
        super().log(logs, start_time)


def run(
    policy: Any,
    requests: Requests,
    teacher: Any,
    *,
    directory: Path | str,
    config: OpdConfig,
    reward: str | Reward = "gain",
    validation: Requests | None = None,
    resume: bool = True,
    on_log: OnLog | None = None,
) -> DapoResult:
    """Distil the policy `teacher` into `policy`, in place, on what it writes to `requests`; else as `dapo.run`.

    `reward` is watched also where its weight is 0. A run is not resumed with another teacher.
    """
    known = replace(config, teacher=FrozenTeacher(teacher, policy).fingerprint())
    return dapo.run(
        policy,
        requests,
        reward,
        directory=directory,
        config=known,
        validation=validation,
        resume=resume,
        on_log=on_log,
        trainer=OpdTrainer,
        teacher=teacher,
    )
