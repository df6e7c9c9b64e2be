"""Model text -> ranking, strictly: every deviation is a verdict, and nothing is ever repaired.

A repaired answer would inherit the quality of the order it was repaired with, which is the hack itself. Candidates are
numbered 1..K in text and 0..K-1 in arrays. Three formats:

- "list": `[3, 1, 2]`
- "arrows": `[3] > [1] > [2]`
- "json": `{"ranking": [3, 1, 2], "explanation": "any text, may be left out"}`

Numbers are written in ASCII digits, without sign, leading zero, point or exponent. Blanks between the signs are fine;
any other text around is MALFORMED. May import numpy only.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import PAD, IntArray, VerdictArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.slates import MIN_CANDIDATES

MAX_CHARS = 20_000
"""Longer texts are OVERLONG and not looked at; an honest answer has tens of characters, with reasoning thousands."""

MAX_DIGITS = 9
"""Longer numbers name no candidate of any list that fits in memory, and converting them would cost quadratic time."""

_NUMBER = r"(?:0|[1-9][0-9]*+)"
_BLANK = r"[ \t\r\n]*+"
_LIST = re.compile(rf"{_BLANK}\[{_BLANK}(?:{_NUMBER}{_BLANK}(?:,{_BLANK}{_NUMBER}{_BLANK})*+)?+\]{_BLANK}")
_LIST_START = re.compile(rf"{_BLANK}\[{_BLANK}(?:{_NUMBER}{_BLANK},{_BLANK})*+(?:{_NUMBER}{_BLANK})?+")
_ARROWS = re.compile(rf"{_BLANK}\[{_NUMBER}\](?:{_BLANK}>{_BLANK}\[{_NUMBER}\])*+{_BLANK}")
_ARROWS_START = re.compile(rf"{_BLANK}(?:\[{_NUMBER}\]{_BLANK}>{_BLANK})*+(?:\[{_NUMBER}?+)?+")
_DIGITS = re.compile(r"[0-9]+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a text says: `ranking` 0-based, best first, empty unless the verdict is OK; `reason` in one sentence."""

    ranking: tuple[int, ...]
    verdict: Verdict
    reason: str


