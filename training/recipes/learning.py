"""The stages of GR2 that teach: traces, fine-tuning on them, a teacher, and distillation from it.

Each function that takes `Work` is a stage; reinforcement is in `reinforcing`. May import torch, transformers, the extra
`language` and the layers below.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.server import ServerModel
from rerank_env.data.requests import Requests
from rerank_env.rewards.errors import InputError
from rerank_env.training.language import opd, sft
from rerank_env.training.language.examples import training_examples
from rerank_env.training.language.sft_settings import SftConfig
from rerank_env.training.language.traces import LocalTeacher, RuleTeacher, ServerTeacher, Teacher, Traces, collect
from rerank_env.training.recipes.policies import (
    POLICY,
    Materials,
    adapted,
    decoding_of,
    device_of,
    finer,
    keep_policy,
    load_policy,
    materials,
    watched,
)
from rerank_env.training.recipes.settings import without
from rerank_env.training.recipes.stages import Work
from rerank_env.training.recipes.student import BASE, mid_trained, new_model

TRACES = "traces"
WEIGHTS = ("reasoning_weight", "answer_weight", "direct_share")
"""The settings of fine-tuning that are of its examples."""


def collect_traces(mode: str) -> Callable[[Work], Mapping[str, Any]]:
    """The stage that asks the teacher in that mode."""

    def stage(work: Work) -> Mapping[str, Any]:
        given, told = materials(work), work.settings["traces"]
        requests = traced(work.settings, given)
        traces = collect(
            requests,
            _teacher(work, given),
            given.writer,
            mode=mode,
            tries=told["tries"],
            directory=work.training / TRACES,
            seed=work.settings["seed"],
            batch=told["batch"],
            prepare=given.remarks.on,  # makes the same remarks again, so that the leak check sees how they are made
            on_progress=lambda done: work.tell(f"{mode} traces", done, len(requests)),
        )
        traces.save(work.folder / TRACES)
        measured: dict[str, float] = traces.statistics().numbers()
        return measured

    return stage


def traced(settings: Mapping[str, Any], given: Materials) -> Requests:
    """The requests that the teacher is asked about, with remarks, the same in every stage; all again for each copy."""
    learn, most = given.found.learn, settings["traces"]["most"]
    if most and most < len(learn):
        learn = learn.take(np.sort(np.random.default_rng([settings["seed"], 1]).permutation(len(learn))[:most]))
    return given.remarks.on(learn).take(np.tile(np.arange(len(learn)), settings["traces"]["copies"]))


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
    server = server_of(work.settings)
    server.check()
    return ServerTeacher(server)


def server_of(settings: Mapping[str, Any]) -> ServerModel:
    """The model of the server that teaches. Raises `InputError` for what is no server, and where its key is not set."""
    told, variable = settings["traces"], settings.get("server", {}).get("key_variable", "")
    if variable and not os.environ.get(variable):
        raise InputError(f"server.key_variable is {variable!r}, which is not set; put the server's key into it")
    return ServerModel(
        told["url"],
        told["name"],
        api_key=os.environ[variable] if variable else None,
        concurrency=told["concurrency"],
        max_tokens=told["max_tokens"],
        temperature=told["temperature"],
    )


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
        traced(work.settings, given),
        Traces.load(work.inputs[traces] / TRACES),
        given.writer,
        policy.tokenizer,
        **{name: told[name] for name in WEIGHTS},
        direct_writer=given.direct,
        seed=seed,
    )
    config = SftConfig(**without(told, *WEIGHTS) | {"lr": lr}, **work.settings.get("memory", {}), seed=seed)
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
    told = {**without(work.settings["opd"], "start", "teacher"), **finer(work.settings)}
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
