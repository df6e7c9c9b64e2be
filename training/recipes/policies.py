"""What the stages that make policies share: what they start from, and how a policy is loaded, measured and kept.

A stage leaves its policy in `policy/`, as the class of its kind reads it. May import torch, the extra
`language` and the layers below.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.text_policy import TextPolicy
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.rewards import parse_reward, rankings
from rerank_env.rewards.copies import copying
from rerank_env.semantic_ids import SemanticIds
from rerank_env.training.language.stopping import StopRule
from rerank_env.training.recipes.inputs import Prepared, ids_of, prepared, remarks_of, writers
from rerank_env.training.recipes.stages import Work

POLICY = "policy"
Written = LanguagePolicy | BlockDiffusionPolicy
"""The policies that a stage can keep."""

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


def load_blocks(folder: Path, settings: Mapping[str, Any]) -> BlockDiffusionPolicy:
    """As `load_policy`, one of block diffusion; it decodes as it was saved."""
    told = settings["model"]
    return BlockDiffusionPolicy.from_pretrained(folder.resolve(), dtype=told["dtype"], device=device_of(told["device"]))


def keep_policy(work: Work, policy: Written, folder: Path | None = None, *, with_base: bool = False) -> None:
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


def watched(policy: TextPolicy[Any, Any], requests: Requests) -> dict[str, float]:
    """What a policy does on the watched requests: the share of valid answers and of copies, and NDCG."""
    answers_BK = policy.rank(requests, rng=np.random.default_rng(0))
    valid_B = rankings.verdicts(answers_BK, requests.sizes_B) == rankings.Verdict.OK
    copies = copying(answers_BK, requests.sizes_B).identity_rate
    return {
        f"watched {METRIC}": float(parse_reward(METRIC).score(answers_BK, requests.slates).total_B.mean()),
        "watched valid": float(valid_B.mean()),
        **({} if np.isnan(copies) else {"watched copies": float(copies)}),
    }


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
