"""The scene of an audit: the requests, how an answer to them is written, and what it is paid.

Rankings are paid as arrays, texts on the one path from text to numbers that trainers use (`Scorer`), or through a
parser of the user's. May import numpy only. Suffixes: `_B` requests, `_K` candidates or places, `_D` dresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rerank_env.rewards.answers import OK, Failure
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray, VerdictArray
from rerank_env.rewards.auditing.writing import CHARS_PER_TOKEN, PLAIN, Dress, dressed, dresses
from rerank_env.rewards.context import Context
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import short
from rerank_env.rewards.parsing import ParsedBatch, parse_batch
from rerank_env.rewards.rankings import Verdict, verdicts
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.scoring import ReadAnswers, Scorer
from rerank_env.rewards.slates import Slates, ideal_rankings

Parser = Callable[[str, int], Sequence[int] | None]
"""A reader of answers, (text, number of candidates) -> candidate indices, best first, or None for no ranking."""

TEXTUAL = frozenset({"chars", "reasonings", "tokens"})
"""What a reward needs that reads more of an answer than its ranking."""


class Paid(NamedTuple):
    """What a batch of answers was read as, what each earned, and the faults of functions that isolate them."""

    pay_B: FloatArray
    rankings_BK: IntArray
    verdicts_B: VerdictArray
    failures: tuple[Failure, ...]

    @property
    def valid_B(self) -> BoolArray:
        """Which of them are rankings."""
        valid_B: BoolArray = self.verdicts_B == OK
        return valid_B

    @property
    def scored_B(self) -> BoolArray:
        """Which of them are rankings that no function failed on."""
        scored_B = self.valid_B
        scored_B[[failure.row for failure in self.failures]] = False
        return scored_B


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

    def orders(self, rankings_BK: IntArray, slates: Slates | None = None, *, dress: Dress = PLAIN) -> Paid:
        """What rankings earn, each written with nothing around it unless `dress` says so.

        `slates` are the requests in another order, where they are not those of the scene.
        """
        slates = self.slates if slates is None else slates
        score = self.reward.score(rankings_BK, slates, context=self.context(dress))
        return Paid(score.total_B, rankings_BK, verdicts(rankings_BK, slates.sizes_B), score.failures)

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
    def dresses(self) -> list[Dress]:
        """What is tried around every ranking: nothing, and what text terms may pay for and is still read."""
        tried = dresses(self.reward, self.text_format)
        return [dress for dress in tried if dress == PLAIN or not self._plainly_read(dress).verdicts_B.any()]

    def most(self, rankings_BK: IntArray) -> float:
        """What rankings earn on average, in the dress that is paid best."""
        return max(float(self.orders(rankings_BK, dress=dress).pay_B.mean()) for dress in self.dresses)

    @cached_property
    def oracle_dress(self) -> Dress:
        """In what the oracle is paid best."""
        ideal_BK = ideal_rankings(self.slates)
        return max(self.dresses, key=lambda dress: float(self.orders(ideal_BK, dress=dress).pay_B.mean()))

    @cached_property
    def oracle_B(self) -> FloatArray:
        """What the most relevant candidate first earns on each request, in its best dress."""
        return self.oracle(self.slates)

    def oracle(self, slates: Slates) -> FloatArray:
        """The same on the requests in another order."""
        return self.orders(ideal_rankings(slates), slates, dress=self.oracle_dress).pay_B

    def texts(self, texts: Sequence[str]) -> Paid:
        """What texts earn, one for each request."""
        scorer = Scorer(self.reward, self.text_format)
        tokens_B = _tokens([len(text) for text in texts])
        read = scorer.read(texts, self.slates, step=self.step, groups_B=self.groups_B, tokens_B=tokens_B)
        if self.parse is not None:
            read = ReadAnswers(*self._read(texts), read.context)
        scored = scorer.score(read, self.slates)
        return Paid(scored.total_B, scored.rankings_BK, scored.verdicts_B, scored.failures)

    def context(self, dress: Dress = PLAIN) -> Context:
        """What is known of an answer to each request; nothing of it depends on the order that the answer gives."""
        if dress not in self._contexts:
            self._contexts[dress] = self._context(dress)
        return self._contexts[dress]

    @cached_property
    def _contexts(self) -> dict[Dress, Context]:
        return {}

    def _context(self, dress: Dress) -> Context:
        if not self.reward.needs & TEXTUAL:
            return Context(self.step, self.groups_B)
        parsed = self._plainly_read(dress)
        lengths = {"chars": parsed.chars_B, "tokens": _tokens(parsed.chars_B.tolist())}
        return Context(self.step, self.groups_B, parsed.reasonings, lengths)

    def _plainly_read(self, dress: Dress) -> ParsedBatch:
        """What the strict parser makes of the incoming order in a dress."""
        sizes_B = self.slates.sizes_B
        texts = [dressed(range(size), self.text_format, dress) for size in sizes_B.tolist()]
        return parse_batch(texts, sizes_B, text_format=self.text_format)

    def _read(self, texts: Sequence[str]) -> tuple[IntArray, VerdictArray]:
        """What the user's parser makes of texts; what is no ranking after all keeps its own verdict."""
        rankings_BK = np.full((len(texts), self.slates.width), PAD, dtype=np.int64)
        read_B = np.zeros(len(texts), dtype=np.bool_)
        for row, (text, size) in enumerate(zip(texts, self.slates.sizes_B.tolist(), strict=True)):
            ranking = _numbers(self._parsed(text, size), size)
            if ranking is not None:
                rankings_BK[row, :size] = ranking
                read_B[row] = True
        verdicts_B = verdicts(rankings_BK, self.slates.sizes_B)
        verdicts_B[~read_B] = Verdict.MALFORMED
        return rankings_BK, verdicts_B

    def _parsed(self, text: str, size: int) -> object:
        assert self.parse is not None, "asked where there is one"
        try:
            return self.parse(text, size)
        except Exception as cause:
            said = " ".join(str(cause).split())
            raise InputError(
                f"the parser raised {type(cause).__name__} ({said}) on the answer {short(text)}; "
                "return None for what is no ranking"
            ) from cause


def _numbers(ranking: object, size: int) -> list[int] | None:
    """A parser's answer as `size` whole numbers, those that name no candidate as some number that names none either."""
    given = ranking.tolist() if isinstance(ranking, np.ndarray) else ranking
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) != size:
        return None
    if not all(isinstance(number, int | np.integer) and not isinstance(number, bool) for number in given):
        return None
    return [min(max(int(number), -1), size) for number in given]


def _tokens(chars: Sequence[int]) -> IntArray:
    return -(-np.asarray(chars, dtype=np.int64) // CHARS_PER_TOKEN)
