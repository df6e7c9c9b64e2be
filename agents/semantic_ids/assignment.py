"""From learned codes to whole IDs: the last levels are drawn at random, so that items that look alike differ.

May import numpy and the layers below. A quantiser gives items with equal embeddings equal codes, so no deterministic ID
can tell twins apart; the last M levels are therefore drawn among the codes that are still free under the item's own
prefix, as GR2 does. They carry no meaning, and the record says from which level on. Where a prefix has more items than
free codes, the rest spill: their last learned code is drawn too, among the places that are free one level up, and
so on. Suffixes: `_I` items, `_M` learned levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.semantic_ids import SemanticIds

MOST_PLACES = 2**62
"""Places under a prefix are numbered in int64."""


def assigned(
    codes_IM: npt.ArrayLike,
    sizes: Sequence[int],
    *,
    texts: Sequence[str],
    rng: np.random.Generator,
    method: str = "",
) -> SemanticIds:
    """The IDs of a catalogue whose items have these learned codes, one level of `sizes` each from the first.

    Levels beyond the learned ones are drawn with `rng`; which of the items under a full prefix spill is drawn too. If
    all levels are learned nothing is drawn, and items with equal codes share an ID. Raises `InputError` where there are
    more items than IDs, or codes and sizes disagree.
    """
    codes_IM = _codes(codes_IM, sizes)
    empty = np.empty((0, len(sizes)), dtype=np.int64)
    codes_IL, drawn_I = _completed(codes_IM, tuple(sizes), empty, rng)
    return SemanticIds.of(codes_IL, sizes, texts=texts, drawn_from=drawn_I, method=method)


def extended(
    ids: SemanticIds, codes_JM: npt.ArrayLike, *, texts: Sequence[str], rng: np.random.Generator
) -> SemanticIds:
    """The IDs of a catalogue that has grown: the items in `ids` keep theirs, new ones with learned codes follow.

    `texts` are those of the whole new catalogue, old items first, checked against `ids`. New items never take the ID of
    another where levels are drawn. Raises `DataError` where the first texts are not those of `ids`, and `InputError` as
    `assigned` does.
    """
    ids.check_catalogue(texts[: len(ids)])
    codes_JM = _codes(codes_JM, ids.sizes)
    if codes_JM.shape[1] != ids.meaning_levels:
        raise InputError(
            f"the new items have {codes_JM.shape[1]} learned codes but the IDs have {ids.meaning_levels}; use the "
            "quantiser that made them"
        )
    codes_JL, drawn_J = _completed(codes_JM, ids.sizes, ids.codes_IL, rng)
    return SemanticIds.of(
        np.concatenate([ids.codes_IL, codes_JL]),
        ids.sizes,
        texts=texts,
        drawn_from=np.concatenate([ids.drawn_from_I, drawn_J]),
        method=ids.method,
    )


def _codes(codes: npt.ArrayLike, sizes: Sequence[int]) -> IntArray:
    codes_IM = np.asarray(codes)
    if codes_IM.ndim != 2 or codes_IM.dtype.kind not in "iu" or not 1 <= codes_IM.shape[1] <= len(sizes):
        raise InputError(
            f"learned codes have shape {codes_IM.shape} and dtype {codes_IM.dtype}; give whole numbers, one row an "
            f"item and one to {len(sizes)} levels"
        )
    if len(codes_IM) and ((codes_IM < 0) | (codes_IM >= np.array(sizes[: codes_IM.shape[1]]))).any():
        raise InputError(
            f"learned codes go from {codes_IM.min()} to {codes_IM.max()}, beyond codebooks of {list(sizes)}"
        )
    return codes_IM.astype(np.int64)


def _completed(
    codes_IM: IntArray, sizes: tuple[int, ...], taken_TL: IntArray, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Whole codes [I, L] and the first drawn level [I] of items beside others that have the codes `taken_TL`."""
    count, learned = codes_IM.shape
    codes_IL = np.concatenate([codes_IM, np.zeros((count, len(sizes) - learned), dtype=np.int64)], axis=1)
    drawn_I = np.full(count, learned)
    if learned == len(sizes):
        return codes_IL, drawn_I
    done = taken_TL
    waiting = rng.permutation(count)  # who comes first under a full prefix is chance, not the item's number
    for level in range(learned, -1, -1):
        places = math.prod(sizes[level:])
        if places > MOST_PLACES:
            raise InputError(
                f"codebooks of sizes {list(sizes[level:])} have too many codes to draw from; draw fewer levels"
            )
        spilled: list[int] = []
        used = _by_prefix(done, level)
        fresh = []
        for prefix, items in _by_prefix(codes_IL[waiting], level).items():
            members = waiting[items]
            occupied = _numbered(done[used.get(prefix, [])][:, level:], sizes[level:])
            room = min(places - len(occupied), len(members))
            spilled.extend(members[room:])
            members = members[:room]
            codes_IL[members, level:] = _spelled(_free(occupied, places, room, rng), sizes[level:])
            drawn_I[members] = level
            fresh.append(codes_IL[members])
        done = np.concatenate([done, *fresh])
        waiting = np.array(spilled, dtype=np.int64)
        if not len(waiting):
            return codes_IL, drawn_I
    raise InputError(
        f"{len(taken_TL) + count} items need more IDs than the {math.prod(sizes)} of codebooks of {list(sizes)} codes; "
        "use more levels or larger codebooks"
    )


def _by_prefix(codes: IntArray, length: int) -> dict[bytes, IntArray]:
    """The rows that begin with each prefix of that length, in their order."""
    if not len(codes):
        return {}
    prefixes = np.ascontiguousarray(codes[:, :length])
    order = np.lexsort(prefixes.T[::-1]) if length else np.arange(len(codes))
    changes = np.flatnonzero((prefixes[order][1:] != prefixes[order][:-1]).any(axis=1)) + 1
    return {prefixes[rows[0]].tobytes(): rows for rows in np.split(order, changes)}


def _free(occupied: IntArray, places: int, count: int, rng: np.random.Generator) -> IntArray:
    """`count` different numbers below `places` that are not among the distinct `occupied`, each set equally likely."""
    taken = np.sort(occupied)
    ranks = rng.choice(places - len(taken), size=count, replace=False)  # among the free ones, in order
    # The free number of rank r is r plus the occupied numbers below it: those whose own count of free ones is <= r.
    return np.asarray(ranks + np.searchsorted(taken - np.arange(len(taken)), ranks, side="right"), dtype=np.int64)


def _numbered(codes: IntArray, sizes: Sequence[int]) -> IntArray:
    """Rows of codes as distinct mixed-radix numbers."""
    numbers = np.zeros(len(codes), dtype=np.int64)
    for level, size in enumerate(sizes):
        numbers = numbers * size + codes[:, level]
    return np.unique(numbers)


def _spelled(numbers: IntArray, sizes: Sequence[int]) -> IntArray:
    """Mixed-radix numbers as rows of codes."""
    codes = np.empty((len(numbers), len(sizes)), dtype=np.int64)
    for level in range(len(sizes) - 1, -1, -1):
        numbers, codes[:, level] = np.divmod(numbers, sizes[level])
    return codes
