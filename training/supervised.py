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
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from rerank_env.agents.listwise import ListwisePolicy
from rerank_env.agents.observations import tensors
from rerank_env.data.requests import Requests
from rerank_env.rewards import parse_reward
from rerank_env.training import settings
from rerank_env.training.epochs import RequestEpochs
from rerank_env.training.learner import Learner, Schedule, StepLog, TrainResult, Values, adamw, apply_gradients
from rerank_env.training.loop import fingerprint, run
from rerank_env.training.losses import listwise_cross_entropy


@dataclass(frozen=True)
class SupervisedConfig:
    """How to train: at most `steps` updates of `requests_per_step` requests each.

    `metric` is what validation measures; training stops after `patience` validations without a new best (None: never).
    The learning rate warms up over `warmup_steps` and decays by `decay`: "none", "linear" or "cosine". `seed` decides
    the order of requests, of ties, and dropout. Raises `InputError` or `UnknownNameError` naming the field.
    """

    steps: int = 600
    requests_per_step: int = 64
    temperature: float = 0.5
    learning_rate: float = 5e-4
    warmup_steps: int = 20
    decay: str = "cosine"
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    metric: str = "ndcg@10"
    checkpoint_every: int = 50
    validate_every: int = 25
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        settings.at_least(
            1,
            steps=self.steps,
            requests_per_step=self.requests_per_step,
            checkpoint_every=self.checkpoint_every,
            validate_every=self.validate_every,
            patience=self.patience,
        )
        settings.at_least(0, warmup_steps=self.warmup_steps, seed=self.seed)
        settings.above_zero(
            temperature=self.temperature, learning_rate=self.learning_rate, max_grad_norm=self.max_grad_norm
        )
        settings.not_negative(weight_decay=self.weight_decay)
        settings.one_of("learning rate decay", self.decay, settings.DECAYS)
        parse_reward(self.metric)


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
    schedule = Schedule(config.steps, config.checkpoint_every, config.validate_every, config.metric, config.patience)
    identity = {
        "algorithm": "supervised",
        "data": fingerprint(requests),
        "validation": None if validation is None else fingerprint(validation),
        **{f"config.{name}": value for name, value in asdict(config).items()},
        **{f"policy.{name}": value for name, value in asdict(policy.config).items()},
    }
    return run(
        _Supervised(policy, requests, config),
        schedule,
        directory=Path(directory),
        identity=identity,
        validation=validation,
        resume=resume,
        on_step=on_step,
    )


class _Supervised(Learner):
    def __init__(self, policy: ListwisePolicy, requests: Requests, config: SupervisedConfig) -> None:
        self.policy, self.requests, self.config = policy, requests, config
        self.optimizer = adamw(policy, config.weight_decay)
        self.epochs = RequestEpochs(len(requests), config.seed)
        self.generator = torch.Generator().manual_seed(config.seed)

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
        rate = settings.learning_rate_at(
            step, steps=config.steps, peak=config.learning_rate, warmup_steps=config.warmup_steps, decay=config.decay
        )
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
