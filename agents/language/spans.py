"""Which part of a completion is reasoning, which the answer, and which token names which candidate.

May import numpy, transformers (through the tokenizer that is given) and `rerank_env.rewards`. Spans are found by the
grammar that the parser reads answers with, so that they cannot disagree with it. Suffix: `_T` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.formats import FORMATS, grammar

REASONING, ANSWER, OTHER = 0, 1, 2
"""What a token can be a part of: the reasons, the ranking, or the signs around them."""


class Spans(NamedTuple):
    """Parts of a text, as slices of its characters.

    `reasoning`: the text of the reasoning block or of the JSON explanation without tags and quotes, of the block where
    there are both, empty where there is none. `answer`: the ranking, from its first bracket to its last. `elements`:
    the names in it, in order, each without brackets and quotes. All empty where the text is no answer.
    """

    reasoning: slice
    answer: slice
    elements: list[slice]


class TokenRoles(NamedTuple):
    """Tokens and what they are a part of: `ids_T` int64, `roles_T` int8, and `slots_T` int64.

    A slot is the place in the ranking, from 0, of the candidate that the token names, -1 where it names none.
    """

    ids_T: IntArray
    roles_T: npt.NDArray[np.int8]
    slots_T: IntArray


_EMPTY = slice(0, 0)


def completion_spans(text: str, text_format: str) -> Spans:
    """The parts of an answer, whatever it names and for however many candidates; IDs or numbers.

    Raises `UnknownNameError` for a format that does not exist.

    >>> text = "<think>Drama.</think><answer>[3, 1, 2]</answer>"
    >>> spans = completion_spans(text, "tagged-list")
    >>> text[spans.reasoning], text[spans.answer], [text[element] for element in spans.elements]
    ('Drama.', '[3, 1, 2]', ['3', '1', '2'])
    """
    one_of("text format", text_format, FORMATS)
    for with_ids in (False, True):
        form = grammar(text_format, with_ids=with_ids)
        match = form.whole.fullmatch(text)
        if match is None:
            continue
        found = match.groupdict()
        ranking = "ranking" if found["ranking"] is not None else "ranking_last"
        start, end = match.span(ranking)
        elements = []
        for element in form.element.finditer(text, start, end):
            group = 1 if element.re.groups else 0
            elements.append(slice(*element.span(group)))
        return Spans(_reasoning(match, found), slice(start, end), elements)
    return Spans(_EMPTY, _EMPTY, [])


def _reasoning(match: Any, found: dict[str, str | None]) -> slice:
    if found.get("thoughts"):
        return slice(*match.span("thoughts"))
    for name in ("reasons", "reasons_first"):
        if found.get(name) is not None:
            start, end = match.span(name)
            return slice(start + 1, end - 1)
    return _EMPTY


def token_roles(tokenizer: Any, completion: str | Sequence[int], text_format: str) -> TokenRoles:
    """What the tokens of a completion, or of a text that is tokenised here, are a part of.

    A token that holds a part of a name belongs to that name, to the last where it holds parts of several; any other
    has the role of its last character. Tokens without characters, such as the end of text, are `OTHER`. So are all
    tokens of a text that is no answer.
    """
    if isinstance(completion, str):
        read = tokenizer(completion, add_special_tokens=False, return_offsets_mapping=True)
        ids, text, ends = list(read["input_ids"]), completion, [end for _, end in read["offset_mapping"]]
    else:
        ids = [int(token) for token in completion]
        text, ends = decoded(tokenizer, ids)
    spans = completion_spans(text, text_format)
    roles_T = np.full(len(ids), OTHER, dtype=np.int8)
    slots_T = np.full(len(ids), -1, dtype=np.int64)
    start = 0
    for token, end in enumerate(ends):
        if end > start:
            last = end - 1
            if spans.reasoning.start <= last < spans.reasoning.stop:
                roles_T[token] = REASONING
            elif spans.answer.start <= last < spans.answer.stop:
                roles_T[token] = ANSWER
            for slot, element in enumerate(spans.elements):
                if element.start < end and start < element.stop:
                    roles_T[token], slots_T[token] = ANSWER, slot
        start = max(start, end)
    return TokenRoles(np.array(ids, dtype=np.int64), roles_T, slots_T)


def decoded(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[int]]:
    """The text of the tokens without the special ones at its end, and where in it each of them ends.

    Special tokens inside stay in the text, as in `TextPolicy.texts`, and spoil an answer.
    """
    special, count = set(tokenizer.all_special_ids), len(ids)
    while count and ids[count - 1] in special:
        count -= 1
    text = tokenizer.decode(ids[:count], skip_special_tokens=False)
    ends, end = [], 0
    for token in range(1, len(ids) + 1):
        written = tokenizer.decode(ids[: min(token, count)], skip_special_tokens=False)
        if text.startswith(written):  # not so in the middle of a character of several tokens
            end = max(end, len(written))
        ends.append(end)
    return text, ends
