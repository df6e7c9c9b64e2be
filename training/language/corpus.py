"""Texts to mid-train on, of four kinds, from purchases that training may see.

May import numpy and the layers below. GR2 (2602.07774) mid-trains on the tasks of OneRec-Think (2510.11639); the words
are ours. Every text is told in two parts: what is given, which nothing is learned from, and what is to be learned.

    sequence   the IDs of a user's purchases in order: each is the next after those before it
    caption    the ID of an item, then its title; and its title, then the ID
    persona    a user in words, with the IDs among them
    general    other texts, so that the model keeps what it could do

A model that was trained on a user's purchases answers requests about them better than it will answer new ones, so leave
the users whose requests are to be trained on out of `targets.seen_N` where that matters. Suffixes: `_N` interactions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import Targets
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.semantic_ids import SemanticIds

TASKS = ("sequence", "caption", "persona", "general")

BOUGHT = "Bought, oldest first: "
"""What a sequence of IDs begins with, in training and when the next one is asked for."""

HISTORY = 50
"""Purchases in one text at most, as the usual history of a request."""

INTERESTS = 5
"""How many words of titles describe a user."""

_WORD = re.compile(r"[^\W\d_]{3,}")


class Text(NamedTuple):
    """What is given, and what is learned after it."""

    given: str
    told: str


class Question(NamedTuple):
    """The purchases of a user, oldest first, and the next one."""

    history: tuple[int, ...]
    target: int


@dataclass(frozen=True, eq=False)
class Corpus:
    """`texts` by task, the `semantic_ids` they are written in, and `questions` that training never sees the answers of.

    Made by `Corpus.of`; any of the four may be empty.
    """

    semantic_ids: SemanticIds
    texts: Mapping[str, tuple[Text, ...]]
    questions: tuple[Question, ...] = ()

    @classmethod
    def of(
        cls,
        log: Interactions,
        targets: Targets,
        semantic_ids: SemanticIds,
        *,
        general: Sequence[str] | None = None,
        history: int = HISTORY,
        ask: str = "validation",
    ) -> Corpus:
        """The texts of a log's purchases that `targets` lets a model be fitted on, and no others.

        `general` texts are those of the items where None; see `general_texts`. `questions` ask for the targets of the
        split `ask`, each after all that its user did before. No text is longer than `history` purchases.

        Raises `DataError` for IDs of another catalogue, `UnknownNameError` for another split.
        """
        semantic_ids.check_catalogue(log.texts)
        one_of("split", ask, targets.rows)
        whole("history", history, least=2)
        bought = _by_user(log, targets.seen_N)
        texts = {
            "sequence": tuple(text for items in bought for text in _sequences(items, semantic_ids, history)),
            "caption": tuple(_captions(log.texts, semantic_ids)),
            "persona": tuple(_persona(items[-history:], log.texts, semantic_ids) for items in bought),
            "general": tuple(Text("", text) for text in (log.texts if general is None else general) if text),
        }
        return cls(semantic_ids, texts, tuple(_questions(log, targets, ask, history)))

    def taking(self, questions: int, *, seed: int) -> Corpus:
        """The same with at most so many of the questions, drawn without replacement, in their order."""
        count = min(whole("questions", questions, least=0), len(self.questions))
        rows = np.sort(np.random.default_rng(seed).permutation(len(self.questions))[:count])
        return replace(self, questions=tuple(self.questions[row] for row in rows))


def bought(history: Sequence[int], semantic_ids: SemanticIds) -> str:
    """A sequence of purchases as a text that the ID of the next one may follow."""
    return BOUGHT + "".join(semantic_ids.text(item) for item in history)


def general_texts(requests: Requests, writer: PromptWriter, rows: IntArray | None = None) -> list[str]:
    """The prompts of training requests, without answers, and the texts of their items: the usual general text.

    Raises what `PromptWriter.write` raises.
    """
    prompts = [prompt.text for prompt in writer.write(requests, rows)]
    return [*prompts, *filter(None, requests.catalog.texts)]


def _by_user(log: Interactions, fitted_N: BoolArray) -> list[list[int]]:
    """The items of every user who has any, in order."""
    rows = np.flatnonzero(fitted_N)
    users = log.users_N[rows]
    cuts = np.flatnonzero(users[1:] != users[:-1]) + 1
    return [part.tolist() for part in np.split(log.items_N[rows], cuts) if len(part)]


def _sequences(items: list[int], semantic_ids: SemanticIds, history: int) -> Iterator[Text]:
    """A user's purchases, each told once; of long histories, half a text is given again before the next part."""
    ids = [semantic_ids.text(item) for item in items]
    yield Text(BOUGHT, "".join(ids[:history]))
    half = history // 2
    for start in range(history, len(ids), history - half):
        yield Text(BOUGHT + "".join(ids[start - half : start]), "".join(ids[start : start + history - half]))


def _captions(texts: Sequence[str], semantic_ids: SemanticIds) -> Iterator[Text]:
    for item, title in enumerate(texts):
        if title:
            name = semantic_ids.text(item)
            yield Text(f"{name} is ", title)
            yield Text(f"{title} has the ID ", name)


def _persona(items: list[int], texts: Sequence[str], semantic_ids: SemanticIds) -> Text:
    """What a user comes back to, most often first, and what was bought, in words and IDs."""
    marks = [{*map(str.lower, _WORD.findall(texts[item]))} for item in items]
    counts = Counter(mark for some in marks for mark in sorted(some))
    often = sorted((-count, mark) for mark, count in counts.items() if count > 1)[:INTERESTS]
    interests = ", ".join(f"{mark} ({-count} of {len(items)})" for count, mark in often) or "nothing yet"
    named = [f"{texts[item]} {semantic_ids.text(item)}".strip() for item in items]
    return Text("", f"A customer who comes back to: {interests}. Bought, oldest first: {'; '.join(named)}.")


def _questions(log: Interactions, targets: Targets, split: str, history: int) -> Iterator[Question]:
    """The targets of a split, each after the last `history` purchases before it."""
    for row in targets.rows[split].tolist():
        before = log.items_N[max(int(targets.first_N[row]), row - history) : row]
        yield Question(tuple(before.tolist()), int(log.items_N[row]))
