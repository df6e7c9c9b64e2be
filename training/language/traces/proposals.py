"""What a teacher says to one request, how it is read, and what everybody who can be asked looks like.

May import numpy, `rerank_env.prompts` and `rerank_env.rewards`. A proposal counts shown places: candidate 0 is the one
that the prompt lists first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rerank_env.prompts import Asked
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import names, numbers
from rerank_env.rewards.parsing import parse_batch
from rerank_env.rewards.rankings import Verdict

_TAG = re.compile(r"</?(?:think|answer)>")
_FIRST = re.compile(r'\[\s*"?([^\[\]",\s]+)(?=[",\s\]])')
"""The first element of a list or of arrows, once something stands behind it: half of a number is another number."""
_RANKING = re.compile(r'"ranking"\s*:\s*')
_EXPLANATION = re.compile(r'"(?:explanation|reasoning)"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)


@dataclass(frozen=True)
class Proposal:
    """What a teacher said once.

    `text` the whole completion; `ranking` the shown places, best first, () where the verdict is not OK; `reasoning`;
    `tokens_in` and `tokens_out` what it took, 0 for a rule; `pick` the place that the answer names first, -1 where it
    names none: also of an answer whose rest is no ranking.
    """

    text: str
    ranking: tuple[int, ...]
    verdict: Verdict
    reasoning: str
    tokens_in: int = 0
    tokens_out: int = 0
    pick: int = PAD

    def __post_init__(self) -> None:
        """Take the pick from the ranking where there is one."""
        if self.ranking:
            object.__setattr__(self, "pick", self.ranking[0])


@runtime_checkable
class Teacher(Protocol):
    """Whoever can be asked for traces.

    One that has `stream(asked, *, targets_B, seeds_B)`, which yields row and proposal as they come, is asked with it,
    so that what came is kept whatever happens to the rest; see `answers_of`. One that has a `fingerprint`, a short
    text, says with it which traces are not its own: those of other weights or settings under the same name.
    """

    @property
    def name(self) -> str:
        """What the teacher is called in the traces."""
        ...

    def propose(self, asked: Asked, *, targets_B: IntArray | None, seeds_B: IntArray) -> list[Proposal]:
        """One proposal a request.

        `targets_B` int64 [B] are the shown places that are to be explained, None where the teacher is told nothing:
        then the relevance of `asked` is 0 throughout. `seeds_B` int64 [B] decide what is drawn for each request.
        """
        ...


def answers_of(
    teacher: Teacher, asked: Asked, *, targets_B: IntArray | None, seeds_B: IntArray
) -> Iterator[tuple[int, Proposal]]:
    """Rows and proposals in the order in which the teacher gives them, every row once.

    Raises `InputError` where it gives another number of them, and what the teacher raises.
    """
    stream = getattr(teacher, "stream", None)
    if stream is not None:
        rows = set(range(len(asked.prompts)))
        for row, proposal in stream(asked, targets_B=targets_B, seeds_B=seeds_B):
            if row not in rows:
                raise InputError(f"teacher {teacher.name!r} answered row {row} twice or unasked; answer each row once")
            rows.remove(row)
            yield row, proposal
        for row in sorted(rows)[:1]:
            raise InputError(f"teacher {teacher.name!r} gave no answer to row {row}; answer each row once")
        return
    given = teacher.propose(asked, targets_B=targets_B, seeds_B=seeds_B)
    if len(given) != len(asked.prompts):
        raise InputError(
            f"teacher {teacher.name!r} gave {len(given)} proposals for {len(asked.prompts)} prompts; give one a prompt"
        )
    yield from enumerate(given)


def read(
    asked: Asked,
    texts: Sequence[str],
    tokens_in: Sequence[int] | None = None,
    tokens_out: Sequence[int] | None = None,
) -> list[Proposal]:
    """The proposals that completions are, one a prompt, read strictly; picks and reasons also of those that break off.

    Raises `InputError` where there is not one text a prompt.
    """
    if len(texts) != len(asked.prompts):
        raise InputError(f"{len(texts)} texts came for {len(asked.prompts)} prompts; give one a prompt")
    sizes = asked.shown.sizes_B.tolist()
    parsed = parse_batch(
        texts, asked.shown.sizes_B, text_format=asked.text_format, width=asked.order_BK.shape[1], ids=asked.answer_ids
    )
    proposals = []
    for row, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        verdict, reasoning, pick = Verdict(int(parsed.verdicts_B[row])), parsed.reasonings[row], PAD
        ranking = tuple(parsed.rankings_BK[row, :size].tolist()) if verdict is Verdict.OK else ()
        if verdict not in (Verdict.OK, Verdict.EMPTY, Verdict.OVERLONG):
            named = numbers(size) if asked.answer_ids is None else names(asked.answer_ids[row], size)
            pick, reasoning = _loosely(text, asked.text_format, named)
        paid_in, paid_out = (0 if counts is None else int(counts[row]) for counts in (tokens_in, tokens_out))
        proposals.append(Proposal(text, ranking, verdict, reasoning, paid_in, paid_out, pick))
    return proposals


def untagged(reasoning: str) -> str:
    """The reasoning without tags of the answer's format and without what no file can hold, so that it can stand in one.

    >>> untagged(" Up.</thi</think>nk> ")
    'Up.'
    """
    text = reasoning.encode("utf-8", "ignore").decode("utf-8")
    while (shorter := _TAG.sub("", text)) != text:
        text = shorter
    return text.strip()


def _loosely(text: str, text_format: str, named: Mapping[str, int]) -> tuple[int, str]:
    """The pick and the reasons of a text that is no answer: what it names first where the answer should be."""
    before, found, answer = text.rpartition("<answer>") if text_format.startswith("tagged-") else ("", "yes", text)
    reasoning = before.rpartition("</think>")[0] or before if found else text.rpartition("</think>")[0]
    if text_format.endswith("json"):
        if not reasoning and (explained := _EXPLANATION.search(text)):
            try:
                reasoning = json.loads(explained[1], strict=False)
            except ValueError:  # an escape that does not exist
                reasoning = ""
        start = _RANKING.search(answer)
        answer = answer[start.end() :] if start else ""
    first = _FIRST.search(answer) if found else None
    return (PAD if first is None else named.get(first[1], PAD)), untagged(reasoning)
