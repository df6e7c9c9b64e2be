"""Plain supervised listwise learning, the rival of DAPO on the same network. Run it with `rerank train supervised`.

May import torch, numpy, `rerank_env` and `rerank_env.agents`. The loss is the cross-entropy of ListNet (Cao et al.,
"Learning to rank: from pairwise approach to listwise approach", ICML 2007): between the softmax of the gains and the
softmax of the scores. Departs from its namesake as follows.

* ListNet scores every candidate once and takes the top-one distribution; our head scores every candidate at every
  slot. So the same cross-entropy is taken at each slot over the candidates that an ideal ranking has not placed yet,
  ties in a fresh random order each time. With a head whose slots are all alike, slot 0 is ListNet, and hard targets
  would make the sum ListMLE (Xia et al., ICML 2008).
* A slot at which all remaining candidates have the same gain teaches nothing and is left out.
* Gains are divided by `temperature` in the target: 1 is ListNet, towards 0 is ListMLE.
* It stops early, on the validation metric and not on the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rerank_env.agents.listwise import ListwisePolicy
from rerank_env.agents.observations import tensors
from rerank_env.data.requests import Requests
from rerank_env.training.learner import Learner, StepLog, TrainResult, Values, apply_gradients
from rerank_env.training.loop import run
from rerank_env.training.losses import listwise_cross_entropy
from rerank_env.training.settings import TrainConfig


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(TrainConfig):
    """How to train: `temperature` divides the gains in the targets; everything else is as in `TrainConfig`."""

    temperature: float = 0.5

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._check_number("temperature")


def train(
    policy: ListwisePolicy,
    requests: Requests,
    *,
    config: SupervisedConfig,
    directory: Path | str,
    validation: Requests | None = None,
    resume: bool = True,
    on_step: Callable[[StepLog], None] | None = None,
) -> TrainResult:
    """Train `policy` in place to put relevant candidates first; everything else is as in `dapo.train`.

    A line of metrics.jsonl, and `on_step`: `loss` (nats a slot), `grad_norm`, `learning_rate`, `skipped` (null, or why
    there was no update), `validation` (null between validations) and `seconds`.
    """
    learner = _Supervised(policy, requests, config)
    return run(learner, directory=Path(directory), validation=validation, resume=resume, on_step=on_step)


class _Supervised(Learner):
    algorithm = "supervised"
    policy: ListwisePolicy
    config: SupervisedConfig

    def step(self, step: int) -> Values:
        """One update on the next requests; see `train` for what is logged."""
        config = self.config
        chosen = self.requests.take(self.epochs.draw(config.requests_per_step))
        targets_BKK, open_BKK = slot_targets(
            torch.from_numpy(chosen.relevance_BK),
            torch.from_numpy(chosen.sizes_B),
            temperature=config.temperature,
            generator=self.generator,
        )
        dropout_seed = int(torch.randint(2**62, (), generator=self.generator))
        self.policy.train()
        with torch.random.fork_rng(devices=[]):  # dropout can only be seeded through the global generator
            torch.manual_seed(dropout_seed)
            logits_BKK = self.policy(tensors(chosen))
        targets_BKK = targets_BKK.to(logits_BKK)
        loss = listwise_cross_entropy(logits_BKK, targets_BKK, open_BKK.to(logits_BKK.device))
        rate = config.learning_rate_at(step)
        skipped: str | None = None if bool((targets_BKK > 0).any()) else "no request has two different gains"
        norm: float | None = None
        if skipped is None:
            norm = apply_gradients(self.policy, self.optimizer, loss, rate=rate, max_norm=config.max_grad_norm)
            skipped = "the gradient is not finite" if norm is None else None
        return {
            "loss": None if skipped is not None else float(loss.detach()),
            "grad_norm": norm,
            "learning_rate": rate,
            "skipped": skipped,
        }


def slot_targets(
    relevance_BK: Tensor, sizes_B: Tensor, *, temperature: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """What each slot of an ideal ranking should choose: targets [B, K, K] over open candidates, and which are open.

    At slot t the candidates open are those that an ideal ranking, ties in random order, places at t or later; the
    target is the softmax of their gains over `temperature`, or all zero where their gains do not differ.
    """
    rows, width = relevance_BK.shape
    real_BK = torch.arange(width) < sizes_B[:, None]
    keys_BK = relevance_BK.masked_fill(~real_BK, -1.0)
    shuffled_BK = torch.rand(rows, width, generator=generator, dtype=torch.float64).argsort(-1)
    ideal_BK = shuffled_BK.gather(1, keys_BK.gather(1, shuffled_BK).argsort(dim=-1, descending=True, stable=True))
    ranks_BK = ideal_BK.argsort(-1)
    open_BKK = (ranks_BK[:, None, :] >= torch.arange(width)[:, None]) & real_BK[:, None, :]
    gains_BKK = relevance_BK[:, None, :].expand(rows, width, width)
    highest_BK = gains_BKK.masked_fill(~open_BKK, -torch.inf).amax(-1)
    lowest_BK = gains_BKK.masked_fill(~open_BKK, torch.inf).amin(-1)
    teaches_BK = highest_BK > lowest_BK
    shifted_BKK = ((gains_BKK - highest_BK[..., None]) / temperature).masked_fill(~open_BKK, -torch.inf)
    weights_BKK = shifted_BKK.masked_fill(~teaches_BK[..., None], 0.0).softmax(-1)
    return weights_BKK * teaches_BK[..., None], open_BKK
