"""What of a rollout is scored: its plan by an estimator, and which of its tokens count.

May import torch and `rerank_env.agents`. Suffix: `_T` places of a completion that have a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.likelihood import Gpl, Likelihood, Plan, Setting, Written


@dataclass
class Planned:
    """A rollout that is learned from: its plan, of each place that has a value the part and whether it counts, and the
    values of the model that drew it, where it was scored before.
    """

    plan: Plan
    parts_T: Tensor
    counted_T: Tensor
    old_T: Tensor | None = None


def planned(likelihood: Likelihood, written: Written, setting: Setting) -> Plan:
    """A plan of one completion; one that never came to its answer, and so was not filled in, by the rest of a `Gpl`.

    Where such a one has no rest, nothing of the completion is looked at. Raises as the estimator does.
    """
    if not isinstance(likelihood, Gpl) or written.form is not None:
        return likelihood.plan([written], setting)[0]
    if likelihood.rest is None:
        return Plan(written.prompt, written.completion, [])
    return likelihood.rest.plan([written], setting)[0]


def looked_at(plan: Plan, level: str, block_size: int) -> Tensor:
    """Which places of a plan count, float32 [T]: those looked at, and all where ratios are of whole completions."""
    if level == "sequence":
        return torch.ones(len(plan.tokens))
    counted_T = torch.zeros(len(plan.tokens))
    for look in plan.looks:
        counted_T[[look.canvas.block * block_size + place for place in look.canvas.wanted]] = 1.0
    return counted_T
