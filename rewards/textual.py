"""Rewards of what stands around the ranking: how long the answer is, and whether its reasoning cites real candidates.

They shape, and never judge a ranking: add them with small weights, under `when`. Lengths and reasonings come with the
`Context`, from the parser or the trainer. May import numpy only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.reward import Leaf

Unit = Literal["chars", "tokens"]

_CITATION = re.compile(r"\[([^\[\]]{0,40})\]")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class _Measured(Leaf):
    """A reward of the length of the answer in `unit`."""

    unit: Unit

    def __post_init__(self) -> None:
        """Check the unit too."""
        one_of("unit of length", self.unit, get_args(Unit))
        object.__setattr__(self, "own_needs", frozenset({self.unit}))
        super().__post_init__()


@dataclass(frozen=True, repr=False)
class Length(_Measured):
    """1 for an answer of `least` to `most` characters or tokens, both included, else 0. Ours."""

    most: int
    least: int = 0
    unit: Unit = "tokens"
    invalid: float = 0.0
    name = "length"

    def __post_init__(self) -> None:
        """Check the limits."""
        object.__setattr__(self, "least", whole("least", self.least, least=0))
        object.__setattr__(self, "most", whole("most", self.most, least=self.least))
        super().__post_init__()

    def evaluate(self, answers: Answers) -> FloatArray:
        """Whether the length is within the limits."""
        lengths_B = answers.context.lengths[self.unit]
        return ((lengths_B >= self.least) & (lengths_B <= self.most)).astype(np.float64)


@dataclass(frozen=True, repr=False)
class Overlong(_Measured):
    """Soft overlong punishment: 0 up to `limit - buffer`, falling to -1 at `limit`, -1 beyond.

    DAPO (2503.14476) equation 13, with L_max = `limit` and L_cache = `buffer`. Use it or a hard limit that makes an
    overlong answer invalid, not both.
    """

    limit: int
    buffer: int
    unit: Unit = "tokens"
    invalid: float = -1.0
    name = "overlong"
    valid_range = (-1.0, 0.0)

    def __post_init__(self) -> None:
        """Check the limits."""
        object.__setattr__(self, "limit", whole("limit", self.limit, least=1))
        object.__setattr__(self, "buffer", whole("buffer", self.buffer, least=1))
        if self.buffer > self.limit:
            raise InputError(f"the buffer of {self.buffer} is longer than the limit of {self.limit}; shorten it")
        super().__post_init__()

    def evaluate(self, answers: Answers) -> FloatArray:
        """How far each length is into the buffer."""
        over_B = answers.context.lengths[self.unit] - (self.limit - self.buffer)
        return 0.0 - np.clip(over_B / self.buffer, 0.0, 1.0)


@dataclass(frozen=True, repr=False)
class Cites(Leaf):
    """The reasoning cites candidates by number, as in "[3] fits the history": min(distinct cited, least) / least. Ours.

    Only real candidates count, and one citation of another number, `[0]`, `[11]` of ten, `[03]`, makes it 0. A bracket
    without a digit in it is no citation. Citing more than `least` candidates earns no more, so that listing all of
    them is no way to be paid; nothing is said of whether the reasons are good.
    """

    least: int = 1
    invalid: float = 0.0
    name = "cites"
    own_needs = frozenset({"reasonings"})

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "least", whole("least", self.least, least=1))
        super().__post_init__()

    def evaluate(self, answers: Answers) -> FloatArray:
        """Distinct real candidates cited, as a share of `least`."""
        reasonings, sizes = answers.context.reasonings, answers.slates.sizes_B.tolist()
        assert reasonings is not None, "the need was checked"
        return np.array([self._value(text, size) for text, size in zip(reasonings, sizes, strict=True)], dtype=float)

    def _value(self, reasoning: str, size: int) -> float:
        cited = {cited.strip() for cited in _CITATION.findall(reasoning) if any(char.isdigit() for char in cited)}
        if not all(_NUMBER.fullmatch(number) and int(number) <= size for number in cited):
            return 0.0
        return min(len(cited), self.least) / self.least
