"""The stages of GR2 that reinforce: three rewards, several seeds each, and the second round on direct answers.

A seed is a run of its own in `seed-N/`, kept once it is finished, so a stage that was killed goes on with the seed it
was at. Before the first one groups are sampled as training would, and what they say is told and kept. `runs` does so
for any `Way` to reinforce. May import the extra `language` and the layers below.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.data.requests import Requests
from rerank_env.rewards.errors import InputError
from rerank_env.training.language import dapo, preflight
from rerank_env.training.language.dapo import DapoConfig, DapoResult
from rerank_env.training.logs import LOG_NAME
from rerank_env.training.recipes.folder import TRAINING
from rerank_env.training.recipes.policies import (
    POLICY,
    Materials,
    Written,
    adapted,
    decoding_of,
    finer,
    keep_policy,
    load_policy,
    materials,
    seed_folder,
    watched,
)
from rerank_env.training.recipes.stages import Work

RESULT, PREFLIGHT = "result.json", "preflight.json"


@dataclass(frozen=True)
class Way:
    """How a policy is reinforced: what its settings make (`config`), its `run` as `dapo.run` is one, and what is done
    `first`, once a stage, to say whether there is anything to learn from.
    """

    config: Callable[..., DapoConfig]
    run: Callable[..., DapoResult]
    first: Callable[[Work, Any, Requests, str, Any], None]


def _look_first(work: Work, policy: LanguagePolicy, learn: Requests, reward: str, config: DapoConfig) -> None:
    """Say, once a stage, whether there is anything to learn from and what to do where there is little.

    Raises `InputError` where no answer is a ranking: nothing can be learned from answers that all earn the same.
    """
    path = work.training / PREFLIGHT
    if work.crew.is_main and not path.is_file():
        seen = preflight.report(policy, learn, reward, config=config)
        durable.replace(path, (json.dumps(asdict(seen), indent=1) + "\n").encode())
        work.say(
            f"before training, {seen.dead_share:.0%} of {seen.groups} groups say nothing and {seen.valid:.0%} of their "
            f"answers are rankings; a step takes about {seen.seconds_per_step:.1f} seconds"
        )
        for advice in seen.advice:
            work.say(f"advice: {advice}")
    work.crew.wait()
    if path.is_file():
        refuse_dead(work.folder.name, json.loads(path.read_bytes())["valid"], config, taught="sft")


def refuse_dead(stage: str, valid: float, config: DapoConfig, *, taught: str) -> None:
    """Raise `InputError` where no sampled answer is `valid`; `taught` are the settings of the fine-tuning before it."""
    if not valid:
        raise InputError(
            f"none of the answers that were sampled before {stage!r} is a ranking, so there is nothing to learn from; "
            f"fine-tune longer ({taught}.epochs), or give more than {config.max_tokens} tokens (max_tokens)"
        )


AUTOREGRESSIVE = Way(DapoConfig, dapo.run, _look_first)
"""How GR2 reinforces."""


def reinforce(work: Work) -> Mapping[str, Any]:
    """Stage: the policy of another stage, reinforced for the `reward` of the settings."""
    start, told = work.inputs[work.settings["start"]] / POLICY, work.settings["dapo"]

    def loaded(_: int) -> LanguagePolicy:
        return _begun(work, load_policy(start, work.settings), told)

    return runs(work, materials(work), loaded, told, AUTOREGRESSIVE)


def internalise(work: Work) -> Mapping[str, Any]:
    """Stage: the reinforced policies asked for direct answers, and reinforced once more."""
    given, told = materials(work), work.settings["dapo"] | work.settings["internalise"]

    def asked_directly(seed: int) -> LanguagePolicy:
        reasoned = load_policy(seed_folder(work.inputs["dapo"], seed) / POLICY, work.settings)
        direct = LanguagePolicy(reasoned.model, reasoned.tokenizer, given.direct, remarks=given.remarks)
        return _begun(work, direct, told)

    return runs(work, given, asked_directly, told, AUTOREGRESSIVE)


def _begun(work: Work, policy: LanguagePolicy, told: Mapping[str, Any]) -> LanguagePolicy:
    """The policy as it is reinforced: with adapters where there are to be any, and asked as it will be."""
    policy.model = adapted(policy.model, work.settings["model"]["adapter"], seed=work.settings["seed"])
    policy.decoding = decoding_of(work.settings, max_tokens=told["max_tokens"])
    return policy


def runs(
    work: Work, given: Materials, start: Callable[[int], Written], told: Mapping[str, Any], way: Way
) -> dict[str, Any]:
    """A run for each seed, on the same requests, and the means over seeds of what all of them measured.

    `start` makes the policy that a seed begins with, and `told` are the settings of reinforcement.
    """
    reward = work.settings["reward"]
    learn, watch = given.remarks.on(given.found.learn), given.remarks.on(given.found.watch)
    made = [_run(work, learn, watch, seed, start, reward, told, way) for seed in work.settings["seeds"]]
    shared = [name for name in made[0] if all(name in run for run in made)]
    looked = work.training / PREFLIGHT
    before = {"dead groups before": json.loads(looked.read_bytes())["dead_share"]} if looked.is_file() else {}
    return {"reward": reward, **before, **{name: float(np.mean([run[name] for run in made])) for name in shared}}


def _run(
    work: Work,
    learn: Requests,
    watch: Requests,
    seed: int,
    start: Callable[[int], Written],
    reward: str,
    told: Mapping[str, Any],
    way: Way,
) -> dict[str, float]:
    """One seed, to its end: the policy, the log and what was measured are left in its folder."""
    folder = seed_folder(work.folder, seed)
    if (folder / RESULT).is_file():
        kept: dict[str, float] = json.loads((folder / RESULT).read_bytes())
        return kept
    work.crew.wait()  # the others have looked, too, before the main process writes it
    policy = start(seed)
    config = way.config(**told, **finer(work.settings), seed=seed)
    way.first(work, policy, learn, reward, config)
    result = way.run(
        policy,
        learn,
        reward,
        directory=folder / TRAINING,
        config=config,
        validation=watch,
        on_log=lambda step, _: work.tell(f"seed {seed}", step, config.steps * config.updates_per_step),
    )
    measured = {
        "updates": float(result.updates),
        "best update": float(result.best_update),
        "stopped early": float(result.stopped is not None),
        **watched(policy, watch),
    }
    keep_policy(work, policy, folder)
    if work.crew.is_main:
        shutil.copyfile(result.log_path, folder / LOG_NAME)
        durable.replace(folder / RESULT, (json.dumps(measured) + "\n").encode())
    work.crew.wait()
    return measured
