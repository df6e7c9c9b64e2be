"""How policies learn, and how they are compared.

`dapo.train` teaches a policy by reinforcement in `Rerank-v0`, `supervised.train` is its plain rival on the same
network, `imitation.train` makes a policy follow a teacher, and `evaluate.evaluate` compares policies with the incoming
order. The mathematics is in `advantages` and `losses`, the sampling in `rollouts`, what survives a crash in
`checkpoints`. Evaluation, position bias and advantages need numpy only; the rest is loaded on first use and needs
torch, without which that use raises `MissingExtraError`.

    from rerank_env.training import DapoConfig, dapo
    result = dapo.train(policy, requests, "gain", config=DapoConfig(steps=200), directory="runs/first")
"""

if __name__ == "training":
    raise ImportError("this package is imported as rerank_env.training; write `from rerank_env import training`")

from typing import TYPE_CHECKING

from rerank_env import lazy

if TYPE_CHECKING:
    from rerank_env.training import (
        advantages,
        checkpoints,
        dapo,
        evaluate,
        imitation,
        losses,
        position_bias,
        rollouts,
        supervised,
    )
    from rerank_env.training.dapo import DapoConfig
    from rerank_env.training.evaluate import Evaluation
    from rerank_env.training.imitation import ImitationConfig
    from rerank_env.training.learner import Interrupted, StepLog, TrainResult
    from rerank_env.training.supervised import SupervisedConfig

__all__ = [
    "DapoConfig",
    "Evaluation",
    "ImitationConfig",
    "Interrupted",
    "StepLog",
    "SupervisedConfig",
    "TrainResult",
    "advantages",
    "checkpoints",
    "dapo",
    "evaluate",
    "imitation",
    "losses",
    "position_bias",
    "rollouts",
    "supervised",
]

__getattr__, __dir__ = lazy.names(
    globals(),
    {
        "DapoConfig": "dapo",
        "Evaluation": "evaluate",
        "ImitationConfig": "imitation",
        "Interrupted": "learner",
        "StepLog": "learner",
        "SupervisedConfig": "supervised",
        "TrainResult": "learner",
        "advantages": "advantages",
        "checkpoints": "checkpoints",
        "dapo": "dapo",
        "evaluate": "evaluate",
        "imitation": "imitation",
        "losses": "losses",
        "position_bias": "position_bias",
        "rollouts": "rollouts",
        "supervised": "supervised",
    },
    extra="training",
)
