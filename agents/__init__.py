"""Policies: who answers a re-ranking request.

`Incoming`, `Random`, `Popularity` and `Oracle` are the yardsticks every table prints, and need numpy only.
`ListwisePolicy` is a set transformer with an exact ranking likelihood (`plackett_luce`), and needs torch: it is loaded
on first use, and without torch that use raises `MissingExtraError` with the command that installs it.
"""

if __name__ == "agents":
    raise ImportError("this package is imported as rerank_env.agents; write `from rerank_env import agents`")

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rerank_env.agents.baselines import BASELINES, Incoming, Oracle, Popularity, Random, baseline
from rerank_env.agents.policy import Policy
from rerank_env.rewards.errors import MissingExtraError

if TYPE_CHECKING:
    from rerank_env.agents import plackett_luce
    from rerank_env.agents.listwise import ListwiseConfig, ListwisePolicy, Samples
    from rerank_env.agents.observations import Observation, tensors

__all__ = [
    "BASELINES",
    "Incoming",
    "ListwiseConfig",
    "ListwisePolicy",
    "Observation",
    "Oracle",
    "Policy",
    "Popularity",
    "Random",
    "Samples",
    "baseline",
    "plackett_luce",
    "tensors",
]

_NEEDS_TORCH = {
    "ListwiseConfig": "listwise",
    "ListwisePolicy": "listwise",
    "Observation": "observations",
    "Samples": "listwise",
    "plackett_luce": "plackett_luce",
    "tensors": "observations",
}


def __getattr__(name: str) -> Any:
    """Load a name that needs torch on first use; `MissingExtraError` where torch or safetensors is not installed."""
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_NEEDS_TORCH[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torch", "safetensors"):
            raise
        raise MissingExtraError(
            f'{name} needs {error.name}, which is not installed; run: pip install "rerank-env[agents]"'
        ) from error
    value = module if name == _NEEDS_TORCH[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
