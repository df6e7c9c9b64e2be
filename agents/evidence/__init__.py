"""What speaks for a candidate, in numbers: first-stage score, popularity, co-purchases, likeness of texts and labels.

Needs numpy and scipy only. `Evidence.fit` counts a log once; `Evidence.features` reads requests.
"""

from rerank_env.agents.evidence.features import Evidence

__all__ = ["Evidence"]
