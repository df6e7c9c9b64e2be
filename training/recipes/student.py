"""The student of GR2 before it is taught: the model it begins as, and mid-training.

Each function that takes `Work` is a stage, or makes a model as those do. May import torch, transformers, the extra
`language` and the layers below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.agents.language.vocabulary import extend
from rerank_env.prompts import ask
from rerank_env.training.language import midtrain
from rerank_env.training.language.corpus import Corpus, general_texts
from rerank_env.training.language.traces import RuleTeacher
from rerank_env.training.recipes.policies import POLICY, Materials, device_of, keep_policy, load_policy, materials
from rerank_env.training.recipes.stages import Work

BASE = "base"
SHOWN = 2000
"""Requests whose prompts and answers a tokenizer from nothing learns its words from, and mid-training general text."""


def make_base(work: Work) -> Mapping[str, Any]:
    """Stage: the student before any training, with the words of the semantic IDs in its vocabulary."""
    given = materials(work)
    model, tokenizer = new_model(work, given, work.settings["model"])
    keep_policy(work, LanguagePolicy(model, tokenizer, given.writer, remarks=given.remarks))
    return {"parameters": sum(weights.numel() for weights in model.parameters()), "tokens": len(tokenizer)}


def new_model(work: Work, given: Materials, shape: Mapping[str, Any], tokenizer: Any = None) -> tuple[Any, Any]:
    """A model of that shape and its tokenizer, extended for the semantic IDs; pretrained where the shape has a base.

    One from nothing reads with `tokenizer`, where it is given, or with a new one.
    """
    told, seed = work.settings["model"], work.settings["seed"]
    model: Any
    if shape["base"]:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(shape["base"])
        model = AutoModelForCausalLM.from_pretrained(shape["base"], dtype=told["dtype"])
    else:
        if tokenizer is None:
            tokenizer = build_tokenizer(_words(given, seed=seed), vocab_size=told["vocabulary"])
        sizes = {name: shape[name] for name in ("width", "layers", "heads")}
        model = build_model(tokenizer, **sizes, context=told["context"], seed=seed)
    extend(model, tokenizer, given.ids, seed=seed)
    return model.to(device_of(told["device"])), tokenizer


def _words(given: Materials, *, seed: int) -> list[str]:
    """Texts that have every word the student will read or write: prompts, answers of a rule, and items."""
    rows = np.random.default_rng(seed).permutation(len(given.found.learn))[:SHOWN]
    requests = given.remarks.on(given.found.learn.take(np.sort(rows)))
    texts: list[str] = []
    for writer in (given.writer, given.direct):
        texts += [message.content for prompt in ask(requests, writer).prompts for message in prompt.messages]
    said = RuleTeacher(given.remarks).propose(
        ask(requests, given.writer), targets_B=None, seeds_B=np.arange(len(requests))
    )
    return [*texts, *(one.text for one in said), *filter(None, given.found.log.texts)]


def mid_train(work: Work) -> Mapping[str, Any]:
    """Stage: the new words learned alone, then everything, on texts of the purchases that may be seen."""
    policy = load_policy(work.inputs[BASE] / POLICY, work.settings)
    measured = mid_trained(work, materials(work), policy.model, policy.tokenizer)
    keep_policy(work, policy)
    return measured


def mid_trained(work: Work, given: Materials, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Mid-train a model in place, and what was measured; nothing where no steps are asked for."""
    told, found = work.settings["midtrain"], given.found
    if not told["steps"]:
        return {"steps": 0}
    some = given.remarks.on(found.learn.take(np.arange(min(SHOWN, len(found.learn)))))
    corpus = Corpus.of(found.log, found.targets, given.ids, general=general_texts(some, given.writer))
    config = midtrain.MidtrainConfig(**told, **work.settings.get("memory", {}), seed=work.settings["seed"])
    totals = {midtrain.WARMUP: config.warmup_steps, midtrain.JOINT: config.steps}

    def show(phase: str, entry: Mapping[str, float]) -> None:
        if "step" in entry:
            work.tell(f"mid-training, {phase}", int(entry["step"]), totals[phase])

    result = midtrain.run(model, tokenizer, corpus, directory=work.training / "midtrain", config=config, on_log=show)
    return {"steps": config.steps, "blocks": result.blocks, "loss": result.loss, "recall@10": result.recall}
