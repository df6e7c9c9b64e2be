"""From a rating log to re-ranking requests: graded slates and next-item lists.

Graded slate (the industrial setting of the GR2 Technical Report, 2606.31984): the K items the user rated next, each
with a gain. Next item (the public setting of GR2, 2602.07774): the top K of the first stage among items the user has
not rated, one of which is the item rated next; requests whose target is not listed are left out and counted.
May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.data.catalog import Catalog
from rerank_env.data.features import catalog_of
from rerank_env.data.first_stage import ItemStatistics
from rerank_env.data.interactions import Interactions
from rerank_env.data.requests import KINDS, Requests
from rerank_env.data.split import SPLITS, Windows, user_windows
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import from_scores

LIKED = 4.0
"""From this rating on an item counts as relevant (4 earns gain 1, 5 earns gain 2)."""


@dataclass(frozen=True, eq=False)
class FittedLog:
    """A log cut into windows, with everything that is fitted on its training part, once for all splits.

    `name` is what requests cut from it are called.
    """

    log: Interactions
    windows: Windows
    statistics: ItemStatistics
    catalog: Catalog
    name: str

    @classmethod
    def of(cls, log: Interactions, *, name: str, slate_size: int) -> FittedLog:
        """Cut windows of `slate_size` and fit; raises `InputError` where they cannot be cut."""
        windows = user_windows(log, size=slate_size)
        seen_N = windows.seen_in_training(log)
        statistics = ItemStatistics.fit(log, seen_N)
        return cls(log, windows, statistics, catalog_of(log, seen_N, statistics), name)

    @property
    def slate_size(self) -> int:
        """K, the length of the windows and of the slates cut from them."""
        return self.windows.size


def build(
    log: Interactions, *, name: str, kind: str = "graded", slate_size: int = 10, history: int = 30, seed: int = 0
) -> dict[str, Requests]:
    """The requests of every split over one catalogue: fitted once, and the same for the same arguments.

    `seed` decides between equal first-stage scores, in each split alike whatever the others hold. Raises `InputError`
    where slates cannot be cut and `UnknownNameError` for an unknown kind; a split may come out empty, and its `notes`
    say why.
    """
    cut = {"graded": graded_slates, "next_item": next_item_lists}[one_of("kind", kind, KINDS)]
    fitted = FittedLog.of(log, name=name, slate_size=slate_size)
    return {split: cut(fitted, split, history=history, rng=np.random.default_rng(seed)) for split in SPLITS}


def rating_gain(ratings: FloatArray) -> FloatArray:
    """0 below 4 stars, 1 for 4, 2 for 5: the levels none / click / conversion of 2606.31984."""
    return np.clip(ratings - (LIKED - 1), 0.0, None)


def graded_slates(fitted: FittedLog, split: str, *, history: int, rng: np.random.Generator) -> Requests:
    """The next `slate_size` items each user rated, in the order of a shrunken item mean fitted on train only.

    Slates without a relevant or without an irrelevant candidate teach nothing and are left out, as in 2606.31984;
    `notes` says how many. `rng` orders equal scores. Raises `InputError` for a history shorter than 1.
    """
    log, chosen = fitted.log, fitted.windows.of(split)
    starts_B = fitted.windows.starts_W[chosen]
    rows_BK = fitted.windows.rows(chosen)
    sizes_B = np.full(len(chosen), fitted.slate_size, dtype=np.int64)
    scores_BK = fitted.statistics.item_mean_of(log, rows_BK)
    order_BK, _ = from_scores(scores_BK, sizes_B, ties="random", rng=rng)
    relevance_BK = np.take_along_axis(rating_gain(log.ratings_N[rows_BK]), order_BK, axis=1)
    kept = (relevance_BK > 0).any(axis=1) & (relevance_BK == 0).any(axis=1)
    history_BH, feedback_BH = log.histories(fitted.windows.first_W[chosen], starts_B, history)
    requests = Requests(
        catalog=fitted.catalog,
        users_B=log.users_N[starts_B],
        history_BH=history_BH,
        feedback_BH=feedback_BH,
        candidates_BK=np.take_along_axis(log.items_N[rows_BK], order_BK, axis=1),
        scores_BK=np.take_along_axis(scores_BK, order_BK, axis=1).astype(np.float32),
        relevance_BK=relevance_BK,
        sizes_B=sizes_B,
        name=f"{fitted.name}, {split}: graded slates of {fitted.slate_size}",
        notes=(
            f"{int((~kept).sum())} of {len(kept)} slates left out: all or none of their candidates are relevant",
            "incoming order: shrunken item mean of the training ratings",
        ),
    )
    return requests.take(kept)


def next_item_lists(fitted: FittedLog, split: str, *, history: int, rng: np.random.Generator) -> Requests:
    """One request for every liked item (4 stars or more) of the split: find it among the most popular unseen items.

    The first stage is popularity in the training interactions, for a user of train without those of a tenth of the
    users, the user's own among them; `rng` orders equal counts.
    Requests whose target is not in the first stage's top `slate_size` are left out, and `notes` gives the share that
    is listed (the first stage's recall, the ceiling of any re-ranker). Raises `InputError` for a history shorter than 1
    and where a user has not left enough items unrated for a list of `slate_size`.
    """
    log, windows, size = fitted.log, fitted.windows, fitted.slate_size
    longest = int(np.bincount(log.users_N).max())
    if log.item_count - longest < size - 1:  # the item asked for is not rated yet
        raise InputError(
            f"slate_size is {size} but a user has rated {longest} of the {log.item_count} items; choose a smaller one"
        )
    chosen = windows.of(split)
    targets, firsts = windows.rows(chosen).ravel(), np.repeat(windows.first_W[chosen], size)
    liked = log.ratings_N[targets] >= LIKED
    targets, firsts = targets[liked], firsts[liked]
    jitter_I = rng.random(log.item_count)
    candidates_BK = np.empty((len(targets), size), dtype=np.int64)
    scores_BK = np.empty((len(targets), size), dtype=np.float32)
    for b, (row, first) in enumerate(zip(targets, firsts, strict=True)):
        count_I = fitted.statistics.counts_for(int(row))
        count_I[log.items_N[first:row]] = -1.0
        top = np.argpartition(-(count_I + jitter_I), size - 1)[:size]
        candidates_BK[b] = top[np.argsort(-(count_I + jitter_I)[top])]
        scores_BK[b] = np.log1p(count_I[candidates_BK[b]])
    relevance_BK = (candidates_BK == log.items_N[targets][:, None]).astype(np.float64)
    listed = relevance_BK.any(axis=1)
    history_BH, feedback_BH = log.histories(firsts, targets, history)
    recall = listed.sum() / max(len(listed), 1)
    requests = Requests(
        catalog=fitted.catalog,
        users_B=log.users_N[targets],
        history_BH=history_BH,
        feedback_BH=feedback_BH,
        candidates_BK=candidates_BK,
        scores_BK=scores_BK,
        relevance_BK=relevance_BK,
        sizes_B=np.full(len(targets), size, dtype=np.int64),
        name=f"{fitted.name}, {split}: next item among {size}",
        notes=(
            f"{int((~listed).sum())} of {len(listed)} requests left out: target not in the first stage's top {size} "
            f"(recall@{size} {recall:.3f})",
            "incoming order: popularity in the training ratings",
        ),
    )
    return requests.take(listed)
