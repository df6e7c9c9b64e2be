"""Presets: rewards that have a name of their own and are written with the algebra.

None of them gives an invalid answer more than the worst valid one, whatever the quality and the weight. Sources: GR2
(2602.07774), GR2 Technical Report (2606.31984), Diffusion-GR2 (2607.01170); `gain` is ours. May import numpy only.
"""

from __future__ import annotations

from typing import Literal, get_args

from rerank_env.rewards.arguments import finite, one_of
from rerank_env.rewards.conditions import (
    Improved,
    IncomingIsIdeal,
    KeptFirst,
    NotIdentity,
    Valid,
    WasFirst,
)
from rerank_env.rewards.reward import Condition, Reward, Scale, check_quality
from rerank_env.rewards.verifiable import Auc, Hit, Ndcg, RankPromotion, ValidFormat

DEFAULT_ALPHA = 0.2
"""Weight of the format term, from Diffusion-GR2."""

INVALID_GAIN = -1.1
"""What an invalid answer earns under `gain`, in units of the most that a valid one can lose."""

Exemption = Literal["kept_first", "literal"]


def naive(alpha: float = DEFAULT_ALPHA) -> Reward:
    """R_rank + alpha * R_fmt, the reward that GR2 found to be hacked: echoing the order earns alpha without risk.

    Invalid: -1.
    """
    return RankPromotion() + finite("alpha", alpha) * ValidFormat()


def gr2(alpha: float = DEFAULT_ALPHA, exemption: Exemption = "kept_first") -> Reward:
    """GR2's conditional reward as Diffusion-GR2 states it: the format term only for answers that do some good.

    R = R_rank + alpha if r_out < r_pre, or r_pre = 1 and r_out = 1; otherwise R = R_rank; invalid: -1.
    `exemption="literal"` exempts every request with r_pre = 1, the looser reading of GR2, which pays for demoting the
    relevant candidate from the top; it is here for comparison only. Both pay alpha for echoing an order whose first
    candidate is the relevant one, and every lucky improvement alike; `gr2_hardened` does not.
    """
    one_of("exemption", exemption, get_args(Exemption))
    exempt: Condition = KeptFirst() if exemption == "kept_first" else WasFirst()
    return RankPromotion() + finite("alpha", alpha) * ValidFormat().when(Improved() | exempt)


def gr2_industrial(quality: Reward | None = None, alpha: float = DEFAULT_ALPHA) -> Reward:
    """The identity check of GR2 Technical Report: R = Q + alpha, but only alpha for echoing an order that is not ideal.

    Q is R_AUC for binary labels (the default) and Ndcg(gains="exp2") for graded ones. Invalid: 0; for a Q that can be
    negative, its least value, so that no valid answer earns less. One swap escapes the check and is paid the incoming
    order's own Q; `gr2_industrial_hardened` and `gain` do not pay it.
    """
    quality, alpha = Auc() if quality is None else quality, finite("alpha", alpha)
    check_quality(quality)
    reward = quality.when(NotIdentity() | IncomingIsIdeal(quality)) + alpha * ValidFormat()
    return reward if quality.low >= 0 else reward.gate(Valid(), otherwise=quality.low + min(alpha, 0.0))


def gr2_hardened(alpha: float = DEFAULT_ALPHA) -> Reward:
    """`gr2` without its holes, ours: the bonus is for the first place, and it is won and lost alike.

    R = R_rank + alpha * (1[relevant candidate first in the answer] - 1[first in the incoming order]). Echoing the order
    earns exactly 0, also where the relevant candidate was first, and random shuffling of an uninformative order earns
    exactly 0 on average, where `gr2` pays it 0.09 at K = 10. A bonus for the sign of a change would not do: moving
    one candidate far down lifts many by a place, and pays for that. A difference g(answer) - g(incoming order) is safe,
    as on an order that is better than chance no fixed rearrangement raises any g that rewards relevance higher up.
    Invalid: below the worst valid answer, -1.52 for alpha = 0.2.
    """
    alpha = finite("alpha", alpha)
    return RankPromotion(invalid=INVALID_GAIN * (1.0 + abs(alpha))) + alpha * Hit(k=1).over_incoming()


def gr2_industrial_hardened(quality: Reward | None = None, alpha: float = DEFAULT_ALPHA) -> Reward:
    """`gr2_industrial` without the one-swap escape, ours: Q counts over the incoming order, and so does the bonus.

    R = Q - Q(incoming order) + alpha * (1[relevant candidate first in the answer] - 1[first in the incoming order]). A
    swap that changes nothing earns nothing, and an order that was ideal already can only be kept or spoilt. Invalid:
    below the worst valid answer.
    """
    quality, alpha = Auc() if quality is None else quality, finite("alpha", alpha)
    check_quality(quality)
    change = quality.over_incoming()
    bonus = alpha * Hit(k=1).over_incoming()
    return change.gate(Valid(), otherwise=INVALID_GAIN * (change.high + abs(alpha))) + bonus


def gain(quality: Reward | None = None, scale: Scale = "none") -> Reward:
    """Our default, Q(answer) - Q(incoming order), Q being Ndcg(k=10) unless given; echoing earns exactly 0.

    `scale="headroom"` measures the difference in shares of what could be gained or lost: see `Reward.over_incoming`.
    Invalid: -1.1 times the most that a valid answer can lose, or times 1 where that is less.
    """
    quality = Ndcg(k=10) if quality is None else quality
    check_quality(quality)
    change = quality.over_incoming(scale)
    return change.gate(Valid(), otherwise=INVALID_GAIN * max(change.high, 1.0))
