"""The stages of GR2 that reinforce: three rewards, several seeds each, and the second round on direct answers.

A seed is a run of its own in `seed-N/`, kept once it is finished, so a stage that was killed goes on with the seed it
was at. May import the extra `language` and the layers below.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rerank_env.agents.language.policy import LanguagePolicy

from rerank_env import durable
from rerank_env.training.language import dapo
from rerank_env.training.recipes.folder import TRAINING
from rerank_env.training.recipes.inputs import Prepared
from rerank_env.training.recipes.learning import POLICY, decoding_of, load_policy, materials, watched
from rerank_env.training.recipes.stages import Work

LOG, RESULT = "metrics.jsonl", "result.json"


def seed_folder(folder: Path, seed: int) -> Path:
    """Where a stage keeps what it made with that seed."""
    return folder / f"seed-{seed}"


def reinforce(reward: str) -> Callable[[Work], Mapping[str, Any]]:
    """The stage that trains for the reward which the settings call `reward`, "naive" or "gain" for instance."""

    def stage(work: Work) -> Mapping[str, Any]:
        found, *_ = materials(work)
        told = dict(work.settings["dapo"])
        start = work.inputs[told.pop("start")] / POLICY
        named = {key: told.pop(key) for key in ("reward", "naive", "gain")}[reward]
        begin = partial(load_policy, start, work.settings)
        runs = [_run(work, found, seed, begin, named, told) for seed in _seeds(work)]
        return {"reward": named, **_means(runs)}

    return stage


def internalise(work: Work) -> Mapping[str, Any]:
    """Stage: the reinforced policies asked for direct answers, and reinforced once more."""
    found, remarks, _, direct = materials(work)
    told = dict(work.settings["dapo"]) | work.settings["internalise"]
    reward = told["reward"]
    for key in ("start", "reward", "naive", "gain"):
        told.pop(key)

    def asked_directly(seed: int) -> LanguagePolicy:
        reasoned = load_policy(seed_folder(work.inputs["dapo"], seed) / POLICY, work.settings)
        return LanguagePolicy(reasoned.model, reasoned.tokenizer, direct, remarks=remarks)

    runs = [_run(work, found, seed, partial(asked_directly, seed), reward, told) for seed in _seeds(work)]
    return {"reward": reward, **_means(runs)}


def _seeds(work: Work) -> list[int]:
    return list(work.settings["seeds"])


def _run(
    work: Work,
    found: Prepared,
    seed: int,
    start: Callable[[], LanguagePolicy],
    reward: str,
    told: Mapping[str, Any],
) -> dict[str, float]:
    """One seed, to its end: the policy, the log and what was measured are left in its folder."""
    folder = seed_folder(work.folder, seed)
    if (folder / RESULT).is_file():
        kept: dict[str, float] = json.loads((folder / RESULT).read_bytes())
        return kept
    work.crew.wait()  # the others have looked, too, before the main process writes it
    policy = start()
    policy.decoding = decoding_of(work.settings, max_tokens=told["max_tokens"])
    config = dapo.DapoConfig(**told, seed=seed)
    result = dapo.run(
        policy,
        found.learn,
        reward,
        directory=folder / TRAINING,
        config=config,
        validation=found.watch,
        on_log=lambda step, _: work.tell(f"seed {seed}", step, config.steps * config.updates_per_step),
    )
    measured = {
        "updates": float(result.updates),
        "best update": float(result.best_update),
        "stopped early": float(result.stopped is not None),
        **watched(policy, found.watch),
    }
    if work.crew.is_main:
        policy.save_pretrained(folder / POLICY)
        shutil.copyfile(result.log_path, folder / LOG)
        durable.replace(folder / RESULT, (json.dumps(measured) + "\n").encode())
    work.crew.wait()
    return measured


def _means(runs: list[dict[str, float]]) -> dict[str, float]:
    """The mean over seeds of what all of them measured."""
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: float(np.mean([run[name] for run in runs])) for name in shared}
