"""The stage before re-ranking: who proposes K candidates out of the whole catalogue.

A `Retriever` scores every item after a history; `top` makes lists of it. `PopularityRetriever` and `Bm25Retriever` are
the simple ones, `SasRec` is the one to beat. How they are trained, and how the lists of training users are made without
having seen them, is in `rerank_env.training.first_stage`.
"""

from typing import TYPE_CHECKING

from rerank_env import lazy
from rerank_env.agents.retrieval.popularity import PopularityRetriever
from rerank_env.agents.retrieval.retriever import Retriever, top

if TYPE_CHECKING:
    from rerank_env.agents.retrieval.bm25 import Bm25Retriever
    from rerank_env.agents.retrieval.sasrec import SasRec, SasRecConfig

__all__ = ["Bm25Retriever", "PopularityRetriever", "Retriever", "SasRec", "SasRecConfig", "top"]

__getattr__, __dir__ = lazy.names(
    globals(), {"Bm25Retriever": "bm25", "SasRec": "sasrec", "SasRecConfig": "sasrec"}, extra="first-stage"
)
