"""The student of GR2 before it is taught: what it is, how it is kept, and mid-training.

Each function that takes `Work` is a stage; it leaves a policy in `policy/`, as `LanguagePolicy.from_pretrained` reads
it. May import torch, transformers, the extra `language` and the layers below.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.agents.language.vocabulary import extend
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter, ask
from rerank_env.rewards import parse_reward, rankings
from rerank_env.rewards.copies import copying
from rerank_env.semantic_ids import SemanticIds
from rerank_env.training.language import midtrain
from rerank_env.training.language.corpus import Corpus, general_texts
from rerank_env.training.language.traces import RuleTeacher
from rerank_env.training.recipes.inputs import Prepared, ids_of, prepared, remarks_of, writers
from rerank_env.training.recipes.stages import Work

BASE, POLICY = "base", "policy"
SHOWN = 2000
"""Requests whose prompts and answers a tokenizer from nothing learns its words from, and mid-training general text."""

METRIC = "ndcg@10"
"""What is measured on the watched requests after each training."""


class Materials(NamedTuple):
    """What a language stage works with: requests, semantic IDs, remarks, and who asks for answers of both kinds."""

    found: Prepared
    ids: SemanticIds
    remarks: EvidenceRemarks
    writer: PromptWriter
    direct: PromptWriter


def materials(work: Work) -> Materials:
    """Read back what the stages `data`, `ids` and `remarks` left."""
    found = prepared(work.inputs["data"], work.settings)
    ids, remarks = ids_of(work.inputs["ids"], found), remarks_of(work.inputs["remarks"])
    return Materials(found, ids, remarks, *writers(work.settings["wording"], ids, remarks))


def device_of(name: str) -> str:
    """ "auto" as the accelerator there is, or the CPU; other names as they are."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_policy(folder: Path, settings: Mapping[str, Any], *, decoding: Decoding | None = None) -> LanguagePolicy:
    """A policy that a stage left, on the device and with the dtype of the `model` settings."""
    told = settings["model"]
    return LanguagePolicy.from_pretrained(
        folder.resolve(), dtype=told["dtype"], device=device_of(told["device"]), decoding=decoding
    )


def keep_policy(work: Work, policy: LanguagePolicy, folder: Path | None = None, *, with_base: bool = False) -> None:
    """Save a policy into the stage's folder, or another, by the main process.

    What is under an adapter is written only if `with_base`; else it is found by its place, where it was loaded from.
    """
    if work.crew.is_main:
        whole_model = with_base or not hasattr(policy.model, "peft_config")
        policy.save_pretrained((folder or work.folder) / POLICY, with_base=whole_model)


def adapted(model: Any, rank: int, *, seed: int) -> Any:
    """The model with LoRA adapters of that rank on all linear layers; itself for rank 0, or where it has some.

    LoRA is Hu et al. 2021 (2106.09685); an alpha of twice the rank is that of DiffuRank (2602.12528).
    """
    if not rank or hasattr(model, "peft_config"):
        return model
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def decoding_of(settings: Mapping[str, Any], *, max_tokens: int | None = None) -> Decoding:
    """How answers are asked for at evaluation: greedy, and not constrained."""
    told = settings["answering"]
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
