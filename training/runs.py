"""A training run in one directory: from names (a method, a data set, a reward) to a saved policy.

This is what `rerank train` does; everything in it can be had from Python too. The directory then holds `run.json` (the
settings), `metrics.jsonl`, checkpoints, and `policy/` in `from_pretrained` form. May import torch and all layers below.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rerank_env.agents.listwise import ListwisePolicy
from rerank_env.data import load
from rerank_env.rewards import parse_reward
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training import dapo, supervised
from rerank_env.training.loop import StepLog, TrainResult

METHODS = ("dapo", "supervised")
POLICY = "policy"


@dataclass(frozen=True)
class RunSettings:
    """What to train: `method` dapo or supervised, on which data, with which reward (dapo only) and seed.

    `steps` and `learning_rate` None mean the method's default. Every field can be given to `rerank train`.
    """

    method: str = "dapo"
    data: str = "movielens-100k"
    kind: str = "graded"
    reward: str = "gain"
    seed: int = 0
    steps: int | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownNameError.of("method", self.method, METHODS)
        if self.steps is not None and self.steps < 1:
            raise InputError(f"steps is {self.steps}; give 1 or more")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise InputError(f"learning_rate is {self.learning_rate}; give a number above 0")
        parse_reward(self.reward)

    def config(self) -> dapo.DapoConfig | supervised.SupervisedConfig:
        """The method's configuration with these settings in it."""
        given: dict[str, Any] = {"seed": self.seed, "steps": self.steps, "learning_rate": self.learning_rate}
        changes = {field: value for field, value in given.items() if value is not None}
        base = dapo.DapoConfig() if self.method == "dapo" else supervised.SupervisedConfig()
        return replace(base, **changes)


def train_run(
    settings: RunSettings,
    directory: Path,
    *,
    resume: bool = True,
    on_step: Callable[[StepLog], None] | None = None,
) -> TrainResult:
    """Train as `settings` say and leave the policy in `directory/policy`; goes on where an earlier run stopped.

    Raises `Interrupted` on Ctrl-C (running it again goes on), `InputError` where `directory` holds another run.
    """
    train = load(settings.data, split="train", kind=settings.kind)
    validation = load(settings.data, split="validation", kind=settings.kind)
    policy = ListwisePolicy.for_requests(train, generator=torch.Generator().manual_seed(settings.seed))
    directory.mkdir(parents=True, exist_ok=True)
    config = settings.config()
    if isinstance(config, dapo.DapoConfig):
        result = dapo.train(
            policy, train, settings.reward,
            config=config, directory=directory, validation=validation, resume=resume, on_step=on_step,
        )  # fmt: skip
    else:
        result = supervised.train(
            policy, train, config=config, directory=directory, validation=validation, resume=resume, on_step=on_step
        )
    result.policy.save_pretrained(directory / POLICY)
    (directory / "run.json").write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    return result


def trained_policy(path: Path) -> ListwisePolicy:
    """The policy of a finished run's directory, or of a directory in `from_pretrained` form."""
    return ListwisePolicy.from_pretrained(path / POLICY if (path / POLICY).is_dir() else path)


def arguments(settings: RunSettings) -> list[str]:
    """What to write behind `rerank train` to repeat `settings`.

    >>> " ".join(arguments(RunSettings(seed=2)))
    'dapo --data movielens-100k --kind graded --reward gain --seed 2'
    """
    given = {field: value for field, value in asdict(settings).items() if value is not None}
    method = given.pop("method")
    return [method, *(part for field, value in given.items() for part in (f"--{field.replace('_', '-')}", str(value)))]
