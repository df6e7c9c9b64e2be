"""DAPO for re-rankers whose answers have an exact likelihood. Run it with `rerank train dapo`, or call `train`.

May import torch, numpy, `rerank_env` and `rerank_env.agents`. Departs from its namesakes, DAPO (2503.14476) and the RL
stage of GR2 (2602.07774), as follows; everything else is theirs: group-relative advantages, decoupled clip, one
normaliser over all tokens of the batch, dynamic sampling, no KL to a reference.

* A token is what the policy says it is (`agents/network.py`): for `ListwisePolicy` the slot of a generalised
  Plackett-Luce law, so that every answer is valid; for `TokenPolicy` a word, so that answers may be invalid. Those
  stay in their group with the reward's declared score. No answer can be too long, so there is no overlong penalty.
* The policy reads a request once for its whole group; both papers decode every answer by itself.
* Dynamic sampling is bounded: groups whose RAW metric values are all exactly equal are replaced by freshly drawn
  requests, `max_resamples` times at most, and the update is made with the groups at hand. DAPO samples until the batch
  is full, and both filter on the reward, which a shaped reward defeats (a format bonus keeps dead groups alive).
* No live group at all is a logged event (`skipped`), not an update; so is a gradient that is not finite.
* Dropout is off throughout: the law that samples must be the law that is trained.
* The learning rate is that of a small network (5e-4, cosine), not of a language model (1e-6).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rerank_env.agents.network import NetworkPolicy
from rerank_env.agents.observations import tensors
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import PAD
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.training.advantages import SCALES, group_relative
from rerank_env.training.learner import Learner, StepLog, TrainResult, Values, apply_gradients
from rerank_env.training.loop import run
from rerank_env.training.losses import clipped_surrogate
from rerank_env.training.rollouts import Rollouts, Sampler
from rerank_env.training.settings import TrainConfig

PROBED_REQUESTS = 256
"""How many requests tell one reward from another when a run is resumed."""


@dataclass(frozen=True, kw_only=True)
class DapoConfig(TrainConfig):
    """How to train; the defaults are DAPO's where it names one, with G = 16 for an exact likelihood.

    `group_size` answers to each request, `inner_epochs` passes over them, at most `max_resamples` draws to replace dead
    groups. `epsilon_low`, `epsilon_high`: the clip. `advantage_scale`: "std" or "none". Everything else is as in
    `TrainConfig`, which see for what `metric` decides.
    """

    group_size: int = 16
    inner_epochs: int = 1
    epsilon_low: float = 0.2
    epsilon_high: float = 0.28
    max_resamples: int = 3
    advantage_scale: str = "std"

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._check_whole("group_size", least=2)
        self._check_whole("inner_epochs", least=1)
        self._check_whole("max_resamples", least=0)
        self._check_number("epsilon_low", "epsilon_high")
        one_of("advantage scale", self.advantage_scale, SCALES)
        if self.epsilon_low >= 1.0:
            raise InputError(f"epsilon_low is {self.epsilon_low}; a ratio cannot fall below 0, so give less than 1")


def train(
    policy: NetworkPolicy,
    requests: Requests,
    reward: str | Reward,
    *,
    config: DapoConfig,
    directory: Path | str,
    validation: Requests | None = None,
    resume: bool = True,
    on_step: Callable[[StepLog], None] | None = None,
) -> TrainResult:
    """Train `policy` in place on `requests` for `reward`; its log and checkpoints go to `directory`.

    The result's policy has the weights of the best `validation` (mean of `config.metric` under greedy ranking),
    the untrained ones included, or the last weights without validation. An unfinished run in `directory` goes on
    where it stopped if `resume`, and ends as if it had never stopped; its configuration and data must be the same.

    A line of metrics.jsonl, and `on_step`, hold for the first draw of each step, before dead groups are replaced:
    `reward`, `raw` (`config.metric`), `gain` (raw minus that of the incoming order), `identity_rate`,
    `valid_share`, `entropy` (nats an answer, along the sampled paths), `dead_share`; then `resamples` and, of the
    update, `trained_groups`, `learning_rate`, `loss` (about 0 in the first pass by construction, where every ratio is 1
    and advantages sum to zero: watch `gain`), `grad_norm`, `clip_fraction`, `ratio_max`, `passes` (made, of
    `inner_epochs`) and `skipped` (null, or why the others were not); `validation` (null between validations) and
    `seconds`.

    Raises `Interrupted` on Ctrl-C after saving, `CheckpointError` if the disk refuses, `InputError` on a resume with
    another configuration or other data.
    """
    learner = _Dapo(policy, requests, parse_reward(reward), config)
    return run(learner, directory=Path(directory), validation=validation, resume=resume, on_step=on_step)


class _Dapo(Learner):
    algorithm = "dapo"
    config: DapoConfig

    def __init__(self, policy: NetworkPolicy, requests: Requests, reward: Reward, config: DapoConfig) -> None:
        super().__init__(policy, requests, config)
        self.reward = reward
        incoming_BK = identity_rankings(requests.sizes_B, requests.candidates_BK.shape[1])
        self.incoming_raw_B = parse_reward(config.metric)(incoming_BK, requests.slates)
        self.sampler = Sampler(
            policy,
            requests,
            reward,
            metric=config.metric,
            requests_per_step=config.requests_per_step,
            group_size=config.group_size,
        )

    def identity(self) -> dict[str, str]:
        """The reward by its text and by what it pays: two functions of a user's may bear one name."""
        return {"reward": str(self.reward), "reward_scores": self._reward_scores()}

    def _reward_scores(self) -> str:
        """A short hash of the reward's scores of the incoming order and of its reverse on the first requests."""
        probe = self.requests.take(np.arange(min(PROBED_REQUESTS, len(self.requests))))
        incoming_BK = identity_rankings(probe.sizes_B, probe.candidates_BK.shape[1])
        reverse_BK = np.where(incoming_BK == PAD, PAD, probe.sizes_B[:, None] - 1 - incoming_BK)
        digest = hashlib.sha256(np.float64(self.reward.invalid).tobytes())
        for rankings_BK in (incoming_BK, reverse_BK):
            digest.update(self.reward(rankings_BK, probe.slates).tobytes())
        return digest.hexdigest()[:16]

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
        rate = config.learning_rate_at(step)
        update = self._update(live, rate) if len(live) else _nothing("every group is dead")
        return {
            "reward": float(first.rewards_BG.mean()),
            "raw": float(first.raw_BG.mean()),
            "gain": float((first.raw_BG - self.incoming_raw_B[first.rows_B][:, None]).mean()),
            "identity_rate": float(first.identity_BG.mean()),
            "valid_share": float(first.valid_BG.mean()),
            "entropy": float(first.entropy_BGT.sum(-1).mean()),
            "dead_share": float(first.dead().mean()),
            "resamples": resamples,
            "trained_groups": len(live),
            "learning_rate": rate,
            **update,
        }

    def _update(self, live: Rollouts, rate: float) -> Values:
        """`inner_epochs` passes over the live groups; the log gets means over those made, and the largest ratio.

        A pass whose gradient is not finite is the last: it changed nothing, and neither would those after it.
        """
        config = self.config
        observation = tensors(self.requests.take(live.rows_B))
        advantages_BG = torch.from_numpy(group_relative(live.rewards_BG, scale=config.advantage_scale))
        passes: list[tuple[float, float, float, float]] = []
        skipped: str | None = None
        for _ in range(config.inner_epochs):
            clipped = clipped_surrogate(
                self.policy.log_prob(observation, live.tokens_BGT),
                live.logprobs_BGT,
                advantages_BG.to(live.logprobs_BGT.device),
                live.tokens_BGT != PAD,
                epsilon_low=config.epsilon_low,
                epsilon_high=config.epsilon_high,
            )
            norm = apply_gradients(self.policy, self.optimizer, clipped.loss, rate=rate, max_norm=config.max_grad_norm)
            if norm is None:
                skipped = "the gradient is not finite"
                break
            passes.append((float(clipped.loss.detach()), norm, clipped.clip_fraction, clipped.ratio_max))
        if not passes:
            return _nothing(skipped)
        loss_mean, norm_mean, clip_mean, _ = np.mean(passes, axis=0).tolist()
        return {
            "loss": loss_mean,
            "grad_norm": norm_mean,
            "clip_fraction": clip_mean,
            "ratio_max": max(ratio for *_, ratio in passes),
            "passes": len(passes),
            "skipped": skipped,
        }


def _nothing(reason: str | None) -> Values:
    return dict.fromkeys(("loss", "grad_norm", "clip_fraction", "ratio_max")) | {"passes": 0, "skipped": reason}
