"""Re-ranking as a Gymnasium environment, with rewards that are hard to game and policies that learn from them.

Importing this package registers `Rerank-v0` and nothing else, so `gym.make("rerank_env:Rerank-v0")` works without an
import of its own:

    import gymnasium as gym
    env = gym.make("rerank_env:Rerank-v0")
    envs = gym.make_vec("rerank_env:Rerank-v0", num_envs=1024)

The names below are loaded when first used. `rerank_env.rewards` says what an answer is worth, `rerank_env.agents` who
answers, `rerank_env.training` how they learn.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from gymnasium.envs.registration import register as _register
from gymnasium.envs.registration import registry as _registry

if TYPE_CHECKING:
    from rerank_env.data import load
    from rerank_env.data.requests import Catalog, Requests
    from rerank_env.env import RerankEnv
    from rerank_env.prompts import build_prompt
    from rerank_env.vector_env import RerankVectorEnv

__all__ = ["Catalog", "Requests", "RerankEnv", "RerankVectorEnv", "build_prompt", "load"]

_HOME = {
    "Catalog": "rerank_env.data.requests",
    "Requests": "rerank_env.data.requests",
    "RerankEnv": "rerank_env.env",
    "RerankVectorEnv": "rerank_env.vector_env",
    "build_prompt": "rerank_env.prompts",
    "load": "rerank_env.data",
}


def __getattr__(name: str) -> _Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


if "Rerank-v0" not in _registry:
    _register(
        id="Rerank-v0",
        entry_point="rerank_env.env:RerankEnv",
        vector_entry_point="rerank_env.vector_env:RerankVectorEnv",
        # The defaults of both classes, spelled out so that a saved EnvSpec says what was run.
        kwargs={
            "data": "synthetic",
            "split": "train",
            "kind": "graded",
            "reward": "gain",
            "action": "ranking",
            "ties": "random",
            "text_format": "list",
            "metrics": ["ndcg@10"],
            "data_options": None,
        },
    )
