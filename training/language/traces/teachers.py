"""Teachers that are language models: one that runs here, one behind a server.

May import torch and the layers below. In targeted mode the prompts get the hint that names the target; otherwise they
are those that a student sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_env.prompts import Asked
from rerank_env.rewards.arrays import IntArray
from rerank_env.training.language.traces.prompting import some, targeted
from rerank_env.training.language.traces.proposals import Proposal, read

if TYPE_CHECKING:
    from rerank_env.agents.language.decoding import Decoding
    from rerank_env.agents.language.policy import LanguagePolicy
    from rerank_env.agents.language.server import ServerModel

HASH_CHARS = 16
TEMPERATURE = 1.0
"""At which a policy teaches that answers greedily itself: asked again, it has to be able to say something else."""

SAMPLED_WEIGHTS = 64
"""So many numbers of each parameter tell one checkpoint from another."""


class LocalTeacher:
    """A policy of this process, at the temperature 1 where it is greedy itself, or with another `decoding`.

    Its draws depend on the seeds of all requests that it is asked about at a time, not on one by one. Requests are put
    in words by the writer that traces are collected with, not by the policy's own.
    """

    def __init__(self, policy: LanguagePolicy, *, decoding: Decoding | None = None, name: str | None = None) -> None:
        used = policy.decoding if decoding is None else decoding
        if decoding is None and used.is_greedy:
            used = replace(used, temperature=TEMPERATURE)
        self.policy = policy
        self.decoding = used
        path = getattr(policy.model.config, "name_or_path", "")
        self.name = name or path or str(policy.model.config.model_type)

    @property
    def fingerprint(self) -> str:
        """What tells the answers of these weights and this decoding from others'."""
        settings = asdict(self.decoding)
        del settings["batch_size"], settings["share_prefix"]  # these say how fast it is
        digest = hashlib.sha256(json.dumps([self.name, settings], sort_keys=True).encode())
        for label, weights in self.policy.model.named_parameters():
            few = weights.detach().reshape(-1)[:: max(1, weights.numel() // SAMPLED_WEIGHTS)]
            digest.update(f"{label}{tuple(weights.shape)}".encode() + few.float().cpu().numpy().tobytes())
        return digest.hexdigest()[:HASH_CHARS]

    def propose(self, asked: Asked, *, targets_B: IntArray | None, seeds_B: IntArray) -> list[Proposal]:
        """One proposal a request; see `Teacher`. Raises as `LanguagePolicy.respond` does."""
        hinted = asked if targets_B is None else targeted(asked, targets_B)
        answers = self.policy.respond(
            hinted, rng=np.random.default_rng(np.asarray(seeds_B, dtype=np.uint64)), decoding=self.decoding
        )
        prompts = self.policy.prompt_ids(hinted.prompts)
        return read(
            asked,
            [texts[0] for texts in answers.texts_BN],
            [len(ids) for ids in prompts],
            [len(ids[0]) for ids in answers.ids_BN],
        )


class ServerTeacher:
    """The model of a server, asked `server.concurrency` requests at a time; replies are given as they come."""

    def __init__(self, server: ServerModel, *, name: str | None = None) -> None:
        self.server = server
        self.name = server.model if name is None else name

    @property
    def fingerprint(self) -> str:
        """What tells the replies of this model and decoding from others'; where it is served says nothing."""
        server = self.server
        says: list[Any] = [server.model, server.max_tokens, server.temperature, server.top_p, dict(server.extra)]
        return hashlib.sha256(json.dumps(says, sort_keys=True, default=str).encode()).hexdigest()[:HASH_CHARS]

    def propose(self, asked: Asked, *, targets_B: IntArray | None, seeds_B: IntArray) -> list[Proposal]:
        """One proposal a request; see `Teacher`. Raises `ServerError`."""
        found = dict(self.stream(asked, targets_B=targets_B, seeds_B=seeds_B))
        return [found[row] for row in range(len(asked.prompts))]

    def stream(self, asked: Asked, *, targets_B: IntArray | None, seeds_B: IntArray) -> Iterator[tuple[int, Proposal]]:
        """Rows and proposals as they come. Raises `ServerError` behind all that were under way."""
        hinted = asked if targets_B is None else targeted(asked, targets_B)
        chats = [prompt.chat for prompt in hinted.prompts]
        for row, reply in self.server.stream(chats, seeds=seeds_B.tolist()):
            text = reply.completion(asked.text_format)
            (proposal,) = read(some(asked, [row]), [text], [reply.tokens_in], [reply.tokens_out])
            yield row, proposal
