"""Conditions on answers: what GR2 and its successors ask before they pay.

Every condition is asked of valid answers only. Qualities that differ by rounding alone count as equal, so that no
bonus is won in the last bit. Sources: GR2 (2602.07774), GR2 Technical Report (2606.31984). May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arrays import BoolArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.reward import Condition, Reward
from rerank_env.rewards.verifiable import Auc, RankPromotion

ROUNDING = 1e-12
"""Differences of quality up to this share of the quality's declared range are rounding."""


@dataclass(frozen=True, repr=False)
class Improved(Condition):
    """The answer's quality is above that of the incoming order: r_out < r_pre for one relevant candidate."""

    quality: Reward = field(default_factory=RankPromotion)
    name = "improved"

    def __post_init__(self) -> None:
        """Check the quality."""
        check_quality(self.quality)

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the quality rose by more than rounding."""
        rise_B = answers.values(self.quality) - answers.incoming.values(self.quality)
        return rise_B > _tolerance(self.quality)


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
class NotIdentity(Condition):
    """The answer differs from the incoming order: pi != id. One swap is enough to meet it."""

    name = "not_identity"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where any candidate moved."""
        moved_B: BoolArray = (answers.orders_BK != np.arange(answers.slates.width)).any(axis=1)
        return moved_B


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
class IncomingIsIdeal(Condition):
    """The incoming order already has the quality of the ideal order, so that echoing it is right."""

    quality: Reward = field(default_factory=Auc)
    name = "incoming_is_ideal"

    def __post_init__(self) -> None:
        """Check the quality."""
        check_quality(self.quality)

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the ideal order is not better by more than rounding, whatever the answer."""
        headroom_B = answers.ideal.values(self.quality) - answers.incoming.values(self.quality)
        return headroom_B <= _tolerance(self.quality)


def check_quality(quality: object) -> None:
    """Raise `InputError` unless `quality` is a reward."""
    if not isinstance(quality, Reward):
        raise InputError(f"quality is {quality!r}; expected a reward such as Ndcg(k=10) or Auc()")


def _tolerance(quality: Reward) -> float:
    return ROUNDING * (quality.high - quality.low)
