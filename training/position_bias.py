"""How much a policy goes by position: the same requests under several random orders, and what changes.

May import numpy, `rerank_env` and the torch-free part of `rerank_env.agents`. A policy that reads the candidates
answers alike whatever order they come in; one that goes by position is seen here from four sides. SLOT LIFT: how often
the candidate that stands in an incoming slot is answered first, over the 1/K of chance; and the mean place it is given.
SPREAD: how far a candidate's place and the metric vary between orders. AGREEMENT: Kendall's tau between two answers to
one request, and the flip rate, the share of candidate pairs that change their order. COPYING: answers equal or near to
the order that was shown. Ours. Run it with `rerank bias`.

The scores of the earlier stage move with their candidates, so a policy that sorts by them has no position bias and may
still copy. Every number is a ratio of sums over valid answers, or over pairs of valid answers to one request, so that
requests of any size weigh alike; its interval is a percentile bootstrap over users (`rewards.bootstrap`). A policy that
samples differs from itself without any bias: read its numbers beside those of `Random`. Suffixes: `_B` requests,
`_S` shuffles, `_K` candidates, slots or places, `_C` columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rerank_env.agents import Policy
from rerank_env.data.requests import Requests
from rerank_env.rewards import parse_reward
from rerank_env.rewards.answers import answers_of
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.bootstrap import Interval, cluster_bootstrap, known
from rerank_env.rewards.context import HINTS, UNITS, Context, check_met
from rerank_env.rewards.copies import Copying, copying
from rerank_env.rewards.counterfactual import ShuffledGroups, shuffled_groups
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.groups import Consistency
from rerank_env.rewards.rankings import ranks_unchecked
from rerank_env.rewards.slates import canonical_orders
from rerank_env.training.evaluate import ranked

RESAMPLES = 2000

LEGEND = (
    "lift: how often the candidate in a slot is answered first; 1 is chance",
    "variance: how much it differs between two orders of one request; 0 is steady",
    "flip rate: pairs of candidates that change their order; 0 is steady, 0.5 chance",
)
"""How to read the numbers, in lines of 80."""

REMEDIES = {
    **HINTS,
    **dict.fromkeys((*UNITS, "reasonings"), "policies answer with rankings: take a metric of rankings"),
    "step": "no training step is asked about: take a metric without a schedule",
}
"""What to do about a metric that needs more than there is here."""


@dataclass(frozen=True)
class Slot:
    """An incoming place, from 1, over the `answers` valid answers to requests that are long enough to have it.

    `lift`: how often its candidate is answered first, times the number of candidates, so that 1 is chance and K is
    always. `mean_place`: the place its candidate is given, beside the `chance_place` of a random order. By chance one
    interval in twenty misses 1, so look for a pattern, not for one slot.
    """

    slot: int
    answers: int
    lift: Interval
    mean_place: Interval
    chance_place: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return vars(self) | {"lift": self.lift.to_dict(), "mean_place": self.mean_place.to_dict()}


@dataclass(frozen=True)
class PositionBias:
    """What `position_bias` found; `str()` is a table.

    `validity`: share of answers that are rankings; all else is about these. `copying`: how near they are to the order
    that was shown. Between two answers to one request under different orders: `kendall_tau`, `flip_rate`, which is
    (1 - kendall_tau) / 2, and `place_variance` of a candidate and `metric_variance`, half the mean squared difference;
    a random order has `chance_place_variance`. nan where nothing is known.
    """

    data: str
    n_requests: int
    n_users: int
    shuffles: int
    seed: int
    metric: str
    validity: float
    copying: Copying
    kendall_tau: Interval
    flip_rate: Interval
    place_variance: Interval
    chance_place_variance: float
    metric_mean: Interval
    metric_variance: Interval
    slots: tuple[Slot, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: nan is None."""
        intervals = {name: value.to_dict() for name, value in vars(self).items() if isinstance(value, Interval)}
        return (
            vars(self)
            | intervals
            | {
                "copying": {name: known(value) for name, value in self.copying._asdict().items()},
                "chance_place_variance": known(self.chance_place_variance),
                "slots": [slot.to_dict() for slot in self.slots],
            }
        )

    def __str__(self) -> str:
        """Two tables of fixed-width columns: the numbers of the policy, and of each slot."""
        near = self.copying
        rows = {
            "Kendall tau of two answers": self.kendall_tau,
            "flip rate": self.flip_rate,
            "variance of a place": f"{self.place_variance}, {self.chance_place_variance:.4f} by chance",
            self.metric: self.metric_mean,
            f"variance of {self.metric}": self.metric_variance,
            "equal to the order shown": f"{near.identity_rate:.1%}, near it {near.near_identity_rate:.1%}",
        }
        return "\n".join(
            [
                self.data,
                f"{self.n_requests} requests, {self.shuffles} random orders of each, {self.validity:.1%} of the "
                "answers valid",
                *(f"{name:<28} {value}" for name, value in rows.items()),
                f"{'slot':<4}  {'lift':<25}  {'place given':<25}  {'by chance':>9}",
                *(
                    f"{slot.slot:<4}  {slot.lift!s:<25}  {slot.mean_place!s:<25}  {slot.chance_place:>9.4f}"
                    for slot in self.slots
                ),
                *LEGEND,
            ]
        )


