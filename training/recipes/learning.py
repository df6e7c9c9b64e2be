"""The stages of GR2 that make a student and train it: base, mid-training, traces, fine-tuning, distillation.

Each function that takes `Work` is a stage; it leaves a policy in `policy/`, as `LanguagePolicy.from_pretrained` reads
it. Reinforcement is in `reinforcing`. May import torch, transformers, the extra `language` and the layers below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rerank_env.agents.language.policy import LanguagePolicy

from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.agents.language.vocabulary import extend
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter, ask
from rerank_env.rewards import parse_reward, rankings
from rerank_env.rewards.copies import copying
from rerank_env.training.language import midtrain, opd, sft
from rerank_env.training.language.corpus import Corpus, general_texts
from rerank_env.training.language.examples import training_examples
from rerank_env.training.language.traces import RuleTeacher, Teacher, Traces, collect
from rerank_env.training.recipes.inputs import Prepared, ids_of, prepared, remarks_of, writers
from rerank_env.training.recipes.stages import Work

BASE, POLICY, TRACES = "base", "policy", "traces"
SHOWN = 2000
"""Requests whose prompts and answers a tokenizer from nothing learns its words from, and mid-training general text."""

METRIC = "ndcg@10"


def materials(work: Work) -> tuple[Prepared, EvidenceRemarks, PromptWriter, PromptWriter]:
    """Requests, remarks, and the writers for answers with reasons and direct ones, from what stages left."""
    found = prepared(work.inputs["data"], work.settings)
    remarks = remarks_of(work.inputs["remarks"])
    return found, remarks, *writers(work.settings["wording"], ids_of(work.inputs["ids"], found), remarks)


def device_of(name: str) -> str:
    """ "auto" as the accelerator there is, or the CPU; other names as they are."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_policy(folder: Path, settings: Mapping[str, Any], *, decoding: Decoding | None = None) -> LanguagePolicy:
    """A policy that a stage left, on the device and with the dtype of the `model` settings."""
    told = settings["model"]
    return LanguagePolicy.from_pretrained(
        folder, dtype=told["dtype"], device=device_of(told["device"]), decoding=decoding
    )


def decoding_of(settings: Mapping[str, Any], *, max_tokens: int | None = None) -> Decoding:
    """How answers are asked for at evaluation: greedy, and not constrained."""
    told = settings["evaluation"]
    return Decoding(max_tokens=max_tokens or told["max_tokens"], batch_size=told["batch"])


def watched(policy: LanguagePolicy, requests: Requests) -> dict[str, float]:
    """What a policy does on the watched requests: the share of valid answers and of copies, and NDCG."""
    answers_BK = policy.rank(requests, rng=np.random.default_rng(0))
    valid_B = rankings.verdicts(answers_BK, requests.sizes_B) == rankings.Verdict.OK
    copies = copying(answers_BK, requests.sizes_B).identity_rate
    return {
        f"watched {METRIC}": float(parse_reward(METRIC).score(answers_BK, requests.slates).total_B.mean()),
        "watched valid": float(valid_B.mean()),
        **({} if np.isnan(copies) else {"watched copies": float(copies)}),
    }


def make_base(work: Work) -> Mapping[str, Any]:
    """Stage: the student before any training, with the words of the semantic IDs in its vocabulary."""
    found, remarks, writer, direct = materials(work)
    model, tokenizer = _new(work, found, remarks, writer, direct, work.settings["model"])
    policy = LanguagePolicy(model, tokenizer, writer, remarks=remarks, decoding=decoding_of(work.settings))
    if work.crew.is_main:
        policy.save_pretrained(work.folder / POLICY)
    return {"parameters": sum(weights.numel() for weights in model.parameters()), "tokens": len(tokenizer)}


