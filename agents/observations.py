"""What a network sees of re-ranking requests, as tensors, checked once.

May import torch, numpy and the layers below. Suffixes: `_B` requests, `_K` candidates, `_H` history entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rerank_env.data.requests import Requests
from rerank_env.rewards.errors import InputError


@dataclass(frozen=True, eq=False)
class Observation:
    """A batch of requests: item numbers int64, numbers about them float, tails of item numbers padded with -1.

    `candidates_BK` and the first stage's `scores_BK`; `history_BH`, oldest first, and the user's `feedback_BH` to it.
    """

    candidates_BK: Tensor
    scores_BK: Tensor
    history_BH: Tensor
    feedback_BH: Tensor

    def __len__(self) -> int:
        """How many requests."""
        return len(self.candidates_BK)

    @property
    def sizes_B(self) -> Tensor:
        """How many candidates each request has, int64 [B]."""
        return (self.candidates_BK >= 0).sum(-1)

    def rows(self, start: int, stop: int) -> Observation:
        """Requests `start` to `stop`, the last not included."""
        return Observation(*(field[start:stop] for field in self._fields()))

    def to(self, device: torch.device, dtype: torch.dtype) -> Observation:
        """The same on another device, the float fields in `dtype`."""
        return Observation(
            candidates_BK=self.candidates_BK.to(device),
            scores_BK=self.scores_BK.to(device, dtype),
            history_BH=self.history_BH.to(device),
            feedback_BH=self.feedback_BH.to(device, dtype),
        )

    def _fields(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.candidates_BK, self.scores_BK, self.history_BH, self.feedback_BH


def tensors(observation: Requests | Observation | Mapping[str, object]) -> Observation:
    """Requests, or the batched observation of an environment, as tensors.

    A mapping needs the keys `candidates`, `scores`, `history` and `feedback`, arrays or tensors with a leading axis
    of requests; other keys (prompts, masks) are left alone. Arrays are copied, tensors and an `Observation` are not.
    Raises `InputError` where a key is missing, shapes disagree, or candidates are not padded at the tail.
    """
    if isinstance(observation, Observation):
        return observation
    fields = observation.observation() if isinstance(observation, Requests) else observation
    missing = sorted({"candidates", "scores", "history", "feedback"} - set(fields))
    if missing:
        raise InputError(
            f"the observation has no {', '.join(missing)}; pass what Rerank-v0 or Requests.observation() returns"
        )
    seen = Observation(
        candidates_BK=_tensor(fields["candidates"], torch.int64),
        scores_BK=_tensor(fields["scores"], None),
        history_BH=_tensor(fields["history"], torch.int64),
        feedback_BH=_tensor(fields["feedback"], None),
    )
    _check(seen)
    return seen


def _tensor(values: object, dtype: torch.dtype | None) -> Tensor:
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    if dtype is None:
        return tensor if tensor.is_floating_point() else tensor.float()
    return tensor.to(dtype)


def _check(seen: Observation) -> None:
    rows = seen.candidates_BK.shape[0] if seen.candidates_BK.ndim else 0
    pairs = {"scores": (seen.scores_BK, seen.candidates_BK), "feedback": (seen.feedback_BH, seen.history_BH)}
    for name, (numbers, items) in pairs.items():
        if items.ndim != 2 or numbers.shape != items.shape or items.shape[0] != rows:
            raise InputError(
                f"{name} has shape {tuple(numbers.shape)} beside items of shape {tuple(items.shape)} and {rows} "
                "requests; give both (requests, entries), one request as a batch of one"
            )
    real_BK = seen.candidates_BK >= 0
    sizes_B = real_BK.sum(-1)
    place_K = torch.arange(real_BK.shape[1], device=real_BK.device)
    torn_B = (real_BK != (place_K < sizes_B[:, None])).any(-1) | (sizes_B == 0)
    if torn_B.any():
        raise InputError(
            f"request {int(torn_B.nonzero()[0])} has no candidate, or one after a padded place; put the padding last"
        )
