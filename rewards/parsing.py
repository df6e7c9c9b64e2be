"""Model text -> ranking, strictly: every deviation is a verdict, and nothing is ever repaired.

A repaired answer would inherit the quality of the order it was repaired with, which is the hack itself. Candidates are
numbered 1..K in text and 0..K-1 in arrays; where a request has IDs, they stand in the text instead of the numbers. The
formats (`formats` has their grammars):

- "list": `[3, 1, 2]`
- "arrows": `[3] > [1] > [2]`
- "json": `{"ranking": [3, 1, 2], "explanation": "any text, may be left out"}`; it may be called "reasoning" too
- "tagged-list", "tagged-arrows", "tagged-json": the same after a reasoning block, in answer tags:
  `<think>any text</think><answer>[3, 1, 2]</answer>`. The block may be left out, and so may its opening tag, which many
  chat templates put into the prompt. None of these four tags may stand anywhere else.

Blanks between the signs are fine; any other text around is MALFORMED. May import numpy only.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import PAD, IntArray, VerdictArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS as FORMATS
from rerank_env.rewards.formats import Grammar, agreed, grammar, names, numbers, short
from rerank_env.rewards.rankings import MIN_CANDIDATES, Verdict

MAX_CHARS = 20_000
"""Longer texts are OVERLONG and not looked at; an honest answer has tens of characters, with reasoning thousands."""

_MOST_BYTES = 4
"""What a character takes in UTF-8 at most: more bytes than that are too many characters before they are decoded."""

_CONTINUATION = bytes(range(0x80, 0xC0))
"""The bytes that go on with a character in UTF-8; all others begin one."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a text says: `ranking` 0-based, best first; `reason` in one sentence; `reasoning`, the text before or beside
    the ranking. Ranking and reasoning are empty unless the verdict is OK.
    """

    ranking: tuple[int, ...]
    verdict: Verdict
    reason: str
    reasoning: str = ""


class ParsedBatch(NamedTuple):
    """What a batch of texts says.

    `rankings_BK` int64 [B, width], -1 where padded or invalid; `verdicts_B` int8 [B]; `reasonings`, one text a
    request, "" where there is none or the answer is invalid; `chars_B` int64 [B], the characters of the whole text.
    """

    rankings_BK: IntArray
    verdicts_B: VerdictArray
    reasonings: tuple[str, ...]
    chars_B: IntArray


def parse(
    text: str | bytes,
    size: int,
    *,
    text_format: str = "list",
    max_chars: int = MAX_CHARS,
    ids: Sequence[str] | None = None,
) -> Parsed:
    """Read `text` as a ranking of `size` candidates. No text raises; bytes are UTF-8, else they are MALFORMED.

    The first thing wrong decides the verdict: OVERLONG (`max_chars` counts characters, not bytes), EMPTY, TRUNCATED
    (the text is the beginning of an answer), MALFORMED, WRONG_COUNT (more names than candidates), UNKNOWN (a number
    outside 1..size, or none of the `ids`), DUPLICATE, MISSING. The reasoning is the text of the reasoning block or of
    the JSON object; where there are both, one after the other with a line break between.

    Raises `UnknownNameError` for a format that does not exist, `InputError` for a size below 2, for a text that is
    neither str nor bytes, and for IDs that are not one text a candidate, repeat, or could be taken for the format.

    >>> parse("[2, 1]", 2).ranking
    (1, 0)
    >>> parse("[2, 2]", 2).reason
    "The answer names candidate '2' more than once."
    >>> parse("<think>Up.</think><answer>[<a_7>, <a_4>]</answer>", 2, text_format="tagged-list", ids=["<a_4>", "<a_7>"])
    Parsed(ranking=(1, 0), verdict=<Verdict.OK: 0>, reason='The answer names every candidate exactly once.', \
reasoning='Up.')
    """
    whole("max_chars", max_chars, least=1)
    form, named = agreed(text_format, size, ids)
    verdict, elements, reasoning = read(text, named, form, max_chars=max_chars)
    if verdict is Verdict.OK:
        return Parsed(tuple([named[element] for element in elements]), verdict, verdict.sentence, reasoning)
    reason = _reason(verdict, text, elements, named=named, form=form, max_chars=max_chars)
    return Parsed((), verdict, reason)


def parse_batch(
    texts: Sequence[str | bytes],
    sizes: npt.ArrayLike,
    *,
    text_format: str = "list",
    max_chars: int = MAX_CHARS,
    width: int | None = None,
    ids: Sequence[Sequence[str]] | None = None,
) -> ParsedBatch:
    """Read one text a request, as `parse` does.

    `width` is that of the slates to be scored (None: the largest size); `ids` has the candidates' IDs of each request.
    Raises as `parse` does, and `InputError` if there is not one size a text, or not one row of IDs.
    """
    whole("max_chars", max_chars, least=1)
    form = grammar(one_of("text format", text_format, FORMATS), with_ids=ids is not None)
    sizes_B = _checked_sizes(sizes, len(texts))
    largest = int(sizes_B.max(initial=MIN_CANDIDATES))
    if width is not None and width < largest:
        raise InputError(f"width is {width} but a request has {largest} candidates; use the width of the slates")
    if ids is not None and len(ids) != len(texts):
        raise InputError(f"{len(texts)} texts came with IDs of {len(ids)} requests; give one row of IDs a text")
    verdicts: list[int] = []
    named_candidates: list[int] = []
    reasonings: list[str] = []
    for text, named in zip(texts, _names_of_rows(sizes_B.tolist(), ids), strict=True):
        verdict, elements, reasoning = read(text, named, form, max_chars=max_chars)
        verdicts.append(verdict)
        reasonings.append(reasoning)
        if not verdict:
            named_candidates += [named[element] for element in elements]
    verdicts_B = np.array(verdicts, dtype=np.int8)
    rankings_BK = np.full((len(texts), largest if width is None else width), PAD, dtype=np.int64)
    written_BK = np.arange(rankings_BK.shape[1]) < np.where(verdicts_B == Verdict.OK, sizes_B, 0)[:, None]
    rankings_BK[written_BK] = named_candidates
    chars_B = np.fromiter(map(_chars, texts), dtype=np.int64, count=len(texts))
    return ParsedBatch(rankings_BK, verdicts_B, tuple(reasonings), chars_B)


def read(
    text: str | bytes, named: Mapping[str, int], form: Grammar, *, max_chars: int
) -> tuple[Verdict, list[str], str]:
    """The verdict on a text, the elements its ranking consists of (none where it has no ranking), its reasoning.

    `named` says which candidate each element that may be used names.
    """
    plain = _plain(text, max_chars)
    if isinstance(plain, Verdict):
        return plain, [], ""
    match = form.whole.fullmatch(plain)
    if match is None:
        if not plain or plain.isspace():
            return Verdict.EMPTY, [], ""
        return (Verdict.TRUNCATED if form.start.fullmatch(plain) else Verdict.MALFORMED), [], ""
    found = match.groupdict()
    reasoning = _reasoning(found) if len(found) > 1 else ""
    if not _is_utf8(reasoning):
        return Verdict.MALFORMED, [], ""
    elements = form.element.findall(found["ranking"] or found["ranking_last"])
    distinct = set(elements)
    if len(elements) == len(named) and distinct == named.keys():
        return Verdict.OK, elements, reasoning
    if len(elements) > len(named):
        return Verdict.WRONG_COUNT, elements, ""
    if not distinct <= named.keys():
        return Verdict.UNKNOWN, elements, ""
    return (Verdict.DUPLICATE if len(distinct) < len(elements) else Verdict.MISSING), elements, ""


def _plain(text: object, max_chars: int) -> str | Verdict:
    """The text as characters, or why it is not looked at."""
    if isinstance(text, str):
        if len(text) > max_chars:
            return Verdict.OVERLONG
        return text if _is_utf8(text) else Verdict.MALFORMED
    if not isinstance(text, bytes):
        raise InputError(f"an answer is text or bytes, not {type(text).__name__}; take the answer out of its message")
    if len(text) > _MOST_BYTES * max_chars:
        return Verdict.OVERLONG
    try:
        plain = text.decode("utf-8")
    except UnicodeDecodeError:
        return Verdict.MALFORMED
    return plain if len(plain) <= max_chars else Verdict.OVERLONG


def _is_utf8(text: str) -> bool:
    """Whether the text can be written at all: half a surrogate pair cannot, and would break whoever logs it."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return False
    return True