def _new(
    work: Work,
    found: Prepared,
    remarks: EvidenceRemarks,
    writer: PromptWriter,
    direct: PromptWriter,
    shape: Mapping[str, Any],
    tokenizer: Any = None,
) -> tuple[Any, Any]:
    """A model of that shape, and its tokenizer, extended for the semantic IDs; from nothing or pretrained."""
    told, seed = work.settings["model"], work.settings["seed"]
    if shape["base"]:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(shape["base"])
        model = AutoModelForCausalLM.from_pretrained(shape["base"], dtype=told["dtype"])
    else:
        if tokenizer is None:
            texts = _words(found, remarks, writer, direct, seed=seed)
            tokenizer = build_tokenizer(texts, vocab_size=told["vocabulary"])
        model = build_model(
            tokenizer,
            width=shape["width"],
            layers=shape["layers"],
            heads=shape["heads"],
            context=told["context"],
            seed=seed,
        )
    extend(model, tokenizer, ids_of(work.inputs["ids"], found), seed=seed)
    return model.to(device_of(told["device"])), tokenizer


def _words(
    found: Prepared, remarks: EvidenceRemarks, writer: PromptWriter, direct: PromptWriter, *, seed: int
) -> list[str]:
    """Texts that have every word the student will read or write: prompts, answers of a rule, and items."""
    rows = np.random.default_rng(seed).permutation(len(found.learn))[:SHOWN]
    requests = remarks.on(found.learn.take(np.sort(rows)))
    teacher, texts = RuleTeacher(remarks), []
    for asked_by in (writer, direct):
        asked = ask(requests, asked_by)
        texts += [message.content for prompt in asked.prompts for message in prompt.messages]
        if asked_by is writer:
            seeds_B = np.arange(len(requests))
            texts += [said.text for said in teacher.propose(asked, targets_B=None, seeds_B=seeds_B)]
    return [*texts, *filter(None, found.log.texts)]


def mid_train(work: Work) -> Mapping[str, Any]:
    """Stage: the new words learned alone, then everything, on texts of the purchases that may be seen."""
    found, remarks, writer, _ = materials(work)
    policy = load_policy(work.inputs[BASE] / POLICY, work.settings)
    measured = _mid_trained(work, found, remarks, writer, policy.model, policy.tokenizer)
    if work.crew.is_main:
        policy.save_pretrained(work.folder / POLICY)
    return measured


def _mid_trained(
    work: Work,
    found: Prepared,
    remarks: EvidenceRemarks,
    writer: PromptWriter,
    model: Any,
    tokenizer: Any,
) -> dict[str, Any]:
    told = dict(work.settings["midtrain"])
    if not told["steps"]:
        return {"steps": 0}
    rows = np.arange(min(SHOWN, len(found.learn)))
    corpus = Corpus.of(
        found.log,
        found.targets,
        ids_of(work.inputs["ids"], found),
        general=general_texts(remarks.on(found.learn.take(rows)), writer),
    )
    config = midtrain.MidtrainConfig(**told, seed=work.settings["seed"])
    result = midtrain.run(model, tokenizer, corpus, directory=work.training, config=config)
    return dict(result.metrics)


def collect_traces(mode: str) -> Callable[[Work], Mapping[str, Any]]:
    """The stage that asks the teacher in that mode."""

    def stage(work: Work) -> Mapping[str, Any]:
        found, remarks, writer, _ = materials(work)
        told, requests = work.settings["traces"], traced(work.settings, found)
        traces = collect(
            requests,
            _teacher(work, found, remarks, writer),
            writer,
            mode=mode,
            tries=told["tries"],
            directory=work.folder / TRACES,
            seed=work.settings["seed"],
            batch=told["batch"],
            prepare=remarks.on,
            on_progress=lambda done: work.tell(f"{mode} traces", done, len(requests)),
        )
        return dict(traces.statistics())

    return stage


def traced(settings: Mapping[str, Any], found: Prepared) -> Requests:
    """The requests that the teacher is asked about, the same in every stage."""
    most = settings["traces"]["most"]
    if not most or most >= len(found.learn):
        return found.learn
    rows = np.random.default_rng([settings["seed"], 1]).permutation(len(found.learn))[:most]
    return found.learn.take(np.sort(rows))


