"""Policies: who answers a re-ranking request.

`Incoming`, `Random`, `Popularity` and `Oracle` are the yardsticks every table prints, and need numpy only.
`ListwisePolicy` is a set transformer with an exact ranking likelihood (`plackett_luce`), and needs torch: it is loaded
on first use, and without torch that use raises `MissingExtraError` with the command that installs it.
"""

if __name__ == "agents":
    raise ImportError("this package is imported as rerank_env.agents; write `from rerank_env import agents`")

from typing import TYPE_CHECKING

from rerank_env import lazy
from rerank_env.agents.baselines import Incoming, Oracle, Popularity, Random
from rerank_env.agents.policy import Policy

if TYPE_CHECKING:
    from rerank_env.agents import plackett_luce
    from rerank_env.agents.listwise import ListwiseConfig, ListwisePolicy, Samples
    from rerank_env.agents.observations import Observation, tensors

__all__ = [
    "Incoming",
    "ListwiseConfig",
    "ListwisePolicy",
    "Observation",
    "Oracle",
    "Policy",
    "Popularity",
    "Random",
    "Samples",
    "plackett_luce",
    "tensors",
]

__getattr__, __dir__ = lazy.names(
    globals(),
    {
        "ListwiseConfig": "listwise",
        "ListwisePolicy": "listwise",
        "Observation": "observations",
        "Samples": "listwise",
        "plackett_luce": "plackett_luce",
        "tensors": "observations",
    },
    extra="agents",
)
