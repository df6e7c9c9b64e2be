"""The contract of the adapters: 1,000 completions, and the numbers that every peer must report for them.

The completions are seeded, answer ragged requests in groups, come in every text format, and are wrong in every way a
text can be. What each should be read as is known from how it was made; what it should earn comes from the core path,
`rerank_env.rewards.scoring.Scorer`. Each peer's test feeds the same completions through that peer's own machinery.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rerank_env.data import Requests, load
from rerank_env.rewards import Verdict
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.rewards.slates import Slates, ideal_rankings
from rerank_env.training.adapters.records import Row, request_rows

COMPLETIONS = 1000
GROUP = 4
SEED = 20

REWARDS = ("gain", "gr2", "0.7*ndcg@5 + 0.2*valid_format.when(not_identity)")
"""Ours, the published one, and a sum with parts that differ."""

OF_GROUPS = "gain + 0.1*consistency"
"""A reward for peers that show a group at once."""

GOOD = ("random", "identity", "swapped", "reversed", "ideal")
BAD: dict[str, Verdict] = {
    "empty": Verdict.EMPTY,
    "blank": Verdict.EMPTY,
    "prose": Verdict.MALFORMED,
    "signed": Verdict.MALFORMED,
    "full width": Verdict.MALFORMED,
    "cut": Verdict.TRUNCATED,
    "one more": Verdict.WRONG_COUNT,
    "zero": Verdict.UNKNOWN,
    "too large": Verdict.UNKNOWN,
    "twice": Verdict.DUPLICATE,
    "one less": Verdict.MISSING,
    "long": Verdict.OVERLONG,
}
"""How a completion is wrong, and what it is to be read as."""


def written(numbers: list[str], text_format: str) -> str:
    """An answer with these elements in that format."""
    if text_format.startswith("tagged-"):
        return (
            f"<think>\nBetter first.</think>\n<answer>{written(numbers, text_format.removeprefix('tagged-'))}</answer>"
        )
    if text_format == "arrows":
        return " > ".join(f"[{number}]" for number in numbers)
    listed = f"[{', '.join(numbers)}]"
    return f'{{"explanation": "Better \\u2605 first.", "ranking": {listed}}}' if text_format == "json" else listed


def completion(kind: str, ideal: list[int], text_format: str, rng: np.random.Generator) -> str:
    """A text of that kind, in answer to a request whose `ideal` order is given."""
    size = len(ideal)
    order = {"identity": [*range(size)], "reversed": [*range(size)][::-1], "ideal": ideal}.get(kind)
    if kind == "swapped":
        order = [1, 0, *range(2, size)]
    numbers = [str(1 + candidate) for candidate in (rng.permutation(size) if order is None else order)]
    place = int(rng.integers(size))
    if kind in ("zero", "too large", "signed", "full width"):
        stray = {"zero": "0", "too large": str(size + 1), "signed": "-1", "full width": "\uff11"}
        numbers[place] = stray[kind]
    elif kind == "twice":
        numbers[place] = numbers[place - 1]
    elif kind == "one more":
        numbers.append(numbers[place])
    elif kind == "one less":
        del numbers[place]
    text = written(numbers, text_format)
    if kind == "cut":
        return text[:-3] if text_format == "arrows" else text[:-1]
    if kind == "long":
        return text + " " * MAX_CHARS
    return {"empty": "", "blank": " \n\t", "prose": f"I would answer {text}"}.get(kind, text)


@dataclass(frozen=True)
class Case:
    """Completions in one text format: `rows` says to which request each is, `verdicts` what it is to be read as."""

    text_format: str
    requests: Requests
    rows: tuple[int, ...]
    completions: tuple[str, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def slates(self) -> Slates:
        """What is asked, one slate a completion."""
        return self.requests.slates.take(self.rows)

    def records(self) -> list[Row]:
        """The row of the data set behind each completion."""
        rows = request_rows(self.requests, text_format=self.text_format)
        return [rows[row] for row in self.rows]

    def expected(self, reward: str) -> Scored:
        """What the core path says."""
        return Scorer(reward, self.text_format)(self.completions, self.slates, groups_B=self.rows)


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """The completions, one case a text format."""
    rng = np.random.default_rng(SEED)
    shares = np.array_split(np.arange(COMPLETIONS), len(FORMATS))
    return tuple(_case(text_format, len(share), rng) for text_format, share in zip(FORMATS, shares, strict=True))


def _case(text_format: str, count: int, rng: np.random.Generator) -> Case:
    requests = load("synthetic", requests=-(-count // GROUP), slate_size=9, min_slate_size=2, history=4)
    ideals_BK = ideal_rankings(requests.slates)
    rows = tuple(answer // GROUP for answer in range(count))
    kinds = [_kind(answer, rng) for answer in range(count)]
    texts = []
    for kind, row in zip(kinds, rows, strict=True):
        ideal = ideals_BK[row, : requests.sizes_B[row]].tolist()
        texts.append(completion(kind, ideal, text_format, rng))
    return Case(text_format, requests, rows, tuple(texts), tuple(BAD.get(kind, Verdict.OK) for kind in kinds))


def _kind(answer: int, rng: np.random.Generator) -> str:
    """Each kind in its turn first, then drawn: two of three good, the rest wrong in all ways alike."""
    kinds = (*GOOD, *BAD)
    if answer < len(kinds):
        return kinds[answer]
    return str(rng.choice(GOOD if rng.random() < 2 / 3 else list(BAD)))


def every() -> Iterator[tuple[Case, str]]:
    """Each case with each reward."""
    for case in cases():
        for reward in REWARDS:
            yield case, reward


def as_messages(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def fails_on_the_last(rankings_BK: np.ndarray, slates: Slates) -> np.ndarray:
    """Raises for every ranking that puts candidate 2 first."""
    if (rankings_BK[:, 0] == 2).any():
        raise ValueError("candidate 2 first")
    return np.ones(len(slates))
