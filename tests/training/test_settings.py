"""What both trainers are told: the learning rate by hand, and every field checked by name."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training.settings import TrainConfig


def rates(decay: str) -> list[float]:
    config = TrainConfig(steps=6, learning_rate=1.0, warmup_steps=2, decay=decay)
    return [config.learning_rate_at(step) for step in range(1, 7)]


def test_the_learning_rate_warms_up_and_decays() -> None:
    assert rates("none") == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    # half a cosine over the four steps after the warm-up: (1 + cos(pi t / 4)) / 2 at t = 0, 1, 2, 3
    assert rates("cosine") == pytest.approx([0.5, 1.0, 1.0, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4])


def test_something_is_due_every_so_many_steps_and_after_the_last() -> None:
    config = TrainConfig(steps=7)
    assert [step for step in range(1, 8) if config.due(3, step)] == [3, 6, 7]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "steps is 0; .*at least 1"),
        ({"requests_per_step": 2.0}, r"requests_per_step is 2\.0"),
        ({"seed": True}, "seed is True"),
        ({"warmup_steps": -1}, "warmup_steps is -1; .*at least 0"),
        ({"patience": 0}, "patience is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm is 0\.0; give a number above 0"),
        ({"weight_decay": -0.1}, r"weight_decay is -0\.1; give a number of at least 0"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused_by_name(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TrainConfig(**change)


@pytest.mark.parametrize(
    ("change", "suggestion"),
    [({"decay": "cosin"}, "cosine"), ({"metric": "ndgc@10"}, "ndcg"), ({"decay": "non"}, "none")],
)
def test_a_misspelt_field_gets_a_suggestion(change: dict[str, str], suggestion: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{suggestion}"):
        TrainConfig(**change)


def test_numbers_of_numpy_become_plain_so_that_a_checkpoint_can_hold_them() -> None:
    config = TrainConfig(steps=np.int64(3), learning_rate=np.float32(0.5), weight_decay=0, patience=np.int32(2))
    assert json.loads(json.dumps(dataclasses.asdict(config))) == dataclasses.asdict(
        TrainConfig(steps=3, learning_rate=0.5, weight_decay=0.0, patience=2)
    )
