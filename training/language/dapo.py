"""A DAPO run of a language model that re-ranks: from a policy to a better one, in one directory.

May import torch, transformers, TRL, and `rerank_env`. See `trainer` for what is optimised, `dapo_settings` for what it
is told, `watching` for validation, `stopping` for when it ends early. The directory holds `run.json`, `metrics.jsonl`,
the last two checkpoints, the weights of the best validation, and with `beta` those that training started from.

    result = run(policy, requests, "gain", directory=Path("runs/dapo"), config=DapoConfig(), validation=held_out)

Nothing assumes one process: `accelerate launch` runs the same call on several.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.agents.language.models import own_forward
from rerank_env.agents.language.text_policy import TextPolicy
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.arrays import PAD
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.training.fingerprints import SHORT, requests_hash
from rerank_env.training.language.checkpoints import FINISHED, begin, read_record
from rerank_env.training.language.dapo_settings import DapoConfig
from rerank_env.training.language.reference import REFERENCE
from rerank_env.training.language.rollouts import DrawingTrainer
from rerank_env.training.language.stopping import StopRule, best_of
from rerank_env.training.language.trainer import DapoTrainer
from rerank_env.training.language.watching import OnLog, Watch, kept_weights, restore, store
from rerank_env.training.logs import LOG_NAME

__all__ = ["DapoConfig", "DapoResult", "DapoTrainer", "OnLog", "StopRule", "run"]

_PROMPTS = 16
"""How many prompts tell the prompts of one run from another's: IDs, budgets and chat templates go into them."""

_PROBED = 256
"""How many requests tell one reward from another when a run is resumed."""


@dataclass(frozen=True)
class DapoResult:
    """A finished run: `policy` holds the weights of the best validation, or the last ones if there was none.

    `updates` were made (fewer than asked for where it was `stopped`, which says why); `best_update` and
    `best_validation` say where the weights come from, with 0 for those that training started from.
    """

    policy: Any
    updates: int
    best_update: int
    best_validation: float | None
    stopped: str | None
    log_path: Path
    directory: Path


def run(
    policy: TextPolicy[Any, Any],
    requests: Requests,
    reward: str | Reward,
    *,
    directory: Path | str,
    config: DapoConfig,
    validation: Requests | None = None,
    resume: bool = True,
    on_log: OnLog | None = None,
    trainer: type[DrawingTrainer] = DapoTrainer,
    **others: Any,
) -> DapoResult:
    """Train `policy` in place on `requests` for `reward`; `others` are for the class of the `trainer`.

    The remarks of the policy, where it has any, are put on requests that have none, anew in every call: where several
    runs read the same requests, pass `policy.remarked(requests)`. An unfinished run in `directory` goes on where
    it stopped if `resume`, and ends with the weights of one that never stopped; configuration, reward, data, prompt and
    the shape of the model must be the same. A finished run is read back. `resume=False` forgets either.

    Raises `InputError` for a `validation` without requests and on a resume with something else, `DivergedError` for a
    loss or gradient that is not finite (the last checkpoint is kept), `CheckpointError` if the disk refuses, and what
    the policy's writer raises for requests that it cannot show.
    """
    if validation is not None and not len(validation):
        raise InputError("validation has no requests, so it has no mean; give at least one, or None to go without")
    place = Path(directory)
    with durable.writing(place):
        place.mkdir(parents=True, exist_ok=True)
    asked, held_out = policy.remarked(requests), None if validation is None else policy.remarked(validation)
    with own_forward(policy.model):  # TRL puts its fused head into the model, which nobody else asks for
        made = trainer(policy, asked, reward, config=config, directory=place, **others)
        main = bool(made.accelerator.is_main_process)
        identity = _identity(policy, asked, reward, config, held_out) | {"trainer": trainer.__name__}
        checkpoint = begin(place, identity, resume=resume, main=main)
        made.accelerator.wait_for_everyone()
        finished = read_record(place / FINISHED)
        if finished is None:
            if main and checkpoint is None:
                stale = place / LOG_NAME, place / FINISHED, place / REFERENCE, *kept_weights(place).values()
                for path in stale:
                    path.unlink(missing_ok=True)
            if made.ref_model is not None and checkpoint is not None:
                restore(made.ref_model, place / REFERENCE)
            elif made.ref_model is not None and main:
                store(made.ref_model, place / REFERENCE)
            watch = Watch(made, held_out, on_log)
            made.add_callback(watch)
            made.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            finished = _finish(made, watch, place)
    restore(policy.model, place / f"weights-{finished['best_update']}.safetensors")
    policy.model.eval()
    return DapoResult(policy=policy, log_path=place / LOG_NAME, directory=place, **finished)


def _finish(trainer: DrawingTrainer, watch: Watch, place: Path) -> dict[str, Any]:
    updates = int(trainer.state.global_step)
    best = best_of(watch.held_out) if watch.held_out else None
    if best is None:
        watch.keep(updates)
    ended = {
        "updates": updates,
        "best_update": updates if best is None else watch.steps[best],
        "best_validation": None if best is None else watch.held_out[best],
        "stopped": watch.stopped,
    }
    if trainer.accelerator.is_main_process:
        durable.replace(place / FINISHED, json.dumps(ended, indent=1).encode())
    trainer.accelerator.wait_for_everyone()
    return ended


def _identity(
    policy: TextPolicy[Any, Any],
    requests: Requests,
    reward: str | Reward,
    config: DapoConfig,
    validation: Requests | None,
) -> dict[str, Any]:
    """What decides the outcome of a run: settings, reward by its text and by what it pays, data, prompt, model."""
    writer = policy.writer
    shapes = [(name, list(p.shape), p.requires_grad) for name, p in policy.model.named_parameters()]
    return {
        "config": config.identity(),
        "reward": str(parse_reward(reward)),
        "reward_scores": _scores(parse_reward(reward), requests),
        "data": requests_hash(requests)[:SHORT],
        "validation": None if validation is None else requests_hash(validation)[:SHORT],
        "prompt": f"{writer.template.version} {writer.template.hash} {writer.text_format}",
        "prompts": _prompts(policy, requests),
        "model": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16],
    }


def _prompts(policy: TextPolicy[Any, Any], requests: Requests) -> str:
    """A short hash of the first prompts, in the tokens that the model reads."""
    first = policy.writer.write(requests.take(np.arange(min(_PROMPTS, len(requests)))))
    return hashlib.sha256(json.dumps(policy.prompt_ids(first)).encode()).hexdigest()[:16]


def _scores(reward: Reward, requests: Requests) -> str:
    """A short hash of what the reward pays for the incoming order, where it can be asked of a ranking alone."""
    if reward.needs:
        return ""
    probe = requests.take(np.arange(min(_PROBED, len(requests))))
    incoming_BK = identity_rankings(probe.sizes_B, probe.candidates_BK.shape[1])
    reverse_BK = np.where(incoming_BK == PAD, PAD, probe.sizes_B[:, None] - 1 - incoming_BK)
    digest = hashlib.sha256(np.float64(reward.invalid).tobytes())
    for rankings_BK in (incoming_BK, reverse_BK):
        digest.update(reward(rankings_BK, probe.slates).tobytes())
    return digest.hexdigest()[:16]
