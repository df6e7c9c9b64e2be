"""Semantic IDs from texts and purchases: how they are made, and how good they are.

`build` makes them for a log, with an RQ-VAE or with RQ-k-means, and gives an `ItemCoder` that codes new items; `report`
says what the IDs keep. The record itself, `SemanticIds`, is in `rerank_env.semantic_ids` and needs none of this. Names
are loaded on first use; they need the extra `semantic-ids`.
"""

from typing import TYPE_CHECKING

from rerank_env import lazy

if TYPE_CHECKING:
    from rerank_env.agents.semantic_ids.assignment import assigned, extended
    from rerank_env.agents.semantic_ids.coder import Built, CoderSettings, ItemCoder, build
    from rerank_env.agents.semantic_ids.collaborative import collaborative_embedding, consecutive
    from rerank_env.agents.semantic_ids.inputs import combined
    from rerank_env.agents.semantic_ids.quality import IdReport, nearest_items, relative_error, report
    from rerank_env.agents.semantic_ids.rq_kmeans import RqKMeans
    from rerank_env.agents.semantic_ids.rq_vae import RqVae, RqVaeConfig
    from rerank_env.agents.semantic_ids.rq_vae_training import fit
    from rerank_env.agents.semantic_ids.text import TransformerEncoder, embedded
    from rerank_env.agents.semantic_ids.tfidf import TfidfSvd

__all__ = [
    "Built",
    "CoderSettings",
    "IdReport",
    "ItemCoder",
    "RqKMeans",
    "RqVae",
    "RqVaeConfig",
    "TfidfSvd",
    "TransformerEncoder",
    "assigned",
    "build",
    "collaborative_embedding",
    "combined",
    "consecutive",
    "embedded",
    "extended",
    "fit",
    "nearest_items",
    "relative_error",
    "report",
]

__getattr__, __dir__ = lazy.names(
    globals(),
    {
        "Built": "coder",
        "CoderSettings": "coder",
        "IdReport": "quality",
        "ItemCoder": "coder",
        "RqKMeans": "rq_kmeans",
        "RqVae": "rq_vae",
        "RqVaeConfig": "rq_vae",
        "TfidfSvd": "tfidf",
        "TransformerEncoder": "text",
        "assigned": "assignment",
        "build": "coder",
        "collaborative_embedding": "collaborative",
        "combined": "inputs",
        "consecutive": "collaborative",
        "embedded": "text",
        "extended": "assignment",
        "fit": "rq_vae_training",
        "nearest_items": "quality",
        "relative_error": "quality",
        "report": "quality",
    },
    extra="semantic-ids",
)
