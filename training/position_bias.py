"""How much a policy goes by position: the same requests under several random orders, and what changes.

May import numpy, `rerank_env` and the torch-free part of `rerank_env.agents`. A policy that reads the candidates
answers alike whatever order they come in; one that goes by position is seen here from four sides. SLOT LIFT: how often
the candidate that stands in an incoming slot is answered first, over the 1/K of chance; and the mean place it is given.
SPREAD: how far a candidate's place and the metric vary between orders. AGREEMENT: Kendall's tau between two answers to
one request, and the flip rate, the share of candidate pairs that change their order. COPYING: answers equal or near to
the order that was shown. Ours. Run it with `rerank bias`.

The scores of the earlier stage move with their candidates, so a policy that sorts by them has no position bias and may
still copy. Every number is a ratio of sums over valid answers, or over pairs of valid answers to one request, so that
requests of any size weigh alike; its interval is a percentile bootstrap over users (`bootstrap.py`). A policy that
samples differs from itself without any bias: read its numbers beside those of `Random`. Suffixes: `_B` requests,
`_S` shuffles, `_K` candidates, slots or places, `_C` columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rerank_env.agents import Policy
from rerank_env.data.requests import Requests
from rerank_env.rewards import parse_reward
from rerank_env.rewards.answers import answers_of
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.context import Context
from rerank_env.rewards.copies import Copying, copying
from rerank_env.rewards.counterfactual import ShuffledGroups, canonical_orders, shuffled_groups
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import ranks_unchecked
from rerank_env.training.bootstrap import ClusterBootstrap, Interval, cluster_bootstrap
from rerank_env.training.evaluate import ranked

RESAMPLES = 2000


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
        plain: dict[str, Any] = _plain(asdict(self) | {"copying": self.copying._asdict()})
        return plain

    def __str__(self) -> str:
        """Two tables of fixed-width columns: the numbers of the policy, and of each slot."""
        near = self.copying
        rows = {
            "Kendall tau of two answers": _shown(self.kendall_tau),
            "flip rate": _shown(self.flip_rate),
            "variance of a place": f"{_shown(self.place_variance)}, {self.chance_place_variance:.4f} by chance",
            self.metric: _shown(self.metric_mean),
            f"variance of {self.metric}": _shown(self.metric_variance),
            "equal to the order shown": f"{near.identity_rate:.1%}, near it {near.near_identity_rate:.1%}",
        }
        return "\n".join(
            [
                f"{self.data}: {self.n_requests} requests, {self.shuffles} random orders of each, "
                f"{self.validity:.1%} of the answers valid",
                *(f"{name:<28} {value}" for name, value in rows.items()),
                f"{'slot':<5} {'answered first, over chance':<30} {'place given':<30} {'by chance':>9}",
                *(
                    f"{slot.slot:<5} {_shown(slot.lift):<30} {_shown(slot.mean_place):<30} {slot.chance_place:>9.4f}"
                    for slot in self.slots
                ),
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

    `metric` is any reward by its text. `seed` decides orders, resamples, and what a policy that samples is given.
    Invalid answers are counted and left out. Raises `InputError` for no requests, fewer than 2 shuffles, or answers of
    the wrong shape.
    """
    if not len(requests):
        raise InputError("there are no requests to ask about; give at least one")
    whole("shuffles", shuffles, least=2)
    reward = parse_reward(metric)
    orders_rng, policy_rng, bootstrap_rng = (np.random.default_rng([seed, stream]) for stream in range(3))
    groups = shuffled_groups(requests.slates, shuffles, orders_rng)
    rankings_BK = np.empty(groups.slates.relevance_BK.shape, dtype=np.int64)
    for shuffle in range(shuffles):
        rows = slice(shuffle, None, shuffles)
        shown = requests.reordered(groups.slates.canonical_BK[rows])  # type: ignore[index]
        rankings_BK[rows] = ranked("under test", policy, shown, policy_rng)
    metric_B = reward(rankings_BK, groups.slates, context=Context(groups_B=groups.groups_B))
    columns = _columns(rankings_BK, groups, metric_B, shuffles)
    table_BC = np.concatenate(list(columns.values()), axis=1)
    ratios = _Ratios(columns, cluster_bootstrap(table_BC, requests.users_B, resamples=resamples, rng=bootstrap_rng))
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
        kendall_tau=ratios.interval("tau", "pairs"),
        flip_rate=ratios.interval("flips", "pairs"),
        place_variance=ratios.interval("place_variance", "pairs"),
        chance_place_variance=ratios.interval("chance_place_variance", "pairs").value,
        metric_mean=ratios.interval("metric", "valid"),
        metric_variance=ratios.interval("metric_variance", "pairs"),
        slots=tuple(
            Slot(
                slot=slot + 1,
                answers=int(answers_K[slot]),
                lift=ratios.interval("first", "has_slot", slot),
                mean_place=ratios.interval("place", "has_slot", slot),
                chance_place=ratios.interval("chance_place", "has_slot", slot).value,
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
    flipped_B1 = _discordant(canonical_BSK, valid_BS, sizes_B1) / (sizes_B1 * (sizes_B1 - 1) / 2)
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


def _discordant(ranks_BSK: IntArray, valid_BS: BoolArray, sizes_B1: IntArray) -> FloatArray:
    """[B, 1]: over pairs of valid answers to a request, how many candidate pairs stand in different orders.

    With n valid answers of which v have one order of a candidate pair, v (n - v) pairs of answers disagree on it.
    """
    width = ranks_BSK.shape[2]
    valid_BS1 = valid_BS[:, :, None]
    valid_B1 = valid_BS.sum(axis=1, keepdims=True)
    discordant_B1 = np.zeros(valid_B1.shape)
    for candidate in range(width - 1):
        before_BSJ = ranks_BSK[:, :, candidate, None] < ranks_BSK[:, :, candidate + 1 :]
        votes_BJ = (before_BSJ & valid_BS1).sum(axis=1)
        real_BJ = np.arange(candidate + 1, width) < sizes_B1
        discordant_B1 += (votes_BJ * (valid_B1 - votes_BJ) * real_BJ).sum(axis=1, keepdims=True)
    return discordant_B1


def _squared_differences(values_BSC: IntArray | FloatArray, valid_BS: BoolArray) -> FloatArray:
    """[B, C]: squared differences of the values, summed over pairs of valid answers: n times the sum of squares."""
    valid_BS1 = valid_BS[:, :, None]
    valid_B1 = np.maximum(valid_BS.sum(axis=1, keepdims=True), 1)
    mean_BC = (values_BSC * valid_BS1).sum(axis=1) / valid_B1
    squares_BC: FloatArray = (((values_BSC - mean_BC[:, None]) * valid_BS1) ** 2).sum(axis=1) * valid_B1
    return squares_BC


@dataclass(frozen=True, eq=False)
class _Ratios:
    """Ratios of summed columns, with intervals: of the users drawn, those who have any of what is divided by."""

    columns: Mapping[str, FloatArray]
    bootstrap: ClusterBootstrap

    def interval(self, part: str, whole: str, slot: int = 0) -> Interval:
        above, below = self._place(part) + slot, self._place(whole) + slot
        means_C, resampled_RC = self.bootstrap.means_C, self.bootstrap.resampled_RC
        drawn_R = resampled_RC[:, below] > 0
        if not means_C[below] or not drawn_R.any():
            return Interval(math.nan, math.nan, math.nan)
        tail = (1.0 - self.bootstrap.level) / 2.0
        low, high = np.quantile(resampled_RC[drawn_R, above] / resampled_RC[drawn_R, below], [tail, 1.0 - tail])
        return Interval(float(means_C[above] / means_C[below]), float(low), float(high))

    def _place(self, name: str) -> int:
        names = list(self.columns)
        return sum(self.columns[other].shape[1] for other in names[: names.index(name)])


def _shown(interval: Interval) -> str:
    return f"{interval.value:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
