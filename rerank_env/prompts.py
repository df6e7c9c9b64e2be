"""A request as the text a language model reads: role, task, history, numbered candidates, how to answer.

May import numpy and `rerank_env.data`, `rerank_env.rewards`. Candidates and history appear by the catalogue's texts,
never by item number, because item numbers carry no meaning; candidates are numbered 1..size in the incoming order, the
numbers that `rerank_env.rewards.parsing` reads back.

The wording is ours and follows five rules: the role and the task come first; the whole history and all candidates are
in view together; every candidate is cited by its number; the earlier stage's scores are not shown; the answer format
is stated last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS

_NUMBER_CHARS = 16
"""More characters than a float32 printed with `%g` or a candidate number takes."""

_NUMBER_CHARSET = "+-.0123456789einfa"
"""What numbers are written in."""


@dataclass(frozen=True)
class Template:
    """The wording of a prompt, in blocks with an empty line between them.

    `opening` comes first; then, in the `order` given, the block "history" under the heading `history` (`nothing` where
    there is none) and the block "candidates" under the heading `candidates`; last how to answer, from `answers` by
    format, with `{size}` for the number of candidates. `version` goes up when any word changes, so that results can
    name what the model read.
    """

    version: str
    opening: str
    history: str
    nothing: str
    candidates: str
    answers: Mapping[str, str]
    order: tuple[str, str] = ("history", "candidates")

    def filled(self, seen: Sequence[str], offered: Sequence[str], text_format: str) -> str:
        """The prompt with the lines of the history and of the candidates."""
        blocks = {
            "history": f"{self.history}\n" + ("\n".join(seen) or self.nothing),
            "candidates": f"{self.candidates}\n" + "\n".join(offered),
        }
        answer = self.answers[text_format].format(size=len(offered))
        return "\n\n".join([self.opening, *(blocks[name] for name in self.order), answer])

    def words(self, text_format: str) -> str:
        """As long as a prompt without its lines and numbers, or longer, and in the same characters."""
        return "\n\n".join([self.opening, self.history, self.nothing, self.candidates, self.answers[text_format]])


_THINK = (
    "Think first, between <think> and </think>, and use these tags and the next two once only. Then answer, between "
    "<answer> and </answer> and with nothing after it, with"
)

PROMPT = Template(
    version="2",
    opening=(
        "You are an analyst who re-ranks items for one user.\n\n"
        "Task: order the numbered candidates by how much this user would value each of them, best first. Judge by the "
        "history; the order in which the candidates are listed comes from an earlier stage and may be wrong."
    ),
    history="History, oldest first:",
    nothing="(none)",
    candidates="Candidates:",
    answers={
        "list": (
            "Answer with the numbers of all {size} candidates, best first, each exactly once, in square brackets with "
            "commas between them, and nothing else. Three candidates could be answered as [3, 1, 2]."
        ),
        "arrows": (
            "Answer with the numbers of all {size} candidates, best first, each exactly once and in square brackets, "
            "with > between them, and nothing else. Three candidates could be answered as [3] > [1] > [2]."
        ),
        "json": (
            'Answer with one JSON object and nothing else: "explanation", a short string that gives your reasons, and '
            '"ranking", a list of the numbers of all {size} candidates, best first, each exactly once. Three '
            'candidates could be answered as {{"explanation": "...", "ranking": [3, 1, 2]}}.'
        ),
        "tagged-list": (
            f"{_THINK} the numbers of all {{size}} candidates, best first, each exactly once, in square brackets with "
            "commas between them. Three candidates could be answered as "
            "<think>...</think><answer>[3, 1, 2]</answer>."
        ),
        "tagged-arrows": (
            f"{_THINK} the numbers of all {{size}} candidates, best first, each exactly once and in square brackets, "
            "with > between them. Three candidates could be answered as "
            "<think>...</think><answer>[3] > [1] > [2]</answer>."
        ),
        "tagged-json": (
            f'{_THINK} one JSON object: "explanation", a short string that sums up your reasons, and "ranking", a list '
            "of the numbers of all {size} candidates, best first, each exactly once. Three candidates could be "
            'answered as <think>...</think><answer>{{"explanation": "...", "ranking": [3, 1, 2]}}</answer>.'
        ),
    },
)
"""What the environment shows; its version is in the environment's `metadata["prompt_version"]`."""


def build_prompt(requests: Requests, row: int, *, text_format: str = "list") -> str:
    """The prompt of one request.

    `row` counts from 0; `text_format` is one of those that `rerank_env.rewards.parse` reads. A user without history is
    said to have none. Raises `InputError` for a row that does not exist and `UnknownNameError` for an unknown format.
    """
    return build_prompts(requests, [row], text_format=text_format)[0]


def build_prompts(requests: Requests, rows: Sequence[int] | None = None, *, text_format: str = "list") -> list[str]:
    """The prompts of `rows` (all requests where None), in that order; see `build_prompt`."""
    one_of("text format", text_format, FORMATS)
    rows_B = np.arange(len(requests)) if rows is None else _checked_rows(rows, len(requests))
    texts = requests.catalog.texts
    batch = zip(
        requests.history_BH[rows_B].tolist(),
        requests.feedback_BH[rows_B].tolist(),
        requests.candidates_BK[rows_B].tolist(),
        strict=True,
    )
    return [
        PROMPT.filled(
            [_seen(texts[item], value) for item, value in zip(history, feedback, strict=True) if item != PAD],
            [_offered(number, texts[item]) for number, item in enumerate(candidates, start=1) if item != PAD],
            text_format,
        )
        for history, feedback, candidates in batch
    ]


def prompt_characters(requests: Requests) -> str:
    """Every character that a prompt of `requests` can hold, sorted, each once."""
    words = "".join(PROMPT.words(text_format) for text_format in FORMATS)
    lines = _seen("", 0.0) + _offered(1, "") + _NUMBER_CHARSET
    return "".join(sorted({*words, *lines, *requests.catalog.characters}))


def longest_prompt_chars(requests: Requests) -> int:
    """An upper bound, in characters, on the length of any prompt of `requests`."""
    # The last entry serves item -1, the padding: it adds nothing.
    chars_I = np.array([len(text) for text in requests.catalog.texts] + [0], dtype=np.int64)
    seen_B = _row_chars(requests.history_BH, chars_I, len(_seen("\n", 0.0)) + _NUMBER_CHARS)
    offered_B = _row_chars(requests.candidates_BK, chars_I, len(_offered(1, "\n")) + _NUMBER_CHARS)
    words = max(len(PROMPT.words(text_format)) for text_format in FORMATS)
    return words + _NUMBER_CHARS + int((seen_B + offered_B).max(initial=0))


def _seen(text: str, feedback: float) -> str:
    return f"- {text} (feedback: {feedback:g})"


def _offered(number: int, text: str) -> str:
    return f"{number}. {text}"


def _row_chars(items_BN: IntArray, chars_I: IntArray, extra_chars: int) -> IntArray:
    return np.asarray((chars_I[items_BN] + extra_chars * (items_BN != PAD)).sum(axis=1), dtype=np.int64)


def _checked_rows(rows: Sequence[int], count: int) -> IntArray:
    rows_B = np.asarray(rows, dtype=np.int64)
    for row in rows_B[(rows_B < 0) | (rows_B >= count)][:1]:
        raise InputError(f"request {row} does not exist; the data has requests 0..{count - 1}")
    return rows_B
