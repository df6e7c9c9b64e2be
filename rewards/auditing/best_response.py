"""The best response: an input-blind policy is trained against a reward, to find what is not on any list of attacks.

The policy is a Plackett-Luce law over incoming places, the same for every request: a score for each place, and an order
drawn by adding Gumbel noise to the scores and sorting (Yellott 1977). It is trained by the cross-entropy method
(Rubinstein 1999): draw orders, keep the best tenth by what they earn on a sample of requests, climb the likelihood of
those. As the expected pay is linear in the distribution over orders, some single order is as good as any policy; so the
best order that was drawn is polished by single exchanges and moves, and so is the incoming order itself. What is
written around the ranking is chosen too, where the reward looks at it. All of it happens on one half of the
users; the audit pays the result on the other half, where luck is worth nothing.

May import numpy only. Suffixes: `_K` places, `_NK` orders of places.
"""

from __future__ import annotations

import numpy as np

from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.auditing.edits import Edit, placed, single_edits
from rerank_env.rewards.auditing.orders import fitted_attack
from rerank_env.rewards.auditing.scene import TEXTUAL, Scene
from rerank_env.rewards.auditing.writing import Dress
from rerank_env.rewards.rankings import identity_rankings

ROUNDS, ORDERS, ELITE = 24, 60, 6
"""Rounds of the cross-entropy method, orders a round, and how many of them count as the best."""

CLIMBS, RATE = 8, 0.6
"""Steps up the likelihood of the best orders a round, and their size."""

DRAWN_ON = 200
"""Requests on which the orders of one round are compared."""

POLISHED_ON, EDITS, POLISHES = 500, 150, 6
"""Requests on which edits are compared, edits tried at a time, and how many of them are made at most."""

TEXT_COST = 5
"""A reward that reads texts is asked about so many times fewer requests."""


def best_response(scene: Scene, dress: Dress, rng: np.random.Generator) -> Edit:
    """The order of places that earns most on the requests of `scene`, written with `dress` around it."""
    width = scene.slates.width
    pay = _Pay(scene, dress)
    incoming_K = np.arange(width)
    # One policy starts knowing nothing, one near the incoming order.
    starts = (np.zeros(width), -np.arange(width, dtype=np.float64))
    trained = max((_trained(scores_K, pay, rng) for scores_K in starts), key=pay.of)
    sample = pay.on(POLISHED_ON, rng)
    return placed(
        max((incoming_K, *(_polished(order_K, sample, rng) for order_K in (incoming_K, trained))), key=pay.of)
    )


def _best_paid(scene: Scene, rng: np.random.Generator) -> Dress:
    """The dress in which some single edit of the incoming order, or none, earns most."""
    if len(scene.dresses) == 1:
        return scene.dresses[0]
    sample = scene.sample(POLISHED_ON // TEXT_COST, rng)
    slates = sample.slates
    tried = [identity_rankings(slates.sizes_B, slates.width)]
    tried += [edit.rankings(slates.sizes_B, slates.width) for edit in single_edits(slates.width)]
    return max(scene.dresses, key=lambda dress: max(sample.orders(order, dress=dress).pay_B.mean() for order in tried))


def _fit(half: Scene, rng: np.random.Generator) -> tuple[Edit, str]:
    return best_response(half, _best_paid(half, rng), rng), ""


BEST_RESPONSE = fitted_attack("best_response", _fit)
"""The best response as an attack: trained on one half of the users and made on the other, both ways round."""


class _Pay:
    """What an order of places earns on average."""

    def __init__(self, scene: Scene, dress: Dress) -> None:
        self.scene, self.dress, self.slates = scene, dress, scene.slates
        self.context = scene.context(dress)

    def on(self, requests: int, rng: np.random.Generator) -> _Pay:
        """The same on a sample of the requests."""
        if self.scene.reward.needs & TEXTUAL:
            requests //= TEXT_COST
        return _Pay(self.scene.sample(requests, rng), self.dress)

    def of(self, order_K: IntArray) -> float:
        """The mean over the requests."""
        rankings_BK = placed(order_K).rankings(self.slates.sizes_B, self.slates.width)
        return float(self.scene.reward(rankings_BK, self.slates, context=self.context).mean())


def _trained(scores_K: FloatArray, pay: _Pay, rng: np.random.Generator) -> IntArray:
    """The best order that the cross-entropy method finds from a policy's first scores."""
    best_K, most = np.argsort(-scores_K, kind="stable"), -np.inf
    for _ in range(ROUNDS):
        sample = pay.on(DRAWN_ON, rng)
        orders_NK = np.argsort(-(scores_K + rng.gumbel(size=(ORDERS, len(scores_K)))), axis=1)
        pay_N = np.array([sample.of(order_K) for order_K in orders_NK])
        elite_N = np.argsort(-pay_N, kind="stable")[:ELITE]
        for _ in range(CLIMBS):
            scores_K = scores_K + RATE * _score_gradient(scores_K, orders_NK[elite_N])
        if pay_N[elite_N[0]] > most:
            best_K, most = orders_NK[elite_N[0]], float(pay_N[elite_N[0]])
    learned_K = np.argsort(-scores_K, kind="stable")
    return max((best_K, learned_K), key=pay.of)


def _score_gradient(scores_K: FloatArray, orders_NK: IntArray) -> FloatArray:
    """Of the mean log-likelihood of orders under Plackett-Luce: chosen once, less the chance of it at every choice."""
    weights_NK = np.exp(scores_K - scores_K.max())[orders_NK]
    left_NK = np.cumsum(weights_NK[:, ::-1], axis=1)[:, ::-1]  # what is still to be chosen, at each choice
    chance_NK = weights_NK * np.cumsum(1.0 / left_NK, axis=1)  # summed over the choices a place was still there for
    gradient_NK = np.empty_like(chance_NK)
    np.put_along_axis(gradient_NK, orders_NK, 1.0 - chance_NK, axis=1)
    return np.asarray(gradient_NK.mean(axis=0))


def _polished(order_K: IntArray, pay: _Pay, rng: np.random.Generator) -> IntArray:
    """The order after the exchanges and moves of single places that raise its pay most, while any does."""
    earned = pay.of(order_K)
    for _ in range(POLISHES):
        tried = [edited(order_K, *edit) for edit in _edits(len(order_K), rng)]
        pays = [pay.of(order) for order in tried]
        best = int(np.argmax(pays))
        if pays[best] <= earned + 1e-12:
            break
        order_K, earned = tried[best], pays[best]
    return order_K


def _edits(width: int, rng: np.random.Generator) -> list[tuple[str, int, int]]:
    """Exchanges of two places, and moves of one to the place of another that no exchange does; of many, a sample."""
    edits = [("exchange", a, b) for a in range(width) for b in range(a + 1, width)]
    edits += [("move", a, b) for a in range(width) for b in range(width) if abs(a - b) > 1]
    return [edits[n] for n in rng.permutation(len(edits))[:EDITS]]


def edited(order_K: IntArray, kind: str, first: int, second: int) -> IntArray:
    """The order with two entries exchanged, or the first entry moved to the place of the second."""
    if kind == "move":
        return np.insert(np.delete(order_K, first), second, order_K[first])
    changed_K = order_K.copy()
    changed_K[[first, second]] = order_K[[second, first]]
    return changed_K
