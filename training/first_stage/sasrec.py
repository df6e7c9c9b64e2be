"""Train a SASRec on the sequences of a log.

May import torch, numpy and the layers below. Departs from the recipe of the paper in training on the whole softmax, in
batches of like lengths without padding, and in a learning rate that warms up and falls to nothing, which makes the last
epoch the best one: nothing is chosen on a validation split. An epoch draws its order and its dropout from `seed` and
its own number, so that a killed training goes on to the same weights (same machine, versions and number of threads).
Run it with `rerank data build`. Suffixes: `_S` sequences, `_T` places.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env import durable
from rerank_env.agents import pretrained
from rerank_env.agents.retrieval.sasrec import SasRec, SasRecConfig
from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import PAD, BoolArray, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.training.checkpoints import Checkpoint, CheckpointStore, optimizer_tensors, restore_optimizer
from rerank_env.training.first_stage.full_softmax import full_softmax_loss
from rerank_env.training.first_stage.item_text import text_vectors
from rerank_env.training.logs import LOG_NAME, MetricsLog

FORMAT = 1
"""Raised when the same settings come to train something else; it is part of every content hash."""

POOL = 16
"""Batches whose sequences are sorted by length together: long enough to save padding, short enough to stay random."""

MODEL = "model"

logger = logging.getLogger(__name__)

OnEpoch = Callable[[int, int], None]
"""Called as `on_epoch(done, epochs)`."""


@dataclass(frozen=True, kw_only=True)
class SasRecSettings:
    """How to train: `epochs` over all sequences, `sequences_per_step` of them in an update.

    `learning_rate` is the peak: the rate warms up over `warmup_steps` and falls linearly to 0. `shape` holds the fields
    of `SasRecConfig` that are not its defaults. The defaults were chosen on the validation split of Amazon Beauty.
    """

    epochs: int = 8
    sequences_per_step: int = 256
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01
    shape: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field; raises `InputError` naming it."""
        for name, least in (("epochs", 1), ("sequences_per_step", 1), ("warmup_steps", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))
        if finite("learning_rate", self.learning_rate) <= 0 or finite("weight_decay", self.weight_decay) < 0:
            raise InputError(
                f"learning_rate is {self.learning_rate} and weight_decay {self.weight_decay}; give a number above 0 "
                "and one of at least 0"
            )


@dataclass(frozen=True, eq=False)
class Part:
    """What one model is trained on: the rows of `log` that `seen_N` marks, with `seed`."""

    log: Interactions
    seen_N: BoolArray
    settings: SasRecSettings
    seed: int

    @property
    def config(self) -> SasRecConfig:
        """The shape of the model."""
        return SasRecConfig(items=self.log.item_count, **self.settings.shape)

    @property
    def key(self) -> str:
        """A hash of all that decides the weights."""
        digest = hashlib.sha256()
        decided = {"format": FORMAT, "config": asdict(self.config), **asdict(self.settings), "seed": self.seed}
        digest.update(json.dumps(decided, sort_keys=True).encode())
        if self.config.text:
            digest.update(json.dumps([self.log.texts, self.log.labels]).encode())
        for array in (self.log.users_N[self.seen_N], self.log.items_N[self.seen_N]):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:20]

    def sequences(self) -> list[IntArray]:
        """What is seen of every user, oldest first, in pieces the model can read; each transition is in one piece."""
        users, items = self.log.users_N[self.seen_N], self.log.items_N[self.seen_N]
        found = []
        for whole_sequence in np.split(items, np.flatnonzero(np.diff(users)) + 1):
            for start in range(0, max(len(whole_sequence) - 1, 0), self.config.history):
                found.append(whole_sequence[start : start + self.config.history + 1])
        return found


def _texts(part: Part) -> Tensor | None:
    width = part.config.text
    return torch.from_numpy(text_vectors(part.log.texts, part.log.labels, width)) if width else None


def fit(part: Part, directory: Path, *, device: str | None = None, on_epoch: OnEpoch | None = None) -> SasRec:
    """The trained model, in evaluation mode; from `directory` where it is there, or as far as it is.

    Writes `metrics.jsonl`, `checkpoints/` while it trains, and `model/` at the end; a damaged model is trained anew.
    `device` None: CUDA where there is one. Raises `InputError` where nobody has two items to learn from, and
    `CheckpointError` where the disk refuses or another process trains in `directory`.
    """
    if (model := _finished(directory)) is not None:
        return model
    sequences = part.sequences()
    if not sequences:
        raise InputError("no user of the training split has two items; a first stage learns from what follows what")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with durable.held(directory):
        if (model := _finished(directory)) is not None:  # another process was faster
            return model
        training = _Training(part, sequences, directory, place)
        for epoch in range(training.resume(), part.settings.epochs):
            training.epoch(epoch)
            if on_epoch is not None:
                on_epoch(epoch + 1, part.settings.epochs)
        trained = training.model.cpu().eval()
        trained.save_pretrained(directory / MODEL)
        training.store.remove_after(-1)
    return trained


