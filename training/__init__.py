"""How policies learn, and how they are compared.

`dapo.train` teaches a policy by reinforcement in `Rerank-v0`, `supervised.train` is its plain rival on the same
network, and `evaluate.evaluate` compares both with the incoming order. The mathematics is in `advantages` and
`losses`, the sampling in `rollouts`, what survives a crash in `checkpoints`. Evaluation and advantages need numpy
only; the rest is loaded on first use and needs torch, without which that use raises `MissingExtraError`.

    from rerank_env.training import DapoConfig, dapo
    result = dapo.train(policy, requests, "gain", config=DapoConfig(steps=200), directory="runs/first")
"""

if __name__ == "training":
    raise ImportError("this package is imported as rerank_env.training; write `from rerank_env import training`")

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rerank_env.rewards.errors import MissingExtraError

if TYPE_CHECKING:
    from rerank_env.training import advantages, checkpoints, dapo, evaluate, losses, rollouts, supervised
    from rerank_env.training.dapo import DapoConfig
    from rerank_env.training.evaluate import Evaluation
    from rerank_env.training.learner import Interrupted, StepLog, TrainResult
    from rerank_env.training.supervised import SupervisedConfig

__all__ = [
    "DapoConfig",
    "Evaluation",
    "Interrupted",
    "StepLog",
    "SupervisedConfig",
    "TrainResult",
    "advantages",
    "checkpoints",
    "dapo",
    "evaluate",
    "losses",
    "rollouts",
    "supervised",
]

_HOME = {
    "DapoConfig": "dapo",
    "Evaluation": "evaluate",
    "Interrupted": "learner",
    "StepLog": "learner",
    "SupervisedConfig": "supervised",
    "TrainResult": "learner",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use; `MissingExtraError` where torch or safetensors is needed and not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_HOME.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torch", "safetensors"):
            raise
        raise MissingExtraError(
            f'{name} needs {error.name}, which is not installed; run: pip install "rerank-env[training]"'
        ) from error
    value = getattr(module, name) if name in _HOME else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
