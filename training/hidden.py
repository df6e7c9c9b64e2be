"""A policy with a blindfold: the same policy, asked without one thing it usually reads.

What a metric loses under a blindfold is what the policy owed to that input; a policy that merely sorts by the earlier
stage's scores loses nothing without the history. Remarks are made from history and scores, so they are taken off with
either; a policy that puts remarks on requests by itself makes them anew, from what is left. The policy was not trained
to do without, so the loss is an upper bound. Ours. May import numpy and the layers below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rerank_env.agents import Policy
from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import UnknownNameError

INPUTS = ("history", "scores", "remarks")


@dataclass(frozen=True)
class Hidden:
    """`policy`, shown requests with an empty history, with all scores 0, or with empty remarks; `what` of `INPUTS`."""

    policy: Policy
    what: str

    def __post_init__(self) -> None:
        if self.what not in INPUTS:
            raise UnknownNameError.of("input to hide", self.what, INPUTS)

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """The policy's answers to the blindfolded requests."""
        if self.what == "remarks":
            shown = replace(requests, remarks_BK=np.full(requests.candidates_BK.shape, "", dtype=object))
        elif self.what == "scores":
            shown = replace(requests, scores_BK=np.zeros_like(requests.scores_BK), remarks_BK=None)
        else:
            shown = replace(
                requests,
                history_BH=np.full_like(requests.history_BH, PAD),
                feedback_BH=np.zeros_like(requests.feedback_BH),
                remarks_BK=None,
            )
        return self.policy.rank(shown, rng=rng)
