"""Requests put in words, and the names that answers cite candidates by: one writer for everybody who shows a prompt.

The environment, the adapters and a user's own loop ask a `PromptWriter`, so that the same request reads the same to all
of them, byte for byte. May import numpy and `rerank_env.data`, `rerank_env.rewards`. Suffixes: `_B` requests, `_K`
candidates, `_I` items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from rerank_env.data.catalog import Catalog
from rerank_env.data.requests import Requests
from rerank_env.prompts.budget import Budget, budget_of
from rerank_env.prompts.items import (
    LEVEL,
    MARK,
    SEPARATOR,
    IdTable,
    ItemIds,
    alphabet,
    labels_of,
)
from rerank_env.prompts.lines import CatalogItems, Lines, Prompt
from rerank_env.prompts.template import Template
from rerank_env.prompts.wordings import DEFAULT, template_of
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS

_NUMBER_CHARS = 16
"""More characters than a float32 printed with `%g` or a candidate number takes."""

_NUMBER_CHARSET = "+-.0123456789einfa"
"""What numbers are written in."""


class Wording(TypedDict, total=False):
    """What can be said of a prompt's wording, by the names that environments and adapters take: see `PromptWriter`."""

    prompt: str | Template
    semantic_ids: IdTable | None
    prompt_budget: int | Budget | None


