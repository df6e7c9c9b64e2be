"""Completions in, scores out: the one path on which text reaches a reward, whoever trains on it.

The environment, every adapter to a trainer and a user's own loop score text with a `Scorer`, so that they report the
same number for the same completion. May import numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import Failure
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray, VerdictArray
from rerank_env.rewards.context import Context, check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.parsing import FORMATS, MAX_CHARS, parse_batch
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.slates import Slates


@dataclass(frozen=True, eq=False)
class Scored:
    """What a batch of completions earned, and what they were read as.

    `total_B`, `parts` and `failures` as in `Score`; `rankings_BK` 0-based, best first, -1 where padded or invalid;
    `verdicts_B` the verdict codes; `reasonings` the text before each answer.
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


@dataclass(frozen=True)
class Scorer:
    """Reads completions in `text_format`, strictly, and scores them with `reward`, given as such or by its text.

    A completion is a text, or a list of chat messages whose last is the assistant's. Longer ones than `max_chars` are
    OVERLONG. A value: equal by fields, picklable. Raises `UnknownNameError` for an unknown format, `InputError` for a
    reward that cannot be read.

    >>> scorer = Scorer("gain")
    >>> scorer(["[2, 1]", "[1, 2]", "hello"], Slates.of([[0, 1]] * 3)).total_B.round(2).tolist()
    [0.37, 0.0, -1.1]
    """

    reward: Reward | str
    text_format: str = "list"
    max_chars: int = MAX_CHARS

    def __post_init__(self) -> None:
        """Read the reward, check the rest."""
        object.__setattr__(self, "reward", parse_reward(self.reward))
        one_of("text format", self.text_format, FORMATS)
        object.__setattr__(self, "max_chars", whole("max_chars", self.max_chars, least=1))

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
        """Score one completion a slate.

        `ids`: per request, the candidates' identifiers, where answers name those instead of numbers. `step`,
        `groups_B`, `tokens_B` (lengths in tokens): for rewards that need them. Raises `InputError` where the numbers
        of completions and slates differ, or the reward needs what is not given.
        """
        if isinstance(completions, str | bytes) or len(completions) != len(slates):
            given = "one text" if isinstance(completions, str | bytes) else f"{len(completions)} completions"
            raise InputError(f"{given} came with {len(slates)} slates; give a list with one completion a slate")
        texts = [as_text(completion) for completion in completions]
        parsed = parse_batch(
            texts, slates.sizes_B, text_format=self.text_format, max_chars=self.max_chars, width=slates.width, ids=ids
        )
        lengths = {"chars": parsed.chars_B} | ({} if tokens_B is None else {"tokens": tokens_B})
        context = Context(step=step, groups_B=groups_B, reasonings=parsed.reasonings, lengths=lengths)  # type: ignore[arg-type]
        reward = self._reward
        score = reward.score(parsed.rankings_BK, slates, verdicts_B=parsed.verdicts_B, context=context)
        return Scored(
            score.total_B, score.parts, score.failures, parsed.rankings_BK, parsed.verdicts_B, parsed.reasonings
        )

    @property
    def needs(self) -> frozenset[str]:
        """What the reward needs besides rankings and relevance."""
        return self._reward.needs

    @property
    def _reward(self) -> Reward:
        assert isinstance(self.reward, Reward), "read at construction"
        return self.reward

    def check_needs(self, *provided: str, where: str) -> None:
        """Raise `InputError` now if the reward needs more than a completion and `provided` give, `where` it is used."""
        check_met(self.needs, frozenset({"chars", "reasonings", *provided}), f"in {where}, {self.reward}")


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
