"""What a language policy wrote to requests, as it was written, and as it is read.

May import numpy and the layers below. Suffixes: `_B` requests, `_N` answers to one request, `_K` candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rerank_env.prompts import Asked
from rerank_env.rewards.arrays import IntArray, VerdictArray

Value = TypeVar("Value")


def grouped(values: Sequence[Value], n: int) -> list[list[Value]]:
    """What belongs to rows in row-major order, [B * n], as [B][n].

    >>> grouped("abcdef", 2)
    [['a', 'b'], ['c', 'd'], ['e', 'f']]
    """
    return [list(values[row : row + n]) for row in range(0, len(values), n)]


@dataclass(frozen=True, eq=False)
class Answers:
    """What was written to requests: for each of B requests its `n` answers.

    `texts_BN`, `ids_BN` (tokens, the end-of-text token included where it was written), `logprobs_BN` (one number a
    token under the law it was drawn from, see `rerank_env.agents.language.generation.Generated`), `finished_BN`.
    """

    asked: Asked
    texts_BN: list[list[str]]
    ids_BN: list[list[list[int]]]
    logprobs_BN: list[list[list[float]]]
    finished_BN: list[list[bool]]
    n: int

    @property
    def texts(self) -> list[list[str]]:
        """The texts, [B][N]."""
        return self.texts_BN

    def read(self) -> tuple[IntArray, VerdictArray]:
        """Rankings of the requests as they were asked about, int64 [B, N, K], -1 where invalid, and verdicts [B, N]."""
        read = [self.asked.read([texts[copy] for texts in self.texts_BN]) for copy in range(self.n)]
        return (
            np.stack([one.rankings_BK for one in read], axis=1),
            np.stack([one.verdicts_B for one in read], axis=1),
        )
