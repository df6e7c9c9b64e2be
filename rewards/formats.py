r"""How answers are written: one grammar for each text format, and the names candidates go by.

Two questions are asked of a text: is it an answer, and is it the beginning of one? Both are answered by regular
expressions that are put together from the same pieces, so that they cannot disagree. Repeats are possessive and
alternatives differ in their first characters, which makes the time linear in the text; what does not fit the grammar
is not looked at further, so neither depth of nesting nor length of numbers costs anything.

    list      blank [ blank (element blank (, blank element blank)*)? ] blank
    arrows    blank [element] (blank > blank [element])* blank
    json      blank { blank members blank } blank, where members are "ranking": list, and either before or after it
              "explanation" or "reasoning": string, or neither; names are written without escapes
    tagged-F  ((blank <think>)? prose </think>)? blank <answer> F </answer> blank; none of these four tags stands
              anywhere else, inside a string neither

    blank     space, tab, carriage return and line feed, any number of them
    element   a number in ASCII digits without sign, leading zero, point or exponent; or an ID (in JSON, in quotes)

May import numpy only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES

_TAG = r"</?(?:think|answer)>"
_PLAIN_ID = r"[!#-+\-.-;=-Z^-~]"
"""Printable ASCII without blank, quote, comma, brackets and backslash; `<` needs a look at what follows."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Regular expressions for a piece of a text: for the `whole` of it, and for any `start`, the empty one included."""

    whole: str
    start: str


def _literal(text: str) -> _Piece:
    start = ""
    for character in reversed(text):
        start = f"(?:{re.escape(character)}{start})?+"
    return _Piece(re.escape(text), start)


def _then(*pieces: _Piece) -> _Piece:
    """One piece after the other."""
    start = pieces[-1].start
    for piece in reversed(pieces[:-1]):
        start = f"(?:{piece.whole}{start}|{piece.start})"
    return _Piece("".join(piece.whole for piece in pieces), start)


def _maybe(piece: _Piece) -> _Piece:
    return _Piece(f"(?:{piece.whole})?", piece.start)


def _many(piece: _Piece) -> _Piece:
    return _Piece(f"(?:{piece.whole})*+", f"(?:{piece.whole})*+{piece.start}")


def _either(one: _Piece, other: _Piece) -> _Piece:
    return _Piece(f"(?:{one.whole}|{other.whole})", f"(?:{one.start}|{other.start})")


def _kept(name: str, piece: _Piece) -> _Piece:
    """The piece, found again under that name in a match of the whole."""
    return _Piece(f"(?P<{name}>{piece.whole})", piece.start)


_BLANK = _Piece(r"[ \t\r\n]*+", r"[ \t\r\n]*+")
_NUMBER = _Piece("(?:0|[1-9][0-9]*+)", "(?:0|[1-9][0-9]*+)?+")
_ID = _Piece(rf"(?:{_PLAIN_ID}++|(?!{_TAG})<)++", rf"(?:{_PLAIN_ID}++|(?!{_TAG})<)*+")
_PROSE = _Piece(*[rf"[^<]*+(?:(?!{_TAG})<[^<]*+)*+"] * 2)
_OPEN, _CLOSE, _COMMA, _QUOTE, _COLON = map(_literal, '[],":')


def _list(element: _Piece) -> _Piece:
    more = _many(_then(_COMMA, _BLANK, element, _BLANK))
    return _then(_OPEN, _BLANK, _maybe(_then(element, _BLANK, more)), _CLOSE)


def _arrows(element: _Piece) -> _Piece:
    place = _then(_OPEN, element, _CLOSE)
    return _then(place, _many(_then(_BLANK, _literal(">"), _BLANK, place)))


def _string(tagged: bool) -> _Piece:
    plain = r'[^"\\<\x00-\x1f]*+'
    special = rf'(?:{f"(?!{_TAG})" if tagged else ""}<|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{{4}}))'
    inside = f"{plain}(?:{special}{plain})*+"
    return _Piece(f'"{inside}"', rf'(?:"{inside}(?:"|\\(?:u[0-9a-fA-F]{{0,3}}+)?+)?+)?+')


