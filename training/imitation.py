"""Supervised imitation: a policy learns to answer as a teacher does, the warm start of language-model re-rankers.

May import torch, numpy, `rerank_env` and `rerank_env.agents`. The loss is the negative log-likelihood of the tokens
that say the teacher's ranking, averaged over the tokens of the batch (supervised fine-tuning; GR2, 2602.07774, calls
it SFT and has a language model as teacher). Departs from its namesake as follows.

* The teacher is a `Policy` and is asked anew at every step, so that a teacher that draws never repeats a list.
* Only rankings can be imitated: an answer of the teacher that is none is an error, not a lesson.
* Nothing stops early, and there is no loss on text that is not the answer, because there is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rerank_env.agents import Policy
from rerank_env.agents.network import NetworkPolicy
from rerank_env.agents.observations import tensors
from rerank_env.data.requests import Requests
from rerank_env.rewards.answers import legal_orders
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.rankings import padded
from rerank_env.training.learner import Learner, StepLog, TrainResult, Values, apply_gradients
from rerank_env.training.loop import run
from rerank_env.training.settings import TrainConfig

PROBED_REQUESTS = 256
"""How many requests tell one teacher from another when a run is resumed."""


@dataclass(frozen=True, kw_only=True)
class ImitationConfig(TrainConfig):
    """How to train: everything is as in `TrainConfig`, with `metric` for validation only."""


def train(
    policy: NetworkPolicy,
    requests: Requests,
    teacher: Policy,
    *,
    config: ImitationConfig,
    directory: Path | str,
    validation: Requests | None = None,
    resume: bool = True,
    on_step: Callable[[StepLog], None] | None = None,
) -> TrainResult:
    """Train `policy` in place to answer `requests` as `teacher` does; everything else is as in `dapo.train`.

    A line of metrics.jsonl, and `on_step`: `loss` (nats a token), `grad_norm`, `learning_rate`, `skipped` (null, or why
    there was no update), `validation` (null between validations) and `seconds`. Raises `RankingError` where the teacher
    gives no ranking.
    """
    learner = _Imitation(policy, requests, teacher, config)
    return run(learner, directory=Path(directory), validation=validation, resume=resume, on_step=on_step)


class _Imitation(Learner):
    algorithm = "imitation"

    def __init__(self, policy: NetworkPolicy, requests: Requests, teacher: Policy, config: ImitationConfig) -> None:
        super().__init__(policy, requests, config)
        self.teacher = teacher

    def identity(self) -> dict[str, str]:
        """The teacher by what it answers: two of them may bear one name."""
        probe = self.requests.take(np.arange(min(PROBED_REQUESTS, len(self.requests))))
        answers_BK = self._lesson(probe, np.random.default_rng(0))
        return {"teacher": hashlib.sha256(answers_BK.tobytes()).hexdigest()[:16]}

    def step(self, step: int) -> Values:
        """One update on the next requests; see `train` for what is logged."""
        config = self.config
        chosen = self.requests.take(self.epochs.draw(config.requests_per_step))
        seed = int(torch.randint(2**62, (), generator=self.generator))
        rankings_BK = torch.from_numpy(self._lesson(chosen, np.random.default_rng(seed)))
        tokens_B1T = self.policy.spelled(rankings_BK[:, None], torch.from_numpy(chosen.sizes_B))
        self.policy.train()
        with torch.random.fork_rng(devices=[]):  # dropout can only be seeded through the global generator
            torch.manual_seed(seed)
            logprobs_B1T = self.policy.log_prob(tensors(chosen), tokens_B1T)
        loss = -logprobs_B1T.sum() / int((tokens_B1T != PAD).sum())
        rate = config.learning_rate_at(step)
        norm = apply_gradients(self.policy, self.optimizer, loss, rate=rate, max_norm=config.max_grad_norm)
        return {
            "loss": None if norm is None else float(loss.detach()),
            "grad_norm": norm,
            "learning_rate": rate,
            "skipped": "the gradient is not finite" if norm is None else None,
        }

    def _lesson(self, requests: Requests, rng: np.random.Generator) -> IntArray:
        return padded(legal_orders(self.teacher.rank(requests, rng=rng), requests.slates), requests.sizes_B)
