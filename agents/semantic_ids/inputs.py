"""The vectors that are quantised: text and purchases side by side. May import numpy and `rerank_env.rewards`. Ours.

Suffixes: `_I` items, `_D`, `_E` dimensions.
"""

from __future__ import annotations

import numpy as np

from rerank_env.rewards.arguments import finite
from rerank_env.rewards.arrays import Float32Array
from rerank_env.rewards.errors import InputError

COLLABORATIVE_WEIGHT = 0.1
"""Chosen on Amazon Beauty: as many bought-together pairs share codes as with equal parts, and text neighbours stay."""


def combined(
    text_ID: Float32Array | None, collaborative_IE: Float32Array | None, *, weight: float = COLLABORATIVE_WEIGHT
) -> Float32Array:
    """Both parts at length 1, times √(1 - weight) and √weight, one beside the other: [I, D + E] float32.

    So the inner product of two rows is the weighted mean of both cosines. A row of zeros, an item that a part knows
    nothing of, stays zeros. With one part alone, that part at length 1 is all there is and `weight` is not looked at.
    Raises `InputError` without any part, for parts of unequal length, values that are not finite, and a weight outside
    0..1.
    """
    parts = [_unit(part, name) for part, name in ((text_ID, "text"), (collaborative_IE, "collaborative")) if _is(part)]
    if not parts:
        raise InputError("there is neither a text nor a collaborative embedding; give one of them")
    if len(parts) == 1:
        return parts[0]
    share = finite("weight", weight)
    if not 0 <= share <= 1:
        raise InputError(f"weight is {share}; give the collaborative share, from 0 to 1")
    if len(parts[0]) != len(parts[1]):
        raise InputError(
            f"the text embedding has {len(parts[0])} rows, the collaborative one {len(parts[1])}; give one row an item"
        )
    return np.concatenate([parts[0] * np.sqrt(1 - share), parts[1] * np.sqrt(share)], axis=1, dtype=np.float32)


def _is(part: Float32Array | None) -> bool:
    return part is not None


def _unit(part: Float32Array | None, name: str) -> Float32Array:
    rows = np.asarray(part, dtype=np.float32)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InputError(f"the {name} embedding has shape {rows.shape}; give one row of finite numbers an item")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Float32Array = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-12)
    return unit