def _object(element: _Piece, *, tagged: bool) -> _Piece:
    separator = _then(_BLANK, _COMMA, _BLANK)

    def member(name: _Piece, value: _Piece) -> _Piece:
        return _then(_QUOTE, name, _QUOTE, _BLANK, _COLON, _BLANK, value)

    def ranking(group: str) -> _Piece:
        return member(_literal("ranking"), _kept(group, _list(element)))

    def reasons(group: str) -> _Piece:
        return member(_either(_literal("explanation"), _literal("reasoning")), _kept(group, _string(tagged)))

    members = _either(
        _then(ranking("ranking"), _maybe(_then(separator, reasons("reasons")))),
        _then(reasons("reasons_first"), separator, ranking("ranking_last")),
    )
    return _then(_literal("{"), _BLANK, members, _BLANK, _literal("}"))


def _tagged(body: _Piece) -> _Piece:
    thinking = _then(_maybe(_then(_BLANK, _literal("<think>"))), _kept("thoughts", _PROSE), _literal("</think>"))
    return _then(_maybe(thinking), _BLANK, _literal("<answer>"), body, _literal("</answer>"), _BLANK)


@dataclass(frozen=True, slots=True)
class Grammar:
    """One text format: patterns for a whole answer and for any beginning of one, to be matched to the full text.

    In a match of `whole`, the group `ranking` (or `ranking_last`) holds the ranking, in which `element` finds the
    names of candidates; `thoughts`, `reasons` and `reasons_first` hold the reasoning, the latter two as JSON strings.
    `example` is what a reader of an error is shown.
    """

    whole: re.Pattern[str]
    start: re.Pattern[str]
    element: re.Pattern[str]
    example: str


_EXAMPLES = {
    "list": "[3, 1, 2]",
    "arrows": "[3] > [1] > [2]",
    "json": '{"ranking": [3, 1, 2], "explanation": "..."}',
}
_ID_ELEMENTS = {"list": r"[^\[\], \t\r\n]++", "arrows": r"\[([^\]]++)\]", "json": r'"([^"]++)"'}

FORMATS = tuple(sorted([*_EXAMPLES, *(f"tagged-{name}" for name in _EXAMPLES)]))
"""The names of the text formats."""


@cache
def grammar(text_format: str, *, with_ids: bool) -> Grammar:
    """The grammar of one of `FORMATS`, with elements that are IDs or, without them, numbers."""
    tagged, kind = text_format.startswith("tagged-"), text_format.removeprefix("tagged-")
    element = _ID if with_ids else _NUMBER
    if kind == "json":
        body = _object(_then(_QUOTE, element, _QUOTE) if with_ids else element, tagged=tagged)
    else:
        body = _kept("ranking", _list(element) if kind == "list" else _arrows(element))
    body = _then(_BLANK, body, _BLANK)
    text = _tagged(body) if tagged else body
    example = re.sub("[0-9]", '"ID"' if kind == "json" else "ID", _EXAMPLES[kind]) if with_ids else _EXAMPLES[kind]
    return Grammar(
        whole=re.compile(text.whole),
        start=re.compile(re.sub(r"\(\?P<\w+>", "(?:", text.start)),  # nothing is looked up in it, and names are unique
        element=re.compile(_ID_ELEMENTS[kind] if with_ids else "[0-9]++"),
        example=f"<think>...</think><answer>{example}</answer>" if tagged else example,
    )


def agreed(text_format: str, size: int, ids: Sequence[str] | None) -> tuple[Grammar, Mapping[str, int]]:
    """The grammar of an answer for `size` candidates, and which candidate each name in it names.

    Raises `UnknownNameError` for a format that does not exist, `InputError` for a size below 2 and as `names` does.
    """
    form = grammar(one_of("text format", text_format, FORMATS), with_ids=ids is not None)
    whole("size", size, least=MIN_CANDIDATES)
    return form, numbers(size) if ids is None else names(ids, size)


@lru_cache(maxsize=64)
def numbers(size: int) -> Mapping[str, int]:
    """Which candidate each of the numbers 1..size names."""
    return {str(index + 1): index for index in range(size)}