def _chars(text: str | bytes) -> int:
    return len(text) if isinstance(text, str) else len(text.translate(None, _CONTINUATION))


def _reasoning(found: Mapping[str, str | None]) -> str:
    """The reasoning in the groups of a match: the block before the answer, the string in the JSON object, or both."""
    thoughts, string = found.get("thoughts"), found.get("reasons") or found.get("reasons_first")
    if not string:
        return thoughts or ""
    explanation: str = json.loads(string) if "\\" in string else string[1:-1]
    return f"{thoughts}\n{explanation}" if thoughts and explanation else thoughts or explanation


def _checked_sizes(sizes: npt.ArrayLike, count: int) -> IntArray:
    sizes_B = np.asarray(sizes)
    if sizes_B.shape != (count,) or (count and sizes_B.dtype.kind not in "iu"):
        raise InputError(
            f"{count} texts came with sizes of shape {sizes_B.shape} and dtype {sizes_B.dtype}; "
            "give one whole number a text"
        )
    for size in sizes_B[sizes_B < MIN_CANDIDATES][:1].tolist():
        whole("size", size, least=MIN_CANDIDATES)
    return sizes_B.astype(np.int64)


def _names_of_rows(sizes: Sequence[int], ids: Sequence[Sequence[str]] | None) -> Iterator[Mapping[str, int]]:
    """Which candidate each name names, for each request; IDs that stand for several answers in a row are read once."""
    if ids is None:
        yield from map(numbers, sizes)
        return
    for row, (size, candidates) in enumerate(zip(sizes, ids, strict=True)):
        if not row or candidates is not ids[row - 1] or size != sizes[row - 1]:
            named = names(candidates, size)
        yield named


