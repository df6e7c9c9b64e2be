"""The four kinds of text in one stream of tokens, each with its share.

May import numpy and the modules below. Shares are of tokens, what is given included. A task whose texts do not fill its
share is told again, in another order. Suffixes: `_N` tokens, `_D` documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.training.language.corpus import TASKS, Text

WEIGHTS: Mapping[str, float] = {"sequence": 0.6573, "caption": 0.0494, "persona": 0.2430, "general": 0.0503}
"""The mixture of OneRec-Think (2510.11639)."""

AT_A_TIME = 1000
"""Texts that are handed to the tokenizer at once."""


@dataclass(frozen=True, eq=False)
class Documents:
    """Texts as tokens, one after the other.

    `ids_N` int64 the tokens, `told_N` bool which of them are to be learned, `starts_D` int64 [D + 1] where each
    document begins and, last, where the last one ends, `tasks_D` int64 the number of its task in `TASKS`.
    """

    ids_N: IntArray
    told_N: BoolArray
    starts_D: IntArray
    tasks_D: IntArray

    def __len__(self) -> int:
        """How many documents."""
        return len(self.tasks_D)

    @property
    def lengths_D(self) -> IntArray:
        """How many tokens each has."""
        return np.diff(self.starts_D)

    def shares(self) -> dict[str, float]:
        """The share of each task, of all tokens."""
        counts = np.bincount(self.tasks_D, weights=self.lengths_D, minlength=len(TASKS))
        return dict(zip(TASKS, (counts / max(1.0, counts.sum())).tolist(), strict=True))

    def take(self, rows_D: IntArray) -> Documents:
        """The documents of those numbers, in that order."""
        lengths = self.lengths_D[rows_D]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(starts[-1]) + np.repeat(self.starts_D[rows_D] - starts[:-1], lengths)
        return Documents(self.ids_N[places], self.told_N[places], starts, self.tasks_D[rows_D])


def opening(tokenizer: Any) -> list[int]:
    """The tokens that a text begins with for that tokenizer: its begin-of-text token, where it sets one."""
    begin = tokenizer.bos_token_id
    return [begin] if begin is not None and tokenizer("a")["input_ids"][:1] == [begin] else []


def encoded(texts: Sequence[Text], tokenizer: Any, task: str = TASKS[0]) -> Documents:
    """Every text as a document that ends with the end-of-text token, which is learned too.

    The parts of a text are cut into tokens each by itself, so that no token holds something of both. Raises
    `InputError` for a tokenizer without an end-of-text token.
    """
    one_of("task", task, TASKS)
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no end-of-text token; set eos_token, so that documents have an end")
    first = opening(tokenizer)
    ids: list[int] = []
    given: list[int] = []
    lengths: list[int] = []
    for start in range(0, len(texts), AT_A_TIME):
        some = texts[start : start + AT_A_TIME]
        parts = tokenizer(
            [part for text in some for part in text], add_special_tokens=False, return_attention_mask=False
        )["input_ids"]
        for before, after in zip(parts[::2], parts[1::2], strict=True):
            ids += [*first, *before, *after, tokenizer.eos_token_id]
            given.append(len(first) + len(before))
            lengths.append(len(first) + len(before) + len(after) + 1)
    starts = np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))]).astype(np.int64)
    places = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    told_N: BoolArray = places >= np.repeat(np.array(given, dtype=np.int64), lengths)
    return Documents(np.array(ids, dtype=np.int64), told_N, starts, np.full(len(texts), TASKS.index(task)))


def mix(
    texts: Mapping[str, Sequence[Text]],
    tokenizer: Any,
    *,
    weights: Mapping[str, float] = WEIGHTS,
    tokens: int | None = None,
    seed: int,
) -> Documents:
    """About `tokens` tokens in random order, each task with its share of them, to within one document.

    `weights` are made to sum to 1; a task without a weight is left out. `tokens` None: so many that the task with the
    largest weight is told once. The same arguments give the same documents. Raises `InputError` for weights that are
    not finite, below 0 or all 0, for unknown tasks and for a task with a weight and no text.
    """
    for task, weight in weights.items():
        if finite(f"the weight of {one_of('task', task, TASKS)}", weight) < 0:
            raise InputError(f"the weight of {task} is {weight}; give a share, 0 or more")
    wanted = {task: float(weights[task]) for task in TASKS if weights.get(task, 0.0) > 0}
    if not wanted:
        raise InputError("all weights are 0, so there is nothing to mix; give one task a weight")
    for task in wanted:
        if not texts.get(task):
            raise InputError(f"the task {task!r} has a weight of {wanted[task]} but no texts; give some, or weight 0")
    rng = np.random.default_rng(whole("seed", seed, least=0))
    total = sum(wanted.values())
    largest = max(wanted, key=lambda task: wanted[task])
    drawn = []
    for task in sorted(wanted, key=lambda task: task != largest):  # the largest first: it may say how many tokens
        budget = None if tokens is None else whole("tokens", tokens, least=1) * wanted[task] / total
        drawn.append(_drawn(texts[task], tokenizer, task, budget, rng))
        if tokens is None:
            tokens = round(len(drawn[0].ids_N) * total / wanted[largest])
    return joined(drawn).take(rng.permutation(sum(map(len, drawn))))


def joined(parts: Sequence[Documents]) -> Documents:
    """The documents of all parts, one part after the other."""
    lengths = np.concatenate([part.lengths_D for part in parts])
    return Documents(
        np.concatenate([part.ids_N for part in parts]),
        np.concatenate([part.told_N for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([part.tasks_D for part in parts]),
    )


def _drawn(
    texts: Sequence[Text], tokenizer: Any, task: str, tokens: float | None, rng: np.random.Generator
) -> Documents:
    """Texts in random order, each as often as the others or once more, up to about `tokens` tokens; None: each once.

    No more of them are cut into tokens than are needed.
    """
    order = rng.permutation(len(texts)).tolist()
    parts: list[Documents] = []
    for start in range(0, len(order), AT_A_TIME):
        parts.append(encoded([texts[row] for row in order[start : start + AT_A_TIME]], tokenizer, task))
        if tokens is not None and sum(len(part.ids_N) for part in parts) > tokens:
            break
    documents = joined(parts)
    return documents if tokens is None else documents.take(_filling(documents.lengths_D, tokens, rng))


def _filling(lengths_D: IntArray, tokens: float, rng: np.random.Generator) -> IntArray:
    """The first documents that come nearest to so many tokens; beyond all of them, all again in other orders."""
    rows: list[IntArray] = []
    order, left = np.arange(len(lengths_D)), tokens
    while True:
        filled = np.cumsum(lengths_D[order])
        if filled[-1] > left:
            enough = int(np.searchsorted(filled, left))
            under = left - (filled[enough - 1] if enough else 0)
            return np.concatenate([*rows, order[: enough + int(filled[enough] - left <= under)]])
        rows.append(order)
        left -= int(filled[-1])
        order = rng.permutation(len(lengths_D))
