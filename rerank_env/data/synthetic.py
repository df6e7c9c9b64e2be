"""Made-up requests with a planted taste, so that everything runs anywhere at once.

Ours. Every item has `TASTES` traits and a quality; every user a taste vector. What a user thinks of an item is
taste . traits + quality + noise. The first stage sees the quality alone, and not exactly, so its order is better than
random but blind to taste; the history (past items with the user's feedback) reveals the taste. A policy that reads
the history can therefore beat the incoming order, and no policy can by looking at positions.
May import numpy and `rerank_env.data`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rerank_env.data.requests import KINDS, PAD, Catalog, FloatArray, Requests
from rerank_env.data.split import SPLITS
from rerank_env.rewards.errors import InputError, UnknownNameError

ITEMS = 400
TASTES = 8
NOISE = 0.5
FIRST_STAGE_NOISE = 0.5
LIKED, LOVED = 0.5, 2.0
COUNTS = {"train": 1.0, "validation": 0.25, "test": 0.5}


def synthetic(
    *,
    split: str = "train",
    kind: str = "graded",
    requests: int = 2000,
    slate_size: int = 10,
    min_slate_size: int | None = None,
    history: int = 20,
    seed: int = 0,
) -> Requests:
    """Requests with planted structure, the same for the same arguments.

    `requests` is the size of the training split; validation has a quarter, test half of it, and no user is in two.
    Slates hold `slate_size` candidates, or from `min_slate_size` to `slate_size` at random where that is given.
    Kind `graded`: gain 0 for a liking up to `LIKED`, 1 above it, 2 above `LOVED` (about 59, 23 and 18 % of candidates);
    at least one candidate is relevant and one is not. Kind `next_item`: the one candidate the user likes best has
    gain 1.
    Raises `InputError` for sizes that cannot be built.
    """
    if split not in SPLITS:
        raise UnknownNameError.of("split", split, SPLITS)
    smallest = slate_size if min_slate_size is None else min_slate_size
    if not 2 <= smallest <= slate_size <= ITEMS // 2:
        raise InputError(
            f"slates from {smallest} to {slate_size} candidates cannot be drawn; choose 2 <= min_slate_size "
            f"<= slate_size <= {ITEMS // 2}"
        )
    if requests < 4 or not 1 <= history <= ITEMS // 2:
        raise InputError(
            f"{requests} requests with a history of {history} cannot be drawn; choose requests >= 4 and "
            f"1 <= history <= {ITEMS // 2}"
        )
    world = np.random.default_rng([seed, 0])
    traits_IT = world.normal(size=(ITEMS, TASTES)) / np.sqrt(TASTES)
    quality_I = world.normal(size=ITEMS)
    popularity_I = np.floor(np.exp(3 + quality_I + world.normal(size=ITEMS)))
    features = np.concatenate([traits_IT, np.log1p(popularity_I)[:, None]], axis=1).astype(np.float32)
    catalog = Catalog(
        texts=tuple(_text(number, traits) for number, traits in enumerate(traits_IT)),
        features_IF=features,
        feature_names=(*(f"trait_{t}" for t in range(TASTES)), "log_popularity"),
        popularity_I=popularity_I,
    )
    rng = np.random.default_rng([seed, 1 + SPLITS.index(split)])
    count = max(1, round(requests * COUNTS[split]))
    taste_BT = rng.normal(size=(count, TASTES)) * 2.0
    liking_BI = taste_BT @ traits_IT.T + quality_I + NOISE * rng.normal(size=(count, ITEMS))
    shown_B_ = np.argsort(rng.random((count, ITEMS)), axis=1)[:, : history + slate_size]
    history_BH, candidates_BK = shown_B_[:, :history], shown_B_[:, history:]
    scores_BK = quality_I[candidates_BK] + FIRST_STAGE_NOISE * rng.normal(size=candidates_BK.shape)
    order_BK = np.argsort(-scores_BK, axis=1)
    candidates_BK = np.take_along_axis(candidates_BK, order_BK, axis=1)
    scores_BK = np.take_along_axis(scores_BK, order_BK, axis=1)
    sizes_B = rng.integers(smallest, slate_size + 1, size=count)
    real_BK = np.arange(slate_size) < sizes_B[:, None]
    liked_BK = np.take_along_axis(liking_BI, candidates_BK, axis=1)
    return Requests(
        catalog=catalog,
        users_B=np.arange(count, dtype=np.int64),
        history_BH=history_BH,
        feedback_BH=np.take_along_axis(liking_BI, history_BH, axis=1).astype(np.float32),
        candidates_BK=np.where(real_BK, candidates_BK, PAD),
        scores_BK=np.where(real_BK, scores_BK, 0.0).astype(np.float32),
        relevance_BK=_relevance(np.where(real_BK, liked_BK, -np.inf), real_BK, kind),
        sizes_B=sizes_B,
        name=f"synthetic, {split}: {kind.replace('_', ' ')} of {slate_size}",
        notes=("made up; taste planted in the history, invisible to the first stage",),
    )


def _relevance(liked_BK: FloatArray, real_BK: npt.NDArray[np.bool_], kind: str) -> FloatArray:
    best_BK: npt.NDArray[np.bool_] = liked_BK == liked_BK.max(axis=1, keepdims=True)
    if kind == "next_item":
        return best_BK.astype(np.float64)
    if kind != "graded":
        raise UnknownNameError.of("kind", kind, KINDS)
    gain_BK = (liked_BK > LIKED).astype(np.float64) + (liked_BK > LOVED)
    gain_BK[best_BK] = np.maximum(gain_BK[best_BK], 1.0)
    worst_BK = np.where(real_BK, liked_BK, np.inf) == np.where(real_BK, liked_BK, np.inf).min(axis=1, keepdims=True)
    gain_BK[worst_BK] = 0.0
    return np.where(real_BK, gain_BK, 0.0)


def _text(number: int, traits: FloatArray) -> str:
    strongest = np.argsort(-np.abs(traits))[:2]
    return f"Item {_letters(number)}, " + ", ".join(
        f"trait {t} {'high' if traits[t] > 0 else 'low'}" for t in strongest
    )


def _letters(number: int) -> str:
    """A name that does not look like a position: three letters of base 26."""
    return "".join(chr(ord("A") + (number // 26**place) % 26) for place in (2, 1, 0))
