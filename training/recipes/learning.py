"""The stages of GR2 that teach: traces, fine-tuning on them, a teacher, and distillation from it.

Each function that takes `Work` is a stage; reinforcement is in `reinforcing`. May import torch, transformers, the extra
`language` and the layers below.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.server import ServerModel
from rerank_env.data.requests import Requests
from rerank_env.prompts import template_of
from rerank_env.rewards import parse_reward
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS, has_reasoning
from rerank_env.training.language import dapo, midtrain, opd, sft
from rerank_env.training.language.examples import training_examples
from rerank_env.training.language.sft_settings import SftConfig
from rerank_env.training.language.traces import LocalTeacher, RuleTeacher, ServerTeacher, Teacher, Traces, collect
from rerank_env.training.language.traces.journal import JOURNAL
from rerank_env.training.recipes.inputs import Prepared
from rerank_env.training.recipes.reinforcing import finer
from rerank_env.training.recipes.settings import REWARDS, Gr2Settings
from rerank_env.training.recipes.stages import Work
from rerank_env.training.recipes.student import (
    BASE,
    POLICY,
    Materials,
    adapted,
    decoding_of,
    device_of,
    keep_policy,
    load_policy,
    materials,
    mid_trained,
    new_model,
    watched,
)

TRACES = "traces"
WEIGHTS = ("reasoning_weight", "answer_weight", "direct_share")
"""The settings of fine-tuning that are of its examples."""


def check(settings: Gr2Settings, todo: Collection[str] = ()) -> None:
    """Raise where a trainer would refuse its settings, a library or a key is missing: before any of `todo` starts."""
    told, seed = asdict(settings), settings.seed
    if settings.midtrain.steps:
        midtrain.MidtrainConfig(**told["midtrain"], **told["memory"], seed=seed)
    SftConfig(**_without(told["sft"], *WEIGHTS), **told["memory"], seed=seed)
    opd.OpdConfig(**_without(told["opd"], "start", "teacher"), **finer(told), seed=seed)
    reinforced = _without(told["dapo"], "start", *REWARDS)
    for group in (reinforced, reinforced | told["internalise"]):
        dapo.DapoConfig(**group, **finer(told), seed=seed)
    for reward in REWARDS:
        parse_reward(told["dapo"][reward])
    for text_format in (settings.wording.text_format, settings.wording.direct_format):
        one_of("text format", text_format, FORMATS)
    template_of(settings.wording.template)
    if not has_reasoning(settings.wording.text_format):
        raise InputError(
            f"wording.text_format is {settings.wording.text_format!r}, which has no room for reasons; use a tagged one"
        )
    if settings.traces.teacher == "server" and any(name.startswith(TRACES) for name in todo):
        _key(told)


def _key(settings: Mapping[str, Any]) -> str | None:
    """The key of the server that teaches, None where it asks for none."""
    variable = settings.get("server", {}).get("key_variable", "")
    if variable and not os.environ.get(variable):
        raise InputError(f"server.key_variable is {variable!r}, which is not set; put the server's key into it")
    return os.environ[variable] if variable else None


def _without(group: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in names}


def collect_traces(mode: str) -> Callable[[Work], Mapping[str, Any]]:
    """The stage that asks the teacher in that mode."""

    def stage(work: Work) -> Mapping[str, Any]:
        given, told = materials(work), work.settings["traces"]
        requests = given.remarks.on(traced(work.settings, given.found))
        traces = collect(
            requests,
            _teacher(work, given),
            given.writer,
            mode=mode,
            tries=told["tries"],
            directory=work.folder / TRACES,
            seed=work.settings["seed"],
            batch=told["batch"],
            prepare=given.remarks.on,  # makes the same remarks again, so that the leak check sees how they are made
            on_progress=lambda done: work.tell(f"{mode} traces", done, len(requests)),
        )
        # All is in parts now, and a journal that a kill left behind must not make the result another one.
        (work.folder / TRACES / JOURNAL).unlink(missing_ok=True)
        measured: dict[str, float] = traces.statistics().numbers()
        return measured

    return stage


def traced(settings: Mapping[str, Any], found: Prepared) -> Requests:
    """The requests that the teacher is asked about, the same in every stage; all of them again for each copy."""
    most, copies = settings["traces"]["most"], settings["traces"]["copies"]
    rows = np.arange(len(found.learn))
    if most and most < len(rows):
        rows = np.sort(np.random.default_rng([settings["seed"], 1]).permutation(rows)[:most])
    return found.learn if len(rows) == len(found.learn) and copies == 1 else found.learn.take(np.tile(rows, copies))


def _teacher(work: Work, given: Materials) -> Teacher:
    told = work.settings["traces"]
    if told["teacher"] == "rule":
        return RuleTeacher.fit(given.remarks, given.found.learn, temperature=told["temperature"])
    tokens = {"max_tokens": told["max_tokens"], "temperature": told["temperature"]}
    if told["teacher"] == "local":
        policy = LanguagePolicy.from_pretrained(
            told["name"],
            writer=given.writer,
            remarks=given.remarks,
            decoding=Decoding(**tokens),
            dtype=work.settings["model"]["dtype"],
            device=device_of(work.settings["model"]["device"]),
        )
        return LocalTeacher(policy)
    key, concurrency = _key(work.settings), told["concurrency"]
    return ServerTeacher(ServerModel(told["url"], told["name"], api_key=key, concurrency=concurrency, **tokens))


def fine_tune(mode: str) -> Callable[[Work], Mapping[str, Any]]:
    """The stage that learns the traces of that mode, reasoning and answer with a weight each."""

    def stage(work: Work) -> Mapping[str, Any]:
        given = materials(work)
        policy = load_policy(work.inputs["midtrain"] / POLICY, work.settings, decoding=decoding_of(work.settings))
        policy.model = adapted(policy.model, work.settings["model"]["adapter"], seed=work.settings["seed"])
        measured = _fine_tuned(work, policy, f"traces-{mode}", given, lr=work.settings["sft"]["lr"])
        keep_policy(work, policy)
        return measured | watched(policy, given.found.watch)

    return stage


def _fine_tuned(work: Work, policy: LanguagePolicy, traces: str, given: Materials, *, lr: float) -> dict[str, Any]:
    """Train the policy's model in place, and what was measured."""
    seed, told = work.settings["seed"], work.settings["sft"]
    dataset = training_examples(
        given.remarks.on(traced(work.settings, given.found)),
        Traces.load(work.inputs[traces] / TRACES),
        given.writer,
        policy.tokenizer,
        **{name: told[name] for name in WEIGHTS},
        direct_writer=given.direct,
        seed=seed,
    )
    config = SftConfig(**_without(told, *WEIGHTS) | {"lr": lr}, seed=seed)
    result = sft.run(policy.model, policy.tokenizer, dataset, directory=work.training / "sft", config=config)
    last = next((entry for entry in reversed(result.log) if "loss" in entry), {})
    return {"examples": len(dataset), "steps": result.steps, **({"loss": last["loss"]} if last else {})}


