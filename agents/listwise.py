"""A set transformer over history and candidates, with an exact generalised Plackett-Luce head.

May import torch, numpy and the layers below. Suffixes: `_B` requests, `_K` candidates or places, `_N` samples, `_I`
items, `_F` item features, `_D` width.

    S[i, k] = score(c_k) + query_i . key(c_k) / sqrt(D) + w z_k,      query_i = slot_i + W context

with c_k the candidate's and `context` the request's token on the way out, and z_k the first stage's score minus its
mean over the request. No token knows a candidate's position (`tokens.py`), so permuting the candidates permutes the
answer. `score`, `slot` and `W` start at zero: a new policy is the plain Plackett-Luce law of w z, a noisy first stage.
The likelihood is in `plackett_luce.py`; the network is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rerank_env.agents import plackett_luce
from rerank_env.agents.network import INFERENCE_ROWS, PADDED_LOGIT, NetworkConfig, NetworkPolicy, Samples, Seen
from rerank_env.agents.observations import Observation
from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import IntArray


@dataclass(frozen=True)
class ListwiseConfig(NetworkConfig):
    """The size of a `ListwisePolicy`; `InputError` on sizes that cannot be built.

    `slots` how many places have a query of their own, later ones share the last (1 makes the head plain
    Plackett-Luce); `score_prior` the first value of w, the weight of the first stage's score (0: a new policy is
    uniform); the others as in `NetworkConfig`.
    """

    slots: int = 10
    score_prior: float = 1.0

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._check_whole("slots", least=1)
        self._check_number("score_prior", -100.0, 100.0)


class ListwisePolicy(NetworkPolicy):
    """A policy that reads the items, with exact ranking probabilities. A `Policy`; its tokens are the candidates."""

    kind = "listwise"
    Config = ListwiseConfig
    widest = "slots"
    config: ListwiseConfig

    def _build(self) -> None:
        dim = self.config.dim
        self.score = nn.Linear(dim, 1, bias=False)  # a shift of all candidates would change nothing
        self.key = nn.Linear(dim, dim, bias=False)
        self.context = nn.Linear(dim, dim, bias=False)
        self.slot = nn.Embedding(self.config.slots, dim)
        self.score_weight = nn.Parameter(torch.tensor(float(self.config.score_prior)))

    def _draw(self, generator: torch.Generator | None) -> None:
        del generator  # what is not zero starts as everywhere
        for weight in (self.score.weight, self.context.weight, self.slot.weight):
            nn.init.zeros_(weight)

    def forward(self, observation: Seen) -> Tensor:
        """Logits [B, K, K]: row i scores the candidates for place i. Padded candidates get `PADDED_LOGIT`.

        Takes whatever `tensors` takes, any number of candidates and history entries, none of the latter included.
        """
        seen = self._received(observation)
        tokens_BTD, real_BT, scores_BK = self.tokens(seen)
        out_BTD = self.encoder(tokens_BTD, real_BT)
        width = seen.candidates_BK.shape[1]
        candidates_BKD, context_BD = out_BTD[:, -width:], out_BTD[:, 0]
        places_K = torch.arange(width, device=out_BTD.device).clamp(max=self.config.slots - 1)
        query_BKD = self.slot(places_K) + self.context(context_BD)[:, None]
        matched_BKK = query_BKD @ self.key(candidates_BKD).transpose(1, 2) / sqrt(self.config.dim)
        shared_BK = self.score(candidates_BKD).squeeze(-1) + self.score_weight * scores_BK
        logits_BKK: Tensor = matched_BKK + shared_BK[:, None]
        return logits_BKK.masked_fill((seen.candidates_BK < 0)[:, None], PADDED_LOGIT)

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """The best candidate at each place in turn: int64 [B, K], tails -1. Nothing is random; dropout is off."""
        del rng  # greedy
        seen = self._received(requests)
        rankings_BK: IntArray = plackett_luce.greedy(self._inferred(seen), seen.sizes_B).cpu().numpy()
        return rankings_BK

    def sample(self, observation: Seen, n: int, *, generator: torch.Generator) -> Samples:
        """`n` independent rankings of each request and how likely they were. No gradient; dropout is off."""
        seen = self._received(observation)
        logits_BKK = self._inferred(seen)
        rankings_BNK = plackett_luce.sample(logits_BKK, seen.sizes_B, n, generator=generator)
        return Samples(
            rankings_BNK,
            rankings_BNK,
            plackett_luce.log_prob(logits_BKK, rankings_BNK, seen.sizes_B),
            plackett_luce.path_entropy(logits_BKK, rankings_BNK, seen.sizes_B),
        )

    def log_prob(self, observation: Seen, tokens_BNT: Tensor) -> Tensor:
        """Log-probability of each place of each ranking, [B, N, K]; `RankingError` on an illegal ranking."""
        seen = self._received(observation)
        return plackett_luce.log_prob(self(seen), tokens_BNT, seen.sizes_B)

    def act(self, observation: Mapping[str, Any], *, generator: torch.Generator | None = None) -> IntArray:
        """An action of `Rerank-v0` with `action="ranking"`: a permutation of 0..K-1, int64 [K] or [B, K].

        `observation` is one environment's, or a vector environment's with a leading axis. Greedy, or a draw where a
        `generator` is given. Padded places hold the padded candidates, since that action space has no -1.
        """
        keys = ("candidates", "scores", "history", "feedback")
        single = np.ndim(observation["candidates"]) == 1
        seen = self._received({key: np.asarray(observation[key])[None] for key in keys} if single else observation)
        if generator is None:
            chosen_BK = plackett_luce.greedy(self._inferred(seen), seen.sizes_B)
        else:
            chosen_BK = self.sample(seen, 1, generator=generator).rankings_BNK.squeeze(1)
        place_K = torch.arange(chosen_BK.shape[1], device=chosen_BK.device)
        action_BK: IntArray = torch.where(chosen_BK >= 0, chosen_BK, place_K).cpu().numpy()
        return action_BK[0] if single else action_BK

    @torch.no_grad()
    def _inferred(self, seen: Observation) -> Tensor:
        """Logits without gradient or dropout, a bounded number of requests at a time."""
        was_training = self.training
        self.eval()
        try:
            starts = range(0, max(1, len(seen)), INFERENCE_ROWS)
            return torch.cat([self(seen.rows(start, start + INFERENCE_ROWS)) for start in starts])
        finally:
            self.train(was_training)
