"""When to give up: no better for long, or paid ever more while getting worse.

May import numpy and `rerank_env.rewards`. Two curves are watched, one point a validation: the *proxy*, the mean reward
of training since the last validation, and the *held-out* metric, a raw metric on requests that training never asks. A
reward that is being gamed shows as the one rising while the other falls; either alone is an ordinary run. A curve rises
over the last `window` points where Kendall's tau between its values and time is at least `agreement`, and falls where
it is at most minus that; ties count for neither.

Of two flat curves with independent noise, one look at the default window of 6 calls both for 49 * 49 of 720 * 720 pairs
of orders, 0.46 % of the time: orders of six things with at most 3 of 15 pairs the wrong way round are 49.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.errors import InputError

PATIENCE = "no better held-out metric"
DIVERGING = "the reward rises while the held-out metric falls"


@dataclass(frozen=True)
class StopRule:
    """Stop after `patience` validations in a row without a new best (None: never), or where the curves part.

    `window` points make a trend, at least 4 (None: never look), `agreement` in (0, 1] of their pairs net. Raises
    `InputError` naming the field.
    """

    patience: int | None = None
    window: int | None = 6
    agreement: float = 0.6

    def __post_init__(self) -> None:
        """Check every field."""
        if self.patience is not None:
            object.__setattr__(self, "patience", whole("patience", self.patience, least=1))
        if self.window is not None:
            object.__setattr__(self, "window", whole("window", self.window, least=4))
        if not 0.0 < finite("agreement", self.agreement) <= 1.0:
            raise InputError(f"agreement is {self.agreement}; give a share above 0, at most 1")

    def verdict(self, proxy: Sequence[float], held_out: Sequence[float]) -> str | None:
        """Why to stop after these points, one a validation; None to go on.

        The first point is that of the weights that training started from: it can be the best, and its proxy is not
        looked at, because nothing was trained yet.
        """
        if self.patience is not None and len(held_out) - 1 - best_of(held_out) >= self.patience:
            return PATIENCE
        if self.window is not None and len(held_out) > self.window:
            rises = trend(proxy[-self.window :]) >= self.agreement
            falls = trend(held_out[-self.window :]) <= -self.agreement
            if rises and falls:
                return DIVERGING
        return None


def best_of(held_out: Sequence[float]) -> int:
    """The place of the best value, the first of equal ones."""
    return int(np.argmax(np.asarray(held_out, dtype=np.float64)))


def trend(values: Sequence[float]) -> float:
    """Kendall's tau-a between values and time, in [-1, 1]; 0 of fewer than two.

    >>> trend([1.0, 2.0, 3.0]), trend([1.0, 3.0, 2.0]), trend([1.0, 1.0])
    (1.0, 0.3333333333333333, 0.0)
    """
    points = np.asarray(values, dtype=np.float64)
    n = len(points)
    if n < 2:
        return 0.0
    later, earlier = np.tril_indices(n, k=-1)
    return float(np.sign(points[later] - points[earlier]).sum() / (n * (n - 1) / 2))
