"""Repair of an answer for serving: a full ranking whatever the model wrote, and a sentence for everything changed.

A page has to show something, so a list that lost a candidate is better completed than dropped. A reward must never see
a repaired answer: what is appended stands in the incoming order, so the answer inherits the quality of that order. A
model that writes nothing would be paid for the first stage's work, and one that names a single candidate for the rest
of it: the very hack that the strict parser refuses. So nothing that computes a reward imports this module, which a test
makes sure of. May import numpy only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rerank_env.rewards.formats import agreed, short
from rerank_env.rewards.parsing import MAX_CHARS, read
from rerank_env.rewards.rankings import Verdict

_MOST_BYTES = 4 * MAX_CHARS
"""As many bytes as that hold `MAX_CHARS` characters at least."""

_LINE_NUMBER = re.compile(r"^[ \t]*+[0-9]++[.)][ \t]++(?=\S)", re.MULTILINE)
"""The "1. " before a line of a numbered list."""

_WORDS = re.compile(r'[^\s,\[\]"\\]++')
"""What stands between blanks, commas, square brackets, quotes and backslashes."""

_NUMBER_WORDS = re.compile(r'[^\s,\[\]"\\>]++')
"""The same, with arrows between them too; IDs may hold their sign."""

_REASONS = re.compile('"(?:explanation|reasoning)"')

_AROUND = "'`*#(){}.:;!?"
"""What may stick to an element in prose."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """A full `ranking`, 0-based, best first; the strict `verdict` on the text; `changes`, a sentence for each.

    There are changes exactly where the verdict is not OK.
    """

    ranking: tuple[int, ...]
    verdict: Verdict
    changes: tuple[str, ...]


def repair(text: str | bytes, size: int, *, text_format: str = "list", ids: Sequence[str] | None = None) -> Repaired:
    """Make a ranking of `size` candidates of any text: what can be read, in order, then the rest in incoming order.

    An answer in the format loses what names no candidate and what names one again. In any other text the part after the
    reasoning, inside the answer tags or behind "ranking" counts, where there is one. There, IDs count in the order in
    which they are first named, and so do numbers, unless some of them make up a list: then only the list with the most
    candidates counts, the last of equal ones. Of a text of more than `MAX_CHARS` characters only the end is read.

    No text raises; misuse by the caller does, as in `parse`.

    >>> repaired = repair("The best of 9 are [3, 8, 1, 3].", 4)
    >>> repaired.ranking
    (2, 0, 1, 3)
    >>> for change in repaired.changes:
    ...     print(change)
    The answer is not written in the agreed format; took the candidates that can be read in it.
    Dropped '8', which is not the name of a candidate.
    Dropped 1 repetition of candidates named before.
    Appended 2 candidates that were not named, in incoming order.
    """
    form, named = agreed(text_format, size, ids)
    verdict, elements, _ = read(text, named, form, max_chars=MAX_CHARS)
    changes = []
    if verdict in (Verdict.MALFORMED, Verdict.TRUNCATED, Verdict.OVERLONG):
        elements = _mentions(text, named, with_ids=ids is not None)
        how = f"its last {MAX_CHARS} characters" if verdict is Verdict.OVERLONG else "it"
        changes.append(f"{verdict.sentence[:-1]}; took the candidates that can be read in {how}.")
    known = [element for element in elements if element in named]
    strange = [element for element in elements if element not in named]
    ranking = list(dict.fromkeys(named[element] for element in known))
    if strange:
        others = f" and {len(strange) - 1} more, none of them" if len(strange) > 1 else ", which is not"
        changes.append(f"Dropped {short(strange[0])}{others} the name of a candidate.")
    if len(ranking) < len(known):
        changes.append(f"Dropped {_count(len(known) - len(ranking), 'repetition')} of candidates named before.")
    if len(ranking) < size:
        left_out = _count(size - len(ranking), "candidate")
        changes.append(
            f"Appended {left_out} that {'were' if size - len(ranking) > 1 else 'was'} not named, in incoming order."
        )
    taken = set(ranking)
    return Repaired((*ranking, *(index for index in range(size) if index not in taken)), verdict, tuple(changes))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number > 1 else "")


def _mentions(text: str | bytes, named: Mapping[str, int], *, with_ids: bool) -> list[str]:
    """The elements of a text that is not in the format, from its answer where one stands out, else from all of it."""
    tail = text[-_MOST_BYTES:].decode("utf-8", "replace") if isinstance(text, bytes) else text
    tail = tail[-MAX_CHARS:]
    for part in (_answer(tail), tail):
        if with_ids:
            elements = [word for word in _words(_WORDS, part, named) if word in named]
        else:
            elements = _numbers(part, named)
        if not named.keys().isdisjoint(elements):
            return elements
    return []


def _answer(text: str) -> str:
    """What comes after the reasoning, inside the answer tags and behind the name of the ranking in JSON."""
    text = text.rpartition("</think>")[2]
    text = text.rpartition("<answer>")[2].partition("</answer>")[0]
    _, name, ranking = text.rpartition('"ranking"')
    return _REASONS.split(ranking, maxsplit=1)[0] if name else text


def _numbers(text: str, named: Mapping[str, int]) -> list[str]:
    """The numbers of the list with the most candidates, the last of equal ones; all numbers where there is no list."""
    lists: list[list[str]] = [[]]
    for word in _words(_NUMBER_WORDS, _LINE_NUMBER.sub("", text), named):
        if word.isascii() and word.isdecimal():
            lists[-1].append(word)
        elif lists[-1] and any(map(str.isalnum, word)):
            lists.append([])

    def candidates(elements: list[str]) -> int:
        return len(named.keys() & elements)

    longest = max(reversed(lists), key=candidates)
    return longest if candidates(longest) > 1 else [number for numbers in lists for number in numbers]


def _words(pattern: re.Pattern[str], text: str, named: Mapping[str, int]) -> Iterator[str]:
    for word in pattern.findall(text):
        yield word if word in named else word.strip(_AROUND)
