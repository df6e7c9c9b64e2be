"""The stages of GR2 that reinforce: three rewards, several seeds each, and the second round on direct answers.

A seed is a run of its own in `seed-N/`, kept once it is finished, so a stage that was killed goes on with the seed it
was at. Before the first one groups are sampled as training would, and what they say is told and kept. May import the
extra `language` and the layers below.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.training.language import dapo, preflight
from rerank_env.training.language.dapo import DapoConfig
from rerank_env.training.language.stopping import StopRule
from rerank_env.training.recipes.folder import TRAINING
from rerank_env.training.recipes.inputs import Prepared
from rerank_env.training.recipes.stages import Work
from rerank_env.training.recipes.student import (
    POLICY,
    adapted,
    decoding_of,
    keep_policy,
    load_policy,
    materials,
    watched,
)

LOG, RESULT, PREFLIGHT = "metrics.jsonl", "result.json", "preflight.json"


def finer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `DapoConfig` by the groups `surrogate`, `stopping` and `memory`, as far as `settings` have them."""
    given = {**settings.get("surrogate", {}), **settings.get("memory", {})}
    if "stopping" in settings:
        told: dict[str, Any] = {name: value or None for name, value in settings["stopping"].items()}
        given["stopping"] = StopRule(**told)
    return given


def seed_folder(folder: Path, seed: int) -> Path:
    """Where a stage keeps what it made with that seed."""
    return folder / f"seed-{seed}"


def reinforce(work: Work) -> Mapping[str, Any]:
    """Stage: the policy of another stage, reinforced for the `reward` of the settings."""
    found, start = materials(work).found, work.inputs[work.settings["start"]] / POLICY
    begin = partial(load_policy, start, work.settings)
    return _runs(work, found, lambda _: begin(), work.settings["dapo"])


def internalise(work: Work) -> Mapping[str, Any]:
    """Stage: the reinforced policies asked for direct answers, and reinforced once more."""
    given = materials(work)

    def asked_directly(seed: int) -> LanguagePolicy:
        reasoned = load_policy(seed_folder(work.inputs["dapo"], seed) / POLICY, work.settings)
        return LanguagePolicy(reasoned.model, reasoned.tokenizer, given.direct, remarks=given.remarks)

    return _runs(work, given.found, asked_directly, work.settings["dapo"] | work.settings["internalise"])


def _runs(
    work: Work, found: Prepared, start: Callable[[int], LanguagePolicy], told: Mapping[str, Any]
) -> dict[str, Any]:
    """A run for each seed, and the means over seeds of what all of them measured."""
    reward = work.settings["reward"]
    runs = [_run(work, found, seed, start, reward, told) for seed in work.settings["seeds"]]
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    looked = work.training / PREFLIGHT
    before = {"dead groups before": json.loads(looked.read_bytes())["dead_share"]} if looked.is_file() else {}
    return {"reward": reward, **before, **{name: float(np.mean([run[name] for run in runs])) for name in shared}}


def _run(
    work: Work,
    found: Prepared,
    seed: int,
    start: Callable[[int], LanguagePolicy],
    reward: str,
    told: Mapping[str, Any],
) -> dict[str, float]:
    """One seed, to its end: the policy, the log and what was measured are left in its folder."""
    folder = seed_folder(work.folder, seed)
    if (folder / RESULT).is_file():
        kept: dict[str, float] = json.loads((folder / RESULT).read_bytes())
        return kept
    work.crew.wait()  # the others have looked, too, before the main process writes it
    policy = start(seed)
    policy.model = adapted(policy.model, work.settings["model"]["adapter"], seed=work.settings["seed"])
    policy.decoding = decoding_of(work.settings, max_tokens=told["max_tokens"])
    config = DapoConfig(**told, **finer(work.settings), seed=seed)
    _look_first(work, policy, found, reward, config)
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
    keep_policy(work, policy, folder)
    if work.crew.is_main:
        shutil.copyfile(result.log_path, folder / LOG)
        durable.replace(folder / RESULT, (json.dumps(measured) + "\n").encode())
    work.crew.wait()
    return measured


def _look_first(work: Work, policy: LanguagePolicy, found: Prepared, reward: str, config: DapoConfig) -> None:
    """Say, once a stage, whether there is anything to learn from and what to do where there is little."""
    path = work.training / PREFLIGHT
    if work.crew.is_main and not path.is_file():
        seen = preflight.report(policy, found.learn, reward, config=config)
        durable.replace(path, (json.dumps(asdict(seen), indent=1) + "\n").encode())
        work.say(
            f"before training, {seen.dead_share:.0%} of {seen.groups} groups say nothing and {seen.valid:.0%} of their "
            f"answers are rankings; a step takes about {seen.seconds_per_step:.1f} seconds"
        )
        for advice in seen.advice:
            work.say(f"advice: {advice}")
    work.crew.wait()
