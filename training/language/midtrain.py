"""Mid-training: a language model learns what semantic IDs mean.

May import torch, transformers and `rerank_env`. Two phases, each in a folder of its own: `warmup` trains the rows of
the new words in the embeddings and nothing else (all others keep every bit), `joint` trains everything, as GR2
(2602.07774) and OneRec-Think (2510.11639) do. The loss on held-out next IDs and their recall by beam search are
measured on the way; with `patience` the joint phase stops where the recall no longer rises, and the best weights are
kept.

    corpus = Corpus.of(log, targets, semantic_ids, general=general_texts(requests, writer))
    result = run(model, tokenizer, corpus, directory=Path("runs/midtrain"), config=MidtrainConfig(steps=2000))
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.agents.language.models import context_of
from rerank_env.agents.language.vocabulary import Extension, extend, ids_hash
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.errors import InputError
from rerank_env.training.language.checkpoints import WHOLE, saving, seal
from rerank_env.training.language.corpus import Corpus
from rerank_env.training.language.exam import RECALL, RECALL_AT, Exam
from rerank_env.training.language.mixture import WEIGHTS, Documents, mix
from rerank_env.training.language.packing import check_apart, pack
from rerank_env.training.language.phases import OnPhaseLog, Phase, load, options_of
from rerank_env.training.language.weights import weights_hash

WARMUP, JOINT, MODEL = "warmup", "joint", "model"
"""The folders of the two phases and of the outcome, which `from_pretrained` reads."""

RESULT = "midtrain.json"
"""What the run was told, and what came of it."""


@dataclass(frozen=True, kw_only=True)
class MidtrainConfig:
    """How to mid-train.

    `warmup_steps` updates of the new rows at a constant `warmup_lr` (0: none), then `steps` of everything at `lr`,
    which rises over `lr_warmup` of them and falls by a cosine. An update is `batch` blocks of `length` tokens, of which
    `micro_batch` go through the model at once on each process (None: the process's share). `weights` and `tokens` as
    in `mix`. Checkpoints come every `save_every` updates and at the end of a phase, evaluations every
    `validate_every` (None: at the end of a phase) on at most `questions` users with `beams` beams (at least 10).
    `patience` evaluations of the joint phase without a better recall end it (None: never), and the best weights are
    the result; checkpoints then come with the evaluations. `bf16` None: where the model is on an accelerator.

    Raises `InputError` naming the field.
    """

    warmup_steps: int = 200
    warmup_lr: float = 5e-4
    steps: int = 2000
    lr: float = 1e-4
    lr_warmup: float = 0.03
    batch: int = 32
    micro_batch: int | None = None
    length: int = 512
    tokens: int | None = None
    weights: Mapping[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    save_every: int = 200
    validate_every: int | None = None
    questions: int = 1000
    beams: int = 10
    patience: int | None = None
    log_every: int = 10
    gradient_checkpointing: bool = False
    bf16: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("warmup_steps", "steps", "seed", "questions"):
            whole(name, getattr(self, name), least=0)
        for name in ("batch", "save_every", "log_every"):
            whole(name, getattr(self, name), least=1)
        for name in ("micro_batch", "validate_every", "patience", "tokens"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=1)
        whole("length", self.length, least=2)
        whole("beams", self.beams, least=RECALL_AT)
        for name in ("warmup_lr", "lr", "max_grad_norm"):
            if finite(name, getattr(self, name)) <= 0.0:
                raise InputError(f"{name} is {getattr(self, name)}; give a number above 0")
        if finite("weight_decay", self.weight_decay) < 0.0 or not 0.0 <= finite("lr_warmup", self.lr_warmup) <= 1.0:
            raise InputError(
                f"weight_decay is {self.weight_decay} and lr_warmup {self.lr_warmup}; give one of at least 0, and a "
                "share"
            )
        if self.patience is not None and self.validate_every is None:
            raise InputError(f"patience is {self.patience} but validate_every is None; say how often to look")


@dataclass(frozen=True)
class MidtrainResult:
    """A finished run: the `model`, trained in place, and its `tokenizer`, extended in place.

    `loss` and `recall` on the questions at the end, None without any; `shares` of the tasks in the tokens, `blocks`
    there were and documents that were `split` because they are longer; `log` the trainer's entries by phase. What was
    saved is in `directory / "model"`.
    """

    model: Any
    tokenizer: Any
    extension: Extension
    loss: float | None
    recall: float | None
    shares: Mapping[str, float]
    blocks: int
    split: int
    log: Mapping[str, Sequence[Mapping[str, float]]]
    directory: Path


def run(
    model: Any,
    tokenizer: Any,
    corpus: Corpus,
    *,
    directory: Path,
    config: MidtrainConfig | None = None,
    resume: bool = True,
    on_log: OnPhaseLog | None = None,
) -> MidtrainResult:
    """Extend the vocabulary by the corpus's semantic IDs and train, in place; everything it leaves is in `directory`.

    `on_log(phase, entry)` is called for every entry of the log. Goes on from the newest whole checkpoint if `resume`: a
    run that was killed ends with the weights of one that was not, and a finished one is loaded. To go on, give the
    model and the tokenizer that the run was started with, untrained.

    Raises `InputError` where the model does not keep packed documents apart, where a block is longer than it reads,
    where `batch` cannot be divided as asked, where there is `patience` and no question, and where `directory` holds
    another run; what `extend`, `mix` and `pack` raise; `DivergedError` where the loss is no longer finite; and
    `CheckpointError` where the disk refuses.
    """
    settings = MidtrainConfig() if config is None else config
    asked = corpus.taking(settings.questions, seed=settings.seed).questions
    if settings.patience is not None and not asked:
        raise InputError("patience looks at the recall on questions, but there are none; give a corpus with some")
    extension = extend(model, tokenizer, corpus.semantic_ids, seed=settings.seed)
    _check_context(model, settings.length)
    documents = mix(corpus.texts, tokenizer, weights=settings.weights, tokens=settings.tokens, seed=settings.seed)
    blocks = pack(documents, length=settings.length, pad_id=tokenizer.eos_token_id)
    check_apart(model, blocks)
    exam = None
    if asked:
        exam = Exam.of(asked, tokenizer, corpus.semantic_ids, beams=settings.beams, length=settings.length)
    told: dict[str, Any] = {
        "config": asdict(settings),
        "documents": _digest(documents),
        "semantic_ids": ids_hash(corpus.semantic_ids),
        "model": weights_hash(model),
    }
    made = {"shares": documents.shares(), "blocks": len(blocks), "split": blocks.split}
    phases = _phases(settings, extension, options_of(settings, model, evaluates=exam is not None))
    told = json.loads(json.dumps(told))
    done = _finished(directory, told) if resume else None
    if done is None:
        logs = {
            phase.name: phase.run(
                model, tokenizer, blocks, exam, directory=directory / phase.name, identity=told, resume=resume,
                on_log=on_log,
            )
            for phase in phases
        }  # fmt: skip
        model.eval()
        done = _finish({"run": told, "log": logs, **made}, model, tokenizer, exam, directory, settings)
    else:
        load(model, directory / MODEL)
        model.eval()
    outcome = {name: done[name] for name in ("loss", "recall", "shares", "blocks", "split", "log")}
    return MidtrainResult(model=model, tokenizer=tokenizer, extension=extension, directory=directory, **outcome)


def _phases(settings: MidtrainConfig, extension: Extension, options: Mapping[str, Any]) -> list[Phase]:
    """Those that have updates to make."""
    warmup = {
        "learning_rate": settings.warmup_lr,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
    }
    joint: dict[str, Any] = {
        "learning_rate": settings.lr,
        "lr_scheduler_type": "cosine",
        "warmup_steps": math.ceil(settings.lr_warmup * settings.steps),
        "weight_decay": settings.weight_decay,
    }
    if settings.patience is not None:
        joint |= {"load_best_model_at_end": True, "metric_for_best_model": RECALL, "greater_is_better": True}
        joint |= {"save_steps": settings.validate_every}
    phases = [
        Phase(name=WARMUP, steps=settings.warmup_steps, options={**options, **warmup}, new_ids=extension.new_ids),
        Phase(name=JOINT, steps=settings.steps, options={**options, **joint}, patience=settings.patience),
    ]
    return [phase for phase in phases if phase.steps]


def _finish(
    done: Mapping[str, Any], model: Any, tokenizer: Any, exam: Exam | None, directory: Path, settings: MidtrainConfig
) -> dict[str, Any]:
    """What was `done`, with a last measurement; saved with the weights. One process does it, the others wait."""
    measured: dict[str, float | None] = {"loss": None, "recall": None}
    from accelerate import PartialState

    processes = PartialState()
    if processes.is_main_process:
        if exam is not None:
            loss, count = exam.loss(model, settings.micro_batch or settings.batch).tolist()
            hits, asked = exam.found(model).tolist()
            measured = {"loss": loss / count, "recall": hits / asked}
        folder = directory / MODEL
        shutil.rmtree(folder, ignore_errors=True)
        with saving(folder):
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        seal(folder)
        durable.replace(directory / RESULT, json.dumps({**done, **measured}, indent=1).encode())
    processes.wait_for_everyone()
    return {**done, **measured}


def _finished(directory: Path, told: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a run that was told the same left when it ended, None where none did."""
    try:
        found: dict[str, Any] = json.loads((directory / RESULT).read_bytes())
        return found if found["run"] == told and (directory / MODEL / WHOLE).is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_context(model: Any, length: int) -> None:
    context = context_of(model)
    if context is not None and length > context:
        raise InputError(f"length is {length} but the model reads {context} tokens; give a length of at most that")


def _digest(documents: Documents) -> str:
    """What tells two mixtures apart: a hash of their tokens, in order."""
    digest = hashlib.sha256()
    for array in (documents.ids_N, documents.told_N, documents.starts_D):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
