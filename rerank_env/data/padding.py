"""What the padded rows of a record have to hold: real entries first and the padding after them.

May import numpy and `rerank_env.rewards`. Every failure is a `DataError` that names the field and the row.
"""

from __future__ import annotations

import numpy as np

from rerank_env.rewards.arrays import PAD, BoolArray, Float32Array, IntArray
from rerank_env.rewards.errors import DataError


def check_items(field: str, items: IntArray, real: BoolArray, count: int) -> None:
    """Raise unless `items` are numbers below `count` where they are `real`, and the padding elsewhere."""
    for row, column in np.argwhere(real & (items == PAD))[:1]:
        raise DataError(f"request {row} has no {field} item at place {column}; put the padding {PAD} last")
    for row, column in np.argwhere(real & ((items < 0) | (items >= count)))[:1]:
        raise DataError(
            f"request {row} has {field} item {int(items[row, column])} but the catalogue has items 0..{count - 1}; "
            "build the catalogue from the same data"
        )
    for row, _ in np.argwhere(~real & (items != PAD))[:1]:
        raise DataError(f"request {row} has {field} beyond its size; fill the tail of the row with {PAD}")


def check_distinct(candidates_BK: IntArray, real_BK: BoolArray) -> None:
    """Raise where a request has the same candidate twice."""
    distinct_BK = np.where(real_BK, candidates_BK, -1 - np.arange(candidates_BK.shape[1]))
    ordered_BK = np.sort(distinct_BK, axis=1)
    for row in np.flatnonzero((ordered_BK[:, 1:] == ordered_BK[:, :-1]).any(axis=1))[:1]:
        raise DataError(
            f"request {row} lists the same candidate twice; keep the first of each before building requests"
        )


def check_numbers(field: str, values: Float32Array, real: BoolArray) -> None:
    """Raise unless `values` are finite, and 0 where nothing is `real`."""
    for row in np.flatnonzero(~np.isfinite(values).all(axis=1))[:1]:
        raise DataError(f"{field} of request {row} are not finite; drop the request or fill them in")
    for row in np.flatnonzero((~real & (values != 0)).any(axis=1))[:1]:
        raise DataError(f"request {row} has {field} beyond its size; fill the tail of the row with 0")
