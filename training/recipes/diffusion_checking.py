"""What is told before the first stage of a run of Diffusion-GR2: settings that a stage would refuse hours later.

What both recipes have is checked as GR2's. May import torch, the extra `language`, its neighbours and the layers below.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace

from rerank_env.agents.block_diffusion.decoding import BlockDecoding
from rerank_env.agents.block_diffusion.likelihood import likelihood_of
from rerank_env.rewards import parse_reward
from rerank_env.rewards.errors import InputError
from rerank_env.training.block_diffusion.dapo_settings import BlockDapoConfig, check_scored
from rerank_env.training.block_diffusion.opd_settings import BlockOpdConfig
from rerank_env.training.recipes import checking
from rerank_env.training.recipes.adopting import named
from rerank_env.training.recipes.checking import naming
from rerank_env.training.recipes.converting import block_decoding_of, blocks_of, cft_of
from rerank_env.training.recipes.diffusion_settings import DiffusionSettings
from rerank_env.training.recipes.policies import finer
from rerank_env.training.recipes.settings import without


def check(settings: DiffusionSettings, todo: Collection[str] = ()) -> None:
    """Raise where a stage would refuse its settings, or a library is missing: before any of `todo` starts."""
    checking.check(settings, todo)
    told, seed = asdict(settings), settings.seed
    later = without(told, "surrogate")  # that of GR2; the stages of block diffusion have their own
    with naming("blocks"):
        blocks_of(told)
    with naming("decode"):
        decoding = block_decoding_of(told)
    with naming("cft"):
        cft_of(told)
    if decoding.answer is not None:
        raise InputError(
            f"decode.answer is {settings.decode.answer!r}, but distillation compares what is written freely; leave it "
            "empty, and decode by it what comes of the run"
        )
    with naming("block_opd"):
        opd = BlockOpdConfig(**told["block_opd"], **finer(later), seed=seed)
        if opd.reward_weight:
            _drawn(decoding, opd)
    with naming("block_dapo"):
        dapo = BlockDapoConfig(**without(told["block_dapo"], "start", "reward"), **finer(later), seed=seed)
        _drawn(decoding, dapo)
    with naming("block_dapo.reward"):
        parse_reward(settings.block_dapo.reward)
    named(settings.gr2)  # "" is the folder that is there anyway


def _drawn(decoding: BlockDecoding, config: BlockDapoConfig) -> None:
    """Raise where answers cannot be drawn in this way, or drawn ones cannot be scored."""
    replace(decoding, temperature=config.temperature, max_tokens=config.max_tokens)
    check_scored(likelihood_of(config.likelihood), decoding)
