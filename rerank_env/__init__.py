"""Re-ranking as a Gymnasium environment, with rewards that are hard to game and policies that learn from them.

Importing this package registers `Rerank-v0` and nothing else, so `gym.make("rerank_env:Rerank-v0")` works without an
import of its own:

    import gymnasium as gym
    env = gym.make("rerank_env:Rerank-v0")
    envs = gym.make_vec("rerank_env:Rerank-v0", num_envs=1024)

Everything else is loaded when first used. `rerank_env.data` says what is asked, `rerank_env.rewards` what an answer is
worth, `rerank_env.agents` who answers, `rerank_env.training` how they learn.

`rerank_env.errors` holds what the library raises on purpose, one sentence each, all of them `RerankError`:
`InputError` (an argument; also a `ValueError`) with the kinds `DataError`, `SlateError`, `RankingError` and
`UnknownNameError`; `RewardError`, `UnsoundRewardError`, `FetchError`, `CheckpointError`, `DivergedError` (a training),
`ServerError` (a language model's) and `MissingExtraError`.
"""

from __future__ import annotations

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from gymnasium.envs.registration import register as _register
from gymnasium.envs.registration import registry as _registry

from rerank_env import lazy as _lazy

if TYPE_CHECKING:
    from rerank_env.data import load
    from rerank_env.data.catalog import Catalog
    from rerank_env.data.requests import Requests
    from rerank_env.env import RerankEnv
    from rerank_env.prompts import build_prompt
    from rerank_env.rewards import errors
    from rerank_env.vector_env import RerankVectorEnv

__all__ = ["Catalog", "Requests", "RerankEnv", "RerankVectorEnv", "build_prompt", "errors", "load"]
if _find_spec("verifiers"):  # whose loader looks here for the taskset called "rerank-env"
    __all__ += ["RerankTaskset"]

__getattr__, __dir__ = _lazy.names(
    globals(),
    {
        "Catalog": "data.catalog",
        "Requests": "data.requests",
        "RerankEnv": "env",
        "RerankTaskset": "training.adapters.verifiers",
        "RerankVectorEnv": "vector_env",
        "agents": "agents",
        "build_prompt": "prompts",
        "data": "data",
        "errors": "rewards",
        "load": "data",
        "rewards": "rewards",
        "training": "training",
    },
)

if "Rerank-v0" not in _registry:
    _register(
        id="Rerank-v0",
        entry_point="rerank_env.env:RerankEnv",
        vector_entry_point="rerank_env.vector_env:RerankVectorEnv",
        # The defaults of both classes, spelled out so that a saved EnvSpec says what was run.
        kwargs={
            "data": "synthetic",
            "split": "train",
            "kind": None,
            "reward": "gain",
            "action": "ranking",
            "ties": "random",
            "text_format": "list",
            "metrics": ["ndcg@10"],
            "data_options": None,
            "prompt": "3-index",
            "semantic_ids": None,
            "prompt_budget": None,
        },
    )
