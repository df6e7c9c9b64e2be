"""The sizes a run of Diffusion-GR2 comes in, those of GR2 with what block diffusion is told, and its costs foretold.

`tiny` converts the model of GR2's `tiny` and learns all of its weights; `small` and `8b` learn adapters. `8b` is told
what the paper (2607.01170, Qwen3-8B) says of its own run: blocks of 32, three epochs of fine-tuning, distillation with
4 rollouts to each of 128 prompts at a rate of 1e-6, reinforcement with 8 rollouts at 5e-7 for 600 steps; whether it
learned adapters it does not say. Speeds are those of GR2's sizes; a row of block diffusion has its completion once
clean and then again in noisy blocks. May import its neighbours `sizes` and settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rerank_env.rewards.arguments import one_of
from rerank_env.training.recipes import sizes
from rerank_env.training.recipes.diffusion_settings import (
    CFT,
    IMITATION,
    LEARNED,
    OPD,
    RL,
    BlockDapo,
    BlockOpd,
    Cft,
    DiffusionSettings,
    Imitation,
)
from rerank_env.training.recipes.settings import Gr2Settings

MASKED = 1.5
"""How much dearer a learned token is where who sees whom is said token by token; measured on `tiny`."""

ROUNDS = 0.4
"""Rounds that a token of an answer takes at a threshold of 0.9, of one that was fine-tuned (the paper's speed-up is 2.4
there); the conversion itself is sure of nothing and takes one a token, up to the limit of tokens.
"""


@dataclass(frozen=True)
class DiffusionSize:
    """The `settings`, and the size of GR2 whose speed and lengths they are foretold with."""

    settings: DiffusionSettings
    plain: sizes.Size


def _of(name: str, **groups: Any) -> DiffusionSize:
    """The size of GR2 called `name` with these groups of settings besides."""
    plain = sizes.SIZES[name]
    common = {field.name: getattr(plain.settings, field.name) for field in fields(Gr2Settings)}
    return DiffusionSize(DiffusionSettings(**common | {"rows": LEARNED} | groups), plain)


SIZES: Mapping[str, DiffusionSize] = {
    "tiny": _of(
        "tiny",
        imitation=Imitation(copies=3, batch=2048),
        cft=Cft(lr=1e-3, epochs=1, batch=32, micro_batch=32, save_every=400),
        block_opd=BlockOpd(
            steps=60, learning_rate=1e-4, groups_per_step=16, micro_batch=64, max_tokens=96, validate_every=20,
        ),
        block_dapo=BlockDapo(
            steps=60, learning_rate=5e-5, groups_per_step=16, micro_batch=64, max_tokens=96, validate_every=20,
        ),
    ),
    "small": _of(
        "small",
        cft=Cft(lr=1e-4, micro_batch=4),
        block_opd=BlockOpd(
            steps=300, learning_rate=1e-5, groups_per_step=32, micro_batch=4, max_tokens=256, form="topk",
        ),
        block_dapo=BlockDapo(steps=300, learning_rate=1e-5, micro_batch=4, max_tokens=256),
    ),
    "8b": _of(
        "8b",
        cft=Cft(lr=1e-4, micro_batch=2),
        block_opd=BlockOpd(micro_batch=2, form="topk"),
        block_dapo=BlockDapo(micro_batch=2),
    ),
}  # fmt: skip
"""The sizes by name."""


def size_of(name: str) -> DiffusionSize:
    """The size called `name`; `UnknownNameError` with the nearest name."""
    return SIZES[one_of("size", name, SIZES)]


def foretold(size: DiffusionSize, settings: DiffusionSettings, *, learned_from: int, tested: int) -> dict[str, float]:
    """Minutes of every stage that costs any, by its name, for so many requests to learn from and to be tested on."""
    s, plain = settings, size.plain
    found = sizes.foretold(plain, s, learned_from=learned_from, tested=tested)
    speed = sizes.slowed(plain, s)
    block = s.blocks.size
    filled = -(-plain.answer // block) * block
    row = plain.prompt + plain.answer
    imitates = s.cft.lessons == IMITATION
    asked = learned_from * s.imitation.copies
    traced = asked if imitates else min(s.traces.most or learned_from, learned_from) * s.traces.copies
    copies = 2 if s.cft.complementary else 1
    cft = traced * s.cft.epochs * (row + copies * filled) * MASKED / speed.learned

    def answered(rounds: float) -> float:
        """Seconds of reading a prompt, and in each round all of a block, for an answer of so many `rounds`."""
        return (plain.prompt + rounds * block * MASKED) / speed.read

    tuned, naive = answered(ROUNDS * plain.answer), answered(s.answering.max_tokens)
    taught = plain.prompt / speed.read + plain.answer / speed.written

    def reinforced(told: BlockOpd | BlockDapo) -> float:
        rollouts = told.steps * told.groups_per_step * told.group_size
        return rollouts * (tuned + (row + ROUNDS * plain.answer * block) * MASKED / speed.learned)

    imitated = s.block_opd.steps * s.block_opd.groups_per_step * s.block_opd.group_size * row / speed.read
    seconds = {
        "convert": s.lists.watch * naive,
        **({IMITATION: asked * taught} if imitates else {}),
        CFT: cft + s.lists.watch * tuned,
        OPD: reinforced(s.block_opd) + imitated,
        RL: reinforced(s.block_dapo) * len(s.seeds),
        "evaluate": 2 * tested * (taught + naive + (2 + len(s.seeds)) * tuned),  # as they came, and shuffled
    }
    return {**found, **{name: value / 60 for name, value in seconds.items()}}
