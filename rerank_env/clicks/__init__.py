"""Users who click, with known parameters: logged feedback of any size, and the truth behind it.

    model = clicks.parse_click_model("pbm(eta=1, attraction=grades(max_grade=2))")
    log = clicks.logged(requests, model, rng=rng)                  # clicks and propensities of the incoming order
    ClickCredit(min_propensity=0.01)(rankings, log.slates)         # what the log says that other rankings are worth
    clicks.true_value(log, model, rankings)                        # what they are worth

`PositionBased`, `Cascade` (the dependent click model too) and `TrustBias` are values: equal by their parameters, and
their text parses back. May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

from rerank_env.clicks.attraction import Attraction, Given, Grades
from rerank_env.clicks.cascade import Cascade
from rerank_env.clicks.logs import logged, logged_in_batches
from rerank_env.clicks.models import ClickModel
from rerank_env.clicks.names import parse_click_model
from rerank_env.clicks.places import PositionBased, TrustBias
from rerank_env.clicks.values import affine_credit, affine_value, expected_reward, true_value

__all__ = [
    "Attraction",
    "Cascade",
    "ClickModel",
    "Given",
    "Grades",
    "PositionBased",
    "TrustBias",
    "affine_credit",
    "affine_value",
    "expected_reward",
    "logged",
    "logged_in_batches",
    "parse_click_model",
    "true_value",
]
