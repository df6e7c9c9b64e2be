"""Completions in, scores out: the one path on which text reaches a reward, whoever trains on it.

The environment, every adapter to a trainer and a user's own loop read and score text with a `Scorer`, so that they
report the same number for the same completion. May import numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import Failure
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray, VerdictArray
from rerank_env.rewards.context import HINTS, NOTHING, Context, check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.parsing import MAX_CHARS, parse_batch
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.slates import Slates


@dataclass(frozen=True, eq=False)
class ReadAnswers:
    """What a batch of answers was read as, one a slate, before any reward looks at it.

    `rankings_BK` 0-based, best first, -1 where padded or invalid; `verdicts_B` the verdict codes; `context` what else
    is known of the answers.
    """

    rankings_BK: IntArray
    verdicts_B: VerdictArray
    context: Context = NOTHING


@dataclass(frozen=True, eq=False)
class Scored:
    """What a batch of completions earned, and what they were read as.

    `total_B`, `parts` and `failures` as in `Score`; `rankings_BK` and `verdicts_B` as in `ReadAnswers`; `reasonings`
    the text before each answer.
    """

    total_B: FloatArray
    parts: Mapping[str, FloatArray]
    failures: tuple[Failure, ...]
    rankings_BK: IntArray
    verdicts_B: VerdictArray
    reasonings: tuple[str, ...]

    @property
    def valid_B(self) -> BoolArray:
        """Which completions are rankings."""
        valid_B: BoolArray = self.verdicts_B == int(Verdict.OK)
        return valid_B

    @property
    def failed_B(self) -> BoolArray:
        """Which completions a function failed on; they are scored as if invalid."""
        failed_B = np.zeros(len(self.total_B), dtype=np.bool_)
        failed_B[[failure.row for failure in self.failures]] = True
        return failed_B


@dataclass(frozen=True, init=False)
class Scorer:
    """Reads completions in `text_format`, strictly, and scores them with `reward`, given as such or by its text.

    A completion is a text, or a list of chat messages whose last is the assistant's. Longer ones than `max_chars` are
    OVERLONG. A value: equal by fields, picklable; `ids` are those of one batch, see `citing`. Raises
    `UnknownNameError` for an unknown format, `InputError` for a reward that cannot be read.

    >>> scorer = Scorer("gain")
    >>> scorer(["[2, 1]", "[1, 2]", "hello"], Slates.of([[0, 1]] * 3)).total_B.round(2).tolist()
    [0.37, 0.0, -1.1]
    """

    reward: Reward
    text_format: str
    max_chars: int
    ids: Sequence[Sequence[str]] | None = field(default=None, compare=False, repr=False)

    def __init__(
        self,
        reward: Reward | str,
        text_format: str = "list",
        *,
        max_chars: int = MAX_CHARS,
        ids: Sequence[Sequence[str]] | None = None,
    ) -> None:
        object.__setattr__(self, "reward", parse_reward(reward))
        object.__setattr__(self, "text_format", one_of("text format", text_format, FORMATS))
        object.__setattr__(self, "max_chars", whole("max_chars", max_chars, least=1))
        object.__setattr__(self, "ids", ids)

    def citing(self, ids: Sequence[Sequence[str]] | None) -> Scorer:
        """The same for one batch, whose answers name these `ids`, one row of them a request; itself where None."""
        return self if ids is None else replace(self, ids=ids)

    def __call__(
        self,
        completions: Sequence[object],
        slates: Slates,
        *,
        ids: Sequence[Sequence[str]] | None = None,
        step: int | None = None,
        groups_B: npt.ArrayLike | None = None,
        tokens_B: npt.ArrayLike | None = None,
    ) -> Scored:
        """Read and score one completion a slate; the arguments, and what is raised, are those of `read` and `score`."""
        read = self.read(completions, slates, ids=ids, step=step, groups_B=groups_B, tokens_B=tokens_B)
        return self.score(read, slates)

    def read(
        self,
        completions: Sequence[object],
        slates: Slates,
        *,
        ids: Sequence[Sequence[str]] | None = None,
        step: int | None = None,
        groups_B: npt.ArrayLike | None = None,
        tokens_B: npt.ArrayLike | None = None,
    ) -> ReadAnswers:
        """What the completions say, one a slate.

        `ids`: per request, the candidates' identifiers, where answers name those instead of numbers; those of `citing`
        where None. `step`,
        `groups_B`, `tokens_B` (lengths in tokens): for rewards that need them. Raises `InputError` where the numbers
        of completions and slates differ.
        """
        if isinstance(completions, str | bytes) or len(completions) != len(slates):
            given = "one text" if isinstance(completions, str | bytes) else f"{len(completions)} completions"
            raise InputError(f"{given} came with {len(slates)} slates; give a list with one completion a slate")
        texts = [as_text(completion) for completion in completions]
        parsed = parse_batch(
            texts,
            slates.sizes_B,
            text_format=self.text_format,
            max_chars=self.max_chars,
            width=slates.width,
            ids=self.ids if ids is None else ids,
        )
        lengths = {"chars": parsed.chars_B} | ({} if tokens_B is None else {"tokens": tokens_B})
        context = Context(step=step, groups_B=groups_B, reasonings=parsed.reasonings, lengths=lengths)  # type: ignore[arg-type]
        return ReadAnswers(parsed.rankings_BK, parsed.verdicts_B, context)

    def score(self, read: ReadAnswers, slates: Slates) -> Scored:
        """What answers to `slates` earn, however they were read.

        Raises `InputError` where the reward needs what is not known of them.
        """
        score = self.reward.score(read.rankings_BK, slates, verdicts_B=read.verdicts_B, context=read.context)
        reasonings = read.context.reasonings or ("",) * len(slates)
        return Scored(score.total_B, score.parts, score.failures, read.rankings_BK, read.verdicts_B, reasonings)

    @property
    def needs(self) -> frozenset[str]:
        """What the reward needs besides rankings and relevance."""
        return self.reward.needs

    def check_needs(self, *provided: str, where: str, remedies: Mapping[str, str] = HINTS) -> None:
        """Raise `InputError` now if the reward needs more than a completion and `provided` give, `where` it is used.

        `remedies` say what can be done there about each need.
        """
        check_met(self.needs, frozenset({"chars", "reasonings", *provided}), f"in {where}, {self.reward}", remedies)


def as_text(completion: object) -> str | bytes:
    """The text of a completion: itself, or the content of the assistant's last message in a chat.

    A message is a mapping with a "role", "assistant" where there is none, and a "content" that is a text, None (no text
    at all) or a list of parts with a "text". What a tool said last is not an answer. Raises `InputError` for anything
    else.
    """
    if isinstance(completion, str | bytes):
        return completion
    messages = completion if isinstance(completion, Sequence) else ()
    said = [m for m in messages if isinstance(m, Mapping) and m.get("role", "assistant") == "assistant"]
    if said:
        content = said[-1].get("content")
        if isinstance(content, str | bytes):
            return content
        if content is None:
            return ""
        if isinstance(content, Sequence):
            parts = [part.get("text", "") if isinstance(part, Mapping) else part for part in content]
            if all(isinstance(part, str) for part in parts):
                return "".join(parts)
    raise InputError(
        f"a completion is of type {type(completion).__name__}: {completion!r:.80}; give a text, or a list of messages "
        "with one of the assistant's"
    )
