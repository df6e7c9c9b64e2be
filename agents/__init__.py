"""Policies: who answers a re-ranking request.

`Incoming`, `Random`, `Popularity` and `Oracle` are the yardsticks every table prints, and need numpy only. `LambdaMart`
(extra `ltr`) and `LinearPlackettLuce` re-rank by `Evidence` and are the rivals that a policy should beat.
`ListwisePolicy` is a set transformer with an exact ranking likelihood (`plackett_luce`); `TokenPolicy` writes its
answer word by word and can be wrong. Both are a `NetworkPolicy` and need torch: they are loaded on first use, and
without torch that use raises `MissingExtraError` with the command that installs it.
"""

if __name__ == "agents":
    raise ImportError("this package is imported as rerank_env.agents; write `from rerank_env import agents`")

from typing import TYPE_CHECKING

from rerank_env import lazy
from rerank_env.agents.baselines import Incoming, Oracle, Popularity, Random
from rerank_env.agents.policy import Policy

if TYPE_CHECKING:
    from rerank_env.agents import plackett_luce
    from rerank_env.agents.evidence import Evidence
    from rerank_env.agents.lambdamart import LambdaMart, LambdaMartSettings
    from rerank_env.agents.linear import LinearPlackettLuce, LinearSettings
    from rerank_env.agents.listwise import ListwiseConfig, ListwisePolicy
    from rerank_env.agents.network import NetworkPolicy, Samples
    from rerank_env.agents.observations import Observation, tensors
    from rerank_env.agents.token_policy import TokenConfig, TokenPolicy

__all__ = [
    "Evidence",
    "Incoming",
    "LambdaMart",
    "LambdaMartSettings",
    "LinearPlackettLuce",
    "LinearSettings",
    "ListwiseConfig",
    "ListwisePolicy",
    "NetworkPolicy",
    "Observation",
    "Oracle",
    "Policy",
    "Popularity",
    "Random",
    "Samples",
    "TokenConfig",
    "TokenPolicy",
    "plackett_luce",
    "tensors",
]

__getattr__, __dir__ = lazy.names(
    globals(),
    {
        "Evidence": "evidence",
        "LambdaMart": "lambdamart",
        "LambdaMartSettings": "lambdamart",
        "LinearPlackettLuce": "linear",
        "LinearSettings": "linear",
        "ListwiseConfig": "listwise",
        "ListwisePolicy": "listwise",
        "NetworkPolicy": "network",
        "Observation": "observations",
        "Samples": "network",
        "TokenConfig": "token_policy",
        "TokenPolicy": "token_policy",
        "plackett_luce": "plackett_luce",
        "tensors": "observations",
    },
    extra="agents",
)
