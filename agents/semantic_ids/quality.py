"""How good semantic IDs are, in numbers: whether they tell items apart, and whether like items have like IDs.

May import numpy and the layers below. Uniqueness alone says nothing of quality: random codes are unique. So it is given
for every length of prefix, the levels that were drawn at random are named, and what a prefix means is measured by who
shares it, beside the share that chance gives with the same use of codes. Ours. Suffixes: `_I` items, `_D` dimensions,
`_L` levels, `_Q` neighbours, `_P` pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, Float32Array, FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.semantic_ids import SemanticIds

NEIGHBOURS = 10


@dataclass(frozen=True)
class Shared:
    """`share` of pairs whose items have the same prefix, and the share `chance` gives.

    Chance is the probability that a first and a second item, drawn from the pairs independently, share it.
    """

    share: float
    chance: float


@dataclass(frozen=True)
class IdReport:
    """What `report` found; L levels, of which the first `meaning_levels` are not random.

    `uniqueness` distinct prefixes over items, for each length 1..L; `used` the share of each codebook's codes that an
    item has, `perplexity` e to the entropy of their use. `spilled` items with a random code at a level that has a
    meaning. `neighbours` and `co_purchases`: prefixes of length 1 and 2 shared by neighbours in an embedding and by
    items that were bought one after the other. Twins are items of equal text: `twins` how many, `twins_alike` how many
    of them share all codes that mean something with another of equal text, `twins_shared` how many share a whole ID
    with one.
    """

    items: int
    meaning_levels: int
    uniqueness: tuple[float, ...]
    used: tuple[float, ...]
    perplexity: tuple[float, ...]
    spilled: int
    neighbours: tuple[Shared, ...]
    co_purchases: tuple[Shared, ...]
    twins: int
    twins_alike: int
    twins_shared: int

    def __str__(self) -> str:
        """The report as a short text, for a terminal."""
        levels = [f"{value:.4f}" for value in self.uniqueness]
        random = len(levels) - self.meaning_levels
        lines = [
            f"{self.items} items, {len(levels)} levels, the last {random} drawn at random, {self.spilled} spilled",
            f"distinct prefixes / items, by length: {' '.join(levels)}",
            f"codes used, by level: {' '.join(f'{value:.3f}' for value in self.used)}",
            f"perplexity, by level: {' '.join(f'{value:.1f}' for value in self.perplexity)}",
        ]
        for what, shares in (("neighbours", self.neighbours), ("co-purchases", self.co_purchases)):
            for length, shared in enumerate(shares, start=1):
                lines.append(f"{what} that share the first {length}: {shared.share:.4f} (chance {shared.chance:.4f})")
        lines.append(f"{self.twins} twins: {self.twins_alike} alike in meaning, {self.twins_shared} with a shared ID")
        return "\n".join(lines)


def report(
    ids: SemanticIds,
    *,
    texts: Sequence[str],
    neighbours_IQ: IntArray | None = None,
    pairs_P2: IntArray | None = None,
) -> IdReport:
    """Measure the IDs of the catalogue that has these `texts`.

    `neighbours_IQ` are the items nearest to each, as `nearest_items` finds them; `pairs_P2` items that one user bought
    one after the other, best of all pairs that no part of the IDs was fitted on, such as the step to each user's
    validation target. What is not given is not measured. Raises `DataError` where the texts are another catalogue's.
    """
    ids.check_catalogue(texts)
    lengths = range(1, min(2, ids.meaning_levels) + 1)
    use = [_use(ids, level) for level in range(ids.levels)]
    neighbours: tuple[Shared, ...] = ()
    if neighbours_IQ is not None:
        first = np.repeat(np.arange(len(neighbours_IQ)), neighbours_IQ.shape[1])
        neighbours = tuple(shared(ids, first, neighbours_IQ.ravel(), length) for length in lengths)
    bought: tuple[Shared, ...] = ()
    if pairs_P2 is not None:
        bought = tuple(shared(ids, pairs_P2[:, 0], pairs_P2[:, 1], length) for length in lengths)
    number = {text: count for count, text in enumerate(dict.fromkeys(" ".join(text.split()) for text in texts))}
    numbers_I = np.array([number[" ".join(text.split())] for text in texts])
    meant = ids.codes_IL[:, : ids.meaning_levels]
    return IdReport(
        items=len(ids),
        meaning_levels=ids.meaning_levels,
        uniqueness=tuple(ids.uniqueness_L().tolist()),
        used=tuple(used for used, _ in use),
        perplexity=tuple(perplexity for _, perplexity in use),
        spilled=int(ids.spilled_I.sum()),
        neighbours=neighbours,
        co_purchases=bought,
        twins=int(_in_company(numbers_I[:, None]).sum()),
        twins_alike=int(_in_company(np.column_stack([numbers_I, meant])).sum()),
        twins_shared=int(_in_company(np.column_stack([numbers_I, ids.codes_IL])).sum()),
    )


def shared(ids: SemanticIds, first_P: IntArray, second_P: IntArray, length: int) -> Shared:
    """How many pairs of items have the same first `length` codes, and how many would by chance.

    Raises `InputError` for no pairs, and for a length that is no prefix.
    """
    if not len(first_P) or len(first_P) != len(second_P):
        raise InputError(f"there are {len(first_P)} first and {len(second_P)} second items; give pairs, at least one")
    if not 1 <= whole("length", length, least=1) <= ids.levels:
        raise InputError(f"length is {length}, but the IDs have 1 to {ids.levels} levels")
    prefixes, number_I = np.unique(ids.codes_IL[:, :length], axis=0, return_inverse=True)
    number_I = number_I.reshape(-1)
    one, other = (np.bincount(number_I[items], minlength=len(prefixes)) for items in (first_P, second_P))
    chance = float((one / len(first_P)) @ (other / len(first_P)))
    return Shared(float((number_I[first_P] == number_I[second_P]).mean()), chance)


def nearest_items(rows_ID: Float32Array, count: int = NEIGHBOURS, *, block: int = 1024) -> IntArray:
    """The `count` items of highest cosine to each, itself left out, best first, [I, count] int64.

    Ties go to no one in particular. `block` items are compared with all at a time, which bounds memory. Raises
    `InputError` where there are not more than `count` items.
    """
    if len(rows_ID) <= whole("count", count, least=1):
        raise InputError(f"{len(rows_ID)} items have no {count} neighbours each; ask for fewer")
    lengths = np.linalg.norm(rows_ID, axis=1, keepdims=True)
    unit_ID = rows_ID / np.maximum(lengths, 1e-12)
    found = np.empty((len(rows_ID), count), dtype=np.int64)
    for start in range(0, len(unit_ID), block):
        cosines = unit_ID[start : start + block] @ unit_ID.T
        own = np.arange(len(cosines))
        cosines[own, start + own] = -np.inf
        best = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(cosines, best, axis=1), axis=1, kind="stable")
        found[start : start + block] = np.take_along_axis(best, order, axis=1)
    return found


def relative_error(rows_ID: Float32Array, reconstructed_ID: Float32Array) -> float:
    """Σ|x - x'|² / Σ|x - mean|²: 0 where all is kept, 1 where the mean does as well. NaN where all rows are equal."""
    if rows_ID.shape != reconstructed_ID.shape:
        raise InputError(
            f"rows of shape {rows_ID.shape} were reconstructed as {reconstructed_ID.shape}; give like rows"
        )
    rows = np.asarray(rows_ID, dtype=np.float64)
    spread = float(np.square(rows - rows.mean(axis=0)).sum())
    return float(np.square(rows - reconstructed_ID).sum()) / spread if spread else float("nan")


def _use(ids: SemanticIds, level: int) -> tuple[float, float]:
    """The share of the level's codes that an item has, and the perplexity of their use."""
    counts = np.bincount(ids.codes_IL[:, level], minlength=ids.sizes[level])
    shares: FloatArray = counts[counts > 0] / len(ids)
    return float((counts > 0).mean()), float(np.exp(-(shares * np.log(shares)).sum()))


def _in_company(rows: IntArray) -> BoolArray:
    """Which rows are equal to another."""
    _, number, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    company: BoolArray = counts[number.reshape(-1)] > 1
    return company
