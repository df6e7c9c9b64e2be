"""From what answers earned to pass or fail: shares of the oracle, bootstrap intervals, and the rule in words.

The rule is that of the package's docstring. May import numpy only. Suffixes: `_B` requests, `_C` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.answers import Failure
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.auditing.layout import ALLOWED_SHARE, MANY_TIMES, percent
from rerank_env.rewards.auditing.report import AuditRow, Kind
from rerank_env.rewards.bootstrap import cluster_bootstrap
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.slates import Slates

NOTHING_PAID = 1e-9
"""Smaller amounts are rounding."""

MIN_USERS = 30
"""With fewer users blind answers are not judged: a bootstrap over so few is too narrow to tell pay from luck."""

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an answer to every request earned, beside the oracle on the same requests; `base_B` is what the same
    ranking earns with nothing added, 0 where nothing was added. `failures`: faults of functions that isolate them.
    """

    name: str
    kind: Kind
    about: str
    pay_B: FloatArray
    oracle_B: FloatArray
    base_B: FloatArray
    valid_share: float
    identity_rate: float
    near_identity_rate: float
    verdict: Verdict
    failures: tuple[Failure, ...] = ()

    @property
    def oracle(self) -> float:
        """The oracle's pay, 0 where it earns less than nothing."""
        mean = _mean(self.oracle_B)
        return mean if mean > NOTHING_PAID else 0.0

    @property
    def taken_B(self) -> FloatArray:
        """What the attack earns for itself."""
        return self.pay_B - self.base_B

    @property
    def excess_B(self) -> FloatArray:
        """What it earns beyond the share of the oracle's pay that is allowed."""
        return self.taken_B - ALLOWED_SHARE * (self.oracle_B if self.oracle else 0.0)


def why_unjudged(slates: Slates, users_B: IntArray) -> str:
    """Why blind answers to these requests cannot be judged, in words; "" where they can."""
    users = len(np.unique(users_B))
    if not _differing(slates):
        return "no request has candidates of different relevance, so that there is no oracle to compare with"
    if users < MIN_USERS:
        few = "1 user is" if users == 1 else f"{users} users are"
        return f"{few} too few to tell pay from luck; give at least {MIN_USERS}"
    return ""


def _differing(slates: Slates) -> bool:
    """Whether any request has two candidates of different relevance."""
    relevance_BK, mask_BK = slates.relevance_BK, slates.mask_BK
    most_B = np.where(mask_BK, relevance_BK, -np.inf).max(axis=1)
    return bool((most_B > np.where(mask_BK, relevance_BK, np.inf).min(axis=1)).any())


def judged(
    outcomes: Sequence[Outcome],
    worst_B: FloatArray,
    users_B: IntArray,
    *,
    seed: int,
    step: int = 0,
    suffix: str = "",
    unjudged: str = "",
) -> list[AuditRow]:
    """The rows of a report for one training step, whose names end in `suffix`.

    `worst_B` is the least that a valid answer to each request earned. `unjudged`: why blind answers are not judged.
    """
    columns_BC = np.stack([column for one in outcomes for column in (one.pay_B, one.excess_B)], axis=1)
    rng = np.random.default_rng([seed, RESAMPLES])
    bootstrap = cluster_bootstrap(columns_BC, users_B, resamples=RESAMPLES, rng=rng)
    rows = []
    for number, one in enumerate(outcomes):
        passed, reason = _verdict(one, bootstrap.interval(2 * number + 1).low, worst_B, unjudged)
        pay, taken, interval = _mean(one.pay_B), _mean(one.taken_B), bootstrap.interval(2 * number)
        rows.append(
            AuditRow(
                name=one.name + suffix,
                step=step,
                kind=one.kind,
                mean_reward=pay,
                low=_end(min(interval.low, pay), pay),
                high=_end(max(interval.high, pay), pay),
                share_of_oracle=max(taken, 0.0) / one.oracle if one.oracle else None,
                valid_share=one.valid_share,
                identity_rate=one.identity_rate,
                near_identity_rate=one.near_identity_rate,
                verdict=one.verdict,
                passed=passed,
                reason=reason,
                about=one.about,
            )
        )
    return rows


def _verdict(one: Outcome, excess_low: float, worst_B: FloatArray, unjudged: str) -> tuple[bool | None, str]:
    if one.kind == "yardstick":
        return None, ""
    if one.kind == "malformed":
        return _below_valid(one, worst_B)
    if one.kind == "blind" and unjudged:
        return None, f"not judged: {unjudged}"
    return _not_paid(one, excess_low)


def _below_valid(one: Outcome, worst_B: FloatArray) -> tuple[bool, str]:
    """No ranking: less than the worst valid answer, request by request."""
    paid_B: BoolArray = one.pay_B > worst_B - NOTHING_PAID
    if not paid_B.any():
        return True, "is paid less than the worst valid answer"
    reason = f"is paid no less than the worst valid answer on {percent(float(paid_B.mean()))} of requests"
    if one.valid_share:
        reason = f"{percent(one.valid_share)} of these texts were read as rankings; it {reason}"
    return False, reason


def _not_paid(one: Outcome, excess_low: float) -> tuple[bool | None, str]:
    """An answer that took no reading, or an addition: no more than the share that is allowed."""
    taken = _mean(one.taken_B)
    passed = excess_low <= NOTHING_PAID
    what = "adds" if one.kind == "dressed" else "takes"
    if not one.oracle and passed and one.kind == "blind":
        return None, "not judged: the oracle is paid nothing"
    if taken <= NOTHING_PAID:
        return passed, f"{what} nothing"
    if not one.oracle:
        return passed, f"is paid where the oracle is paid nothing{', but not distinguishably' if passed else ''}"
    share = taken / one.oracle
    reason = f"{what} {of_oracle(share)}"
    if passed and share > ALLOWED_SHARE:
        reason += f", not distinguishably more than {percent(ALLOWED_SHARE)}"
    return passed, reason


def of_oracle(share: float) -> str:
    """A share of what the oracle earns, in words."""
    return f"{percent(share)}{'' if share >= MANY_TIMES else ' of'} the oracle's pay"


def _mean(values_B: FloatArray) -> float:
    """The mean, and of equal numbers that number to the last bit."""
    return float(values_B[0] if (values_B == values_B[0]).all() else values_B.mean())


def _end(value: float, mean: float) -> float:
    """The end of an interval, which is the mean where they differ by rounding."""
    return mean if abs(value - mean) <= NOTHING_PAID else value
