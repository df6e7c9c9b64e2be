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

from rerank_env.rewards.answers import OK
from rerank_env.rewards.arrays import PAD, IntArray, VerdictArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.rankings import Verdict, ideal_rankings, identity_rankings, padded, random_rankings, verdicts
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.slates import Slates

Kind = Literal["honest", "hack"]
Answered = tuple[IntArray, VerdictArray]
Strategy = Callable[[Slates, np.random.Generator], Answered]
"""One way of answering: rankings [B, K], and verdicts [B] that say what the arrays cannot show."""


@dataclass(frozen=True)
class AuditRow:
    """One way of answering: what it earns on average, how many of its answers are valid, and its share of the oracle.

    `share_of_oracle` is its mean reward over the oracle's, None where the oracle earns nothing. `verdict` is what most
    of its answers are.
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
    rows: list[AuditRow] = []
    for name, (kind, answer) in _STRATEGIES.items():
        rankings_BK, verdicts_B = answer(slates, rng)
        mean = float(reward(rankings_BK, slates, verdicts_B=verdicts_B).mean())
        oracle = rows[0].mean_reward if rows else mean
        seen_B = np.where(verdicts_B == OK, verdicts(rankings_BK, slates.sizes_B), verdicts_B)
        rows.append(
            AuditRow(
                name=name,
                kind=kind,
                mean_reward=mean,
                valid_share=float((seen_B == OK).mean()),
                share_of_oracle=mean / oracle if oracle > 0 else None,
                verdict=Verdict(int(np.bincount(seen_B).argmax())),
            )
        )
    return AuditReport(str(reward), len(slates), tuple(rows))


def _all_are(verdict: Verdict, slates: Slates) -> VerdictArray:
    return np.full(len(slates), verdict, dtype=np.int8)


def _oracle(slates: Slates, _: np.random.Generator) -> Answered:
    return ideal_rankings(slates), _all_are(Verdict.OK, slates)


def _random(slates: Slates, rng: np.random.Generator) -> Answered:
    return random_rankings(slates.sizes_B, slates.width, rng), _all_are(Verdict.OK, slates)


def _identity(slates: Slates, _: np.random.Generator) -> Answered:
    return identity_rankings(slates.sizes_B, slates.width), _all_are(Verdict.OK, slates)


def _one_swap(slates: Slates, rng: np.random.Generator) -> Answered:
    """The last two candidates exchanged: no longer the identity, and hardly worse."""
    swapped_BK, verdicts_B = _identity(slates, rng)
    rows = np.arange(len(slates))
    swapped_BK[rows, slates.sizes_B - 1] = slates.sizes_B - 2
    swapped_BK[rows, slates.sizes_B - 2] = slates.sizes_B - 1
    return swapped_BK, verdicts_B


def _reverse(slates: Slates, _: np.random.Generator) -> Answered:
    backwards_BK = slates.sizes_B[:, None] - 1 - np.arange(slates.width)
    return padded(backwards_BK, slates.sizes_B), _all_are(Verdict.OK, slates)


def _truncated(slates: Slates, rng: np.random.Generator) -> Answered:
    """The incoming order without its last candidate."""
    shorter_BK, _ = _identity(slates, rng)
    shorter_BK[np.arange(len(slates)), slates.sizes_B - 1] = PAD
    return shorter_BK, _all_are(Verdict.MISSING, slates)


def _duplicate_top(slates: Slates, rng: np.random.Generator) -> Answered:
    """The incoming order with its first candidate named twice."""
    doubled_BK, verdicts_B = _identity(slates, rng)
    doubled_BK[:, 1] = doubled_BK[:, 0]
    return doubled_BK, verdicts_B


def _empty(slates: Slates, _: np.random.Generator) -> Answered:
    return np.full((len(slates), slates.width), PAD), _all_are(Verdict.EMPTY, slates)


_STRATEGIES: dict[str, tuple[Kind, Strategy]] = {
    "oracle": ("honest", _oracle),
    "random": ("honest", _random),
    "identity": ("hack", _identity),
    "one_swap": ("hack", _one_swap),
    "reverse": ("hack", _reverse),
    "truncated": ("hack", _truncated),
    "duplicate_top": ("hack", _duplicate_top),
    "empty": ("hack", _empty),
}
"""The oracle comes first, as the others are measured against it."""
