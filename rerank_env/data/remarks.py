"""How the remarks on candidates are read: texts, one a candidate, that requests carry beside the numbers.

May import numpy and `rerank_env.rewards`. Every failure is a `DataError`, and names the row if one row is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arrays import BoolArray
from rerank_env.rewards.errors import DataError

Texts = npt.NDArray[np.object_]
"""An array of texts; of objects, so that one long text does not make all of them long."""


def as_remarks(values: object, real_BK: BoolArray) -> Texts | None:
    """`values` as an object array [B, K] of texts: itself where it is one already, else a copy; None for None.

    `real_BK` is false where there is no candidate: there the remark has to be "". Arrays of numpy's own texts are
    converted; numbers, bytes and None are no texts.
    """
    if values is None:
        return None
    given = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    if given.shape != real_BK.shape:
        raise DataError(
            f"remarks has shape {given.shape} but the candidates need {real_BK.shape}; give one text a candidate, and "
            '"" where a row is padded'
        )
    remarks_BK = given.astype(object, copy=False)
    for row, (remarks, real) in enumerate(zip(remarks_BK.tolist(), real_BK.tolist(), strict=True)):
        for place, (remark, there) in enumerate(zip(remarks, real, strict=True)):
            if not isinstance(remark, str):
                raise DataError(f"the remark on candidate {place} of request {row} is {remark!r:.80}; give a text")
            if remark and not there:
                raise DataError(f'request {row} has remarks beyond its size; fill the tail of the row with ""')
    return remarks_BK


def padded_remarks(rows: Sequence[Sequence[object]], width: int) -> Texts:
    """Lists of at most `width` texts, one list a request, as an object array [requests, width] with "" in the tails."""
    remarks_BK = np.full((len(rows), width), "", dtype=object)
    for row, remarks in enumerate(rows):
        for place, remark in enumerate(remarks):
            remarks_BK[row, place] = remark
    return remarks_BK
