"""What both trainers are told, checked once, and the learning rate they follow.

May import the standard library and `rerank_env.rewards`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rerank_env.rewards import parse_reward
from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError

DECAYS = ("cosine", "none")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train: `steps` updates on `requests_per_step` requests each.

    `metric` names the raw metric, never a shaped reward, that validation measures and, in dapo, that decides which
    groups are dead. Validation comes every `validate_every` steps and after the last, checkpoints likewise; training
    stops after `patience` validations in a row without a new best (None: never). The learning rate warms up over
    `warmup_steps` and decays by `decay`, "cosine" or "none". `weight_decay` is on matrices only. `seed` decides all
    sampling. Raises `InputError` or `UnknownNameError` naming the field.
    """

    steps: int = 600
    requests_per_step: int = 64
    learning_rate: float = 5e-4
    warmup_steps: int = 20
    decay: str = "cosine"
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    metric: str = "ndcg@10"
    checkpoint_every: int = 50
    validate_every: int = 25
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field, and make numpy's numbers plain, so that a checkpoint can hold them."""
        self._check_whole("steps", "requests_per_step", "checkpoint_every", "validate_every", least=1)
        self._check_whole("warmup_steps", "seed", least=0)
        if self.patience is not None:
            self._check_whole("patience", least=1)
        self._check_number("learning_rate", "max_grad_norm")
        self._check_number("weight_decay", zero=True)
        one_of("learning rate decay", self.decay, DECAYS)
        parse_reward(self.metric)

    def due(self, every: int, step: int) -> bool:
        """Whether something done `every` so many steps is done after `step`."""
        return step % every == 0 or step == self.steps

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of update number `step`, counted from 1: a linear warm-up to the peak, then the decay.

        The last of `steps` updates still learns: the cosine reaches 0 one step after it.
        """
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if self.decay == "none":
            return self.learning_rate
        done = (step - self.warmup_steps - 1) / max(self.steps - self.warmup_steps, 1)
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))

    def _check_whole(self, *names: str, least: int) -> None:
        for name in names:
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))

    def _check_number(self, *names: str, zero: bool = False) -> None:
        for name in names:
            value = finite(name, getattr(self, name))
            if value < 0 or (value == 0 and not zero):
                raise InputError(f"{name} is {value}; give a number {'of at least' if zero else 'above'} 0")
            object.__setattr__(self, name, value)
