"""What rankings are truly worth under a click model, and the estimate that survives trust bias.

`ClickCredit` estimates, for every request, the discounted mean attraction of a ranking,

    value(ranking) = sum over places i <= k of g(candidate at i) / log2(i + 1), over the sum of 1 / log2(i + 1),

and not the clicks that it would get: those depend on the model's examination (`model.expected_clicks_B`). `true_value`
is that number; "ips" with nothing clipped, and "dr" with right predictions or nothing clipped, expect it under
position-based and cascade users. "snips" divides by the credit of the very same session, so it expects something else,
which `expected_reward` computes exactly, as it does for clipped credit, for `gain(ClickCredit(...))` and for any other
reward of clicks. May import numpy and `rerank_env`'s data and rewards.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rerank_env.clicks.logs import maker
from rerank_env.clicks.models import ClickModel, Rankings
from rerank_env.clicks.names import parse_click_model
from rerank_env.clicks.places import PlaceUsers
from rerank_env.data.requests import Requests
from rerank_env.rewards.answers import legal_orders
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.context import check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.kernels import discounts, row_sums
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.rewards.reward import Reward

WIDEST = 14
"""The longest lists whose outcomes are enumerated: 16,384 of them."""

OUTCOMES_AT_A_TIME = 2**16

SAME = 1e-5
"""Propensities that differ by no more than this share are the same."""


def true_value(
    requests: Requests, model: ClickModel | str, rankings: Rankings = None, *, k: int | None = None
) -> FloatArray:
    """The discounted mean attraction of each request's ranking, float64 [B] in [0, 1], by the formula above; exact.

    `k` None: the whole list; lists shorter than k: all of them. `rankings` None: the incoming order. A log will do for
    `requests`; its rankings name candidates by shown place, as answers to it do. Raises `InputError` for illegal
    rankings and k < 1.
    """
    return _discounted(requests, parse_click_model(model).attraction_BK(requests), rankings, k)


def expected_reward(
    reward: Reward | str, log: Requests, model: ClickModel | str, rankings: Rankings = None
) -> FloatArray:
    """What `reward` expects of each ranking over all that users of `model` may click on the list, float64 [B]; exact.

    `log`: requests in the order that is shown, whose own clicks and propensities, if any, are not looked at: each of
    the 2^K sets of clicks is scored, under the model's propensities, and weighted by its probability. Costs 2^K
    scorings a request, so it is for lists up to 14 long. `rankings` None: the list as shown.

    Raises `InputError` for longer lists, illegal rankings, a reward that needs more than clicks and predictions, and
    where somebody is looked at with probability 0.
    """
    users, worth = parse_click_model(model), parse_reward(reward)
    slates, width = log.slates, log.slates.width
    if width > WIDEST:
        raise InputError(f"lists are up to {width} long, too long to enumerate; give lists of at most {WIDEST}")
    check_met(worth.needs, slates.provides | {"clicks"}, worth)
    answers_BK = identity_rankings(slates.sizes_B, width) if rankings is None else legal_orders(rankings, slates)
    propensities_BK = users.examination_BK(log)
    outcomes_OK = (np.arange(2**width)[:, None] >> np.arange(width)) & 1
    expected_B = np.empty(len(log))
    step = max(OUTCOMES_AT_A_TIME // len(outcomes_OK), 1)
    for first in range(0, len(log), step):
        rows_B = np.arange(first, min(first + step, len(log)))
        rows_N = np.repeat(rows_B, len(outcomes_OK))
        clicks_NK = np.tile(outcomes_OK, (len(rows_B), 1)).astype(np.float64)
        real_NK = slates.mask_BK[rows_N]
        possible_N = ~((clicks_NK == 1.0) & ~real_NK).any(axis=1)
        clicks_NK[~real_NK] = 0.0
        chance_N = np.exp(users.log_likelihood_B(log.take(rows_N), clicks_NK)) * possible_N
        outcomes = replace(slates.take(rows_N), clicks_BK=clicks_NK, propensities_BK=propensities_BK[rows_N])
        scores_N = worth(answers_BK[rows_N], outcomes)
        expected_B[rows_B] = (chance_N * scores_N).reshape(len(rows_B), -1).sum(axis=1)
    return expected_B


def affine_credit(log: Requests, model: PlaceUsers | str, *, min_slope: float = 1e-6) -> FloatArray:
    """The affine correction of clicks, (click - offset_i) / max(slope_i, min_slope), float64 [B, K], 0 where padded.

    It expects the attraction under trust bias (the affine estimator of Vardasbi et al. 2020, 2008.10242, with a clipped
    slope), and is `click_credit` by "ips" under position-based users. A place that invites wrong clicks is charged for
    them, so credit may be negative, and it is no gain that slates could hold.

    Raises `InputError` for requests without clicks, for a log whose propensities are not those of this model at its
    columns (another model made it, or it was reordered since, which shows unless all places are looked at alike), for
    one that by its notes was made up by a model that prints otherwise, attraction aside, and for a model whose clicks
    are not affine by place. Of clicks from elsewhere only the propensities can be compared: a wrong `right` or `wrong`
    does not show there, and gives wrong numbers.
    """
    users = parse_click_model(model)
    if not isinstance(users, PlaceUsers):
        raise InputError(f"{users} does not click by place alone; give a pbm or trust model")
    clip = finite("min_slope", min_slope)
    if not 0.0 < clip <= 1.0:
        raise InputError(f"min_slope is {clip}; give a number above 0 and up to 1")
    check_met({"clicks"}, log.slates.provides, "affine credit")
    assert log.clicks_BK is not None
    assert log.propensities_BK is not None
    if not np.allclose(log.propensities_BK, users.examination_BK(log), rtol=SAME, atol=0.0):
        raise InputError(
            f"the propensities of the log are not those of {users} on its lists; give the model that made the log, and "
            "the log in the order that was shown"
        )
    made = maker(log)
    if made is not None and _without_attraction(made) != _without_attraction(str(users)):
        raise InputError(f"the clicks of the log were made up by {made}, not by {users}; give the model that made them")
    slope_K, offset_K = users.affine_K(log.slates.width)
    return np.where(log.slates.mask_BK, (log.clicks_BK - offset_K) / np.maximum(slope_K, clip), 0.0)


def affine_value(
    log: Requests, model: PlaceUsers | str, rankings: Rankings = None, *, k: int | None = None, min_slope: float = 1e-6
) -> FloatArray:
    """The estimate of `true_value` from affine credit, float64 [B]; unbiased under `pbm` and `trust` if not clipped.

    Arguments as there, errors as `affine_credit`.
    """
    return _discounted(log, affine_credit(log, model, min_slope=min_slope), rankings, k)


def _without_attraction(text: str) -> str:
    """The text of a click model up to its last parameter, the attraction, which credit does not depend on."""
    return text.partition("attraction=")[0].rstrip("(), ")


def _discounted(requests: Requests, credit_BK: FloatArray, rankings: Rankings, k: int | None) -> FloatArray:
    """Credit at the first k places, discounted, over the sum of the discounts that the request has room for."""
    slates = requests.slates
    places = slates.width if k is None else min(whole("k", k, least=1), slates.width)
    if rankings is not None:
        credit_BK = np.take_along_axis(credit_BK, legal_orders(rankings, slates)[:, :places], axis=1)
    discounts_K = discounts(places)
    room_B = np.cumsum(discounts_K)[np.minimum(slates.sizes_B, places) - 1]
    value_B: FloatArray = row_sums(credit_BK[:, :places], discounts_K) / room_B
    return value_B
