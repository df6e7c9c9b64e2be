"""From what answers earned to pass or fail: shares of the oracle, bootstrap intervals, and the rule in words.

The rule is that of the package's docstring. May import numpy only. Suffixes: `_B` requests, `_C` columns, `_R`
resamples, `_U` users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.auditing.report import AuditRow, Kind
from rerank_env.rewards.rankings import Verdict

ALLOWED_SHARE = 0.01
"""What share of the oracle's pay an attack may take."""

ROUNDING = 1e-9
"""Smaller amounts are rounding."""

RESAMPLES, LEVEL = 1000, 0.95
CELLS_AT_A_TIME = 2**22
"""Bounds the memory of the resampled weights."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an answer to every request earned, beside the oracle on the same requests; `base_B` is what the same
    ranking earns with nothing added, 0 where nothing was added.
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

    @property
    def oracle(self) -> float:
        """The oracle's pay, 0 where it earns less than nothing."""
        mean = _mean(self.oracle_B)
        return mean if mean > ROUNDING else 0.0

    @property
    def taken_B(self) -> FloatArray:
        """What the attack earns for itself."""
        return self.pay_B - self.base_B

    @property
    def excess_B(self) -> FloatArray:
        """What it earns beyond the share of the oracle's pay that is allowed."""
        return self.taken_B - ALLOWED_SHARE * (self.oracle_B if self.oracle else 0.0)


def judged(outcomes: Sequence[Outcome], worst_B: FloatArray, users_B: IntArray, *, seed: int) -> list[AuditRow]:
    """The rows of a report; `worst_B` is the least that a valid answer to each request earned."""
    columns_BC = np.stack([column for one in outcomes for column in (one.pay_B, one.excess_B)], axis=1)
    low_C, high_C = intervals(columns_BC, users_B, np.random.default_rng([seed, RESAMPLES]))
    rows = []
    for number, one in enumerate(outcomes):
        passed, reason = _verdict(one, float(low_C[2 * number + 1]), worst_B)
        pay, taken = _mean(one.pay_B), _mean(one.taken_B)
        rows.append(
            AuditRow(
                name=one.name,
                kind=one.kind,
                mean_reward=pay,
                low=_end(min(float(low_C[2 * number]), pay), pay),
                high=_end(max(float(high_C[2 * number]), pay), pay),
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


def intervals(columns_BC: FloatArray, users_B: IntArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Percentile bootstrap of the mean of each column over requests, users drawn with all their requests [C]."""
    users, user_B = np.unique(users_B, return_inverse=True)
    sums_UC = np.zeros((len(users), columns_BC.shape[1]))
    np.add.at(sums_UC, user_B, columns_BC)
    sizes_U, chance_U = np.bincount(user_B), np.full(len(users), 1.0 / len(users))
    means, at_a_time = [], max(1, CELLS_AT_A_TIME // len(users))
    for start in range(0, RESAMPLES, at_a_time):
        weights_RU = rng.multinomial(len(users), chance_U, size=min(at_a_time, RESAMPLES - start)).astype(np.float64)
        means.append((weights_RU @ sums_UC) / (weights_RU @ sizes_U)[:, None])
    tail = (1.0 - LEVEL) / 2.0
    low_C, high_C = np.quantile(np.concatenate(means), [tail, 1.0 - tail], axis=0)
    return low_C, high_C


def _verdict(one: Outcome, excess_low: float, worst_B: FloatArray) -> tuple[bool | None, str]:
    if one.kind == "yardstick":
        return None, ""
    if one.kind == "malformed":
        return _below_valid(one, worst_B)
    return _not_paid(one, excess_low)


def _below_valid(one: Outcome, worst_B: FloatArray) -> tuple[bool, str]:
    """No ranking: less than the worst valid answer, request by request."""
    paid_B: BoolArray = one.pay_B > worst_B - ROUNDING
    if not paid_B.any():
        return True, "is paid less than the worst valid answer"
    reason = f"is paid no less than the worst valid answer on {_percent(float(paid_B.mean()))} of requests"
    if one.valid_share:
        reason = f"{_percent(one.valid_share)} of these texts were read as rankings; it {reason}"
    return False, reason


def _not_paid(one: Outcome, excess_low: float) -> tuple[bool, str]:
    """An answer that took no reading, or an addition: no more than the share that is allowed."""
    taken = _mean(one.taken_B)
    passed = excess_low <= ROUNDING
    what = "adds" if one.kind == "dressed" else "takes"
    if taken <= ROUNDING:
        return passed, f"{what} nothing"
    if not one.oracle:
        return passed, f"is paid where the oracle is paid nothing{', but not distinguishably' if passed else ''}"
    share = taken / one.oracle
    reason = f"{what} {_percent(share)} of the oracle's pay"
    if passed and share > ALLOWED_SHARE:
        reason += f", not distinguishably more than {_percent(ALLOWED_SHARE)}"
    return passed, reason


def _mean(values_B: FloatArray) -> float:
    """The mean, and of equal numbers that number to the last bit."""
    return float(values_B[0] if (values_B == values_B[0]).all() else values_B.mean())


def _end(value: float, mean: float) -> float:
    """The end of an interval, which is the mean where they differ by rounding."""
    return mean if abs(value - mean) <= ROUNDING else value


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
