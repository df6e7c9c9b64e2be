"""The policy that a DAPO run started from, which `beta` keeps the trained one close to.

May import torch, TRL, and `rerank_env`. TRL's own reference is not that one: it reads a model anew from where its
weights once came from, though they may have been trained since, or come from nowhere, and it leaves an adapter of its
own in a model that has adapters. Ours is a copy of the weights that are trained, around those that are not. A run keeps
it in its directory: whoever resumes may bring a model that has moved on.
"""

from __future__ import annotations

import copy
from typing import Any

from rerank_env.agents.language.models import base_of
from rerank_env.rewards.errors import MissingExtraError

try:
    from trl.trainer.utils import add_fused_lm_head
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'DAPO needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

REFERENCE = "reference.safetensors"
"""The file of a run with the weights that it started from, of those that are trained."""


def copied(model: Any) -> Any:
    """The model as it is now, in evaluation mode; weights that are not trained are the model's own, not copies."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad}).eval()


def scoring(reference: Any, *, temperature: float, device: Any) -> Any:
    """The reference where TRL can score answers with it: on `device`, with TRL's fused head at `temperature`."""
    add_fused_lm_head(base_of(reference), temperature=temperature)
    return reference.to(device)
