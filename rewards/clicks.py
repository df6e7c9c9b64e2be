"""Credit from logged clicks, corrected for the place where a candidate was shown.

Clicks are few where nobody looked, so a reward that counts them teaches the order that was logged. With c the click,
p the probability that the candidate was looked at where it was shown, r a prediction of the click once looked at, and
m = max(p, min_propensity), a candidate's credit is

    "ips"     c / m                     inverse propensity: Joachims et al. 2017 (1608.04468), section 4
    "snips"   (c / m) / sum (c / m)     the same, self-normalised: Swaminathan and Joachims 2015; no click: 0
    "dr"      r + (c - p r) / m         doubly robust for position bias: Oosterhuis 2023 (2203.17118), no trust bias

Clipping bounds the variance and costs bias: where p < min_propensity "ips" expects only p / m of the truth. "dr" is
c / m + r (1 - p / m), never negative: each log holds one order of its request, so an unclipped "dr" is "ips", and what
the predictions add is what clipping takes away. So "dr" is unbiased where nothing is clipped or the prediction is
right; a wrong p biases all three. May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import finite, one_of
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.context import check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import value_text
from rerank_env.rewards.kernels import discounts, row_sums
from rerank_env.rewards.reward import Bounds, Leaf
from rerank_env.rewards.slates import Slates

Estimator = Literal["ips", "snips", "dr"]

LEAST_PROPENSITY = 1e-6
"""The least that propensities may be clipped to: a click then counts a million."""


@dataclass(frozen=True, repr=False)
class ClickCredit(Leaf):
    """Discounted credit of the candidates: sum over places i = 1..k of credit / log2(i + 1), from a log of clicks.

    "ips" and "dr" are divided by the greatest sum of discounts that the request has room for, so that 1 means a credit
    of 1 at every place; with clipped credit they reach 1 / min_propensity and 1 + 1 / min_propensity. "snips" is a mean
    of discounts as it is, and reaches 1. `k` None: the whole list. No click: 0, under "dr" what is predicted.

    Clicks are noise, and a copy of the order earns the credit of what was clicked: take `gain(ClickCredit())`. Its text
    always names the clipping. With "headroom" note that the ideal order is that of the relevance, not of the credit.
    """

    estimator: Estimator = "ips"
    k: int | None = None
    min_propensity: float = 0.1
    invalid: float = 0.0
    name = "click_credit"

    def __post_init__(self) -> None:
        """Check the estimator and the clipping too."""
        object.__setattr__(self, "own_needs", _needs(self.estimator))
        object.__setattr__(self, "min_propensity", _checked(self.min_propensity))
        super().__post_init__()

    def bounds(self) -> Bounds:
        """From no credit to every candidate clicked where it was hardly ever seen."""
        most = 1.0 / self.min_propensity
        return Bounds(0.0, {"ips": most, "snips": 1.0, "dr": 1.0 + most}[self.estimator], self.invalid)

    def evaluate(self, answers: Answers) -> FloatArray:
        """The sums, added from the first place down, so that no batch moves the last bit."""
        slates = answers.slates
        credit_BK = click_credit(slates, self.estimator, min_propensity=self.min_propensity)
        places = slates.width if self.k is None else min(self.k, slates.width)
        shown_BK = np.take_along_axis(credit_BK, answers.orders_BK[:, :places], axis=1)
        discounts_K = discounts(places)
        total_B = row_sums(shown_BK, discounts_K)
        if self.estimator != "snips":
            total_B /= np.cumsum(discounts_K)[np.minimum(slates.sizes_B, places) - 1]
        return np.minimum(total_B, self.bounds().high)  # the quotient of two sums may round above it

    def __str__(self) -> str:
        """`click_credit(min_propensity=0.1)`, and what else is not default."""
        shown = [f for f in fields(self) if f.name == "min_propensity" or getattr(self, f.name) != f.default]
        return f"{self.name}({', '.join(f'{f.name}={value_text(getattr(self, f.name))}' for f in shown)})"


def click_credit(slates: Slates, estimator: Estimator = "ips", *, min_propensity: float = 0.1) -> FloatArray:
    """The credit of every candidate, float64 >= 0 [B, K], 0 where padded; see the formulas above.

    As labels: `Slates(click_credit(slates), slates.sizes_B)` has the debiased credit for relevance, so that oracle and
    every metric work on it.

    Raises `UnknownNameError` for another estimator, `InputError` for a clip outside 1e-06..1 and for slates without
    clicks and propensities, or for "dr" without predictions.

    >>> logged = Slates.of([[0, 0, 1]], clicks=[[1, 0, 1]], propensities=[[1, 0.5, 0.25]])
    >>> click_credit(logged).tolist(), click_credit(logged, "snips").tolist()
    ([[1.0, 0.0, 4.0]], [[0.2, 0.0, 0.8]])
    """
    clip = _checked(min_propensity)
    check_met(_needs(estimator), slates.provides, f"click credit by {estimator!r}")
    assert slates.clicks_BK is not None
    assert slates.propensities_BK is not None
    divisor_BK = np.maximum(slates.propensities_BK, clip)
    credit_BK: FloatArray = slates.clicks_BK / divisor_BK
    if estimator == "snips":
        total_B1 = row_sums(credit_BK)[:, None]
        return np.divide(credit_BK, total_B1, out=np.zeros_like(credit_BK), where=total_B1 > 0)
    if estimator == "dr":
        assert slates.predictions_BK is not None
        credit_BK += slates.predictions_BK * (1.0 - slates.propensities_BK / divisor_BK)
    return credit_BK


def _needs(estimator: Estimator) -> frozenset[str]:
    one_of("estimator", estimator, get_args(Estimator))
    return frozenset({"clicks", "predictions"} if estimator == "dr" else {"clicks"})


def _checked(min_propensity: object) -> float:
    clip = finite("min_propensity", min_propensity)
    if not LEAST_PROPENSITY <= clip <= 1.0:
        raise InputError(
            f"min_propensity is {clip}; give a probability from {LEAST_PROPENSITY:g} to 1, where 1 counts plain clicks"
        )
    return clip
