r"""How far a teacher has something to say of what a student wrote: to the first token that no legal answer has there.

May import `rerank_env.agents.language` and `rerank_env.rewards`. Pure functions of texts.

A teacher that reads a student's tokens from left to right knows what comes next as long as what it read may become an
answer to the request. The first token behind which no legal answer can come, such as a candidate that was named before,
a name that is no candidate's, a sign that the format does not have, an end of text in the middle, is still worth
learning from: what the teacher says at its place was said knowing legal text alone. What stands behind it was written
by nobody the teacher has ever read, and is cut off (ours; Diffusion-GR2, 2607.01170, does not say what it does there).

What may become an answer is told by the grammar that the parser reads answers with, so that the two cannot disagree,
and by the names of the candidates:

    [2, 2      of 3 candidates, number by number: cut behind the second 2
    [2, 1]     cut behind the bracket, which comes too early; behind the comma in [2, 1, 3,
    [1         of 10 candidates and more may become [10
    Drama.     in a format without room for reasons cut behind its first token; in a tagged one it is the beginning of
               reasons, and nothing is cut

A text that goes wrong goes wrong for good, so the token is found by halving.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rerank_env.agents.language.automaton import shown_names
from rerank_env.rewards.formats import agreed

_BLANK = " \t\r\n"

_RANKING = re.compile(rf'"ranking"[{_BLANK}]*+:[{_BLANK}]*+\[')
"""Where the ranking of a JSON object begins; inside its strings no quote stands without a backslash before it."""

_PLACE = re.compile(r"\[([^\]]*+)(\]?)")
"""One place of a ranking in arrows."""


def learned(
    tokens: Sequence[int],
    *,
    decode: Callable[[Sequence[int]], str],
    text_format: str,
    size: int,
    ids: Sequence[str] | None = None,
) -> int:
    """How many tokens of a completion, from the first on, are learned from: up to and with the first that is wrong.

    All where none is. `tokens` end with their end of text where they have one, and hold no other; it is the wrong one
    only where all before it are right, and learned either way. `decode` makes text of tokens without it, such as
    `LanguagePolicy.texts` does; `size` and `ids` are those of the request, as `formats.agreed` takes them, and raise as
    it does.
    """
    count = len(tokens)
    wrong = bisect_left(
        range(1, count + 1), True, key=lambda n: not begins(decode(tokens[:n]), text_format, size=size, ids=ids)
    )
    return min(wrong + 1, count)


def begins(text: str, text_format: str, *, size: int, ids: Sequence[str] | None = None) -> bool:
    """Whether some text behind this one makes it a legal answer for `size` candidates, named by `ids` or numbers.

    So does a legal answer itself, and no text at all. Raises as `formats.agreed` does.

    >>> [begins(text, "list", size=3) for text in ("", "[3, ", "[3, 3", "[4", "[3, 1]", "[3, 1, 2] ", "[3, 1, 2]]")]
    [True, True, False, False, False, True, False]
    """
    form, _ = agreed(text_format, size, ids)
    if not form.start.fullmatch(text):
        return False
    named = _named(text, text_format)
    if named is None:
        return True
    left = set(shown_names(size, ids, text_format))
    for name in named.whole:
        if name not in left:
            return False
        left.remove(name)
    if named.begun is not None and not any(name.startswith(named.begun) for name in left):
        return False
    return not (named.closed and left)


class _Named(NamedTuple):
    """The names in a ranking as they stand there: those that are `whole`; the one that is `begun`, "" where there has
    to be one of which nothing is written, None where there need not be any; and whether the ranking is `closed`.
    """

    whole: list[str]
    begun: str | None
    closed: bool


def _named(text: str, text_format: str) -> _Named | None:
    """What is named in the beginning of an answer of that format; None where no ranking has begun."""
    body, kind = text, text_format.removeprefix("tagged-")
    if kind != text_format:
        _, opening, body = text.partition("<answer>")
        if not opening:
            return None
    if kind == "arrows":
        return _in_arrows(body)
    opened = _RANKING.search(body) if kind == "json" else re.search(r"\[", body)
    return None if opened is None else _in_list(body[opened.end() :])


def _in_list(inside: str) -> _Named:
    """`inside` is what stands behind the opening bracket."""
    names, bracket, _ = inside.partition("]")
    *before, last = names.split(",")
    whole, last = [name.strip(_BLANK) for name in before], last.lstrip(_BLANK)
    ended = last.rstrip(_BLANK)
    if bracket or ended != last:
        return _Named([*whole, ended], None, bool(bracket))
    return _Named(whole, last, False)


def _in_arrows(body: str) -> _Named:
    """A "<" behind the last place begins the tag that closes the answer; a ">" asks for one place more."""
    places = list(_PLACE.finditer(body))
    whole = [place[1] for place in places if place[2]]
    if places and not places[-1][2]:
        return _Named(whole, places[-1][1], False)
    behind, closing, _ = body[places[-1].end() if places else 0 :].partition("<")
    return _Named(whole, "" if not places or ">" in behind else None, bool(closing))
