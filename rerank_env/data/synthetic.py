"""Made-up requests with a planted taste, so that everything runs anywhere at once.

Ours. Every item has `TASTES` traits and a quality; every user a taste vector. What a user thinks of an item is
taste . traits + quality + noise. The first stage sees the quality alone, and not exactly, so its order is better than
random but blind to taste; the history (past items with the user's feedback) reveals the taste. A policy that reads
the history can therefore beat the incoming order, and no policy can by looking at positions.
May import numpy, `rerank_env.data` and `rerank_env.rewards`. Suffixes: `_B` requests, `_I` items, `_T` traits, `_S`
items shown to a user.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import numpy as np

from rerank_env.data.catalog import Catalog
from rerank_env.data.requests import KINDS, Requests
from rerank_env.data.split import SPLITS
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import MIN_CANDIDATES

ITEMS = 400
TASTES = 8
TASTE_SCALE = 2.0
"""Standard deviation of what taste adds to a liking; the quality's is 1."""

NOISE = 0.5
FIRST_STAGE_NOISE = 0.5
LIKED, LOVED = 0.5, 2.0
LOG_POPULARITY = 3.0
"""Mean logarithm of an item's popularity; its quality and a standard normal number are added."""

SHARES = {"train": 1.0, "validation": 0.25, "test": 0.5}
"""How many requests a split has, as a share of the training split's."""

MIN_REQUESTS = 4
"""The validation split then has one."""

MAX_SHOWN = ITEMS // 2
"""The longest history and the longest slate: together they never ask for more items than there are."""

_TEXT_TRAITS = 2


@dataclass(frozen=True, eq=False)
class World:
    """The items of one seed: their traits and qualities, which no policy sees, and the catalogue, which all see."""

    traits_IT: FloatArray
    quality_I: FloatArray
    catalog: Catalog

    @classmethod
    def of(cls, seed: int) -> World:
        """The same world for the same seed."""
        rng = np.random.default_rng([seed, 0])
        traits_IT = rng.normal(size=(ITEMS, TASTES)) / np.sqrt(TASTES)
        quality_I = rng.normal(size=ITEMS)
        popularity_I = np.floor(np.exp(LOG_POPULARITY + quality_I + rng.normal(size=ITEMS)))
        catalog = Catalog.of(
            [_text(number, traits) for number, traits in enumerate(traits_IT)],
            np.concatenate([traits_IT, np.log1p(popularity_I)[:, None]], axis=1),
            popularity_I,
            feature_names=[*(f"trait_{t}" for t in range(TASTES)), "log_popularity"],
        )
        return cls(traits_IT, quality_I, catalog)


def synthetic(*, split: str = "train", **options: Any) -> Requests:
    """The requests of one split; `options` as in `build`, `split` as in `SPLITS`."""
    one_of("split", split, SPLITS)
    return build(**options)[split]


def build(
    *,
    kind: str = "graded",
    requests: int = 2000,
    slate_size: int = 10,
    min_slate_size: int | None = None,
    history: int = 20,
    seed: int = 0,
) -> dict[str, Requests]:
    """Requests with planted structure for every split over one catalogue, the same for the same arguments.

    `requests` is the size of the training split; validation has a quarter, test half of it, and no user is in two.
    Slates hold `slate_size` candidates, or from `min_slate_size` to `slate_size` at random where that is given.
    Kind `graded`: gain 0 for a liking up to `LIKED`, 1 above it, 2 above `LOVED` (about 59, 23 and 18 % of candidates);
    at least one candidate is relevant and one is not. Kind `next_item`: the one candidate the user likes best has
    gain 1.
    Raises `InputError` for sizes that cannot be drawn and `UnknownNameError` for an unknown kind.
    """
    one_of("kind", kind, KINDS)
    largest = whole("slate_size", slate_size, least=MIN_CANDIDATES)
    smallest = largest if min_slate_size is None else whole("min_slate_size", min_slate_size, least=MIN_CANDIDATES)
    whole("requests", requests, least=MIN_REQUESTS)
    whole("history", history, least=1)
    if not smallest <= largest <= MAX_SHOWN or history > MAX_SHOWN:
        raise InputError(
            f"slates from {smallest} to {largest} candidates after a history of {history} cannot be drawn; choose "
            f"min_slate_size <= slate_size <= {MAX_SHOWN} and history <= {MAX_SHOWN}"
        )
    world = World.of(whole("seed", seed, least=0))
    return {
        split: _drawn(
            world,
            f"synthetic, {split}",
            np.random.default_rng([seed, 1 + number]),
            kind=kind,
            count=max(1, round(requests * SHARES[split])),
            sizes=(smallest, largest),
            history=history,
        )
        for number, split in enumerate(SPLITS)
    }


