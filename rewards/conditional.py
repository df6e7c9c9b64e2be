"""Conditions on answers, and the four presets that are built from them.

Every condition is asked of valid answers only. Qualities that differ by rounding alone count as equal, so that no
bonus is won in the last bit. Sources: GR2 (2602.07774), GR2 Technical Report (2606.31984), Diffusion-GR2 (2607.01170);
`gain` is ours. May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from rerank_env.rewards.answers import Answers, ideal_values, incoming_values
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.reward import Condition, Reward
from rerank_env.rewards.slates import BoolArray, Slates
from rerank_env.rewards.verifiable import Auc, Ndcg, RankPromotion, ValidFormat

ROUNDING = 1e-12
"""Differences of quality up to this share of the quality's declared range are rounding."""

DEFAULT_ALPHA = 0.2
"""Weight of the format term, from Diffusion-GR2."""

INVALID_GAIN = -1.1
"""What an invalid answer earns under `gain`: below -1, the worst that a valid one can lose."""


@dataclass(frozen=True, repr=False)
class Improved(Condition):
    """The answer's quality is above that of the incoming order: r_out < r_pre for one relevant candidate."""

    quality: Reward = field(default_factory=RankPromotion)
    name = "improved"

    def __post_init__(self) -> None:
        """Check the quality."""
        _check_quality(self.quality)

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the quality rose by more than rounding."""
        rise_B = answers.values(self.quality) - incoming_values(self.quality, answers.slates)
        return rise_B > _tolerance(self.quality)


@dataclass(frozen=True, repr=False)
class WasFirst(Condition):
    """A candidate of the request's greatest relevance, above 0, is first in the incoming order: r_pre = 1."""

    name = "was_first"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the incoming order begins with a best candidate, whatever the answer does with it."""
        return answers.slates.derived("was_first", _was_first)


@dataclass(frozen=True, repr=False)
class KeptFirst(Condition):
    """A best candidate was first, and a best candidate is first in the answer: r_pre = 1 and r_out = 1."""

    name = "kept_first"

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where both lists begin with a candidate of the greatest relevance, above 0."""
        slates = answers.slates
        top_B = slates.relevance_BK.ravel()[answers.orders_BK[:, 0] + slates.offsets_B1[:, 0]]
        was_first_B: BoolArray = slates.derived("was_first", _was_first)
        kept_B: BoolArray = was_first_B & (top_B == slates.relevance_BK[:, 0])
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
        _check_quality(self.quality)

    def evaluate(self, answers: Answers) -> BoolArray:
        """Where the ideal order is not better by more than rounding, whatever the answer."""
        slates = answers.slates
        headroom_B = ideal_values(self.quality, slates) - incoming_values(self.quality, slates)
        return headroom_B <= _tolerance(self.quality)


def _check_quality(quality: object) -> None:
    if not isinstance(quality, Reward):
        raise InputError(f"quality is {quality!r}; expected a reward such as Ndcg(k=10) or Auc()")


def _tolerance(quality: Reward) -> float:
    return ROUNDING * (quality.high - quality.low)


def _was_first(slates: Slates) -> BoolArray:
    top_B = slates.relevance_BK.max(axis=1, initial=0.0)
    first_B: BoolArray = (slates.relevance_BK[:, :1] == top_B[:, None]).all(axis=1) & (top_B > 0)
    return first_B


Exemption = Literal["kept_first", "literal"]


def naive(alpha: float = DEFAULT_ALPHA) -> Reward:
    """R_rank + alpha * R_fmt, the reward that GR2 found to be hacked: echoing the order earns alpha without risk.

    Invalid: -1.
    """
    return RankPromotion() + alpha * ValidFormat()


def gr2(alpha: float = DEFAULT_ALPHA, exemption: Exemption = "kept_first") -> Reward:
    """GR2's conditional reward as Diffusion-GR2 states it: the format term only for answers that do some good.

    R = R_rank + alpha if r_out < r_pre, or r_pre = 1 and r_out = 1; otherwise R = R_rank; invalid: -1.
    `exemption="literal"` exempts every request with r_pre = 1, the looser reading of GR2, which pays for demoting the
    relevant candidate from the top; it is here for comparison only.
    """
    exemptions: dict[str, Condition] = {"kept_first": KeptFirst(), "literal": WasFirst()}
    if exemption not in exemptions:
        raise UnknownNameError.of("exemption", exemption, get_args(Exemption))
    return RankPromotion() + alpha * ValidFormat().when(Improved() | exemptions[exemption])


def gr2_industrial(quality: Reward | None = None, alpha: float = DEFAULT_ALPHA) -> Reward:
    """The identity check of GR2 Technical Report: R = Q + alpha, but only alpha for echoing an order that is not ideal.

    Q is R_AUC for binary labels (the default) and Ndcg(gains="exp2") for graded ones. Invalid: 0. One swap escapes
    the check, which is why `gain` exists.
    """
    quality = Auc() if quality is None else quality
    _check_quality(quality)
    return quality.when(NotIdentity() | IncomingIsIdeal(quality)) + alpha * ValidFormat()


def gain(quality: Reward | None = None) -> Reward:
    """Our default, Q(answer) - Q(incoming order), Q being Ndcg(k=10) unless given; echoing earns exactly 0.

    Invalid: -1.1, below every valid answer for a Q in [0, 1].
    """
    quality = Ndcg(k=10) if quality is None else quality
    _check_quality(quality)
    return quality.over_incoming().gate(Valid(), otherwise=INVALID_GAIN)
