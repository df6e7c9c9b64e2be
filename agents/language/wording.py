"""How requests are put in words, as plain data and back: the text format, the template as a value, the budget.

May import the layers below. A template is kept with its hash, which also covers how items are written, so that a
policy that would be asked in other words than it was taught with is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rerank_env.prompts import Budget, PromptWriter, Template, TokensOf
from rerank_env.prompts.items import IdTable
from rerank_env.rewards.errors import CheckpointError, InputError

_CHARACTERS, _TOKENS = "characters", "tokens"


def described(writer: PromptWriter) -> dict[str, Any]:
    """The writer as plain data, but for its IDs. Raises `InputError` for a budget that counts in a way of its own."""
    budget = None
    if writer.budget is not None:
        counts = _CHARACTERS if writer.budget.count is len else _TOKENS
        if counts is _TOKENS and not isinstance(writer.budget.count, TokensOf):
            raise InputError("a prompt budget with a count of its own cannot be saved; use characters, or TokensOf")
        budget = {"limit": writer.budget.limit, "counts": counts, "keep": writer.budget.keep}
    return {
        "text_format": writer.text_format,
        "template": asdict(writer.template),
        "template_hash": writer.template.hash,
        "prompt_budget": budget,
        "ids": writer.ids is not None,
    }


def writer_of(record: Mapping[str, Any], ids: IdTable | None, tokenizer: Any) -> PromptWriter:
    """The writer that was described; a budget of tokens counts with `tokenizer`.

    Raises `CheckpointError` where the template reads differently than when it was saved.
    """
    try:
        fields: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in record["template"].items()
        }
        template = Template(**fields)
        told = record["prompt_budget"]
        budget = None
        if told is not None:
            count = len if told["counts"] == _CHARACTERS else TokensOf(tokenizer)
            budget = Budget(told["limit"], count, told["keep"])
        written = PromptWriter(record["text_format"], prompt=template, semantic_ids=ids, prompt_budget=budget)
    except (KeyError, TypeError, AttributeError, InputError) as error:
        raise CheckpointError(f"the wording of the policy does not make sense: {error}; save it again") from error
    if template.hash != record["template_hash"]:
        raise CheckpointError(
            f"template {template.version!r} has the hash {template.hash} but {record['template_hash']} was saved; use "
            "the release that the policy was saved with, or pass a writer"
        )
    return written
