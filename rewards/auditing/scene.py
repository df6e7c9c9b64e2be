"""The scene of an audit: the requests, how an answer to them is written, and what it is paid.

Rankings are paid as arrays, texts on the one path from text to numbers that trainers use (`Scorer`), or through a
parser of the user's. May import numpy only. Suffixes: `_B` requests, `_K` candidates or places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray, VerdictArray
from rerank_env.rewards.auditing.writing import PLAIN, Dress, dressed
from rerank_env.rewards.context import Context
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.parsing import parse_batch
from rerank_env.rewards.rankings import Verdict, verdicts
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.scoring import Scorer
from rerank_env.rewards.slates import Slates, ideal_rankings

CHARS_PER_TOKEN = 4
"""What a token is taken to be where a reward counts tokens: there is no tokeniser here."""

Parser = Callable[[str, int], Sequence[int] | None]
"""A reader of answers, (text, number of candidates) -> candidate indices, best first, or None for no ranking."""

TEXTUAL = frozenset({"chars", "reasonings", "tokens"})
"""What a reward needs that reads more of an answer than its ranking."""


class Paid(NamedTuple):
    """What a batch of answers was read as, and what each earned."""

    pay_B: FloatArray
    rankings_BK: IntArray
    verdicts_B: VerdictArray


@dataclass(frozen=True, eq=False)
class Scene:
    """What is audited, on what; `users_B` says whose request each is, `groups_B` which rollout group an answer to it
    belongs to, `popularity_BK` how popular each candidate is. `parse` reads the texts instead of the strict parser.
    """

    reward: Reward
    slates: Slates
    text_format: str
    step: int
    users_B: IntArray
    groups_B: IntArray
    popularity_BK: FloatArray | None = None
    prompts: Sequence[str] | None = None
    parse: Parser | None = None

    def __post_init__(self) -> None:
        """Check that everything speaks of the same requests."""
        rows = len(self.slates)
        if self.users_B.shape != (rows,) or self.users_B.dtype.kind not in "iu":
            raise InputError(
                f"users have shape {self.users_B.shape} and dtype {self.users_B.dtype} for {rows} requests; give one "
                "whole number a request"
            )
        if self.popularity_BK is not None and self.popularity_BK.shape != self.slates.relevance_BK.shape:
            raise InputError(
                f"popularity has shape {self.popularity_BK.shape}, but the slates have shape "
                f"{self.slates.relevance_BK.shape}; give one number a candidate, padded like the slates"
            )
        if self.prompts is not None and (isinstance(self.prompts, str) or len(self.prompts) != rows):
            given = "one text" if isinstance(self.prompts, str) else f"{len(self.prompts)} texts"
            raise InputError(f"prompts are {given} for {rows} requests; give a list with one text a request")

    def orders(
        self, rankings_BK: IntArray, slates: Slates | None = None, *, dress: Dress = PLAIN, step: int | None = None
    ) -> FloatArray:
        """What rankings earn, float64 [B], each written with nothing around it unless `dress` says so."""
        slates = self.slates if slates is None else slates
        return self.reward(rankings_BK, slates, context=self.context(slates, dress=dress, step=step))

    def take(self, rows_B: BoolArray | IntArray) -> Scene:
        """The same on some of the requests, numbers or booleans; rows may repeat."""
        rows = np.arange(len(self.slates))[rows_B]
        return replace(
            self,
            slates=self.slates.take(rows),
            users_B=self.users_B[rows],
            groups_B=self.groups_B[rows],
            popularity_BK=None if self.popularity_BK is None else self.popularity_BK[rows],
            prompts=None if self.prompts is None else [self.prompts[row] for row in rows],
        )

    def sample(self, requests: int, rng: np.random.Generator) -> Scene:
        """The same on about so many of the requests, whole groups drawn at random; itself where there are no more."""
        if requests >= len(self.slates):
            return self
        groups, group_B = np.unique(self.groups_B, return_inverse=True)
        drawn = rng.permutation(len(groups)) < len(groups) * requests // len(self.slates)
        return self.take(drawn[group_B])

    @cached_property
    def oracle_B(self) -> FloatArray:
        """What the most relevant candidate first earns on each request."""
        return self.oracle(None, None)

    def oracle(self, slates: Slates | None, step: int | None) -> FloatArray:
        """The same on other slates, or at another step."""
        slates = self.slates if slates is None else slates
        return self.orders(ideal_rankings(slates), slates, step=step)

    def texts(self, texts: Sequence[str]) -> Paid:
        """What texts earn, one for each request."""
        tokens_B = np.array([_tokens(len(text)) for text in texts], dtype=np.int64)
        if self.parse is None:
            scorer = Scorer(self.reward, self.text_format)
            scored = scorer(texts, self.slates, step=self.step, groups_B=self.groups_B, tokens_B=tokens_B)
            return Paid(scored.total_B, scored.rankings_BK, scored.verdicts_B)
        rankings_BK, verdicts_B = self._read(texts)
        lengths = {"chars": np.array([len(text) for text in texts], dtype=np.int64), "tokens": tokens_B}
        context = Context(self.step, self.groups_B, ("",) * len(texts), lengths)
        pay_B = self.reward(rankings_BK, self.slates, verdicts_B=verdicts_B, context=context)
        return Paid(pay_B, rankings_BK, verdicts_B)

    def context(self, slates: Slates, *, dress: Dress = PLAIN, step: int | None = None) -> Context:
        """What is known of an answer to each of `slates`; nothing of it depends on the order that the answer gives."""
        step = self.step if step is None else step
        if not self.reward.needs & TEXTUAL:
            return Context(step, self.groups_B)
        texts = [dressed(range(size), self.text_format, dress) for size in slates.sizes_B.tolist()]
        parsed = parse_batch(texts, slates.sizes_B, text_format=self.text_format)
        tokens_B = np.array([_tokens(chars) for chars in parsed.chars_B.tolist()], dtype=np.int64)
        return Context(step, self.groups_B, parsed.reasonings, {"chars": parsed.chars_B, "tokens": tokens_B})

    def _read(self, texts: Sequence[str]) -> tuple[IntArray, VerdictArray]:
        """What the user's parser makes of texts; what is no ranking after all keeps its own verdict."""
        assert self.parse is not None, "asked where there is one"
        rankings_BK = np.full((len(texts), self.slates.width), PAD, dtype=np.int64)
        read_B = np.zeros(len(texts), dtype=np.bool_)
        for row, (text, size) in enumerate(zip(texts, self.slates.sizes_B.tolist(), strict=True)):
            ranking = self.parse(text, size)
            if ranking is not None and len(ranking) == size:
                rankings_BK[row, :size] = ranking
                read_B[row] = True
        verdicts_B = verdicts(rankings_BK, self.slates.sizes_B)
        verdicts_B[~read_B] = Verdict.MALFORMED
        return rankings_BK, verdicts_B


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)