@dataclass(frozen=True, init=False, eq=False)
class PromptWriter:
    """How requests are put in words.

    `text_format`: how answers are asked for, one of those that `rerank_env.rewards.parse` reads. `prompt`: a template
    or its name, see `rerank_env.prompts.wordings`. `semantic_ids`: the IDs of the catalogue's items, by item number: a
    list of texts, or an object with `text(item)`; shown by templates that show IDs, and needed where answers cite them.
    `prompt_budget`: see `rerank_env.prompts.budget`; a number is one of characters.

    Raises `UnknownNameError` for an unknown format or template, `InputError` for IDs that are missing, of no use to the
    template or no IDs at all, and for a budget that is none.
    """

    text_format: str
    template: Template
    ids: ItemIds | None
    budget: Budget | None

    def __init__(
        self,
        text_format: str = "list",
        *,
        prompt: str | Template = DEFAULT,
        semantic_ids: IdTable | None = None,
        prompt_budget: int | Budget | None = None,
    ) -> None:
        template = template_of(prompt)
        if semantic_ids is None and template.cites == "ids":
            raise InputError(f"prompt {template.version!r} asks for semantic IDs; give semantic_ids, or another prompt")
        if semantic_ids is not None and "id" not in template.shows:
            raise InputError(
                f"prompt {template.version!r} shows no semantic IDs; leave them out, or use another prompt"
            )
        object.__setattr__(self, "text_format", one_of("text format", text_format, FORMATS))
        object.__setattr__(self, "template", template)
        object.__setattr__(self, "ids", None if semantic_ids is None else ItemIds(semantic_ids))
        object.__setattr__(self, "budget", budget_of(prompt_budget))

    @property
    def cites_ids(self) -> bool:
        """Whether answers name candidates by their IDs, not by their numbers."""
        return self.template.cites == "ids"

    def write(self, requests: Requests, rows: Sequence[int] | None = None) -> list[Prompt]:
        """The prompts of `rows` (all requests where None), in that order.

        A user without history is said to have none. Raises `InputError`, naming the request, for a row that does not
        exist, for IDs that are not distinct, and for a budget that cannot hold its candidates.
        """
        rows_B = checked_rows(rows, len(requests))
        self.answer_ids(requests, rows_B.tolist())
        batch = zip(
            rows_B.tolist(),
            requests.history_BH[rows_B].tolist(),
            requests.feedback_BH[rows_B].tolist(),
            requests.candidates_BK[rows_B].tolist(),
            strict=True,
        )
        prompts, items = [], self._items(requests.catalog)
        for row, history, feedback, candidates in batch:
            seen = [(items[item], value) for item, value in zip(history, feedback, strict=True) if item != PAD]
            offered = [items[item] for item in candidates if item != PAD]
            try:
                prompts.append(Lines(self.template, self.text_format, seen, offered).prompt(self.budget))
            except InputError as cause:
                raise InputError(f"the prompt of request {row} {cause}") from cause
        return prompts

    def answer_ids(self, requests: Requests, rows: Sequence[int] | None = None) -> list[tuple[str, ...]] | None:
        """What answers to `rows` name the candidates by, in incoming order; None where they name their numbers.

        Raises `InputError`, naming the request, where an item has no usable ID or two candidates have the same.
        """
        if not self.cites_ids:
            return None
        return [self.answer_ids_of(requests, row) for row in checked_rows(rows, len(requests)).tolist()]

    def answer_ids_of(self, requests: Requests, row: int) -> tuple[str, ...]:
        """The same for one request, which does exist; for templates whose answers cite IDs."""
        assert self.ids is not None, "was checked where the writer was made"
        found = tuple([self.ids.of(item) for item in requests.candidates_BK[row].tolist() if item != PAD])
        if len(set(found)) < len(found):
            again = next(one for place, one in enumerate(found) if one in found[:place])
            raise InputError(
                f"two candidates of request {row} have the semantic ID {again!r}; give every item its own, as a random "
                "last level does, or leave the request out"
            )
        return found

    def characters(self, requests: Requests) -> str:
        """Every character that a prompt of `requests` can hold, sorted, each once."""
        template, catalog = self.template, requests.catalog
        labels = "".join({label for row in labels_of(catalog) for label in row})
        texts = alphabet(catalog.characters + labels + " ", guarded=template.guarded)
        ids = "".join(map(self.ids.of, range(len(catalog)))) if self.ids is not None else ""
        words = "".join(template.words(text_format) for text_format in FORMATS)
        lines = template.offered + template.seen + template.untitled + SEPARATOR + LEVEL + MARK
        return "".join(sorted({*words, *lines, *texts, *ids, *_NUMBER_CHARSET}))

    def longest_chars(self, requests: Requests) -> int:
        """An upper bound, in characters, on the length of any prompt of `requests`, with a budget or without."""
        template, items = self.template, self._items(requests.catalog)
        # The last entry serves item -1, the padding: it adds nothing.
        chars = [len(items[item].within(None)) for item in range(len(requests.catalog))]
        chars_I = np.array([*chars, 0], dtype=np.int64)
        seen_B = _row_chars(requests.history_BH, chars_I, len(template.seen) + _NUMBER_CHARS)
        offered_B = _row_chars(requests.candidates_BK, chars_I, len(template.offered) + _NUMBER_CHARS)
        words = max(len(template.words(text_format)) for text_format in FORMATS)
        return words + 5 * _NUMBER_CHARS + int((seen_B + offered_B).max(initial=0))

    def _items(self, catalog: Catalog) -> CatalogItems:
        """The items of a catalogue, remembered for the last one that was asked about."""
        items: CatalogItems | None = self.__dict__.get("_last")
        if items is None or items.catalog is not catalog:
            items = CatalogItems(catalog, self.template, self.ids)
            object.__setattr__(self, "_last", items)
        return items


def checked_rows(rows: Sequence[int] | None, count: int) -> IntArray:
    """Row numbers as an array, all of `count` where None; raises `InputError` for one that does not exist."""
    rows_B = np.arange(count) if rows is None else np.asarray(rows, dtype=np.int64)
    for row in rows_B[(rows_B < 0) | (rows_B >= count)][:1]:
        raise InputError(f"request {row} does not exist; the data has requests 0..{count - 1}")
    return rows_B


def _row_chars(items_BN: IntArray, chars_I: IntArray, extra_chars: int) -> IntArray:
    return np.asarray((chars_I[items_BN] + extra_chars * (items_BN != PAD)).sum(axis=1), dtype=np.int64)
