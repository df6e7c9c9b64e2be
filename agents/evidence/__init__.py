"""What speaks for a candidate, in numbers: first-stage score, popularity, co-purchases, likeness of texts and labels.

Needs numpy and scipy only. `Evidence.fit` counts a log once; `Evidence.features` reads requests, and `EvidenceRemarks`
puts some of it in words.
"""

from rerank_env.agents.evidence.features import Evidence
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.evidence.words import Remark

__all__ = ["Evidence", "EvidenceRemarks", "Remark"]
