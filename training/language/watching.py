"""What happens beside training: lines of the log, validation, the best weights, and when to stop.

May import numpy, torch, safetensors, transformers, and `rerank_env`. A validation is the mean of a raw metric over
requests that training never asks, of what the policy answers as the trainer's `validating` says, greedily; the
processes deal the requests among them. The best weights are kept in a file of the run, `weights-N.safetensors` with
N the step: of the best validation, or the last ones where there is none. Only weights that are trained are in it, an
adapter's where there is one.

Everything that is remembered from one validation to the next is read back from the trainer's own log, which is in its
checkpoints, so a run that was killed goes on as if it had not been.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_from_tensors

from rerank_env import durable
from rerank_env.data.requests import Requests
from rerank_env.rewards import parse_reward
from rerank_env.rewards.errors import CheckpointError, MissingExtraError
from rerank_env.training.language.checkpoints import saving
from rerank_env.training.language.stopping import best_of
from rerank_env.training.logs import LOG_NAME, MetricsLog

try:
    from accelerate.utils import gather_object
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'DAPO needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

OnLog = Callable[[int, Mapping[str, float | None]], None]
"""Told of every update: its number, and named values."""

_UNLOGGED = ("total_flos", "epoch", "step_time")
"""What the trainer reports and the log leaves out; two runs of the same seed differ in the seconds of a step."""

_WEIGHTS = re.compile(r"weights-([0-9]+)\.safetensors")


class Watch(TrainerCallback):
    """Watches one `DapoTrainer`; `stopped` says why training was ended early, None where it was not."""

    def __init__(self, trainer: Any, validation: Requests | None, on_log: OnLog | None) -> None:
        self.trainer, self.validation, self.told = trainer, validation, on_log
        self.directory = Path(trainer.args.output_dir)
        self.log = MetricsLog(self.directory / LOG_NAME)
        self.main = bool(trainer.accelerator.is_main_process)
        self.steps: list[int] = []
        self.proxy: list[float] = []
        self.held_out: list[float] = []
        self.rewards: list[float] = []
        self.stopped: str | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Read back what was known, and whether it was to stop there, or measure where the run starts from."""
        for entry in state.log_history:
            self._remember(entry)
        if self.main:
            self.log.cut_after(state.global_step)
            self._remove(lambda step: step > state.global_step)
        if self.validation is not None and not self.steps:
            self.trainer.log({"validation": self._validated(0)})
        elif self.steps:  # a run may have been killed after its last checkpoint, before it was finished
            self.stopped = self.trainer.config.stopping.verdict(self.proxy, self.held_out)
            control.should_training_stop = self.stopped is not None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Validate where it is due, and say whether to stop."""
        step = state.global_step
        reward = self.trainer._metrics["train"]["reward"][-1:]
        if reward:
            self.rewards.append(reward[0])
        every = self.trainer.config.validate_every * self.trainer.config.updates_per_step
        if self.validation is None or (step % every and step < state.max_steps):
            return
        self.trainer._metrics["train"]["validation"].append(self._validated(step))
        self.stopped = self.trainer.config.stopping.verdict(self.proxy, self.held_out)
        if self.stopped is not None:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Write a line for every update."""
        if not self.main or not logs or "grad_norm" not in logs:
            return
        line = {name: _plain(value) for name, value in logs.items() if name not in _UNLOGGED}
        self.log.append({"step": state.global_step, **line})
        if self.told is not None:
            self.told(state.global_step, line)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """The log never lags behind a checkpoint; weights that are no longer the best are not needed any more."""
        if self.main:
            self.log.sync()
            if self.held_out:
                best = self.steps[best_of(self.held_out)]
                self._remove(lambda step: step != best)

    def _remember(self, entry: Mapping[str, Any]) -> None:
        if entry.get("reward") is not None:
            self.rewards.append(float(entry["reward"]))
        if entry.get("validation") is not None:
            self._note(int(entry["step"]), float(entry["validation"]))

    def _note(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.held_out.append(value)
        self.proxy.append(float(np.mean(self.rewards)) if self.rewards else math.nan)
        self.rewards = []

    def _validated(self, step: int) -> float:
        """Measure, remember, and keep the weights where they are the best so far."""
        assert self.validation is not None, "was asked for"
        trainer = self.trainer
        metric = parse_reward(trainer.config.metric)
        rows = np.arange(len(self.validation))[trainer.accelerator.process_index :: trainer.accelerator.num_processes]
        found: list[float] = []
        if len(rows):
            some = self.validation.take(rows)
            rankings_BNK, _ = trainer.policy.answers(some, decoding=trainer.validating).read()
            found = metric.score(rankings_BNK[:, 0], some.slates).total_B.tolist()
        value = math.fsum(gather_object(found)) / len(self.validation)
        self._note(step, value)
        if best_of(self.held_out) == len(self.held_out) - 1:
            self.keep(step)
        return value

    def keep(self, step: int) -> None:
        """Write the weights that are trained as those of `step`; `CheckpointError` where that cannot be done."""
        if self.main:
            store(self.trainer.policy.model, self.directory / f"weights-{step}.safetensors")

    def _remove(self, unwanted: Callable[[int], bool]) -> None:
        for step, path in kept_weights(self.directory).items():
            if unwanted(step):
                path.unlink(missing_ok=True)


def kept_weights(directory: Path) -> dict[int, Path]:
    """The files of weights in a run's directory, by step."""
    found = {path: _WEIGHTS.fullmatch(path.name) for path in directory.glob("weights-*.safetensors")}
    return {int(match[1]): path for path, match in found.items() if match}


def store(model: Any, path: Path) -> None:
    """Write the weights that are trained. Raises `CheckpointError` where that cannot be done."""
    with saving(path):
        weights = {name: p.detach().cpu().contiguous() for name, p in _trained(model)}
        durable.replace(path, bytes_from_tensors(weights))


def restore(model: Any, path: Path) -> None:
    """Put weights that `store` wrote back into the model.

    Raises `CheckpointError` where the file is missing, torn, or of another model.
    """
    try:
        stored = tensors_from_bytes(path.read_bytes())
        with torch.no_grad():
            for name, parameter in _trained(model):
                parameter.copy_(stored[name])
    except Exception as cause:
        raise CheckpointError(
            f"{path} cannot be read as weights of this model ({cause}); start again with resume=False"
        ) from cause


def _trained(model: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _plain(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
