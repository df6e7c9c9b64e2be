"""Conditions on answers: what GR2 and its successors ask before they pay.

Every condition is asked of valid answers only. Qualities that differ by rounding alone count as equal, so that no
bonus is won in the last bit. Sources: GR2 (2602.07774), GR2 Technical Report (2606.31984). May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import BoolArray
from rerank_env.rewards.copies import NEAR_SWAPS
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import inversions_unchecked, tau_of
from rerank_env.rewards.reward import ROUNDING, Condition, Reward, check_quality
from rerank_env.rewards.verifiable import Auc, RankPromotion


class _OfQuality(Condition):
    """A condition that compares values of its `quality`."""

    quality: Reward

    def __post_init__(self) -> None:
        """Check the quality."""
        check_quality(self.quality)

    @property
    def tolerance(self) -> float:
        """Qualities that differ by no more are equal."""
        return ROUNDING * (self.quality.high - self.quality.low)


class _NeverForIdentity(Condition):
    """A condition that asks for a change."""

    @property
    def for_identity(self) -> bool | None:
        """Echoing the order changes nothing."""
        return False


class _AlwaysForIdentity(Condition):
    """A condition that asks for closeness to the incoming order."""

    @property
    def for_identity(self) -> bool | None:
        """Echoing the order is as close as can be."""
        return True


@dataclass(frozen=True, repr=False)
class Improved(_OfQuality, _NeverForIdentity):
    """The answer's quality is above that of the incoming order: r_out < r_pre for one relevant candidate."""

    quality: Reward = field(default_factory=RankPromotion)
    name = "improved"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the quality rose by more than rounding."""
        rise_B = answers.values(self.quality) - answers.incoming.values(self.quality)
        return rise_B > self.tolerance


@dataclass(frozen=True, repr=False)
class Worsened(_OfQuality, _NeverForIdentity):
    """The answer's quality is below that of the incoming order: r_out > r_pre for one relevant candidate. Ours."""

    quality: Reward = field(default_factory=RankPromotion)
    name = "worsened"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the quality fell by more than rounding."""
        fall_B = answers.incoming.values(self.quality) - answers.values(self.quality)
        return fall_B > self.tolerance


@dataclass(frozen=True, repr=False)
class WasFirst(Condition):
    """A candidate of the request's greatest relevance, above 0, is first in the incoming order: r_pre = 1."""

    name = "was_first"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the incoming order begins with a best candidate, whatever the answer does with it."""
        relevance_BK = answers.slates.relevance_BK
        top_B = relevance_BK.max(axis=1, initial=0.0)
        first_B: BoolArray = (relevance_BK[:, 0] == top_B) & (top_B > 0)
        return first_B


@dataclass(frozen=True, repr=False)
class KeptFirst(Condition):
    """A best candidate was first, and a best candidate is first in the answer: r_pre = 1 and r_out = 1."""

    name = "kept_first"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where both lists begin with a candidate of the greatest relevance, above 0."""
        relevance_BK = answers.slates.relevance_BK
        shown_B = relevance_BK[np.arange(len(relevance_BK)), answers.orders_BK[:, 0]]
        kept_B: BoolArray = answers.holds(WasFirst()) & (shown_B == relevance_BK[:, 0])
        return kept_B


@dataclass(frozen=True, repr=False)
class NotIdentity(_NeverForIdentity):
    """The answer differs from the incoming order: pi != id. One swap is enough to meet it."""

    name = "not_identity"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where any candidate moved."""
        moved_B: BoolArray = (answers.orders_BK != np.arange(answers.slates.width)).any(axis=1)
        return moved_B


@dataclass(frozen=True, repr=False)
class NearIdentity(_AlwaysForIdentity):
    """The answer is at most `swaps` exchanges of neighbours away from the incoming order, the order itself included.

    Bubble sort needs as many exchanges as there are inversions, so that is what is counted (Kendall 1938). Negate it,
    `~near_identity`, to ask for more than a token change.
    """

    swaps: int = NEAR_SWAPS
    name = "near_identity"

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "swaps", whole("swaps", self.swaps, least=0))

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where there are few inversions."""
        near_B: BoolArray = inversions_unchecked(answers.orders_BK) <= self.swaps
        return near_B


@dataclass(frozen=True, repr=False)
class TauAtLeast(_AlwaysForIdentity):
    """Kendall's tau between the answer and the incoming order is at least `tau`, from -1 to 1: closeness by share."""

    tau: float
    name = "tau_at_least"

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "tau", finite("tau", self.tau))
        if abs(self.tau) > 1:
            raise InputError(f"tau is {self.tau}; Kendall's tau is from -1, the reverse, to 1, the incoming order")

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the correlation is high."""
        tau_B = tau_of(inversions_unchecked(answers.orders_BK), answers.slates.sizes_B)
        near_B: BoolArray = tau_B >= self.tau - ROUNDING
        return near_B


@dataclass(frozen=True, repr=False)
class Valid(Condition):
    """The answer is a ranking of the request's candidates."""

    name = "valid"

    @property
    def always(self) -> bool:
        """Every valid answer is valid."""
        return True

    def evaluate(self, answers: Answers) -> BoolArray:
        """Everywhere, as conditions are asked of valid answers only."""
        return np.ones(len(answers.slates), dtype=np.bool_)


@dataclass(frozen=True, repr=False)
class IncomingIsIdeal(_OfQuality):
    """The incoming order already has the quality of the ideal order, so that echoing it is right."""

    quality: Reward = field(default_factory=Auc)
    name = "incoming_is_ideal"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the ideal order is not better by more than rounding, whatever the answer."""
        headroom_B = answers.ideal.values(self.quality) - answers.incoming.values(self.quality)
        return headroom_B <= self.tolerance
