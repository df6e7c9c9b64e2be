"""Answers of block-diffusion policies kept as they were written, with what it took to write them. A `Policy`.

`tables.Kept` keeps rankings; to count what is wrong before any repair the texts are needed, too. May import numpy, its
neighbour `tables` and the layers below. Suffixes: `_B` requests, `_K` candidates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rerank_env import durable
from rerank_env.data.requests import Requests
from rerank_env.rewards import faults
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import CheckpointError
from rerank_env.training.fingerprints import requests_hash

if TYPE_CHECKING:
    from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy


@dataclass(frozen=True)
class Written:
    """One answer a request, in turn: `rankings` (-1 where there is none), `texts` in a `text_format`, and the `ids`
    that its candidates go by, None for numbers. `sizes` are the numbers of candidates. `rounds` are the passes of the
    model that each answer takes alone, those that read prompts and fill answers in left out, and `tokens` its tokens.
    """

    rankings: list[list[int]]
    texts: list[str]
    text_format: str
    ids: list[list[str]] | None
    sizes: list[int]
    rounds: list[int]
    tokens: list[int]


@dataclass(frozen=True, eq=False)
class KeptTexts:
    """A policy whose answers are kept in `folder`, so that nobody is asked twice, whatever happens in between.

    `load` makes the policy at its first question. It has to be one that draws nothing. A `Policy` itself.
    """

    load: Callable[[], BlockDiffusionPolicy]
    folder: Path

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:  # noqa: ARG002 - nothing is drawn
        """The answers to these requests as rankings, [B, K], -1 where one is none."""
        return np.array(self.written(requests).rankings, dtype=np.int64)

    def written(self, requests: Requests) -> Written:
        """The answers kept for these requests, or the policy's."""
        path = self.folder / f"{requests_hash(requests)[:32]}.json"
        if path.is_file():
            try:
                return Written(**json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError) as error:
                raise CheckpointError(
                    f"{path} holds no kept answers ({error}); remove it, and they are asked for again"
                ) from error
        answers = self.load().answers(requests)
        rankings_BNK, _ = answers.read()
        asked, trajectories = answers.asked, [first for first, *_ in answers.trajectories_BN]
        told = Written(
            rankings=rankings_BNK[:, 0].tolist(),
            texts=[first for first, *_ in answers.texts],
            text_format=asked.text_format,
            ids=None if asked.answer_ids is None else [list(ids) for ids in asked.answer_ids],
            sizes=asked.shown.sizes_B.tolist(),
            rounds=[sum(trajectory.block_rounds) for trajectory in trajectories],
            tokens=[trajectory.length for trajectory in trajectories],
        )
        durable.replace(path, json.dumps(asdict(told)).encode())
        return told


def told_of(written: Sequence[Written]) -> dict[str, float | dict[str, float]]:
    """Of all answers of several seeds: their "faults" as `Faults.rates` has them, "forwards" an answer, and
    "tokens_per_forward". All are of one text format.
    """
    first = written[0]
    wrong = faults(
        [text for one in written for text in one.texts],
        np.concatenate([one.sizes for one in written]),
        text_format=first.text_format,
        ids=None if first.ids is None else [ids for one in written for ids in one.ids or ()],
    )
    rounds, tokens = (np.concatenate([getattr(one, name) for one in written]) for name in ("rounds", "tokens"))
    return {
        "faults": wrong.rates(),
        "forwards": float(rounds.mean()),
        "tokens_per_forward": float(tokens.sum() / rounds.sum()),
    }
