"""A DAPO run of a block-diffusion policy: from a policy to a better one, in one directory.

May import torch, transformers, TRL, and `rerank_env`. See `trainer` for what is optimised, `dapo_settings` for what it
is told, and `training.language.dapo` for everything else: the directory, validation, resuming.

    result = run(policy, requests, "gain", directory=Path("runs/rl"), config=BlockDapoConfig(), validation=held_out)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward
from rerank_env.training.block_diffusion.dapo_settings import BlockDapoConfig, decoding_text
from rerank_env.training.block_diffusion.trainer import BlockDapoTrainer
from rerank_env.training.language import dapo
from rerank_env.training.language.dapo import DapoResult, OnLog

__all__ = ["BlockDapoConfig", "BlockDapoTrainer", "DapoResult", "OnLog", "run"]


def run(
    policy: BlockDiffusionPolicy,
    requests: Requests,
    reward: str | Reward,
    *,
    directory: Path | str,
    config: BlockDapoConfig,
    validation: Requests | None = None,
    resume: bool = True,
    on_log: OnLog | None = None,
    trainer: type[BlockDapoTrainer] = BlockDapoTrainer,
    **others: Any,
) -> DapoResult:
    """Train `policy` in place on `requests` for `reward`, else as `training.language.dapo.run`.

    Answers are drawn in the policy's own way, at the temperature and length of `config`; validation is of what it
    writes greedily in its own way. A run is not resumed with another. Raises as `training.language.dapo.run` and
    `BlockDapoTrainer` do.
    """
    return dapo.run(
        policy,
        requests,
        reward,
        directory=directory,
        config=replace(config, decoding=decoding_text(policy)),
        validation=validation,
        resume=resume,
        on_log=on_log,
        trainer=trainer,
        **others,
    )
