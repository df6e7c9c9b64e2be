"""What tells the weights of one model from another's, when a run or a trace is taken up again.

May import torch.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

HASH_CHARS = 16

PROBED = 4096
"""How many weights of each tensor are looked at by themselves; all of them are in its sum and its norm."""


@torch.no_grad()
def weights_hash(model: Any) -> str:
    """A short hash of the names, shapes and numbers of a model's weights and buffers."""
    digest = hashlib.sha256()
    for name, weights in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(weights.shape)}".encode())
        flat = weights.flatten()
        norm = torch.linalg.vector_norm(flat if flat.is_floating_point() else flat.double(), dtype=torch.float64)
        parts = flat.sum(dtype=torch.float64), norm, flat[:PROBED].sum(dtype=torch.float64)
        digest.update(torch.stack(parts).cpu().numpy().tobytes())
    return digest.hexdigest()[:HASH_CHARS]
