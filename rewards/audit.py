"""What known hacks would earn under a reward, beside two honest yardsticks.

A hack is an answer that can be given without reading the request: echoing the incoming order or nearly so, turning it
round, or writing something that is no ranking at all. On data whose incoming order is better than random, a sound
reward pays no hack what an honest improvement would earn. May import numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from rerank_env.rewards.errors import InputError
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.rankings import Verdict, ideal_rankings, identity_rankings, random_rankings
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.slates import IntArray, Slates

Kind = Literal["honest", "hack"]


@dataclass(frozen=True)
class AuditRow:
    """One way of answering: what it earns on average, how many of its answers are valid, and its share of the oracle.

    `share_of_oracle` is its mean reward over the oracle's, None where the oracle earns nothing. `verdict` is what its
    answers are.
    """

    name: str
    kind: Kind
    mean_reward: float
    valid_share: float
    share_of_oracle: float | None
    verdict: Verdict


@dataclass(frozen=True)
class AuditReport:
    """The rows of an audit, for `reward` on `requests` slates; `str()` is a table."""

    reward: str
    requests: int
    rows: tuple[AuditRow, ...]

    def __getitem__(self, name: str) -> AuditRow:
        """The row of that name. Raises `KeyError` if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def best_hack(self) -> AuditRow:
        """The hack that earns most, the first of equals."""
        return max((row for row in self.rows if row.kind == "hack"), key=lambda row: row.mean_reward)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; verdicts by name in lower case."""
        rows = [asdict(row) | {"verdict": row.verdict.name.lower()} for row in self.rows]
        return {"reward": self.reward, "requests": self.requests, "rows": rows}

    def __str__(self) -> str:
        """A table of fixed-width columns."""
        lines = [
            f"audit of {self.reward} on {self.requests} requests",
            f"{'answer':<14} {'kind':<7} {'mean reward':>11} {'valid':>7} {'of oracle':>10}  verdict",
        ]
        for row in self.rows:
            share = "-" if row.share_of_oracle is None else f"{row.share_of_oracle:.1%}"
            lines.append(
                f"{row.name:<14} {row.kind:<7} {row.mean_reward:>+11.4f} {row.valid_share:>7.1%} {share:>10}  "
                f"{row.verdict.name.lower()}"
            )
        return "\n".join(lines)


def audit(reward: Reward | str, slates: Slates, *, seed: int = 0) -> AuditReport:
    """Score every attack and both yardsticks with `reward` on `slates`; `seed` draws the random rankings.

    Yardsticks: "oracle" ranks by relevance, "random" draws a permutation. Raises `InputError` if there are no slates.

    >>> report = audit("naive", Slates.of([[0, 1, 0], [1, 0, 0]]))
    >>> report["identity"].mean_reward, report["empty"].mean_reward
    (0.2, -1.0)
    """
    reward = parse_reward(reward)
    if not len(slates):
        raise InputError("there are no slates to audit on; give at least one request")
    rng = np.random.default_rng(seed)
    answers: list[tuple[str, Kind, IntArray, Verdict]] = [
        ("oracle", "honest", ideal_rankings(slates), Verdict.OK),
        ("random", "honest", random_rankings(slates.sizes_B, slates.width, rng), Verdict.OK),
    ]
    identity_BK = identity_rankings(slates.sizes_B, slates.width)
    answers += [(name, "hack", attack(identity_BK, slates), verdict) for name, (attack, verdict) in _ATTACKS.items()]
    means: list[tuple[float, float]] = []
    for _, _, rankings_BK, verdict in answers:
        verdicts_B = None if verdict is Verdict.OK else np.full(len(slates), verdict)
        total_B = reward(rankings_BK, slates, verdicts_B=verdicts_B)
        means.append((float(total_B.mean()), float(verdict is Verdict.OK)))
    oracle = means[0][0]
    rows = [
        AuditRow(name, kind, mean, valid, mean / oracle if oracle > 0 else None, verdict)
        for (name, kind, _, verdict), (mean, valid) in zip(answers, means, strict=True)
    ]
    return AuditReport(str(reward), len(slates), tuple(rows))


def _one_swap(identity_BK: IntArray, slates: Slates) -> IntArray:
    """The last two candidates exchanged: no longer the identity, and hardly worse."""
    rows = np.arange(len(slates))
    swapped_BK = identity_BK.copy()
    swapped_BK[rows, slates.sizes_B - 1] = slates.sizes_B - 2
    swapped_BK[rows, slates.sizes_B - 2] = slates.sizes_B - 1
    return swapped_BK


def _reverse(identity_BK: IntArray, slates: Slates) -> IntArray:
    return np.where(slates.mask_BK, slates.sizes_B[:, None] - 1 - identity_BK, identity_BK)


def _truncated(identity_BK: IntArray, slates: Slates) -> IntArray:
    """The incoming order without its last candidate."""
    return np.where(identity_BK == slates.sizes_B[:, None] - 1, -1, identity_BK)


def _duplicate_top(identity_BK: IntArray, _: Slates) -> IntArray:
    """The incoming order with its first candidate named twice."""
    doubled_BK = identity_BK.copy()
    doubled_BK[:, 1] = doubled_BK[:, 0]
    return doubled_BK


_ATTACKS: dict[str, tuple[Callable[[IntArray, Slates], IntArray], Verdict]] = {
    "identity": (lambda identity_BK, _: identity_BK, Verdict.OK),
    "one_swap": (_one_swap, Verdict.OK),
    "reverse": (_reverse, Verdict.OK),
    "truncated": (_truncated, Verdict.MISSING),
    "duplicate_top": (_duplicate_top, Verdict.DUPLICATE),
    "empty": (lambda identity_BK, _: np.full_like(identity_BK, -1), Verdict.EMPTY),
}
