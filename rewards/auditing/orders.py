"""Attacks that are rankings: valid answers that can be given without reading the request. May import numpy only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.auditing.edits import Edit, exchanged, placed, reverse, rotated, tail_inverted
from rerank_env.rewards.auditing.scene import Scene
from rerank_env.rewards.rankings import (
    completed,
    from_scores,
    identity_rankings,
    padded,
    random_rankings,
    ranks_unchecked,
)
from rerank_env.rewards.slates import Slates, ideal_rankings

DRAWS = 8
"""How often a random attack answers each request; its pay is the mean."""


class Try(NamedTuple):
    """Rankings [B, K], and the slates they answer where these are not the audited ones."""

    rankings_BK: IntArray
    slates: Slates | None = None


class Answered(NamedTuple):
    """What an attack answers, once or several times over, and what it does in words."""

    tries: list[Try]
    about: str


@dataclass(frozen=True, eq=False)
class OrderAttack:
    """A way of ranking without reading, or a yardstick for it; what is written around the ranking is not its business.

    `answers` returns None where the attack cannot be made on such requests.
    """

    name: str
    answers: Callable[[Scene, np.random.Generator], Answered | None]
    kind: Literal["blind", "yardstick"] = "blind"


def edit_attack(name: str, edit: Edit) -> OrderAttack:
    """The attack that makes one edit everywhere."""

    def answers(scene: Scene, rng: np.random.Generator) -> Answered:
        del rng  # nothing is random here
        return Answered([Try(edit.rankings(scene.slates.sizes_B, scene.slates.width))], edit.about)

    return OrderAttack(name, answers)


Fit = Callable[[Scene, np.random.Generator], tuple[Edit, str] | None]


def fitted_attack(name: str, fit: Fit) -> OrderAttack:
    """The attack that chooses its edit on one half of the users and makes it on the other half, both ways round.

    `fit` is given the scene of one half, and says what there is to say besides what the edit does; None for no such
    edit. With fewer than two users nothing can be chosen.
    """

    def answers(scene: Scene, rng: np.random.Generator) -> Answered | None:
        slates = scene.slates
        rankings_BK = identity_rankings(slates.sizes_B, slates.width)
        chosen: dict[str, str] = {}
        first_B = halves(scene.users_B, rng)
        if first_B.all():
            return None
        for learn_B in (first_B, ~first_B):
            found = fit(scene.take(learn_B), rng)
            if found is None:
                return None
            edit, note = found
            rankings_BK[~learn_B] = edit.rankings(slates.sizes_B[~learn_B], slates.width)
            chosen.setdefault(edit.about, edit.about + note)
        return Answered([Try(rankings_BK)], "; ".join(chosen.values()))

    return OrderAttack(name, answers)


def halves(users_B: IntArray, rng: np.random.Generator) -> BoolArray:
    """Which requests are of the first half of the users, bool [B]; all of them where there is one user."""
    users, user_B = np.unique(users_B, return_inverse=True)
    first_U = rng.permutation(len(users)) < (len(users) + 1) // 2
    first_B: BoolArray = first_U[user_B]
    return first_B


def _oracle(scene: Scene, rng: np.random.Generator) -> Answered:
    del rng  # nothing is random here
    return Answered([Try(ideal_rankings(scene.slates))], "the most relevant candidate first")


def _anti_oracle(scene: Scene, rng: np.random.Generator) -> Answered:
    del rng  # nor here
    slates = scene.slates
    keys_BK = np.where(slates.mask_BK, slates.relevance_BK, np.inf)
    worst_BK = padded(np.argsort(keys_BK, axis=1, kind="stable"), slates.sizes_B)
    return Answered([Try(worst_BK)], "the most relevant candidate last")


def _position_prior(scene: Scene, rng: np.random.Generator) -> tuple[Edit, str]:
    """The places in order of the mean relevance that was found in each."""
    del rng
    slates = scene.slates
    shown_K = np.maximum(slates.mask_BK.sum(axis=0), 1)
    return placed(np.argsort(-slates.relevance_BK.sum(axis=0) / shown_K, kind="stable")), ""


def _popularity(scene: Scene, rng: np.random.Generator) -> Answered | None:
    if scene.popularity_BK is None:
        return None
    rankings_BK, _ = from_scores(scene.popularity_BK, scene.slates.sizes_B, ties="random", rng=rng)
    return Answered([Try(rankings_BK)], "the most popular candidate first, whoever asks")


def shuffled_below(k: int | None) -> Callable[[Scene, np.random.Generator], Answered]:
    """The first `k` candidates as they came (None: the first half), the rest in random order."""

    def answers(scene: Scene, rng: np.random.Generator) -> Answered:
        sizes_B, width = scene.slates.sizes_B, scene.slates.width
        kept_B = (sizes_B + 1) // 2 if k is None else np.full(len(sizes_B), k)
        columns_K = np.arange(width)
        tries = []
        for _ in range(DRAWS):
            keys_BK = np.where(columns_K < kept_B[:, None], columns_K - width, rng.random((len(sizes_B), width)))
            keys_BK = np.where(columns_K < sizes_B[:, None], keys_BK, 1.0 + columns_K)
            tries.append(Try(padded(np.argsort(keys_BK, axis=1), sizes_B)))
        kept = "the first half" if k is None else f"the first {k}"
        return Answered(tries, f"{kept} as it came, the rest shuffled")

    return answers


def _random(scene: Scene, rng: np.random.Generator) -> Answered:
    """Every order equally likely."""
    sizes_B, width = scene.slates.sizes_B, scene.slates.width
    return Answered([Try(random_rankings(sizes_B, width, rng)) for _ in range(DRAWS)], "every order equally likely")


def _random_on_shuffled(scene: Scene, rng: np.random.Generator) -> Answered:
    """Random answers to an incoming order that is random too, so that neither knows anything.

    Each pair of orders is used both ways round, once as incoming order and once as answer: a reward that changes its
    sign with them, as a difference of qualities does, earns exactly 0 here and not 0 within noise.
    """
    slates, sizes_B, tries = scene.slates, scene.slates.sizes_B, []
    for _ in range(DRAWS // 2):
        pair = [random_rankings(sizes_B, slates.width, rng) for _ in range(2)]
        for incoming_BK, answer_BK in (pair, pair[::-1]):
            ranks_BK = ranks_unchecked(completed(incoming_BK, sizes_B))
            places_BK = np.take_along_axis(ranks_BK, completed(answer_BK, sizes_B), axis=1)
            tries.append(Try(padded(places_BK, sizes_B), slates.reordered(incoming_BK)))
    return Answered(tries, "every order equally likely, after the incoming order was shuffled")


IDENTITY = Edit("the incoming order echoed", identity_rankings)

BLIND: tuple[OrderAttack, ...] = (
    OrderAttack("random", _random),
    edit_attack("identity", IDENTITY),
    edit_attack("one_swap", tail_inverted(1)),
    edit_attack("two_swaps", tail_inverted(2)),
    edit_attack("top_swap", exchanged(0, 1)),
    edit_attack("rotated", rotated()),
    edit_attack("reverse", reverse()),
    OrderAttack("tail_shuffle", shuffled_below(None)),
    fitted_attack("position_prior", _position_prior),
    OrderAttack("popularity", _popularity),
    OrderAttack("random_on_shuffled", _random_on_shuffled),
)
"""The attacks that every reward meets; `one_swap`, `two_swaps` and `top_swap` are the incoming order nearly echoed."""


YARDSTICKS: tuple[OrderAttack, ...] = (
    OrderAttack("oracle", _oracle, kind="yardstick"),
    OrderAttack("anti_oracle", _anti_oracle, kind="yardstick"),
)
"""What the attacks are measured against: the most and, as a rule, the least that a valid answer can earn."""
