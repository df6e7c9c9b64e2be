"""What a name stands for: the tables of built-in rewards, conditions and presets, and the rewards of the user's.

A class or function listed here is parsed, listed and tested by its own name. May import numpy only.
"""

from __future__ import annotations

from collections.abc import Callable

from rerank_env.rewards import clicks, conditions, groups, presets, schedules, textual, verifiable
from rerank_env.rewards.reward import Condition, Reward

LEAVES: tuple[type[Reward], ...] = (
    verifiable.Ap,
    verifiable.Auc,
    verifiable.Err,
    verifiable.ExactSet,
    verifiable.Hit,
    verifiable.Mrr,
    verifiable.Ndcg,
    verifiable.PairwiseAccuracy,
    verifiable.RankPromotion,
    verifiable.Rbp,
    verifiable.Recall,
    verifiable.ValidFormat,
)
"""The built-in rewards that are not made of others."""

CONTEXTUAL: tuple[type[Reward], ...] = (
    clicks.ClickCredit,
    groups.Consistency,
    schedules.Linear,
    textual.Cites,
    textual.Length,
    textual.Overlong,
)
"""The built-in rewards that need more than rankings and relevance: see `Reward.needs`."""

CONDITIONS: tuple[type[Condition], ...] = (
    conditions.Improved,
    conditions.IncomingIsIdeal,
    conditions.KeptFirst,
    conditions.NearIdentity,
    conditions.NotIdentity,
    conditions.TauAtLeast,
    conditions.Valid,
    conditions.WasFirst,
    conditions.Worsened,
    schedules.Since,
)
"""The built-in conditions that are not made of others."""

PRESETS: tuple[Callable[..., Reward], ...] = (
    presets.gain,
    presets.gr2,
    presets.gr2_hardened,
    presets.gr2_industrial,
    presets.gr2_industrial_hardened,
    presets.naive,
)
"""The functions whose arguments all have defaults and which build a reward."""

REWARD_OF: dict[str, Reward | Callable[..., Reward]] = {
    **{leaf.name: leaf for leaf in LEAVES + CONTEXTUAL},
    **{preset.__name__: preset for preset in PRESETS},
}
"""Rewards, and what builds them from keyword arguments, by name; `register_reward` adds to it."""

CONDITION_OF: dict[str, Condition | Callable[..., Condition]] = {condition.name: condition for condition in CONDITIONS}
"""Conditions, and what builds them, by name; `register_condition` adds to it."""


def reward_names() -> tuple[str, ...]:
    """The names that `parse_reward` knows, sorted: built-in rewards, presets and registered ones."""
    return tuple(sorted(REWARD_OF))
