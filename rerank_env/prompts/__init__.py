"""A request as the text a language model reads: role, task, how to answer, candidates, history.

Candidates and history appear by the catalogue's texts and labels, never by item number, because item numbers carry no
meaning; the earlier stage's scores are not shown, unless a remark says something of them. Answers name candidates by
the numbers 1..size of the incoming order, or by semantic IDs, and `rerank_env.rewards.parsing` reads both back. May
import numpy and `rerank_env.data`, `rerank_env.rewards`.

    PromptWriter("json", prompt="3-index-steps").write(requests)[0].chat

- `wordings`: the templates by name; `template`: what a template is
- `remarked`: those that show remarks on candidates, such as evidence; `answering`: how answers are asked for
- `guard`: what no title can do to its line
- `items`: what a line says of an item, and what it is shortened to
- `budget`: how long a prompt may be, and what is left out of one that is longer
- `lines`: one prompt; `writer`: requests to prompts; `asking`: shuffled, shown, and read back
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.prompts.asking import Asked, ask
from rerank_env.prompts.budget import Budget, TokensOf
from rerank_env.prompts.items import IdTable, TextTable
from rerank_env.prompts.lines import Prompt
from rerank_env.prompts.remarked import REMARKED
from rerank_env.prompts.template import Message, Template
from rerank_env.prompts.wordings import DEFAULT, PROMPT, TEMPLATES, template_of
from rerank_env.prompts.writer import PromptWriter, Rows, Wording
from rerank_env.rewards.errors import InputError

__all__ = [
    "DEFAULT",
    "PROMPT",
    "REMARKED",
    "TEMPLATES",
    "Asked",
    "Budget",
    "IdTable",
    "Message",
    "Prompt",
    "PromptWriter",
    "Template",
    "TextTable",
    "TokensOf",
    "Wording",
    "ask",
    "build_prompt",
    "build_prompts",
    "longest_prompt_chars",
    "prompt_characters",
    "template_of",
]


def build_prompt(requests: Requests, row: int, *, text_format: str = "list", **wording: Unpack[Wording]) -> str:
    """The prompt of one request as one text.

    `row` counts from 0; `text_format` and `wording` are the arguments of `PromptWriter`. A user without history is said
    to have none. Raises `InputError` for a row that is no whole number or does not exist and `UnknownNameError` for an
    unknown format.
    """
    if isinstance(row, bool) or not isinstance(row, int | np.integer):
        raise InputError(f"row is {row!r}; give a whole number from 0")
    return build_prompts(requests, [row], text_format=text_format, **wording)[0]


def build_prompts(
    requests: Requests, rows: Rows | None = None, *, text_format: str = "list", **wording: Unpack[Wording]
) -> list[str]:
    """The prompts of `rows` (numbers or a mask, all requests where None) as texts, in order; see `build_prompt`."""
    return [prompt.text for prompt in PromptWriter(text_format, **wording).write(requests, rows)]


def prompt_characters(requests: Requests, **wording: Unpack[Wording]) -> str:
    """Every character that a prompt of `requests` can hold, sorted, each once."""
    return PromptWriter(**wording).characters(requests)


def longest_prompt_chars(requests: Requests, **wording: Unpack[Wording]) -> int:
    """An upper bound, in characters, on the length of any prompt of `requests`."""
    return PromptWriter(**wording).longest_chars(requests)
