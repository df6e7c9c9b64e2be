"""Models as they are found: wrapped for adapters or several processes, in training mode or not.

May import the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def base_of(model: Any) -> Any:
    """The model itself, out of what wraps it for several processes, an adapter, or both; itself where nothing does."""
    inner = getattr(model, "module", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def context_of(model: Any) -> int | None:
    """How many tokens the model reads at most; None where its configuration names no number."""
    found: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return found


@contextmanager
def own_forward(model: Any) -> Iterator[None]:
    """Whatever forward is put into the model inside, behind it the model has its own again."""
    inner = vars(base_of(model))
    before = inner.get("forward")
    try:
        yield
    finally:
        inner.pop("forward", None)
        if before is not None:
            inner["forward"] = before


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """In evaluation mode inside, back in training mode behind it where it was."""
    was_training = bool(model.training)
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