def position_bias(
    policy: Policy,
    requests: Requests,
    *,
    shuffles: int = 8,
    seed: int = 0,
    metric: str = "ndcg@10",
    resamples: int = RESAMPLES,
) -> PositionBias:
    """Ask `policy` about `requests` under `shuffles` random orders of each, and see what position does.

    `metric` is any reward of rankings by its text. `seed` decides orders, resamples, and what a policy that samples is
    given. Invalid answers are counted and left out. Raises `InputError` for no requests, fewer than 2 shuffles, answers
    of the wrong shape, and a metric that needs what is not known here, such as a training step.
    """
    if not len(requests):
        raise InputError("there are no requests to ask about; give at least one")
    whole("shuffles", shuffles, least=2)
    reward = parse_reward(metric)
    check_met(reward.needs, requests.slates.provides | {"groups"}, f"the metric {metric}", REMEDIES)
    orders_rng, policy_rng, bootstrap_rng = (np.random.default_rng([seed, stream]) for stream in range(3))
    asked = replace(requests.slates, canonical_BK=None)  # the order they come in is the one that is shuffled
    groups = shuffled_groups(asked, shuffles, orders_rng)
    rankings_BK = np.empty(groups.slates.relevance_BK.shape, dtype=np.int64)
    for shuffle in range(shuffles):
        rows = slice(shuffle, None, shuffles)
        shown = requests.reordered(groups.slates.canonical_BK[rows])  # type: ignore[index]
        rankings_BK[rows] = ranked("under test", policy, shown, policy_rng)
    metric_B = reward(rankings_BK, groups.slates, context=Context(groups_B=groups.groups_B))
    columns = _columns(rankings_BK, groups, metric_B, shuffles)
    table_BC = np.concatenate(list(columns.values()), axis=1)
    bootstrap = cluster_bootstrap(table_BC, requests.users_B, resamples=resamples, rng=bootstrap_rng)
    starts = np.cumsum([0] + [values.shape[1] for values in columns.values()])[:-1]
    first = dict(zip(columns, starts.tolist(), strict=True))

    def ratio(part: str, of: str, slot: int = 0) -> Interval:
        return bootstrap.ratio(first[part] + slot, first[of] + slot)

    answers_K = columns["has_slot"].sum(axis=0)
    return PositionBias(
        data=requests.name,
        n_requests=len(requests),
        n_users=len(np.unique(requests.users_B)),
        shuffles=shuffles,
        seed=seed,
        metric=metric,
        validity=float(columns["valid"].sum() / len(rankings_BK)),
        copying=copying(rankings_BK, groups.slates),
        kendall_tau=ratio("tau", "pairs"),
        flip_rate=ratio("flips", "pairs"),
        place_variance=ratio("place_variance", "pairs"),
        chance_place_variance=ratio("chance_place_variance", "pairs").value,
        metric_mean=ratio("metric", "valid"),
        metric_variance=ratio("metric_variance", "pairs"),
        slots=tuple(
            Slot(
                slot=slot + 1,
                answers=int(answers_K[slot]),
                lift=ratio("first", "has_slot", slot),
                mean_place=ratio("place", "has_slot", slot),
                chance_place=ratio("chance_place", "has_slot", slot).value,
            )
            for slot in np.flatnonzero(answers_K).tolist()
        ),
    )