def _drawn(
    world: World, name: str, rng: np.random.Generator, *, kind: str, count: int, sizes: tuple[int, int], history: int
) -> Requests:
    """`count` users with a history and a slate each, all items different."""
    smallest, width = sizes
    taste_BT = rng.normal(size=(count, TASTES)) * TASTE_SCALE
    liking_BI = taste_BT @ world.traits_IT.T + world.quality_I + NOISE * rng.normal(size=(count, ITEMS))
    shown_BS = np.argsort(rng.random((count, ITEMS)), axis=1)[:, : history + width]
    history_BH, candidates_BK = shown_BS[:, :history], shown_BS[:, history:]
    scores_BK = world.quality_I[candidates_BK] + FIRST_STAGE_NOISE * rng.normal(size=candidates_BK.shape)
    order_BK = np.argsort(-scores_BK, axis=1)
    candidates_BK = np.take_along_axis(candidates_BK, order_BK, axis=1)
    scores_BK = np.take_along_axis(scores_BK, order_BK, axis=1)
    sizes_B = rng.integers(smallest, width + 1, size=count)
    real_BK = np.arange(width) < sizes_B[:, None]
    liking_BK = np.take_along_axis(liking_BI, candidates_BK, axis=1)
    relevance_BK = _gains(liking_BK, real_BK) if kind == "graded" else _best(liking_BK, real_BK).astype(np.float64)
    return Requests(
        catalog=world.catalog,
        users_B=np.arange(count, dtype=np.int64),
        history_BH=history_BH,
        feedback_BH=np.take_along_axis(liking_BI, history_BH, axis=1).astype(np.float32),
        candidates_BK=np.where(real_BK, candidates_BK, PAD),
        scores_BK=np.where(real_BK, scores_BK, 0.0).astype(np.float32),
        relevance_BK=relevance_BK,
        sizes_B=sizes_B,
        name=f"{name}: {kind.replace('_', ' ')} of {width}",
        notes=("made up; taste planted in the history, invisible to the first stage",),
    )


def _gains(liking_BK: FloatArray, real_BK: BoolArray) -> FloatArray:
    """Graded relevance: by thresholds, but the candidate liked best is relevant and the one liked least is not."""
    gains_BK = (liking_BK > LIKED).astype(np.float64) + (liking_BK > LOVED)
    best_BK = _best(liking_BK, real_BK)
    gains_BK[best_BK] = np.maximum(gains_BK[best_BK], 1.0)
    gains_BK[_best(-liking_BK, real_BK)] = 0.0
    return np.where(real_BK, gains_BK, 0.0)


def _best(liking_BK: FloatArray, real_BK: BoolArray) -> BoolArray:
    """Where the candidate with the greatest liking is."""
    liked_BK = np.where(real_BK, liking_BK, -np.inf)
    best_BK: BoolArray = liked_BK == liked_BK.max(axis=1, keepdims=True)
    return best_BK


def _text(number: int, traits: FloatArray) -> str:
    strongest = np.argsort(-np.abs(traits))[:_TEXT_TRAITS]
    described = ", ".join(f"trait {t} {'high' if traits[t] > 0 else 'low'}" for t in strongest)
    return f"Item {_letters(number)}, {described}"


def _letters(number: int) -> str:
    """A name that does not look like a position: three letters of base 26."""
    return "".join(ascii_uppercase[(number // 26**place) % 26] for place in (2, 1, 0))