def _reason(
    verdict: Verdict,
    text: str | bytes,
    elements: Sequence[str],
    *,
    named: Mapping[str, int],
    form: Grammar,
    max_chars: int,
) -> str:
    """The verdict on a text that is no ranking in one sentence, with the first thing that is wrong where one is."""
    if verdict is Verdict.OVERLONG:
        return f"The answer is {_chars(text)} characters long; {max_chars} are allowed."
    if verdict is Verdict.MALFORMED:
        return _departure(_plain(text, max_chars), form)
    if verdict is Verdict.WRONG_COUNT:
        return f"The answer names {len(elements)} candidates but there are {len(named)}."
    if verdict is Verdict.UNKNOWN:
        stray = next(element for element in elements if element not in named)
        return f"The answer names {short(stray)}, which is none of the {len(named)} candidates."
    if verdict is Verdict.DUPLICATE:
        again = next(element for element, times in Counter(elements).items() if times > 1)
        return f"The answer names candidate {short(again)} more than once."
    if verdict is Verdict.MISSING:
        given = set(elements)
        absent = next(name for name in named if name not in given)
        return (
            f"The answer leaves out {len(named) - len(elements)} of {len(named)} candidates, the first of them "
            f"candidate {short(absent)}."
        )
    return verdict.sentence


def _departure(plain: str | Verdict, form: Grammar) -> str:
    """Where a text stops being the beginning of an answer, found by halving: what begins a beginning is one too."""
    if isinstance(plain, Verdict) or form.whole.fullmatch(plain):
        return "The answer is not UTF-8 text, or holds half a surrogate pair."
    place = bisect(range(len(plain)), False, key=lambda place: not form.start.fullmatch(plain, 0, place + 1))
    rest = short(plain[place:])
    return f"The answer does not read like {form.example}: it departs at character {place + 1}, {rest}."
