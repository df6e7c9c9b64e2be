"""How good policies are on held-out requests, beside the incoming order, random and oracle, with intervals.

May import numpy, `rerank_env` and the torch-free part of `rerank_env.agents`. Departs from the tables of GR2
(2602.07774), which print means only: every mean and every paired difference comes with a percentile bootstrap over
users (`rewards.bootstrap`), and beside the metrics stand the signs of a policy that copies its input: how often the
answer equals the incoming order, Kendall's tau to it, and the SHUFFLED-INPUT TEST. There the candidates of every
request are put into a seeded random order first; whoever reads the items answers as before (`agreement` near 1, `drop`
near 0), whoever goes by position falls to the random row (not who sorts by the scores, which travel with the
candidates: see `hidden.py`). Run it with `rerank eval`. Suffixes: `_B` requests, `_K` candidates.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.agents import Incoming, Oracle, Policy, Random
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward, parse_reward, rankings
from rerank_env.rewards.answers import checked_rankings
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.bootstrap import ClusterBootstrap, Interval, cluster_bootstrap, known
from rerank_env.rewards.copies import copying
from rerank_env.rewards.counterfactual import ShuffledGroups, shuffled_groups
from rerank_env.rewards.errors import InputError, RankingError

METRICS = ("recall@1", "recall@3", "recall@5", "ndcg@3", "ndcg@5", "ndcg@10", "mrr", "auc")
"""What is reported unless other metrics are named; each is a reward of this library, so an invalid answer scores 0."""

INCOMING, RANDOM, ORACLE = "incoming", "random", "oracle"


@dataclass(frozen=True, eq=False)
class Row:
    """One policy's answers, averaged over its seeds request by request.

    `values` and `shuffled` [B] a metric: on the requests as they came, and with the candidates shuffled. `validity`:
    share of answers that are permutations, before any repair. Over valid answers, nan if there are none:
    `identity_rate`, `near_identity_rate` and `kendall_tau`, the signs of copying (`rewards.copies`); `agreement`,
    Kendall's tau between a policy's answers to a request and to the same request shuffled.
    """

    seeds: int
    values: Mapping[str, FloatArray]
    shuffled: Mapping[str, FloatArray]
    validity: float
    identity_rate: float
    near_identity_rate: float
    kendall_tau: float
    agreement: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The table: `rows` by name, first incoming, random and oracle, then the policies in the order given."""

    data: str
    n_requests: int
    n_users: int
    metrics: tuple[str, ...]
    rows: Mapping[str, Row]
    seed: int
    resamples: int
    bootstrap: ClusterBootstrap = field(repr=False)

    def mean(self, name: str, metric: str) -> Interval:
        """Mean of a metric over requests."""
        return self.bootstrap.interval(self._column(name, metric))

    def difference(self, name: str, baseline: str, metric: str) -> Interval:
        """Mean paired difference `name` minus `baseline`; no gain may be claimed unless it `is_gain`."""
        return self.bootstrap.difference(self._column(name, metric), self._column(baseline, metric))

    def gain(self, name: str, metric: str) -> Interval:
        """Mean paired difference to the incoming order."""
        return self.difference(name, INCOMING, metric)

    def relative(self, name: str, metric: str) -> Interval:
        """The gain over the incoming order as a share of the incoming order's mean; both vary with the users drawn.

        nan where the incoming order has none.
        """
        ratio = self.bootstrap.ratio(self._column(name, metric), self._column(INCOMING, metric))
        return Interval(ratio.value - 1.0, ratio.low - 1.0, ratio.high - 1.0)

    def shuffled(self, name: str, metric: str) -> Interval:
        """Mean of a metric when the candidates arrive in random order."""
        return self.bootstrap.interval(self._column(name, metric, shuffled=True))

    def drop(self, name: str, metric: str) -> Interval:
        """What shuffling the candidates takes away: mean on the requests as they came minus mean on shuffled ones."""
        return self.bootstrap.difference(self._column(name, metric), self._column(name, metric, shuffled=True))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: every mean, gain, shuffled mean and drop with its interval, and the scalars of each row."""
        views = {"metrics": self.mean, "gain": self.gain, "shuffled": self.shuffled, "drop": self.drop}
        rows = {
            name: {
                "seeds": row.seeds,
                "validity": row.validity,
                "identity_rate": known(row.identity_rate),
                "near_identity_rate": known(row.near_identity_rate),
                "kendall_tau": known(row.kendall_tau),
                "agreement": known(row.agreement),
                **{view: {m: of(name, m).to_dict() for m in self.metrics} for view, of in views.items()},
            }
            for name, row in self.rows.items()
        }
        return {
            "data": self.data,
            "n_requests": self.n_requests,
            "n_users": self.n_users,
            "seed": self.seed,
            "resamples": self.resamples,
            "level": self.bootstrap.level,
            "rows": rows,
        }

    def _column(self, name: str, metric: str, *, shuffled: bool = False) -> int:
        names = list(self.rows)
        if name not in self.rows or metric not in self.metrics:
            raise InputError(
                f"{name!r} and {metric!r} are not in this evaluation; it has rows {', '.join(names)} and metrics "
                f"{', '.join(self.metrics)}"
            )
        return (2 * names.index(name) + shuffled) * len(self.metrics) + self.metrics.index(metric)


def evaluate(
    requests: Requests,
    policies: Mapping[str, Policy | Sequence[Policy]],
    *,
    seed: int,
    resamples: int = 2000,
    metrics: Sequence[str] = METRICS,
) -> Evaluation:
    """Compare `policies` with one another and with incoming, random and oracle on `requests`.

    A sequence under one name is several seeds of one policy: their values are averaged request by request, so that the
    interval covers the choice of users, with the seeds given. `seed` decides the shuffling, the random row, the
    resamples, and what policies that sample are given. Raises `InputError` on an empty set of requests, a policy
    named like a baseline, or answers of the wrong shape.
    """
    if len(requests) == 0:
        raise InputError("there are no requests to evaluate on; give at least one")
    baselines: dict[str, Policy] = {INCOMING: Incoming(), RANDOM: Random(), ORACLE: Oracle()}
    taken = [name for name in policies if name in baselines]
    if taken:
        raise InputError(f"{taken[0]!r} is the name of a baseline that is always evaluated; name your policy otherwise")
    if not metrics or len(set(metrics)) < len(metrics):
        raise InputError(f"metrics are {list(metrics)}; name at least one, and each once")
    rewards = {metric: parse_reward(metric) for metric in metrics}
    asked = replace(requests.slates, canonical_BK=None)  # the order they come in is the one that is shuffled
    shuffled = shuffled_groups(asked, 1, np.random.default_rng([seed, _number("shuffle")]))
    shuffled_requests = requests.reordered(shuffled.slates.canonical_BK)  # type: ignore[arg-type]
    rows: dict[str, Row] = {}
    for name, given in {**baselines, **policies}.items():
        seeds = list(given) if isinstance(given, Sequence) else [given]
        if not seeds:
            raise InputError(f"policy {name!r} has no seeds; give at least one")
        rng = np.random.default_rng([seed, _number(name)])
        single = [_answered(name, p, requests, shuffled_requests, shuffled, rewards, rng) for p in seeds]
        rows[name] = _averaged(single)
    values_BC = np.stack([v for row in rows.values() for part in (row.values, row.shuffled) for v in part.values()], 1)
    rng = np.random.default_rng([seed, _number("bootstrap")])
    bootstrap = cluster_bootstrap(values_BC, requests.users_B, resamples=resamples, rng=rng)
    users = len(np.unique(requests.users_B))
    return Evaluation(requests.name, len(requests), users, tuple(metrics), rows, seed, resamples, bootstrap)


def _answered(
    name: str,
    policy: Policy,
    requests: Requests,
    shuffled_requests: Requests,
    shuffled: ShuffledGroups,
    rewards: Mapping[str, Reward],
    rng: np.random.Generator,
) -> Row:
    answers_BK = ranked(name, policy, requests, rng)
    shuffled_BK = ranked(name, policy, shuffled_requests, rng)
    sizes_B = requests.sizes_B
    valid_B = rankings.verdicts(answers_BK, sizes_B) == rankings.Verdict.OK
    both_B = valid_B & (rankings.verdicts(shuffled_BK, sizes_B) == rankings.Verdict.OK)
    ranks_BK = rankings.invert(answers_BK[both_B], sizes_B[both_B])
    there_BK = rankings.completed(shuffled.to_canonical(shuffled_BK)[both_B], sizes_B[both_B])
    between_BK = rankings.padded(np.take_along_axis(ranks_BK, there_BK, axis=1), sizes_B[both_B])
    agreement_B = rankings.kendall_tau(between_BK, sizes_B[both_B])
    return Row(
        seeds=1,
        values={m: r.score(answers_BK, requests.slates).total_B for m, r in rewards.items()},
        shuffled={m: r.score(shuffled_BK, shuffled_requests.slates).total_B for m, r in rewards.items()},
        validity=float(valid_B.mean()),
        **copying(answers_BK, sizes_B)._asdict(),
        agreement=_mean(agreement_B),
    )


def ranked(name: str, policy: Policy, requests: Requests, rng: np.random.Generator) -> IntArray:
    """The policy's answers, legal or not, as int64 [B, K]; `InputError` with its `name` for anything else."""
    answers_BK = policy.rank(requests, rng=rng)
    try:
        return checked_rankings(answers_BK, requests.slates)
    except RankingError as error:
        raise InputError(f"policy {name!r} gave no rankings: {error}") from error


def _averaged(single: Sequence[Row]) -> Row:
    def pooled(parts: Sequence[Mapping[str, FloatArray]]) -> dict[str, FloatArray]:
        return {metric: np.mean([part[metric] for part in parts], axis=0) for metric in parts[0]}

    return Row(
        seeds=len(single),
        values=pooled([row.values for row in single]),
        shuffled=pooled([row.shuffled for row in single]),
        validity=_mean([row.validity for row in single]),
        identity_rate=_mean([row.identity_rate for row in single]),
        near_identity_rate=_mean([row.near_identity_rate for row in single]),
        kendall_tau=_mean([row.kendall_tau for row in single]),
        agreement=_mean([row.agreement for row in single]),
    )


def _mean(values: npt.ArrayLike) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if array.size else float("nan")


def _number(name: str) -> int:
    """A fixed number for a name, so that adding a policy leaves the others' random streams as they were."""
    return zlib.crc32(name.encode())