def _finished(directory: Path) -> SasRec | None:
    """The model in `directory`; None where there is none, or a damaged one, which is removed."""
    if not (directory / MODEL / pretrained.CONFIG).is_file():
        return None
    try:
        return SasRec.from_pretrained(directory / MODEL)
    except CheckpointError as error:
        logger.warning("%s; it is trained anew", error)
        pretrained.remove(directory / MODEL)
        return None


class _Training:
    def __init__(self, part: Part, sequences: list[IntArray], directory: Path, device: torch.device) -> None:
        self.settings, self.seed, self.sequences, self.device = part.settings, part.seed, sequences, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(part.seed)
            self.model = SasRec(part.config, _texts(part)).to(device).train()
        self.precision = torch.bfloat16 if part.config.precision == "bfloat16" else torch.float32
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay
        )
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.steps_per_epoch = -(-len(sequences) // self.settings.sequences_per_step)
        self.store, self.log = CheckpointStore(directory), MetricsLog(directory / LOG_NAME)
        directory.mkdir(parents=True, exist_ok=True)

    def resume(self) -> int:
        """How many epochs are done, after putting their result back."""
        latest = self.store.load_latest()
        if latest is None:
            self.log.cut_after(0)
            return 0
        tensors = latest.tensors
        self.model.load_state_dict({n[6:]: t for n, t in tensors.items() if n.startswith("model.")})
        restore_optimizer(
            self.optimizer, {n[10:]: t for n, t in tensors.items() if n.startswith("optimizer.")}, self.names
        )
        self.log.cut_after(latest.step)
        return latest.step

    def epoch(self, epoch: int) -> None:
        started, losses = time.perf_counter(), []
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(np.random.default_rng([self.seed, epoch]).integers(2**62)))
            for step, items_ST in enumerate(self._batches(epoch), start=epoch * self.steps_per_epoch):
                losses.append(self._update(step, items_ST))
        self.log.append(
            {
                "step": epoch + 1,
                "loss": float(torch.stack(losses).mean()),
                "seconds": round(time.perf_counter() - started, 3),
            }
        )
        self.log.sync()
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        moments = optimizer_tensors(self.optimizer, self.names)
        tensors |= {f"optimizer.{name}": value for name, value in moments.items()}
        self.store.save(Checkpoint(epoch + 1, tensors, {}))

    def _update(self, step: int, items_ST: Tensor) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(step)
        targets_ST = items_ST[:, 1:]
        asked_ST = targets_ST != PAD
        vectors_ID = self.model.item_vectors()
        states_ND = self.model.states(torch.where(asked_ST, items_ST[:, :-1], PAD), vectors_ID)[asked_ST]
        loss = full_softmax_loss(
            states_ND, vectors_ID, self.model.item_bias, targets_ST[asked_ST], dtype=self.precision
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _learning_rate(self, step: int) -> float:
        steps = self.steps_per_epoch * self.settings.epochs
        warm = min(1.0, (step + 1) / max(self.settings.warmup_steps, 1))
        return self.settings.learning_rate * warm * (1 - step / steps)

    def _batches(self, epoch: int) -> Iterator[Tensor]:
        """Every sequence once, in batches of like lengths, in random order."""
        rng, size = np.random.default_rng([self.seed, epoch]), self.settings.sequences_per_step
        lengths = np.array([len(sequence) for sequence in self.sequences])
        order = rng.permutation(len(self.sequences))
        batches: list[IntArray] = []
        for start in range(0, len(order), size * POOL):
            pool = order[start : start + size * POOL]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[first : first + size] for first in range(0, len(pool), size)]
        for number in rng.permutation(len(batches)):
            chosen = batches[number]
            padded = np.full((len(chosen), lengths[chosen].max()), PAD)
            for row, sequence in enumerate(chosen):
                padded[row, : lengths[sequence]] = self.sequences[sequence]
            yield torch.from_numpy(padded).to(self.device)
