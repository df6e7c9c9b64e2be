"""What becomes of an answer that is cut off at the limit: one rule a run, and no two at once.

May import numpy and `rerank_env.rewards`. The rules are

- "invalid": it is no ranking, whatever its text says, and earns the reward's declared invalid score (GR2)
- "mask": it is left out, of the baseline of its group and of the loss (DAPO's overlong filtering, 2503.14476 section
3.4)
- "soft": it is read as it stands, and answers that come near the limit L pay for it (equation 13 there), with C =
  `soft_tokens` and n tokens:

      0                           n <= L - C
      penalty * (L - C - n) / C   L - C < n <= L
      -penalty                    cut off at L

An answer is cut off where it did not end by itself; one whose last allowed token ends it is whole. Suffix: `_N`
answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.arrays import BoolArray, FloatArray
from rerank_env.rewards.errors import InputError

POLICIES = ("invalid", "mask", "soft")

SOFT_SHARE = 5
"""DAPO's cache is 4,096 of 20,480 tokens, one part in this many."""


@dataclass(frozen=True, init=False)
class LengthRule:
    """One of `POLICIES`, for answers of at most `max_tokens`.

    `soft_tokens` (one part in `SOFT_SHARE` of the limit where None) and `penalty` are for "soft" only. Raises
    `UnknownNameError` for another policy, `InputError` for numbers that cannot be used.
    """

    policy: str
    max_tokens: int
    soft_tokens: int
    penalty: float

    def __init__(self, policy: str, max_tokens: int, *, soft_tokens: int | None = None, penalty: float = 1.0) -> None:
        limit = whole("max_tokens", max_tokens, least=1)
        soft = max(limit // SOFT_SHARE, 1) if soft_tokens is None else whole("soft_tokens", soft_tokens, least=1)
        if soft_tokens is not None and policy != "soft":
            raise InputError(f"soft_tokens is {soft_tokens} but length_policy is {policy!r}; give one of the two")
        if soft > limit:
            raise InputError(f"soft_tokens is {soft} but answers have at most {limit} tokens; give no more than that")
        if finite("soft_penalty", penalty) < 0:
            raise InputError(f"soft_penalty is {penalty}; it is taken off the reward, so give a number of at least 0")
        object.__setattr__(self, "policy", one_of("length policy", policy, POLICIES))
        object.__setattr__(self, "max_tokens", limit)
        object.__setattr__(self, "soft_tokens", soft)
        object.__setattr__(self, "penalty", float(penalty))

    def invalid(self, finished_N: npt.ArrayLike) -> BoolArray:
        """Which answers are no rankings for their length."""
        cut_N = ~np.asarray(finished_N, dtype=np.bool_)
        return cut_N if self.policy == "invalid" else np.zeros_like(cut_N)

    def counted(self, finished_N: npt.ArrayLike) -> BoolArray:
        """Which answers are compared with their group, and learned from."""
        whole_N = np.asarray(finished_N, dtype=np.bool_)
        return whole_N if self.policy == "mask" else np.ones_like(whole_N)

    def penalties(self, tokens_N: npt.ArrayLike, finished_N: npt.ArrayLike) -> FloatArray:
        """What is added to the rewards, 0 or less.

        >>> LengthRule("soft", 100, soft_tokens=20).penalties([80, 85, 100, 100], [True, True, True, False]).tolist()
        [0.0, -0.25, -1.0, -1.0]
        """
        tokens = np.asarray(tokens_N, dtype=np.float64)
        if self.policy != "soft":
            return np.zeros_like(tokens)
        near_N = np.clip((self.max_tokens - self.soft_tokens - tokens) / self.soft_tokens, -1.0, 0.0)
        cut_N = ~np.asarray(finished_N, dtype=np.bool_)
        return np.asarray(self.penalty * np.where(cut_N, -1.0, near_N) + 0.0)
