"""A training run in one directory: from names (a method, a data set, a reward) to a saved policy.

This is what `rerank train` does; everything in it can be had from Python too. The directory holds `run.json` (the
settings, written first), `metrics.jsonl`, checkpoints, and at the end `policy/` in `from_pretrained` form. May import
torch and all layers below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rerank_env import durable
from rerank_env.agents import Policy, lambdamart, linear, pretrained
from rerank_env.agents.language import saving
from rerank_env.agents.listwise import ListwisePolicy
from rerank_env.agents.token_policy import TokenPolicy
from rerank_env.data import load, read_options
from rerank_env.rewards import parse_reward
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.context import check_met
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.task import REMEDIES
from rerank_env.training import dapo, supervised
from rerank_env.training.checkpoints import CheckpointStore
from rerank_env.training.dapo import DapoConfig
from rerank_env.training.learner import StepLog, TrainResult
from rerank_env.training.supervised import SupervisedConfig

METHODS = ("dapo", "supervised")
POLICY = "policy"
RECORD = "run.json"
DEFAULT_REWARD = "gain"

POLICIES: Mapping[str, Any] = {
    ListwisePolicy.kind: ListwisePolicy,
    TokenPolicy.kind: TokenPolicy,
    lambdamart.KIND: lambdamart.LambdaMart,
    linear.KIND: linear.LinearPlackettLuce,
}
"""The policies that can be read from a directory, by the kind that is written there."""


@dataclass(frozen=True)
class RunSettings:
    """What to train: `method` dapo or supervised, on which data, with which reward and seed.

    `options` of the data set as `rerank_env.data.read_options` reads them. None means the default: for `kind` what the
    data set has first, for `reward`, which only dapo reads,
    `DEFAULT_REWARD`, for `steps` and `learning_rate` what the method's configuration says. Every field can be given to
    `rerank train`. Raises `InputError` or `UnknownNameError` naming the field.
    """

    method: str = "dapo"
    data: str = "movielens-100k"
    kind: str | None = None
    options: str | None = None
    reward: str | None = None
    seed: int = 0
    steps: int | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the data."""
        one_of("method", self.method, METHODS)
        read_options(self.options)
        self.config()
        if self.reward is not None:
            needs = parse_reward(self.reward).needs
            check_met(needs, frozenset(), f"in a training run, {self.reward}", REMEDIES)
            if self.method != "dapo":
                raise InputError(f"reward is {self.reward!r} but {self.method} reads none; leave it out")

    def config(self) -> DapoConfig | SupervisedConfig:
        """The method's configuration with these settings in it."""
        base: DapoConfig | SupervisedConfig = DapoConfig() if self.method == "dapo" else SupervisedConfig()
        return replace(
            base,
            seed=self.seed,
            steps=base.steps if self.steps is None else self.steps,
            learning_rate=base.learning_rate if self.learning_rate is None else self.learning_rate,
        )


def train_run(
    settings: RunSettings,
    directory: Path,
    *,
    resume: bool = True,
    on_step: Callable[[StepLog], None] | None = None,
) -> TrainResult:
    """Train as `settings` say and leave the policy in `directory/policy`; goes on where an earlier run stopped.

    A run that starts from nothing first removes what an earlier one left, its policy included. Raises `Interrupted` on
    Ctrl-C (running it again goes on), `InputError` where `directory` is a file or holds another run, `CheckpointError`
    where another process trains in it.
    """
    if directory.is_file():
        raise InputError(f"{directory} is a file; name a directory, which is made where needed")
    options = read_options(settings.options)
    train = load(settings.data, split="train", kind=settings.kind, **options)
    validation = load(settings.data, split="validation", kind=settings.kind, **options)
    policy = ListwisePolicy.for_requests(train, generator=torch.Generator().manual_seed(settings.seed))
    with durable.held(directory):
        store = CheckpointStore(directory)
        if not (resume and store.steps()):
            store.remove_after(-1)
            pretrained.remove(directory / POLICY)
            durable.replace(directory / RECORD, (json.dumps(asdict(settings), indent=2) + "\n").encode())
        config = settings.config()
        if isinstance(config, DapoConfig):
            result = dapo.train(
                policy, train, settings.reward or DEFAULT_REWARD,
                config=config, directory=directory, validation=validation, resume=resume, on_step=on_step,
            )  # fmt: skip
        else:
            result = supervised.train(
                policy, train, config=config, directory=directory, validation=validation, resume=resume, on_step=on_step
            )
        result.policy.save_pretrained(directory / POLICY)
    return result


def run_settings(path: Path) -> RunSettings | None:
    """The settings of the run in `path`, finished or not; None where `path` is no run's directory.

    Raises `CheckpointError` if its record cannot be read, `InputError` where it is that of a recipe.
    """
    record = path / RECORD
    if not record.is_file():
        return None
    try:
        told = json.loads(record.read_bytes())
        if not (isinstance(told, dict) and "recipe" in told):
            return RunSettings(**told)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{record} cannot be read ({error}); start the run again in another directory") from error
    raise InputError(_recipe_of(path, told["recipe"]))


def trained_policy(path: Path) -> Policy:
    """The policy of a finished run's directory, or of a directory in `from_pretrained` form, of whatever kind.

    Raises `CheckpointError` where there is none, or the run is not finished, and `InputError`, which names the policies
    that there are, for the folder of a recipe.
    """
    inside = any((path / POLICY / name).is_file() for name in (pretrained.CONFIG, saving.RECORD))
    if (path / RECORD).is_file() and not inside:
        run_settings(path)
        raise CheckpointError(f"the run in {path} is not finished; run its `rerank train` command again")
    folder = path / POLICY if inside else path
    if (folder / saving.RECORD).is_file():  # its config.json is that of transformers
        from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
        from rerank_env.agents.language.policy import LanguagePolicy
        from rerank_env.agents.language.saving import kind_of

        writes: Any = BlockDiffusionPolicy if kind_of(folder) == BlockDiffusionPolicy.kind else LanguagePolicy
        written: Policy = writes.from_pretrained(folder)
        return written
    found: Policy = POLICIES.get(pretrained.kind_of(folder), ListwisePolicy).from_pretrained(folder)
    return found


def _recipe_of(path: Path, name: str) -> str:
    """What to say of a recipe's folder."""
    records = [found for depth in ("*", "*/*") for found in sorted(path.glob(f"{depth}/{POLICY}/{saving.RECORD}"))]
    if not records:
        return f"{path} holds a run of the recipe {name} without a policy yet; go on with its `rerank recipe` command"
    found = ", ".join(str(record.parent) for record in records)
    return f"{path} holds a run of the recipe {name}; name one of its policies: {found}"


def arguments(settings: RunSettings) -> list[str]:
    """What to write behind `rerank train` to repeat `settings`.

    >>> " ".join(arguments(RunSettings(seed=2)))
    'dapo --data movielens-100k --seed 2'
    """
    given = {field: value for field, value in asdict(settings).items() if value is not None}
    method = given.pop("method")
    return [method, *(part for field, value in given.items() for part in (f"--{field.replace('_', '-')}", str(value)))]
