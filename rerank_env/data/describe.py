"""What a set of requests looks like before anyone trains on it: sizes, labels, baselines and head-room.

May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

import numpy as np

from rerank_env.data.requests import PAD, Requests
from rerank_env.rewards.metrics import ndcg
from rerank_env.rewards.rankings import ideal_rankings, identity_rankings, random_rankings

HIGH_IDENTITY_NDCG = 0.95
"""Above this, copying the incoming order is nearly optimal and a policy has little else to learn."""


def describe(requests: Requests, *, seed: int = 0) -> dict[str, float | int | str | list[str]]:
    """Counts, label density, the NDCG@10 of incoming and random order, head-room, and what to beware of.

    `head_room_share` is the share of requests whose incoming order is not ideal; `equal_score_share` the share that
    holds two candidates with the same first-stage score (their incoming order is then arbitrary). `warnings` lists
    traps as sentences. An empty set is described by its counts alone.
    """
    slates, width = requests.slates, requests.candidates_BK.shape[1]
    found: dict[str, float | int | str | list[str]] = {
        "name": requests.name,
        "requests": len(requests),
        "users": len(np.unique(requests.users_B)),
        "items": len(requests.catalog),
        "item_features": len(requests.catalog.feature_names),
        "notes": list(requests.notes),
        "warnings": [],
    }
    if not len(requests):
        return found
    real_BK = slates.mask_BK
    incoming_B = ndcg(identity_rankings(requests.sizes_B, width), slates, k=10)
    chance = ndcg(random_rankings(requests.sizes_B, width, np.random.default_rng(seed)), slates, k=10).mean()
    ideal_B = ndcg(ideal_rankings(slates), slates, k=10)
    gaps_BK = np.diff(np.where(real_BK, requests.scores_BK, np.arange(width, dtype=np.float32) * -1e9), axis=1)
    head_room = float((incoming_B < ideal_B).mean())
    equal = float((gaps_BK == 0).any(axis=1).mean())
    found |= {
        "candidates_min": int(requests.sizes_B.min()),
        "candidates_max": int(requests.sizes_B.max()),
        "history_mean": float((requests.history_BH != PAD).sum(axis=1).mean()),
        "relevant_share": float((requests.relevance_BK[real_BK] > 0).mean()),
        "relevant_per_request": float((requests.relevance_BK > 0).sum(axis=1).mean()),
        "incoming_ndcg@10": float(incoming_B.mean()),
        "random_ndcg@10": float(chance),
        "head_room_share": head_room,
        "equal_score_share": equal,
    }
    warnings = []
    if incoming_B.mean() > HIGH_IDENTITY_NDCG:
        warnings.append(
            f"the incoming order is nearly ideal (NDCG@10 {incoming_B.mean():.3f}): a policy trained here learns to "
            "copy it"
        )
    if incoming_B.mean() <= chance:
        warnings.append("the incoming order is no better than a random one: its scores may be wrong or reversed")
    if equal > 0.01:
        warnings.append(f"{equal:.1%} of requests hold candidates with equal scores: their incoming order is arbitrary")
    untouched = float((requests.relevance_BK == 0).all(axis=1).mean())
    if untouched:
        warnings.append(f"{untouched:.1%} of requests hold nothing relevant: no answer to them earns anything")
    found["warnings"] = warnings
    return found
