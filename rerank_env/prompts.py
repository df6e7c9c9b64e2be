"""A request as the text a language model reads: role, task, history, numbered candidates, how to answer.

May import numpy and `rerank_env.data`, `rerank_env.rewards`. Candidates and history appear by the catalogue's texts,
never by item number, because item numbers carry no meaning; candidates are numbered 1..size in the incoming order, the
numbers that `rerank_env.rewards.parsing` reads back.

The wording is ours and follows five rules: the role and the task come first; the whole history and all candidates are
in view together; every candidate is cited by its number; the earlier stage's scores are not shown; the answer format
is stated last. `PROMPT_VERSION` changes whenever a word does, so that results can name what the model read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from rerank_env.data.requests import PAD, Catalog, Requests
from rerank_env.rewards.errors import InputError, UnknownNameError

PROMPT_VERSION = "1"
"""The version of the wording below; it goes up when any word of it changes."""

_HEAD = (
    "You are an analyst who re-ranks items for one user.\n\n"
    "Task: order the numbered candidates by how much this user would value each of them, best first. Judge by the "
    "history; the order in which the candidates are listed comes from an earlier stage and may be wrong.\n\n"
    "History, oldest first:\n"
)
_NO_HISTORY = "(none)"
_CANDIDATES = "\n\nCandidates:\n"
_ANSWERS = {
    "list": (
        "\n\nAnswer with the numbers of all {size} candidates, best first, each exactly once, in square brackets with "
        "commas between them, and nothing else. Three candidates could be answered as [3, 1, 2]."
    ),
    "arrows": (
        "\n\nAnswer with the numbers of all {size} candidates, best first, each exactly once and in square brackets, "
        "with > between them, and nothing else. Three candidates could be answered as [3] > [1] > [2]."
    ),
    "json": (
        '\n\nAnswer with one JSON object and nothing else: "explanation", a short string that gives your reasons, and '
        '"ranking", a list of the numbers of all {size} candidates, best first, each exactly once. Three candidates '
        'could be answered as {{"explanation": "...", "ranking": [3, 1, 2]}}.'
    ),
}
TEXT_FORMATS: tuple[str, ...] = tuple(_ANSWERS)
"""The answer formats a prompt can ask for and the parser can read."""

_NUMBER_CHARS = 16
"""More characters than a float32 printed with `%g` or a candidate number takes."""

_lines: WeakKeyDictionary[Catalog, tuple[str, ...]] = WeakKeyDictionary()


def item_lines(catalog: Catalog) -> tuple[str, ...]:
    """The catalogue's texts [I], each on one line: runs of white space, line breaks included, become one space."""
    lines = _lines.get(catalog)
    if lines is None:
        lines = _lines[catalog] = tuple(" ".join(text.split()) for text in catalog.texts)
    return lines


def build_prompt(requests: Requests, row: int, *, text_format: str = "list") -> str:
    """The prompt of one request.

    `row` counts from 0; `text_format` is "list", "arrows" or "json". A user without history is said to have none.
    Raises `InputError` for a row that does not exist and `UnknownNameError` for an unknown format.
    """
    if not 0 <= row < len(requests):
        raise InputError(f"request {row} does not exist; there are requests 0..{len(requests) - 1}")
    return build_prompts(requests, [row], text_format=text_format)[0]


def build_prompts(requests: Requests, rows: Sequence[int] | None = None, *, text_format: str = "list") -> list[str]:
    """The prompts of `rows` (all requests where None), in that order; see `build_prompt`."""
    if text_format not in _ANSWERS:
        raise UnknownNameError.of("text format", text_format, TEXT_FORMATS)
    lines = item_lines(requests.catalog)
    indices = np.arange(len(requests)) if rows is None else np.asarray(rows, dtype=np.int64)
    batch = zip(
        requests.history_BH[indices].tolist(),
        requests.feedback_BH[indices].tolist(),
        requests.candidates_BK[indices].tolist(),
        requests.sizes_B[indices].tolist(),
        strict=True,
    )
    return [
        _prompt(lines, history, feedback, candidates[:size], text_format)
        for history, feedback, candidates, size in batch
    ]


def _prompt(
    lines: tuple[str, ...], history: list[int], feedback: list[float], candidates: list[int], text_format: str
) -> str:
    seen = [
        f"- {lines[item]} (feedback: {value:g})" for item, value in zip(history, feedback, strict=True) if item != PAD
    ]
    offered = [f"{number}. {lines[item]}" for number, item in enumerate(candidates, start=1)]
    return (
        _HEAD
        + ("\n".join(seen) or _NO_HISTORY)
        + _CANDIDATES
        + "\n".join(offered)
        + _ANSWERS[text_format].format(size=len(candidates))
    )


def prompt_characters(requests: Requests) -> str:
    """Every character that a prompt of `requests` can hold, sorted, each once."""
    return _characters(item_lines(requests.catalog))


@lru_cache(maxsize=8)
def _characters(lines: tuple[str, ...]) -> str:
    fixed = _HEAD + _NO_HISTORY + _CANDIDATES + "".join(_ANSWERS.values()) + "- (feedback: +-.0123456789einfa)"
    return "".join(sorted(set(fixed).union(*lines)))


def longest_prompt_chars(requests: Requests) -> int:
    """An upper bound, in characters, on the length of any prompt of `requests`."""
    fixed = len(_HEAD) + len(_NO_HISTORY) + len(_CANDIDATES) + max(map(len, _ANSWERS.values())) + _NUMBER_CHARS
    # The last entry serves item -1, the padding: it adds nothing.
    chars_I = np.array([len(line) for line in item_lines(requests.catalog)] + [0], dtype=np.int64)
    seen_B = _row_chars(requests.history_BH, chars_I, len("- \n (feedback: )") + _NUMBER_CHARS)
    offered_B = _row_chars(requests.candidates_BK, chars_I, len(". \n") + _NUMBER_CHARS)
    return fixed + int((seen_B + offered_B).max(initial=0))


def _row_chars(
    items_BN: npt.NDArray[np.int64], chars_I: npt.NDArray[np.int64], extra_chars: int
) -> npt.NDArray[np.int64]:
    return np.asarray((chars_I[items_BN] + extra_chars * (items_BN != PAD)).sum(axis=1), dtype=np.int64)
