"""Prompts in tokens: what a model reads up to where the assistant begins.

May import `rerank_env.prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rerank_env.prompts import Prompt


def prompt_ids(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The tokens of prompts up to where the assistant begins: by the chat template, plain texts without one."""
    if getattr(tokenizer, "chat_template", None):
        texts = [
            tokenizer.apply_chat_template(prompt.chat, tokenize=False, add_generation_prompt=True) for prompt in prompts
        ]
    else:
        texts = [prompt.text for prompt in prompts]
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"]) if texts else []
