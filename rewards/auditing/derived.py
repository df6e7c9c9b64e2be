"""Attacks that follow from what a reward is made of: every cut-off and condition in it has one.

- a cut-off k: shuffle what stands below it, which the metric cannot see; exchange across it, the cheapest visible move;
- a condition: the cheapest edit of the incoming order, the same for every request, that meets it most often. Where
  `not_identity` is asked, that is one swap, for `~near_identity(swaps=n)` n + 1 of them, for a function whatever
  a search over single edits finds on one half of the requests;
- a comparison inside a group: the same order of the items however they are listed, which agrees with itself.

What is written around a ranking to please a text term is tried on every attack (`writing`), and the steps at which a
schedule begins, switches and ends get an audit each (`structure`).

May import numpy only.
"""

from __future__ import annotations

import math

import numpy as np

from rerank_env.rewards.auditing.edits import Edit, exchanged, single_edits, tail_inverted
from rerank_env.rewards.auditing.orders import (
    IDENTITY,
    Answered,
    OrderAttack,
    Try,
    edit_attack,
    fitted_attack,
    shuffled_below,
)
from rerank_env.rewards.auditing.scene import Scene
from rerank_env.rewards.conditions import NearIdentity, TauAtLeast
from rerank_env.rewards.rankings import completed, inversions_unchecked, padded
from rerank_env.rewards.reward import Condition, Reward
from rerank_env.rewards.slates import Slates, canonical_orders

LEARNED_ON = 500
"""An edit is chosen by what it does on so many requests at most."""

ALIKE = 0.01
"""Edits that meet a condition nearly as often as the best one compete by how little they change."""


def derived_attacks(reward: Reward, slates: Slates) -> list[OrderAttack]:
    """The attacks on the parts of `reward`, each once; none where a request is too short to tell."""
    attacks = _at_cut_offs(reward, int(slates.sizes_B.max()))
    attacks += [_meeting(condition) for condition in conditions_of(reward)]
    if "groups" in reward.needs:
        attacks.append(OrderAttack("fixed_item_order", _fixed_item_order))
    return attacks


def _fixed_item_order(scene: Scene, rng: np.random.Generator) -> Answered:
    """One order of the items, by a title say, for all the shuffled copies of a request."""
    slates, group_B = scene.slates, np.unique(scene.groups_B, return_inverse=True)[1]
    keys_GK = rng.random((int(group_B.max()) + 1, slates.width))
    columns_BK = np.broadcast_to(np.arange(slates.width), (len(slates), slates.width))
    keys_BK = np.take_along_axis(keys_GK[group_B], canonical_orders(columns_BK, slates), axis=1)
    rankings_BK = np.argsort(np.where(slates.mask_BK, keys_BK, 2.0), axis=1, kind="stable")
    return Answered([Try(padded(rankings_BK, slates.sizes_B))], "the items in one order, however they are listed")


def _at_cut_offs(reward: Reward, longest: int) -> list[OrderAttack]:
    attacks = []
    for k in sorted({node.k for node in reward.walk() if isinstance(getattr(node, "k", None), int)}):  # type: ignore[attr-defined]
        if k + 1 < longest:
            attacks.append(OrderAttack(f"shuffle_below_{k}", shuffled_below(k)))
        if k < longest:
            attacks.append(edit_attack(f"exchange_across_{k}", exchanged(k - 1, k)))
    return attacks


def conditions_of(reward: Reward) -> list[Condition]:
    """Every condition in a reward, and every part of one, that an answer can fail to meet."""
    found = [node for node in reward.walk() if isinstance(node, Condition) and not node.always]
    return list(dict.fromkeys(found))


def _meeting(condition: Condition) -> OrderAttack:
    """The cheapest edit that meets a condition, or nothing where none but the echo does."""

    def fit(scene: Scene, rng: np.random.Generator) -> tuple[Edit, str] | None:
        scene = scene.sample(LEARNED_ON, rng)
        slates, context = scene.slates, scene.context()
        edits, met, cost, pay = [IDENTITY, *_closer(condition, slates.width), *single_edits(slates.width)], [], [], []
        for edit in edits:
            rankings_BK = edit.rankings(slates.sizes_B, slates.width)
            met.append(float(condition.holds(rankings_BK, slates, context=context).mean()))
            cost.append(float(inversions_unchecked(completed(rankings_BK, slates.sizes_B)).mean()))
            pay.append(scene.most(rankings_BK))
        if max(met) == 0.0:
            return None  # no edit meets it
        able = [n for n in range(len(edits)) if met[n] >= max(met) - ALIKE]
        best = min(able, key=lambda n: (cost[n], -pay[n]))
        if best == 0:
            return None  # the echo does, which is an attack already
        return edits[best], f" ({met[best]:.0%} meet it)"

    return fitted_attack(f"meets {condition}", fit)


def _closer(condition: Condition, width: int) -> list[Edit]:
    """The smallest edits that are too large for the closeness to the incoming order that a condition asks about."""
    pairs, edits = width * (width - 1) // 2, []
    for node in condition.walk():
        if isinstance(node, NearIdentity):
            edits.append(node.swaps + 1)
        elif isinstance(node, TauAtLeast):  # tau = 1 - 2 * inversions / pairs
            edits.append(math.floor(pairs * (1.0 - node.tau) / 2.0) + 1)
    return [tail_inverted(inversions) for inversions in edits if inversions <= pairs]
