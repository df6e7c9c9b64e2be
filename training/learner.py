"""What a trainer is made of: a learner, and what a run reports.

May import torch, `rerank_env` and `rerank_env.agents`. An algorithm subclasses `Learner` and hands it to `loop.run`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from rerank_env.agents.network import NetworkPolicy
from rerank_env.data.requests import Requests
from rerank_env.training.epochs import RequestEpochs
from rerank_env.training.settings import TrainConfig

Values = dict[str, float | int | str | None]
"""Named values of one step, finite or null."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C after saving; `step` steps are kept and running again goes on from there.

    No error: like any KeyboardInterrupt it passes by an `except Exception`.
    """

    def __init__(self, step: int, directory: Path) -> None:
        """Say how many steps are safe, and where."""
        super().__init__(f"interrupted; {step} steps are saved in {directory}, run the same command again to go on")
        self.step = step
        self.directory = directory


@dataclass(frozen=True)
class StepLog:
    """One completed step, as given to `on_step`: `values` is the line of metrics.jsonl without step and seconds.

    `eta_seconds`: the time to go until the last step, foretold from the mean of the latest steps of this process; it
    is there from the first step on, and an early stop comes sooner.
    """

    step: int
    steps: int
    values: Mapping[str, float | int | str | None]
    seconds: float
    eta_seconds: float


@dataclass(frozen=True)
class TrainResult:
    """A finished run: `policy` holds the weights of the best validation, or the last ones if there was none.

    `steps` were completed (fewer than asked for after an early stop); `best_step` and `best_validation` say where the
    weights come from, with step 0 for the weights that training started from.
    """

    policy: NetworkPolicy
    steps: int
    best_step: int
    best_validation: float | None
    log_path: Path
    directory: Path


class Learner(ABC):
    """What one algorithm brings to the loop. Everything a later step depends on must be in the four below.

    The policy's weights, the optimiser's moments, the order of requests, and one random generator for all the rest.
    """

    algorithm: ClassVar[str]

    def __init__(self, policy: NetworkPolicy, requests: Requests, config: TrainConfig) -> None:
        """Make the optimiser, the order of requests and the generator; `config.seed` decides the latter two."""
        self.policy, self.requests, self.config = policy, requests, config
        self.optimizer: torch.optim.Optimizer = adamw(policy, config.weight_decay)
        self.epochs = RequestEpochs(len(requests), config.seed)
        self.generator = torch.Generator().manual_seed(config.seed)

    @abstractmethod
    def step(self, step: int) -> Values:
        """Do update number `step`, counted from 1, and return what to log, the same names every time."""

    def identity(self) -> dict[str, str]:
        """What decides the outcome besides algorithm, policy, requests and configuration; a resume must agree."""
        return {}

    def close(self) -> None:  # noqa: B027 - most learners hold nothing open
        """Release what `step` holds on to."""


def adamw(module: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW (1711.05101) with weight decay on matrices only, as is usual for transformers; the rate is set per step."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0)


def apply_gradients(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, *, rate: float, max_norm: float
) -> float | None:
    """One update at learning rate `rate`; returns the gradient's norm before clipping to `max_norm`.

    A gradient that is not finite updates nothing, weights and moments included, and returns None.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = float(nn.utils.clip_grad_norm_(module.parameters(), max_norm))
    if not math.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        return None
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return norm