class _RefusedError(Exception):
    """Carries a verdict out of a reader; never leaves this module."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


def parse(text: str | bytes, size: int, *, text_format: str = "list", max_chars: int = MAX_CHARS) -> Parsed:
    """Read `text` as a ranking of `size` candidates. No text raises; bytes must be UTF-8, else they are MALFORMED.

    The first thing wrong decides the verdict: OVERLONG, EMPTY, TRUNCATED (the text is the beginning of an answer),
    MALFORMED, WRONG_COUNT (more numbers than candidates), UNKNOWN (a number outside 1..size), DUPLICATE, MISSING.
    Raises `UnknownNameError` for a format that does not exist, `InputError` for a size below 2 or a text that is
    neither str nor bytes.

    >>> parse("[2, 1]", 2).ranking
    (1, 0)
    >>> parse("[2, 2]", 2).reason
    'The answer names candidate 2 more than once.'
    """
    reader = _reader(text_format)
    _check(text, size)
    try:
        return Parsed(_ranking(text, size, reader, max_chars), Verdict.OK, Verdict.OK.sentence)
    except _RefusedError as refused:
        return Parsed((), refused.verdict, refused.reason)


def parse_batch(
    texts: Sequence[str | bytes],
    sizes: npt.ArrayLike,
    *,
    text_format: str = "list",
    max_chars: int = MAX_CHARS,
    width: int | None = None,
) -> tuple[IntArray, VerdictArray]:
    """Read one text a request: rankings int64 [B, width], -1 where padded or invalid, and verdict codes int8 [B].

    `width` is that of the slates to be scored (None: the largest size). Raises as `parse` does, and `InputError` if
    there is not one size a text.
    """
    reader = _reader(text_format)
    sizes_B = np.asarray(sizes)
    if sizes_B.shape != (len(texts),) or (len(texts) and sizes_B.dtype.kind not in "iu"):
        raise InputError(
            f"{len(texts)} texts came with sizes of shape {sizes_B.shape} and dtype {sizes_B.dtype}; "
            "give one whole number a text"
        )
    largest = int(sizes_B.max(initial=MIN_CANDIDATES))
    if width is not None and width < largest:
        raise InputError(f"width is {width} but a request has {largest} candidates; use the width of the slates")
    rankings_BK = np.full((len(texts), largest if width is None else width), PAD, dtype=np.int64)
    verdicts_B = np.zeros(len(texts), dtype=np.int8)
    for row, (text, size) in enumerate(zip(texts, sizes_B.tolist(), strict=True)):
        _check(text, size)
        try:
            rankings_BK[row, :size] = _ranking(text, size, reader, max_chars)
        except _RefusedError as refused:
            verdicts_B[row] = refused.verdict
    return rankings_BK, verdicts_B


def _reader(text_format: str) -> Callable[[str], list[str]]:
    return _READERS[one_of("text format", text_format, _READERS)]


def _check(text: object, size: object) -> None:
    whole("size", size, least=MIN_CANDIDATES)
    if not isinstance(text, (str, bytes)):
        raise InputError(f"an answer is text or bytes, not {type(text).__name__}; take the answer out of its message")


def _ranking(text: str | bytes, size: int, reader: Callable[[str], list[str]], max_chars: int) -> tuple[int, ...]:
    if len(text) > max_chars:
        raise _RefusedError(Verdict.OVERLONG, f"The answer is {len(text)} long; {max_chars} characters are allowed.")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            raise _RefusedError(Verdict.MALFORMED, "The answer is not UTF-8 text.") from None
    if not text or text.isspace():
        raise _RefusedError(Verdict.EMPTY, Verdict.EMPTY.sentence)
    numbers = reader(text)
    if len(numbers) > size:
        raise _RefusedError(Verdict.WRONG_COUNT, f"The answer names {len(numbers)} candidates but there are {size}.")
    ranking = tuple([int(number) - 1 if len(number) <= MAX_DIGITS else size for number in numbers])
    named = set(ranking)
    if ranking and not (min(named) >= 0 and max(named) < size):
        stray = next(number for number, index in zip(numbers, ranking, strict=True) if not 0 <= index < size)
        raise _RefusedError(
            Verdict.UNKNOWN, f"The answer names candidate {_short(stray)} but candidates are numbered 1..{size}."
        )
    if len(named) < len(ranking):
        again = next(index for index, times in Counter(ranking).items() if times > 1)
        raise _RefusedError(Verdict.DUPLICATE, f"The answer names candidate {again + 1} more than once.")
    if len(ranking) < size:
        absent = next(index for index in range(size) if index not in named)
        raise _RefusedError(
            Verdict.MISSING,
            f"The answer leaves out {size - len(ranking)} of {size} candidates, the first of them "
            f"candidate {absent + 1}.",
        )
    return ranking


def _read_list(text: str) -> list[str]:
    if _LIST.fullmatch(text):
        return _DIGITS.findall(text)
    return _refuse(text, _LIST_START, "a list such as [3, 1, 2]")


def _read_arrows(text: str) -> list[str]:
    if _ARROWS.fullmatch(text):
        return _DIGITS.findall(text)
    return _refuse(text, _ARROWS_START, "arrows such as [3] > [1] > [2]")


def _refuse(text: str, start: re.Pattern[str], expected: str) -> NoReturn:
    if start.fullmatch(text):
        raise _RefusedError(Verdict.TRUNCATED, Verdict.TRUNCATED.sentence)
    raise _RefusedError(Verdict.MALFORMED, f"The answer is not {expected}; it reads {_short(text)}.")


def _read_json(text: str) -> list[str]:
    try:
        answer = _JSON.decode(text)
    except json.JSONDecodeError as cause:
        at_end = cause.pos >= len(text.rstrip()) or cause.msg.startswith("Unterminated string")
        if at_end and text.lstrip().startswith("{") and not _is_nested(text):
            raise _RefusedError(Verdict.TRUNCATED, Verdict.TRUNCATED.sentence) from None
        raise _RefusedError(
            Verdict.MALFORMED, f"The answer is not JSON: {cause.msg} at character {cause.pos + 1}."
        ) from None
    except RecursionError:
        raise _RefusedError(Verdict.MALFORMED, "The answer is JSON nested too deeply.") from None
    if not isinstance(answer, dict) or not {"ranking"} <= answer.keys() <= {"ranking", "explanation"}:
        raise _RefusedError(
            Verdict.MALFORMED, 'The answer is not a JSON object with "ranking" and at most "explanation" in it.'
        )
    if type(answer.get("explanation", "")) is not str:
        raise _RefusedError(Verdict.MALFORMED, 'The "explanation" of the answer is not text.')
    numbers = answer["ranking"]
    if not isinstance(numbers, list) or not all(isinstance(number, _Whole) for number in numbers):
        raise _RefusedError(Verdict.MALFORMED, 'The "ranking" of the answer is not a list of whole numbers.')
    return numbers


def _is_nested(text: str) -> bool:
    """Whether JSON holds more than one object or list, as no answer does; how deep Python can read does not matter."""
    bare = _STRING.sub("", text)
    return bare.count("{") > 1 or bare.count("[") > 1


class _Whole(str):
    """The digits of a JSON integer, which keeps them apart from a JSON string."""

    __slots__ = ()

    def __new__(cls, digits: str) -> _Whole:
        if digits.startswith("-"):
            raise _RefusedError(Verdict.MALFORMED, f"The answer holds the signed number {_short(digits)}.")
        return super().__new__(cls, digits)


def _refuse_number(number: str) -> NoReturn:
    raise _RefusedError(Verdict.MALFORMED, f"The answer holds {_short(number)}, which is no whole number.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RefusedError(Verdict.MALFORMED, "The answer gives a JSON key twice.")
    return found


def _short(text: str, limit: int = 40) -> str:
    return ascii(text if len(text) <= limit else text[:limit] + "...")


_JSON = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_Whole, parse_float=_refuse_number, parse_constant=_refuse_number
)
_READERS: dict[str, Callable[[str], list[str]]] = {"arrows": _read_arrows, "json": _read_json, "list": _read_list}

FORMATS = tuple(_READERS)
"""The names of the text formats."""