def names(ids: Sequence[str], size: int) -> Mapping[str, int]:
    """Which candidate each of the `ids` of one request names, for `size` candidates in incoming order.

    An ID is printable ASCII without blanks and without the characters `"`, `,`, `[`, `]` and backslash, and holds none
    of the tags of an answer, so that no ID can be taken for a part of the format. Raises `InputError` for one that is
    no such text, for one that is given twice, and where there is not one ID a candidate.
    """
    if isinstance(ids, str) or len(ids) != size:
        given = "one text" if isinstance(ids, str) else f"{len(ids)} IDs"
        raise InputError(f"a request with {size} candidates came with {given}; give one ID a candidate")
    for candidate in ids:
        if not isinstance(candidate, str) or not _WHOLE_ID.fullmatch(candidate):
            raise InputError(
                f"candidate ID {short(candidate)} cannot be told from the format around it; use printable ASCII "
                r"without blanks, quotes, commas, square brackets, backslashes and the tags <think> and <answer>"
            )
    found = {candidate: index for index, candidate in enumerate(ids)}
    if len(found) < size:
        again = next(candidate for index, candidate in enumerate(ids) if found[candidate] != index)
        raise InputError(f"candidate ID {short(again)} is given twice in one request; give each candidate its own")
    return found


_WHOLE_ID = re.compile(_ID.whole)


def has_reasoning(text_format: str) -> bool:
    """Whether an answer in that format has a place for reasons."""
    return text_format == "json" or text_format.startswith("tagged-")


def numbered(ranking: Iterable[int]) -> list[str]:
    """Candidate indices as they stand in text, counted from 1."""
    return [str(index + 1) for index in ranking]


def written(elements: Sequence[str], text_format: str, reasoning: str = "") -> str:
    """Elements, each as it stands in the text, as an answer in one of `FORMATS`, with the reasoning where there is one.

    It stands before the answer tags, in the JSON object, or in front of it all; the last, in "list" and "arrows", is no
    answer, as these formats have no place for it. Nothing is checked: `answer_text` does.
    """
    kind, tagged = text_format.removeprefix("tagged-"), text_format.startswith("tagged-")
    body = " > ".join(f"[{element}]" for element in elements) if kind == "arrows" else f"[{', '.join(elements)}]"
    if kind == "json":
        explained = f'"explanation": {json.dumps(reasoning)}, ' if reasoning and not tagged else ""
        body = f'{{{explained}"ranking": {body}}}'
    if tagged:
        return (f"<think>{reasoning}</think>" if reasoning else "") + f"<answer>{body}</answer>"
    return f"{reasoning}\n{body}" if reasoning and kind != "json" else body


def answer_text(
    ranking: Sequence[int], *, text_format: str = "list", ids: Sequence[str] | None = None, reasoning: str = ""
) -> str:
    """The text of a legal `ranking` (0-based, best first), which `parse` reads back, with the reasoning where there is.

    Nothing about the ranking is checked. Raises as `agreed` does, and `InputError` for a reasoning where the format has
    no place for one or the reasoning holds one of the tags around it.

    >>> answer_text([2, 0, 1], text_format="tagged-arrows", reasoning="Drama.")
    '<think>Drama.</think><answer>[3] > [1] > [2]</answer>'
    """
    agreed(text_format, len(ranking), ids)
    fits = has_reasoning(text_format) and not (text_format != "json" and re.search(_TAG, reasoning))
    if reasoning and not fits:
        raise InputError(
            f"an answer in the format {text_format!r} cannot hold the reasoning {short(reasoning)}; leave it out, or "
            "use a format with room for it and a reasoning without tags"
        )
    if ids is None:
        return written(numbered(ranking), text_format, reasoning)
    quote = '"' if text_format.endswith("json") else ""
    return written([f"{quote}{ids[index]}{quote}" for index in ranking], text_format, reasoning)


def short(value: object, limit: int = 40) -> str:
    """`value` as Python writes it in ASCII, with the end left out where that is longer than `limit` and two quotes."""
    written = ascii(value[: limit + 1] if isinstance(value, str) else value)
    return written if len(written) <= limit + 2 else f"{written[: limit - 3]}...{written[-1]}"
