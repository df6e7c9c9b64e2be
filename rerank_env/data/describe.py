"""What a set of requests looks like before anyone trains on it: sizes, labels, baselines and head-room.

May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import PAD
from rerank_env.rewards.metrics import ndcg
from rerank_env.rewards.rankings import identity_rankings, random_rankings
from rerank_env.rewards.slates import ideal_rankings

HIGH_IDENTITY_NDCG = 0.95
"""Above this, copying the incoming order is nearly optimal and a policy has little else to learn."""

MANY_EQUAL_SCORES = 0.01
"""Above this share of requests with equal first-stage scores, the incoming order is called arbitrary."""

NDCG_PLACES = 10
"""How many places the NDCG of a description looks at."""


@dataclass(frozen=True)
class Description:
    """Counts, label density, the NDCG@10 of incoming and random order, head-room, and what to beware of.

    `head_room_share` is the share of requests whose incoming order is not ideal; `equal_score_share` the share that
    holds two candidates with the same first-stage score (their incoming order is then arbitrary). `warnings` lists
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
        head_room_share=float((incoming_B < ideal_B).mean()),
        equal_score_share=equal_share,
        notes=requests.notes,
        warnings=tuple(_warnings(incoming, chance, equal_share, barren_share)),
    )


def _warnings(incoming: float, chance: float, equal_share: float, barren_share: float) -> list[str]:
    found = []
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
        found.append(f"{barren_share:.1%} of requests hold nothing relevant: no answer to them earns anything")
    return found
