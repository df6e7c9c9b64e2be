"""What policies with weights share: they read requests alike, can be sampled from, trained and saved.

May import torch, numpy and the layers below. Suffixes: `_B` requests, `_N` answers to one request, `_K` candidates or
places, `_T` tokens of an answer, `_I` items, `_F` item features.

An answer is a row of tokens, and a policy says what a token is. For `ListwisePolicy` a token is the candidate at a
place; for `TokenPolicy` it is a word, and not every row of words is a ranking. Trainers only need that tokens can be
sampled and that their log-probabilities have a gradient. Ours.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from rerank_env.agents import pretrained
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

Seen = Requests | Observation | Mapping[str, object]
"""Whatever `observations.tensors` takes."""


@dataclass(frozen=True)
class NetworkConfig:
    """The size of the part that reads; `InputError` on sizes that cannot be built.

    `item_features` F; `item_embedding` the width of a learned vector an item, beside its features (0: none);
    `history` how many ages of history entries are told apart, older ones share the last.
    """

    item_features: int
    dim: int = 64
    layers: int = 2
    heads: int = 4
    feedforward: int = 128
    history: int = 50
    item_embedding: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Check every field, since a configuration may come from a file."""
        self._check_whole("item_features", "layers", "item_embedding", least=0)
        self._check_whole("dim", "heads", "feedforward", "history", least=1)
        if self.dim % self.heads:
            raise InputError(f"dim {self.dim} does not divide into {self.heads} heads; make dim a multiple of heads")
        self._check_number("dropout", 0.0, 1.0)

    def _check_whole(self, *names: str, least: int) -> None:
        for name in names:
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))

    def _check_number(self, name: str, low: float, high: float) -> None:
        value = finite(name, getattr(self, name))
        if not low <= value < high:
            raise InputError(f"{name} is {value}; give a number from {low} to below {high}")
        object.__setattr__(self, name, value)


class Samples(NamedTuple):
    """Answers drawn from a policy, and how likely they were.

    `rankings_BNK` int64, what an environment is told: tails -1, and rows that are no ranking where an answer is none.
    `tokens_BNT` int64, what was drawn, -1 where nothing was; the log-probability of each token given those before it,
    and the entropy of that choice, both 0 where there is no token.
    """

    rankings_BNK: Tensor
    tokens_BNT: Tensor
    logprobs_BNT: Tensor
    entropies_BNT: Tensor


class NetworkPolicy(nn.Module, ABC):
    """A policy with weights: a set transformer over history and candidates, and a way to write answers.

    A subclass names its `kind` on disk, its `Config`, and the field of it that is the width of the slates.
    """

    kind: ClassVar[str]
    Config: ClassVar[type[NetworkConfig]]
    widest: ClassVar[str]

    def __init__(
        self,
        config: NetworkConfig,
        features_IF: Float32Array | Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Build the network and draw its weights from `generator`, or from torch's global one where it is None.

        `features_IF` [I, F] are the catalogue's item features; `InputError` where they are not those the configuration
        says. Most callers want `for_requests`, which also learns the scale of scores and feedback.
        """
        super().__init__()
        if features_IF.ndim != 2 or features_IF.shape[1] != config.item_features:
            raise InputError(
                f"features have shape {tuple(features_IF.shape)} but the configuration says item_features="
                f"{config.item_features}; pass catalog.features_IF, one row an item"
            )
        self.config = config
        with torch.random.fork_rng(devices=[]):  # torch's own first draws are overwritten below
            self.tokens = Tokens(
                features_IF, dim=config.dim, history=config.history, item_embedding=config.item_embedding
            )
            self.encoder = SetTransformer(
                dim=config.dim,
                layers=config.layers,
                heads=config.heads,
                feedforward=config.feedforward,
                dropout=config.dropout,
            )
            self._build()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.1, generator=generator)
        self._draw(generator)

    @classmethod
    def for_requests(cls, requests: Requests, *, generator: torch.Generator, **settings: Any) -> Self:
        """A new policy that fits `requests` (the training split): their catalogue, widths, and scales.

        `settings` override fields of its configuration. Raises `UnknownNameError` on one that it does not have.
        """
        known = {field.name for field in fields(cls.Config)}
        for name in settings:
            one_of(f"setting of {cls.Config.__name__}", name, known)
        features_IF = requests.catalog.features_IF
        fitted = {
            "item_features": features_IF.shape[1],
            "history": max(1, requests.history_BH.shape[1]),
            cls.widest: requests.candidates_BK.shape[1],
        }
        policy = cls(cls.Config(**{**fitted, **settings}), features_IF, generator=generator)
        policy.tokens.fit(tensors(requests))
        return policy

    @abstractmethod
    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """The greedy answer to each request as in `Policy`; a row that is no ranking where the answer is none."""

    @abstractmethod
    def sample(self, observation: Seen, n: int, *, generator: torch.Generator) -> Samples:
        """`n` independent answers to each request and how likely they were. No gradient; dropout is off."""

    @abstractmethod
    def log_prob(self, observation: Seen, tokens_BNT: Tensor) -> Tensor:
        """Log-probability of each token of given answers, [B, N, T], 0 where there is none; with a gradient."""

    def spelled(self, rankings_BNK: Tensor, sizes_B: Tensor) -> Tensor:
        """The tokens that say these rankings, [B, N, T]: here the rankings themselves."""
        del sizes_B
        return rankings_BNK

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors` into `directory`; `CheckpointError` where that fails."""
        pretrained.write(directory, self.kind, asdict(self.config), self.state_dict())

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> Self:
        """The policy that `save_pretrained` wrote, on the CPU and in evaluation mode.

        Raises `CheckpointError` where a file is missing, torn or does not belong.
        """
        config, weights = pretrained.read(directory, cls.kind)
        features_IF = weights.get("tokens.features_IF")
        try:
            if features_IF is None:
                raise InputError("there is no item table")
            policy = cls(cls.Config(**config), features_IF, generator=torch.Generator())
        except (InputError, TypeError) as error:
            raise CheckpointError(f"the policy in {directory} cannot be built: {error}") from error
        pretrained.check_weights(policy, weights, directory)
        policy.to(features_IF.dtype).load_state_dict(weights)
        return policy.eval()

    @abstractmethod
    def _build(self) -> None:
        """Make what comes behind the reading part; torch's own first draws are overwritten afterwards."""

    @abstractmethod
    def _draw(self, generator: torch.Generator | None) -> None:
        """Set the weights that do not start as every matrix and every embedding does."""

    def _received(self, observation: Seen) -> Observation:
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
