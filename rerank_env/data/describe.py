"""What a set of requests looks like before anyone trains on it: sizes, labels, baselines and head-room.

May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from rerank_env.data.guards import numbering_leaks
from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import PAD
from rerank_env.rewards.metrics import ndcg
from rerank_env.rewards.rankings import identity_rankings, random_rankings
from rerank_env.rewards.slates import ideal_rankings

HIGH_IDENTITY_NDCG = 0.95
"""Above this, copying the incoming order is nearly optimal and a policy has little else to learn."""

MANY_EQUAL_SCORES = 0.01
"""Above this share of requests with equal first-stage scores, the incoming order is called arbitrary."""

MANY_EQUAL_TEXTS = 0.01
"""Above this share of requests with equal texts, a policy that reads is told to beware."""

MANY_UNSEEN = 0.05
"""Above this share of relevant candidates that training never holds, so is one that counts."""

NDCG_PLACES = 10
"""How many places the NDCG of a description looks at."""


@dataclass(frozen=True)
class Description:
    """Counts, label density, the NDCG@10 of incoming and random order, head-room, and what to beware of.

    `head_room_share` is the share of requests whose incoming order is not ideal; `equal_score_share` the share that
    holds two candidates with the same first-stage score (their incoming order is then arbitrary), `equal_text_share`
    the share that holds two with the same text (no reader of texts can tell them apart). `unseen_share` is the share of
    relevant candidates that the training split never holds, None where the catalogue counts nothing. `warnings` lists
    traps as sentences, `notes` is what the requests say of themselves. What cannot be said of an empty set is None.
    """

    name: str
    requests: int
    users: int
    items: int
    item_features: int
    candidates_min: int | None = None
    candidates_max: int | None = None
    history_mean: float | None = None
    relevant_share: float | None = None
    relevant_per_request: float | None = None
    incoming_ndcg_at_10: float | None = None
    random_ndcg_at_10: float | None = None
    head_room_share: float | None = None
    equal_score_share: float | None = None
    equal_text_share: float | None = None
    unseen_share: float | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, str | int | float | list[str] | None]:
        """The fields as plain data for JSON and tables, measures under the names of metrics (`incoming_ndcg@10`)."""
        values = {field.name.replace("_at_", "@"): getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def describe(requests: Requests, *, seed: int = 0) -> Description:
    """What `requests` look like; `seed` draws the random order. An empty set is described by its counts alone."""
    users, items, columns = len(np.unique(requests.users_B)), len(requests.catalog), len(requests.catalog.feature_names)
    if not len(requests):
        return Description(requests.name, 0, users, items, columns, notes=requests.notes)
    slates, width = requests.slates, requests.candidates_BK.shape[1]
    real_BK, relevant_BK = slates.mask_BK, requests.relevance_BK > 0
    chance_BK = random_rankings(requests.sizes_B, width, np.random.default_rng(seed))
    incoming_B = ndcg(identity_rankings(requests.sizes_B, width), slates, k=NDCG_PLACES)
    ideal_B = ndcg(ideal_rankings(slates), slates, k=NDCG_PLACES)
    equal_BK = (np.diff(requests.scores_BK, axis=1) == 0) & real_BK[:, 1:]
    incoming, chance = float(incoming_B.mean()), float(ndcg(chance_BK, slates, k=NDCG_PLACES).mean())
    equal_share, barren_share = float(equal_BK.any(axis=1).mean()), float((~relevant_BK.any(axis=1)).mean())
    head_room = float((incoming_B < ideal_B).mean())
    twins, unseen = _equal_texts(requests), _unseen(requests)
    return Description(
        name=requests.name,
        requests=len(requests),
        users=users,
        items=items,
        item_features=columns,
        candidates_min=int(requests.sizes_B.min()),
        candidates_max=int(requests.sizes_B.max()),
        history_mean=float((requests.history_BH != PAD).sum(axis=1).mean()),
        relevant_share=float(relevant_BK[real_BK].mean()),
        relevant_per_request=float(relevant_BK.sum(axis=1).mean()),
        incoming_ndcg_at_10=incoming,
        random_ndcg_at_10=chance,
        head_room_share=head_room,
        equal_score_share=equal_share,
        equal_text_share=twins,
        unseen_share=unseen,
        notes=requests.notes,
        warnings=(
            *_warnings(incoming, chance, equal_share, barren_share, head_room, twins, unseen),
            *(f"{leak}: renumber the items at random" for leak in numbering_leaks(requests) if leak.leaks),
        ),
    )


def _equal_texts(requests: Requests) -> float:
    """The share of requests in which two candidates have the same text."""
    _, number_I = np.unique(np.array([*requests.catalog.texts, ""], dtype=object), return_inverse=True)
    different_BK = -1 - np.arange(requests.candidates_BK.shape[1])
    texts_BK = np.where(requests.candidates_BK == PAD, different_BK, number_I[requests.candidates_BK])
    ordered_BK = np.sort(texts_BK, axis=1)
    return float((ordered_BK[:, 1:] == ordered_BK[:, :-1]).any(axis=1).mean())


def _unseen(requests: Requests) -> float | None:
    """The share of relevant candidates that training never holds; None where nothing is counted or relevant."""
    relevant_BK = requests.relevance_BK > 0
    if not requests.catalog.popularity_I.any() or not relevant_BK.any():
        return None
    return float((requests.popularity_BK[relevant_BK] == 0).mean())


def _warnings(
    incoming: float,
    chance: float,
    equal_share: float,
    barren_share: float,
    head_room: float,
    twins: float,
    unseen: float | None,
) -> list[str]:
    found = []
    if barren_share == 1.0:
        return [_barren(barren_share)]
    if not head_room:
        found.append("the incoming order of every request is ideal already: there is nothing to learn but to copy it")
    if twins > MANY_EQUAL_TEXTS:
        found.append(f"{twins:.1%} of requests hold candidates with equal texts: reading cannot tell them apart")
    if unseen is not None and unseen > MANY_UNSEEN:
        found.append(f"{unseen:.1%} of relevant candidates are not in the training split: what is counted says nothing")
    if incoming > HIGH_IDENTITY_NDCG:
        found.append(
            f"the incoming order is nearly ideal (NDCG@10 {incoming:.3f}): a policy trained here learns to copy it"
        )
    if incoming <= chance:
        found.append("the incoming order is no better than a random one: its scores may be wrong or reversed")
    if equal_share > MANY_EQUAL_SCORES:
        found.append(
            f"{equal_share:.1%} of requests hold candidates with equal scores: their incoming order is arbitrary"
        )
    if barren_share:
        found.append(_barren(barren_share))
    return found


def _barren(share: float) -> str:
    return f"{share:.1%} of requests hold nothing relevant: no answer to them earns anything"
