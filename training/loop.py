"""The loop that every trainer shares: step, log, validate, checkpoint, stop early, be interrupted, go on.

May import torch, numpy, `rerank_env` and `rerank_env.agents`. A trainer is a `Learner`: a policy, an optimiser, the
order of requests, one random generator, and `step`. Everything that a later step depends on is in those four, so a run
that is killed at any moment and started again ends with the same weights and the same log, bit for bit, as one that
was not (same machine, same versions, same number of threads).

An interrupt (Ctrl-C) may fall into the middle of an update, so what it saves is not the live state but a copy of the
state after the last completed step, taken each step; the copy costs one pass over the weights and moments.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.errors import InputError
from rerank_env.training.checkpoints import Checkpoint, CheckpointStore, optimizer_tensors, restore_optimizer
from rerank_env.training.learner import Interrupted, Learner, StepLog, TrainResult
from rerank_env.training.logs import LOG_NAME, MetricsLog

RECENT_STEPS = 20
"""The time to go is foretold from the mean of this many steps."""

VALIDATION_SEED = 0
"""Validation must not depend on how far a run has come; greedy policies draw nothing from it anyway."""


@dataclass
class _Best:
    """The best validation so far; `weights` are copies, never written to."""

    step: int
    value: float
    weights: dict[str, Tensor]
    since: int = 0

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "value": self.value, "since": self.since}


def run(
    learner: Learner,
    *,
    directory: Path,
    validation: Requests | None,
    resume: bool,
    on_step: Callable[[StepLog], None] | None,
) -> TrainResult:
    """Train to the end, from the newest checkpoint in `directory` if `resume` and there is one.

    A checkpoint of a run with another algorithm, policy, configuration or other data is refused with an `InputError`
    naming the field. `resume=False` forgets an earlier run in `directory`. Validation is the mean of `config.metric`
    over the validation requests under `policy.rank`. Raises `Interrupted` on Ctrl-C, `CheckpointError` if the disk
    refuses.
    """
    try:
        return _Run(learner, directory, validation).run(resume, on_step)
    finally:
        learner.close()


class _Run:
    def __init__(self, learner: Learner, directory: Path, validation: Requests | None) -> None:
        self.learner, self.config, self.directory, self.validation = learner, learner.config, directory, validation
        self.identity = _identity(learner, validation)
        self.metric: Reward = parse_reward(self.config.metric)
        self.store = CheckpointStore(directory)
        self.log = MetricsLog(directory / LOG_NAME)
        self.names = {parameter: name for name, parameter in learner.policy.named_parameters()}
        self.best: _Best | None = None

    def run(self, resume: bool, on_step: Callable[[StepLog], None] | None) -> TrainResult:
        step = self._start(resume)
        completed = self._snapshot(step)
        recent: list[float] = []
        try:
            while step < self.config.steps and not self._has_stopped_early():
                started = time.perf_counter()
                values = self.learner.step(step + 1)
                step += 1
                values["validation"] = self._validate(step)
                seconds = time.perf_counter() - started
                self.log.append({"step": step, **values, "seconds": round(seconds, 6)})
                completed = self._snapshot(step)
                if self.config.due(self.config.checkpoint_every, step) or self._has_stopped_early():
                    self._save(completed)
                recent = [*recent[-RECENT_STEPS + 1 :], seconds]
                if on_step is not None:
                    left = self.config.steps - step
                    on_step(StepLog(step, self.config.steps, values, seconds, left * sum(recent) / len(recent)))
        except KeyboardInterrupt as interrupt:
            self._save(completed)
            raise Interrupted(completed.step, self.directory) from interrupt
        return self._finish(step)

    def _start(self, resume: bool) -> int:
        latest = self.store.load_latest() if resume else None
        if latest is None:
            self.store.remove_after(-1)
            self.log.cut_after(0)
            self._validate(0)
            self._save(self._snapshot(0))
            return 0
        self._check_identity(latest.state["identity"])
        self._restore(latest)
        self.store.remove_after(latest.step)
        self.log.cut_after(latest.step)
        return latest.step

    def _finish(self, step: int) -> TrainResult:
        policy, best = self.learner.policy, self.best
        if best is not None:
            policy.load_state_dict(best.weights)
        policy.eval()
        return TrainResult(
            policy=policy,
            steps=step,
            best_step=step if best is None else best.step,
            best_validation=None if best is None else best.value,
            log_path=self.log.path,
            directory=self.directory,
        )

    def _has_stopped_early(self) -> bool:
        patience = self.config.patience
        return patience is not None and self.best is not None and self.best.since >= patience

    def _validate(self, step: int) -> float | None:
        if self.validation is None or not self.config.due(self.config.validate_every, step):
            return None
        self.learner.policy.eval()
        rankings_BK = self.learner.policy.rank(self.validation, rng=np.random.default_rng(VALIDATION_SEED))
        value = float(self.metric.score(rankings_BK, self.validation.slates).total_B.mean())
        if self.best is None or value > self.best.value:
            self.best = _Best(step, value, _copied(self.learner.policy.state_dict()))
        else:
            self.best.since += 1
        return value

    def _save(self, completed: Checkpoint) -> None:
        self.log.sync()
        self.store.save(completed)

    def _snapshot(self, step: int) -> Checkpoint:
        learner, best = self.learner, self.best
        tensors = {f"policy.{name}": value for name, value in _copied(learner.policy.state_dict()).items()}
        moments = optimizer_tensors(learner.optimizer, self.names)
        tensors |= {f"optimizer.{name}": value for name, value in _copied(moments).items()}
        tensors |= {f"best.{name}": value for name, value in (best.weights if best is not None else {}).items()}
        tensors["generator"] = learner.generator.get_state().clone()
        state = {
            "identity": self.identity,
            "epochs": learner.epochs.state(),
            "best": None if best is None else best.state(),
        }
        return Checkpoint(step, tensors, state)

    def _restore(self, checkpoint: Checkpoint) -> None:
        learner, state = self.learner, checkpoint.state
        learner.policy.load_state_dict(_under("policy.", checkpoint.tensors))
        restore_optimizer(learner.optimizer, _under("optimizer.", checkpoint.tensors), self.names)
        learner.generator.set_state(checkpoint.tensors["generator"])
        learner.epochs.restore(state["epochs"])
        if state["best"] is not None:
            self.best = _Best(weights=_under("best.", checkpoint.tensors), **state["best"])

    def _check_identity(self, stored: Mapping[str, Any]) -> None:
        for field in sorted({*stored, *self.identity}):
            then, now = stored.get(field), self.identity.get(field)
            if then != now:
                raise InputError(
                    f"{field} is {now!r} but the run in {self.directory} was started with {then!r}; restore it, name "
                    "another directory, or start afresh with resume=False (`rerank train --restart`)"
                )


def _identity(learner: Learner, validation: Requests | None) -> dict[str, Any]:
    """Everything that decides the outcome, as it will come back from a checkpoint."""
    named = {
        "algorithm": learner.algorithm,
        **learner.identity(),
        "data": _fingerprint(learner.requests),
        "validation": None if validation is None else _fingerprint(validation),
        **{f"config.{name}": value for name, value in asdict(learner.config).items()},
        **{f"policy.{name}": value for name, value in asdict(learner.policy.config).items()},
    }
    as_read: dict[str, Any] = json.loads(json.dumps(named))
    return as_read


def _fingerprint(requests: Requests) -> str:
    """A short hash of everything a trainer reads from `requests`, its catalogue included."""
    digest = hashlib.sha256()
    arrays = (
        requests.catalog.features_IF,
        requests.candidates_BK,
        requests.scores_BK,
        requests.history_BH,
        requests.feedback_BH,
        requests.relevance_BK,
        requests.sizes_B,
    )
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