def _teacher(work: Work, found: Prepared, remarks: EvidenceRemarks, writer: PromptWriter) -> Teacher:
    told = work.settings["traces"]
    if told["teacher"] == "rule":
        return RuleTeacher.fit(remarks, found.learn, temperature=told["temperature"])
    if told["teacher"] == "local":
        from rerank_env.training.language.traces import LocalTeacher

        decoding = Decoding(max_tokens=told["max_tokens"], temperature=told["temperature"])
        policy = LanguagePolicy.from_pretrained(told["name"], writer=writer, remarks=remarks, decoding=decoding)
        return LocalTeacher(policy)
    from rerank_env.agents.language.server import ServerModel

    from rerank_env.training.language.traces import ServerTeacher

    return ServerTeacher(ServerModel(told["url"], told["name"], concurrency=told["concurrency"]))


def fine_tune(mode: str) -> Callable[[Work], Mapping[str, Any]]:
    """The stage that learns the traces of that mode, reasoning and answer with a weight each."""

    def stage(work: Work) -> Mapping[str, Any]:
        found, *_ = materials(work)
        policy = load_policy(work.inputs["midtrain"] / POLICY, work.settings, decoding=decoding_of(work.settings))
        measured = _fine_tuned(work, policy, f"traces-{mode}", found, lr=work.settings["sft"]["lr"], part="sft")
        if work.crew.is_main:
            policy.save_pretrained(work.folder / POLICY)
        return measured | watched(policy, found.watch)

    return stage


def _fine_tuned(
    work: Work, policy: LanguagePolicy, traces: str, found: Prepared, *, lr: float, part: str
) -> dict[str, Any]:
    """Train the policy's model in place, in a folder of its own among what the stage goes on from."""
    _, remarks, writer, direct = materials(work)
    told = dict(work.settings["sft"]) | {"lr": lr}
    given = {name: told.pop(name) for name in ("reasoning_weight", "answer_weight", "direct_share")}
    rows = Traces.load(work.inputs[traces] / TRACES).table.to_pylist()
    requests = remarks.on(traced(work.settings, found))
    seed = work.settings["seed"]
    dataset = training_examples(requests, rows, writer, policy.tokenizer, **given, direct_writer=direct, seed=seed)
    config = sft.SftConfig(**told, seed=seed)
    result = sft.run(policy.model, policy.tokenizer, dataset, directory=work.training / part, config=config)
    last = next((entry for entry in reversed(result.log) if "loss" in entry), {})
    return {"examples": len(dataset), "steps": result.steps, **({"loss": last["loss"]} if last else {})}


def train_teacher(work: Work) -> Mapping[str, Any]:
    """Stage: a larger model of the same vocabulary, trained as the student is; OPD imitates it."""
    found, remarks, writer, direct = materials(work)
    base = load_policy(work.inputs[BASE] / POLICY, work.settings)
    shape = work.settings["teacher"]
    model, tokenizer = _new(work, found, remarks, writer, direct, shape, base.tokenizer)
    measured = _mid_trained(work, found, remarks, writer, model, tokenizer)
    policy = LanguagePolicy(model, tokenizer, writer, remarks=remarks, decoding=decoding_of(work.settings))
    measured |= _fine_tuned(work, policy, "traces-rejection", found, lr=shape["lr"], part="sft")
    if work.crew.is_main:
        policy.save_pretrained(work.folder / POLICY)
    return measured | watched(policy, found.watch)


def distil(work: Work) -> Mapping[str, Any]:
    """Stage: the student's own answers, each token pulled towards what the frozen teacher would have written."""
    found, *_ = materials(work)
    told = dict(work.settings["opd"])
    start = told.pop("start")
    policy = load_policy(work.inputs[start] / POLICY, work.settings, decoding=decoding_of(work.settings))
    teacher = load_policy(work.inputs["teacher"] / POLICY, work.settings)
    config = opd.OpdConfig(**told, seed=work.settings["seed"])
    result = opd.run(
        policy,
        teacher.model,
        found.learn,
        work.settings["dapo"]["reward"],
        directory=work.training,
        config=config,
        validation=found.watch,
        on_log=lambda step, _: work.tell("distillation", step, config.steps),
    )
    if work.crew.is_main:
        policy.save_pretrained(work.folder / POLICY)
    return {"updates": result.updates, "best update": result.best_update, **watched(policy, found.watch)}
