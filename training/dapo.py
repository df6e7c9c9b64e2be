"""DAPO for re-rankers whose answer has an exact likelihood. Run it with `rerank train dapo`, or call `train`.

May import torch, numpy, `rerank_env` and `rerank_env.agents`. Departs from its namesakes, DAPO (2503.14476) and the RL
stage of GR2 (2602.07774), as follows; everything else is theirs: group-relative advantages, decoupled clip, one
normaliser over all tokens of the batch, dynamic sampling, no KL to a reference.

* An answer is a ranking, and its tokens are the slots of a generalised Plackett-Luce law, so the ratio of a slot is
  exact and every answer is valid; there is no overlong penalty because no answer can be too long.
* One forward pass a request serves its whole group; both papers decode every answer by itself.
* Dynamic sampling is bounded: groups whose RAW metric values are all exactly equal are replaced by freshly drawn
  requests, `max_resamples` times at most, and the update is made with the groups at hand. DAPO samples until the batch
  is full, and both filter on the reward, which a shaped reward defeats (a format bonus keeps dead groups alive).
* No live group at all is a logged event (`skipped`), not an update; so is a gradient that is not finite.
* Dropout is off throughout: the law that samples must be the law that is trained.
* The learning rate is that of a small network (5e-4, cosine), not of a language model (1e-6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents import plackett_luce
from rerank_env.agents.listwise import ListwisePolicy
from rerank_env.agents.observations import tensors
from rerank_env.agents.subsets import MOST_CANDIDATES
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.training import settings
from rerank_env.training.advantages import SCALES, group_relative
from rerank_env.training.epochs import RequestEpochs
from rerank_env.training.learner import Learner, Schedule, StepLog, TrainResult, Values, adamw, apply_gradients
from rerank_env.training.loop import fingerprint, run
from rerank_env.training.losses import clipped_surrogate, reward_slots
from rerank_env.training.rollouts import Rollouts, Sampler

TRUNCATIONS = ("none", "target", "top_k")


@dataclass(frozen=True)
class DapoConfig:
    """How to train; the defaults are DAPO's where it names one, with G = 16 for an exact likelihood.

    `steps` updates of `requests_per_step` requests with `group_size` answers each, `inner_epochs` passes over them.
    `advantage_scale`: "std" or "none". `filter_metric`: the raw metric that decides which groups are dead and which
    validation is best. `truncate`: slots that cannot change the reward may be left out of the loss: "top_k" if it
    reads the first `truncate_k` places only, "target" if it reads only where relevant candidates stand. `entropy_bonus`
    weighs the entropy a slot. The learning rate warms up over `warmup_steps` and decays by `decay`: "none", "linear"
    or "cosine". `patience`: stop after so many validations without a new best. `seed` decides all sampling.
    Raises `InputError` or `UnknownNameError` naming the field.
    """

    steps: int = 600
    requests_per_step: int = 64
    group_size: int = 16
    inner_epochs: int = 1
    epsilon_low: float = 0.2
    epsilon_high: float = 0.28
    learning_rate: float = 5e-4
    warmup_steps: int = 20
    decay: str = "cosine"
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    max_resamples: int = 3
    filter_metric: str = "ndcg@10"
    advantage_scale: str = "std"
    entropy_bonus: float = 0.0
    truncate: str = "none"
    truncate_k: int | None = None
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
            inner_epochs=self.inner_epochs,
            checkpoint_every=self.checkpoint_every,
            validate_every=self.validate_every,
            patience=self.patience,
            truncate_k=self.truncate_k,
        )
        settings.at_least(2, group_size=self.group_size)
        settings.at_least(0, warmup_steps=self.warmup_steps, max_resamples=self.max_resamples, seed=self.seed)
        settings.above_zero(
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            learning_rate=self.learning_rate,
            max_grad_norm=self.max_grad_norm,
        )
        settings.not_negative(weight_decay=self.weight_decay, entropy_bonus=self.entropy_bonus)
        settings.one_of("advantage scale", self.advantage_scale, SCALES)
        settings.one_of("learning rate decay", self.decay, settings.DECAYS)
        settings.one_of("truncation", self.truncate, TRUNCATIONS)
        if (self.truncate == "top_k") != (self.truncate_k is not None):
            raise InputError(f"truncate is {self.truncate!r} and truncate_k {self.truncate_k}; only top_k has one")
        if self.epsilon_low >= 1.0:
            raise InputError(f"epsilon_low is {self.epsilon_low}; a ratio cannot fall below 0, so give less than 1")
        parse_reward(self.filter_metric)


def train(
    policy: ListwisePolicy,
    requests: Requests,
    reward: str | Reward,
    *,
    config: DapoConfig,
    directory: Path | str,
    validation: Requests | None = None,
    resume: bool = True,
    on_step: Callable[[StepLog], None] | None = None,
) -> TrainResult:
    """Train `policy` in place on `requests` for `reward`; logs, checkpoints and the best weights go to `directory`.

    The result's policy has the weights of the best `validation` (mean of `config.filter_metric` under greedy ranking),
    the untrained ones included, or the last weights without validation. An unfinished run in `directory` goes on
    where it stopped if `resume`, and ends as if it had never stopped; its configuration and data must be the same.

    A line of metrics.jsonl, and `on_step`, hold for the first draw of each step, before dead groups are replaced:
    `reward`, `raw` (the filter metric), `gain` (raw minus that of the incoming order), `identity_rate`,
    `valid_share`, `entropy` (nats a ranking, along the sampled paths), `dead_share`; then `resamples` and, of the
    update, `trained_groups`, `learning_rate`, `loss` (about 0 in the first pass by construction, where every ratio is 1
    and advantages sum to zero: watch `gain`), `grad_norm`, `clip_fraction`, `ratio_max` and `skipped` (null, or why
    there was none); `validation` (null between validations) and `seconds`.

    Raises `Interrupted` on Ctrl-C after saving, `CheckpointError` if the disk refuses, `InputError` on a resume with
    another configuration or other data.
    """
    worth = parse_reward(reward)
    learner = _Dapo(policy, requests, worth, config)
    schedule = Schedule(
        config.steps, config.checkpoint_every, config.validate_every, config.filter_metric, config.patience
    )
    identity = {
        "algorithm": "dapo",
        "reward": str(worth),
        "data": fingerprint(requests),
        "validation": None if validation is None else fingerprint(validation),
        **{f"config.{name}": value for name, value in asdict(config).items()},
        **{f"policy.{name}": value for name, value in asdict(policy.config).items()},
    }
    return run(
        learner,
        schedule,
        directory=Path(directory),
        identity=identity,
        validation=validation,
        resume=resume,
        on_step=on_step,
    )


class _Dapo(Learner):
    def __init__(self, policy: ListwisePolicy, requests: Requests, reward: Reward, config: DapoConfig) -> None:
        self.policy, self.requests, self.config = policy, requests, config
        self.optimizer = adamw(policy, config.weight_decay)
        self.epochs = RequestEpochs(len(requests), config.seed)
        self.generator = torch.Generator().manual_seed(config.seed)
        metric = parse_reward(config.filter_metric)
        incoming_BK = identity_rankings(requests.sizes_B, requests.candidates_BK.shape[1])
        self.incoming_raw_B = metric.score(incoming_BK, requests.slates).total_B
        self.sampler = Sampler(
            policy,
            requests,
            reward,
            metric=config.filter_metric,
            requests_per_step=config.requests_per_step,
            group_size=config.group_size,
            seed=config.seed,
        )

    def close(self) -> None:
        """Close the environments."""
        self.sampler.close()

    def step(self, step: int) -> Values:
        """Sample, replace dead groups, update; see `train` for what is logged."""
        config = self.config
        self.policy.eval()
        first = self.sampler.sample(self.epochs.draw(config.requests_per_step), self.generator)
        live, resamples = first.take(~first.dead()), 0
        while len(live) < config.requests_per_step and resamples < config.max_resamples:
            resamples += 1
            rows_B = self.epochs.draw(config.requests_per_step - len(live))
            fresh = self.sampler.sample(rows_B, self.generator)
            live = live.joined(fresh.take(~fresh.dead()))
        rate = settings.learning_rate_at(
            step, steps=config.steps, peak=config.learning_rate, warmup_steps=config.warmup_steps, decay=config.decay
        )
        update = self._update(live, rate) if len(live) else _nothing("every group is dead")
        return {
            "reward": float(first.rewards_BG.mean()),
            "raw": float(first.raw_BG.mean()),
            "gain": float((first.raw_BG - self.incoming_raw_B[first.rows_B][:, None]).mean()),
            "identity_rate": float(first.identity_BG.mean()),
            "valid_share": float(first.valid_BG.mean()),
            "entropy": float(first.entropy_BGK.sum(-1).mean()),
            "dead_share": float(first.dead().mean()),
            "resamples": resamples,
            "trained_groups": len(live),
            "learning_rate": rate,
            **update,
        }

    def _update(self, live: Rollouts, rate: float) -> Values:
        """`inner_epochs` passes over the live groups; the log gets means over passes, and the largest ratio of all."""
        config = self.config
        chosen = self.requests.take(live.rows_B)
        observation = tensors(chosen)
        device = live.logprobs_BGK.device
        rankings_BGK = torch.from_numpy(live.rankings_BGK).to(device)
        sizes_B = torch.from_numpy(chosen.sizes_B).to(device)
        advantages_BG = torch.from_numpy(group_relative(live.rewards_BG, scale=config.advantage_scale)).to(device)
        placed_BGK = np.take_along_axis(chosen.relevance_BK[:, None], np.maximum(live.rankings_BGK, 0), axis=2)
        mask_BGK = reward_slots(
            torch.from_numpy(placed_BGK).to(device), sizes_B, truncate=config.truncate, k=config.truncate_k or 0
        )
        passes: list[tuple[float, float, float, float]] = []
        for _ in range(config.inner_epochs):
            logits_BKK = self.policy(observation)
            clipped = clipped_surrogate(
                plackett_luce.log_prob(logits_BKK, rankings_BGK, sizes_B),
                live.logprobs_BGK,
                advantages_BG,
                mask_BGK,
                epsilon_low=config.epsilon_low,
                epsilon_high=config.epsilon_high,
            )
            if clipped.slots == 0:
                return _nothing("truncation left no slot")
            loss = clipped.loss
            if config.entropy_bonus:
                loss = loss - config.entropy_bonus * _entropy_a_slot(logits_BKK, rankings_BGK, sizes_B)
            norm = apply_gradients(self.policy, self.optimizer, loss, rate=rate, max_norm=config.max_grad_norm)
            if norm is None:
                return _nothing("the gradient is not finite")
            passes.append((float(loss.detach()), norm, clipped.clip_fraction, clipped.ratio_max))
        loss_mean, norm_mean, clip_mean, _ = np.mean(passes, axis=0).tolist()
        return {
            "loss": loss_mean,
            "grad_norm": norm_mean,
            "clip_fraction": clip_mean,
            "ratio_max": max(ratio for *_, ratio in passes),
            "skipped": None,
        }


def _entropy_a_slot(logits_BKK: Tensor, rankings_BGK: Tensor, sizes_B: Tensor) -> Tensor:
    """Entropy of the law over rankings, by slot: exact where affordable, else along the sampled paths."""
    if logits_BKK.shape[1] <= MOST_CANDIDATES:
        return plackett_luce.entropy(logits_BKK, sizes_B).sum() / sizes_B.sum()
    return plackett_luce.path_entropy(logits_BKK, rankings_BGK, sizes_B).mean(1).sum() / sizes_B.sum()


def _nothing(reason: str) -> Values:
    return {"loss": None, "grad_norm": None, "clip_fraction": None, "ratio_max": None, "skipped": reason}