def _columns(
    rankings_BK: IntArray, groups: ShuffledGroups, metric_B: FloatArray, shuffles: int
) -> Mapping[str, FloatArray]:
    """The sums that ratios are made of, one row a request, [B, 1] or one column a slot [B, K]."""
    answers = answers_of(rankings_BK, groups.slates, None)
    shape = (-1, shuffles, groups.slates.width)
    sizes_B1 = groups.slates.sizes_B[::shuffles, None]
    valid_BS = answers.valid_B.reshape(-1, shuffles)
    valid_BS1 = valid_BS[:, :, None]
    valid_B1 = valid_BS.sum(axis=1, keepdims=True)
    pairs_B1 = valid_B1 * (valid_B1 - 1) / 2.0
    slots_K = np.arange(groups.slates.width)
    has_slot_BK = valid_B1 * (slots_K < sizes_B1)
    places_BSK = ranks_unchecked(answers.orders_BK).reshape(shape) + 1
    canonical_BSK = ranks_unchecked(canonical_orders(answers.orders_BK, groups.slates)).reshape(shape)
    consistency_B = Consistency()(rankings_BK, groups.slates, context=Context(groups_B=groups.groups_B))
    # An answer disagrees with n - 1 others by 1 - its consistency, which counts every two answers twice.
    differing_BS = (1.0 - consistency_B.reshape(-1, shuffles)) * valid_BS
    flipped_B1 = differing_BS.sum(axis=1, keepdims=True) * (valid_B1 - 1) / 2
    metric_BS1 = metric_B.reshape(-1, shuffles, 1)
    columns = {
        "valid": valid_B1,
        "pairs": pairs_B1,
        "flips": flipped_B1,
        "tau": pairs_B1 - 2 * flipped_B1,
        "place_variance": (_squared_differences(canonical_BSK, valid_BS) / 2).sum(axis=1, keepdims=True) / sizes_B1,
        "chance_place_variance": pairs_B1 * (sizes_B1**2 - 1) / 12,
        "metric": (metric_BS1 * valid_BS1).sum(axis=1),
        "metric_variance": _squared_differences(metric_BS1, valid_BS) / 2,
        "has_slot": has_slot_BK,
        "first": ((places_BSK == 1) & valid_BS1).sum(axis=1) * sizes_B1,
        "place": (places_BSK * valid_BS1).sum(axis=1) * (slots_K < sizes_B1),
        "chance_place": has_slot_BK * (sizes_B1 + 1) / 2,
    }
    return {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}


def _squared_differences(values_BSC: IntArray | FloatArray, valid_BS: BoolArray) -> FloatArray:
    """[B, C]: squared differences of the values, summed over pairs of valid answers: n times the sum of squares."""
    valid_BS1 = valid_BS[:, :, None]
    valid_B1 = np.maximum(valid_BS.sum(axis=1, keepdims=True), 1)
    mean_BC = (values_BSC * valid_BS1).sum(axis=1) / valid_B1
    squares_BC: FloatArray = (((values_BSC - mean_BC[:, None]) * valid_BS1) ** 2).sum(axis=1) * valid_B1
    return squares_BC
