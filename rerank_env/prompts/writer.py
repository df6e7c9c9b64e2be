"""Requests put in words, and the names that answers cite candidates by: one writer for everybody who shows a prompt.

The environment, the adapters and a user's own loop ask a `PromptWriter`, so that the same request reads the same to all
of them, byte for byte. May import numpy and `rerank_env.data`, `rerank_env.rewards`. Suffixes: `_B` requests, `_K`
candidates, `_I` items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from rerank_env.data.catalog import Catalog
from rerank_env.data.remarks import Texts
from rerank_env.data.requests import Requests
from rerank_env.prompts.budget import Budget, budget_of
from rerank_env.prompts.guard import alphabet
from rerank_env.prompts.items import LEVEL, MARK, SEPARATOR, IdTable, ItemIds, labels_of
from rerank_env.prompts.lines import CatalogItems, Lines, Prompt, remark_chars
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


Rows = Sequence[int] | Sequence[bool] | npt.NDArray[np.integer[Any] | np.bool_]
"""Rows of requests: their numbers, or a mask."""


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
    An object with `check_catalogue(texts)` is asked, when requests come, whether their catalogue is its own: what it
    raises, such as `DataError`, is raised by every method that is given requests. Other tables are taken at their word.
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

    def write(self, requests: Requests, rows: Rows | None = None) -> list[Prompt]:
        """The prompts of `rows` (all requests where None), in that order.

        `rows` are whole numbers from 0, in any order and number, or a mask of one truth value a request. A user without
        history is said to have none. Raises `InputError` for rows that are neither, and, naming the request, for a row
        that does not exist, for IDs that are not distinct, and for a budget that cannot hold its candidates; and for
        requests without remarks where the template shows them, as the methods below do.
        """
        rows_B = checked_rows(rows, len(requests))
        self.answer_ids(requests, rows_B)
        prompts = []
        for row, lines in self._lines(requests, rows_B):
            with _named(row):
                prompts.append(lines.prompt(self.budget))
        return prompts

    def check(self, requests: Requests) -> None:
        """Raise now what `write` and `answer_ids` would raise for one of the requests, in the middle of a run.

        For less work than they do: where there is a budget, one count of a prompt a request as a rule, none where the
        budget is one of characters that no prompt can exceed.
        """
        self.answer_ids(requests)
        self._remarks(requests)
        budget = self.budget
        if budget is None or (budget.count is len and self.longest_chars(requests) <= budget.limit):
            return
        for row, lines in self._lines(requests, np.arange(len(requests))):
            with _named(row):
                lines.check(budget)

    def _lines(self, requests: Requests, rows_B: IntArray) -> Iterator[tuple[int, Lines]]:
        """The rows, each with what its prompt is made of."""
        items, remarks_BK = self._items(requests.catalog), self._remarks(requests)
        batch = zip(
            rows_B.tolist(),
            requests.history_BH[rows_B].tolist(),
            requests.feedback_BH[rows_B].tolist(),
            requests.candidates_BK[rows_B].tolist(),
            repeat(None) if remarks_BK is None else remarks_BK[rows_B].tolist(),
            strict=remarks_BK is not None,
        )
        for row, history, feedback, candidates, remarks in batch:
            taken = zip(history, feedback, strict=True) if self.template.shows_history else ()
            seen = [(items[item], value) for item, value in taken if item != PAD]
            yield row, Lines(self.template, self.text_format, seen, items.offered(candidates, remarks))

    def _remarks(self, requests: Requests) -> Texts | None:
        """The remarks on candidates, None for a template that shows none."""
        if not self.template.shows_remarks:
            return None
        if requests.remarks_BK is None:
            raise InputError(
                f"prompt {self.template.version!r} shows remarks but the requests have none; add them, as "
                "EvidenceRemarks.on does, or use another prompt"
            )
        return requests.remarks_BK

    def answer_ids(self, requests: Requests, rows: Rows | None = None) -> list[tuple[str, ...]] | None:
        """What answers to `rows` name the candidates by, in incoming order; None where they name their numbers.

        Raises `InputError`, naming the request, where an item has no usable ID or two candidates have the same.
        """
        if self.ids is not None:
            self.ids.check(requests.catalog)
        if not self.cites_ids:
            return None
        return [self.answer_ids_of(requests, row) for row in checked_rows(rows, len(requests)).tolist()]

    def answer_ids_of(self, requests: Requests, row: int) -> tuple[str, ...]:
        """The same for one request, which does exist; for templates whose answers cite IDs."""
        assert self.ids is not None, "was checked where the writer was made"
        self.ids.check(requests.catalog)
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
        if self.ids is not None:
            self.ids.check(catalog)
        labels = "".join({label for row in labels_of(catalog) for label in row})
        remarks_BK = self._remarks(requests)
        remarks = "" if remarks_BK is None else "".join(set("".join(remarks_BK.ravel().tolist())))
        texts = alphabet(catalog.characters + labels + remarks + " ", guarded=template.guarded)
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
        history_BH = requests.history_BH if template.shows_history else requests.history_BH[:, :0]
        seen_B = _row_chars(history_BH, chars_I, len(template.seen) + _NUMBER_CHARS)
        offered_B = _row_chars(requests.candidates_BK, chars_I, len(template.offered) + _NUMBER_CHARS)
        if (remarks_BK := self._remarks(requests)) is not None:
            offered_B = offered_B + np.array(
                [remark_chars(row, template) for row in remarks_BK.tolist()], dtype=np.int64
            )
        words = max(len(template.words(text_format)) for text_format in FORMATS)
        return words + 5 * _NUMBER_CHARS + int((seen_B + offered_B).max(initial=0))

    def _items(self, catalog: Catalog) -> CatalogItems:
        """The items of a catalogue, remembered for the last one that was asked about."""
        items: CatalogItems | None = self.__dict__.get("_last")
        if items is None or items.catalog is not catalog:
            items = CatalogItems(catalog, self.template, self.ids)
            object.__setattr__(self, "_last", items)
        return items


def checked_rows(rows: Rows | None, count: int) -> IntArray:
    """Row numbers as an array, all of `count` where None, those that a mask is true for where one is given.

    Raises `InputError` for a row that does not exist, a mask of another length, and what is no list of either.
    """
    if rows is None:
        return np.arange(count)
    try:
        given = np.asarray(rows)
    except ValueError as cause:  # lists of unequal length
        raise InputError("rows holds lists of unequal length; give one list of row numbers, or a mask") from cause
    if not given.size and given.ndim == 1:
        return np.arange(0)  # an empty list has no type of its own
    if given.ndim != 1 or given.dtype.kind not in "iub":
        raise InputError(
            f"rows has dtype {given.dtype} and shape {given.shape}; give one list of row numbers, or a mask"
        )
    if given.dtype.kind == "b":
        if len(given) != count:
            raise InputError(f"rows is a mask of {len(given)} entries for {count} requests; give one a request")
        return np.flatnonzero(given)
    for row in given[(given < 0) | (given >= count)][:1]:
        raise InputError(f"request {row} does not exist; the data has requests 0..{count - 1}")
    return given.astype(np.int64)


@contextmanager
def _named(row: int) -> Iterator[None]:
    """Say of what is wrong with a prompt which request it is the one of."""
    try:
        yield
    except InputError as cause:
        raise InputError(f"the prompt of request {row} {cause}") from cause


def _row_chars(items_BN: IntArray, chars_I: IntArray, extra_chars: int) -> IntArray:
    return np.asarray((chars_I[items_BN] + extra_chars * (items_BN != PAD)).sum(axis=1), dtype=np.int64)
