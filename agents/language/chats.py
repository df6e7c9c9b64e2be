"""Prompts in tokens: what a model reads up to where the assistant begins.

May import `rerank_env.prompts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rerank_env.prompts import Prompt

Chat = Sequence[Mapping[str, str]]
"""Messages, each with a role and a content."""


def prompt_ids(tokenizer: Any, prompts: Sequence[Prompt | Chat]) -> list[list[int]]:
    """The tokens of prompts up to where the assistant begins: by the chat template, plain texts without one."""
    if getattr(tokenizer, "chat_template", None):
        chats = [prompt.chat if isinstance(prompt, Prompt) else list(prompt) for prompt in prompts]
        texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    else:
        texts = [
            prompt.text if isinstance(prompt, Prompt) else "\n\n".join(message["content"] for message in prompt)
            for prompt in prompts
        ]
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"]) if texts else []
