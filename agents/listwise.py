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

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rerank_env.agents import plackett_luce, pretrained
from rerank_env.agents.observations import Observation, tensors
from rerank_env.agents.set_transformer import SetTransformer
from rerank_env.agents.tokens import Tokens
from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.arrays import Float32Array, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError

INFERENCE_ROWS = 512
"""Requests a forward pass holds where no gradient is needed: bounds memory."""

PADDED_LOGIT = -1e4
"""The logits of padded candidates: exp of it is 0 in every float type, and float16 can hold it."""


@dataclass(frozen=True)
class ListwiseConfig:
    """The size of a `ListwisePolicy`; `InputError` on sizes that cannot be built.

    `item_features` F; `item_embedding` the width of a learned vector an item, beside its features (0: none);
    `history` how many ages of history entries are told apart, older ones share the last; `slots` how many places have
    a query of their own, later ones share the last (1 makes the head plain Plackett-Luce); `score_prior` the first
    value of w, the weight of the first stage's score (0: a new policy is uniform).
    """

    item_features: int
    dim: int = 64
    layers: int = 2
    heads: int = 4
    feedforward: int = 128
    history: int = 50
    slots: int = 10
    item_embedding: int = 0
    dropout: float = 0.0
    score_prior: float = 1.0

    def __post_init__(self) -> None:
        """Check every field, since a configuration may come from a file."""
        least = {"item_features": 0, "layers": 0, "item_embedding": 0}
        for name in ("item_features", "dim", "layers", "heads", "feedforward", "history", "slots", "item_embedding"):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least.get(name, 1)))
        if self.dim % self.heads:
            raise InputError(f"dim {self.dim} does not divide into {self.heads} heads; make dim a multiple of heads")
        for name, low, high in (("dropout", 0.0, 1.0), ("score_prior", -100.0, 100.0)):
            value = finite(name, getattr(self, name))
            if not low <= value < high:
                raise InputError(f"{name} is {value}; give a number from {low} to below {high}")
            object.__setattr__(self, name, value)


class Samples(NamedTuple):
    """Rankings int64 [B, N, K], tails -1; the log-probability and the entropy of each place's choice, tails 0."""

    rankings_BNK: Tensor
    logprobs_BNK: Tensor
    entropies_BNK: Tensor


class ListwisePolicy(nn.Module):
    """A policy that reads the items, with exact ranking probabilities. A `Policy`.

    `features_IF` [I, F] are the catalogue's item features. New weights are drawn from `generator`, or from torch's
    global one where it is None. Most callers want `for_requests`, which also learns the scale of scores and feedback.
    """

    def __init__(
        self,
        config: ListwiseConfig,
        features_IF: Float32Array | Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Build the network; `InputError` where the features are not those the configuration says."""
        super().__init__()
        if features_IF.ndim != 2 or features_IF.shape[1] != config.item_features:
            raise InputError(
                f"features have shape {tuple(features_IF.shape)} but the configuration says item_features="
                f"{config.item_features}; pass catalog.features_IF, one row an item"
            )
        self.config = config
        dim = config.dim
        with torch.random.fork_rng(devices=[]):  # torch's own first draws are overwritten below
            self.tokens = Tokens(features_IF, dim=dim, history=config.history, item_embedding=config.item_embedding)
            self.encoder = SetTransformer(
                dim=dim,
                layers=config.layers,
                heads=config.heads,
                feedforward=config.feedforward,
                dropout=config.dropout,
            )
            self.score = nn.Linear(dim, 1, bias=False)  # a shift of all candidates would change nothing
            self.key = nn.Linear(dim, dim, bias=False)
            self.context = nn.Linear(dim, dim, bias=False)
            self.slot = nn.Embedding(config.slots, dim)
            self.score_weight = nn.Parameter(torch.tensor(float(config.score_prior)))
        self._initialise(generator)

    @classmethod
    def for_requests(cls, requests: Requests, *, generator: torch.Generator, **settings: Any) -> ListwisePolicy:
        """A new policy that fits `requests` (the training split): their catalogue, widths, and scales.

        `settings` override fields of `ListwiseConfig`. Raises `UnknownNameError` on one that it does not have.
        """
        known = {field.name for field in fields(ListwiseConfig)}
        for name in settings:
            one_of("setting of ListwiseConfig", name, known)
        features_IF = requests.catalog.features_IF
        fitted = {
            "item_features": features_IF.shape[1],
            "history": max(1, requests.history_BH.shape[1]),
            "slots": requests.candidates_BK.shape[1],
        }
        policy = cls(ListwiseConfig(**{**fitted, **settings}), features_IF, generator=generator)
        policy.tokens.fit(tensors(requests))
        return policy

    def forward(self, observation: Requests | Observation | Mapping[str, object]) -> Tensor:
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

    def sample(
        self, observation: Requests | Observation | Mapping[str, object], n: int, *, generator: torch.Generator
    ) -> Samples:
        """`n` independent rankings of each request and how likely they were. No gradient; dropout is off."""
        seen = self._received(observation)
        logits_BKK = self._inferred(seen)
        rankings_BNK = plackett_luce.sample(logits_BKK, seen.sizes_B, n, generator=generator)
        return Samples(
            rankings_BNK,
            plackett_luce.log_prob(logits_BKK, rankings_BNK, seen.sizes_B),
            plackett_luce.path_entropy(logits_BKK, rankings_BNK, seen.sizes_B),
        )

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

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors` into `directory`; `CheckpointError` where that fails."""
        pretrained.write(directory, "listwise", asdict(self.config), self.state_dict())

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> ListwisePolicy:
        """The policy that `save_pretrained` wrote, on the CPU and in evaluation mode.

        Raises `CheckpointError` where a file is missing, torn or does not belong.
        """
        config, weights = pretrained.read(directory, "listwise")
        features_IF = weights.get("tokens.features_IF")
        try:
            if features_IF is None:
                raise InputError("there is no item table")
            policy = cls(ListwiseConfig(**config), features_IF, generator=torch.Generator())
        except (InputError, TypeError) as error:
            raise CheckpointError(f"the policy in {directory} cannot be built: {error}") from error
        pretrained.check_weights(policy, weights, directory)
        policy.to(features_IF.dtype).load_state_dict(weights)
        return policy.eval()

    def _initialise(self, generator: torch.Generator | None) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.1, generator=generator)
        for weight in (self.score.weight, self.context.weight, self.slot.weight):
            nn.init.zeros_(weight)

    def _received(self, observation: Requests | Observation | Mapping[str, object]) -> Observation:
        """The observation on the policy's device and in its precision; `InputError` on another catalogue's requests."""
        table_IF = self.tokens.features_IF
        if isinstance(observation, Requests) and observation.catalog.features_IF.shape != table_IF.shape:
            raise InputError(
                f"the requests' catalogue has (items, features) {observation.catalog.features_IF.shape} but the policy "
                f"was built for {tuple(table_IF.shape)}; rank requests over the same catalogue"
            )
        if isinstance(observation, Requests) and not self.tokens.were_built_for(observation.catalog.features_IF):
            raise InputError(
                "the requests' catalogue has other item features than the one the policy was built for; rank requests "
                "over the same catalogue"
            )
        return tensors(observation).to(table_IF.device, table_IF.dtype)

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