def train_teacher(work: Work) -> Mapping[str, Any]:
    """Stage: a larger model of the same vocabulary, trained as the student is; OPD imitates it."""
    given, shape = materials(work), work.settings["teacher"]
    base = load_policy(work.inputs[BASE] / POLICY, work.settings)
    model, tokenizer = new_model(work, given, shape, base.tokenizer)
    measured = mid_trained(work, given, model, tokenizer)
    policy = LanguagePolicy(
        adapted(model, shape["adapter"], seed=work.settings["seed"]),
        tokenizer,
        given.writer,
        remarks=given.remarks,
        decoding=decoding_of(work.settings),
    )
    measured |= _fine_tuned(work, policy, "traces-rejection", given, lr=shape["lr"])
    keep_policy(work, policy, with_base=True)  # the model under the adapter was mid-trained here, and is nowhere else
    return measured | watched(policy, given.found.watch)


def distil(work: Work) -> Mapping[str, Any]:
    """Stage: the student's own answers, each token pulled towards what the frozen teacher would have written."""
    found = materials(work).found
    start = work.inputs[work.settings["opd"]["start"]]
    policy = load_policy(start / POLICY, work.settings, decoding=decoding_of(work.settings))
    policy.model = adapted(policy.model, work.settings["model"]["adapter"], seed=work.settings["seed"])
    told = {**_without(work.settings["opd"], "start", "teacher"), **finer(work.settings)}
    config = opd.OpdConfig(**told, seed=work.settings["seed"])
    result = opd.run(
        policy,
        found.learn,
        load_policy(work.inputs[work.settings["opd"]["teacher"]] / POLICY, work.settings),
        directory=work.training,
        config=config,
        reward=work.settings["reward"],
        validation=found.watch,
        on_log=lambda step, _: work.tell("distillation", step, config.steps),
    )
    keep_policy(work, policy)
    return {"updates": result.updates, "best update": result.best_update, **watched(policy, found.watch)}
