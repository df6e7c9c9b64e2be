"""Groups of answers sampled from a policy and scored by the real environment.

May import torch, numpy, gymnasium, `rerank_env` and `rerank_env.agents`. Nothing is scored behind the environment's
back: observations, rewards and the raw metric come from `Rerank-v0` in its vector form, one environment an answer,
all answers to one request side by side. An answer that is no ranking goes there as it is and is paid the reward's
declared score of invalid answers. The policy looks at each request once, whatever the size of the group. Suffixes:
`_B` requests, `_G` answers to one request, `_K` places, `_T` tokens of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerank_env.agents.network import NetworkPolicy
from rerank_env.agents.observations import tensors
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.training.advantages import dead_groups


@dataclass(frozen=True, eq=False)
class Rollouts:
    """G answers to each of B requests.

    `rows_B`: which requests. `rankings_BGK` what the environment was told; `tokens_BGT` what the policy wrote, tails
    -1, `logprobs_BGT` each token's log-probability under the policy that sampled, `entropy_BGT` the entropy of its
    choice; tails 0. `rewards_BG` what the environment paid, `raw_BG` the named metric, `valid_BG`, `identity_BG` its
    flags.
    """

    rows_B: IntArray
    rankings_BGK: IntArray
    tokens_BGT: Tensor
    logprobs_BGT: Tensor
    entropy_BGT: Tensor
    rewards_BG: FloatArray
    raw_BG: FloatArray
    valid_BG: BoolArray
    identity_BG: BoolArray

    def __len__(self) -> int:
        """How many groups."""
        return len(self.rows_B)

    def dead(self) -> BoolArray:
        """Which groups say nothing: all raw values exactly equal, [B]."""
        return dead_groups(self.raw_BG)

    def take(self, which_B: npt.ArrayLike) -> Rollouts:
        """The groups at `which_B` (integers or booleans)."""
        index = np.asarray(which_B)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def joined(self, other: Rollouts) -> Rollouts:
        """These groups, then the others."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return replace(self, **{name: _concatenated(*pair) for name, pair in pairs.items()})


class Sampler:
    """Samples `group_size` answers to each of up to `requests_per_step` requests; holds the environments open."""

    def __init__(
        self,
        policy: NetworkPolicy,
        requests: Requests,
        reward: str | Reward,
        *,
        metric: str,
        requests_per_step: int,
        group_size: int,
    ) -> None:
        """Make the environments; raises what `RerankVectorEnv` raises."""
        self.policy, self.group_size = policy, group_size
        self.metric = str(parse_reward(metric))
        self.envs = gym.make_vec(
            "rerank_env:Rerank-v0",
            num_envs=requests_per_step * group_size,
            vectorization_mode="vector_entry_point",
            data=requests,
            reward=reward,
            action="ranking",
            metrics=(self.metric,),
        )

    def sample(self, rows_B: IntArray, generator: torch.Generator) -> Rollouts:
        """Ask for `rows_B`, at least one and at most `requests_per_step`.

        With fewer rows than environments the rest are asked the same again and ignored.
        """
        groups, group = len(rows_B), self.group_size
        places = self.envs.num_envs // group
        seen, _ = self.envs.reset(options={"request": np.resize(rows_B, places).repeat(group)})
        observation = tensors({name: values[: groups * group : group] for name, values in seen.items()})
        samples = self.policy.sample(observation, group, generator=generator)
        answers_BGK = samples.rankings_BNK.cpu().numpy()
        width = answers_BGK.shape[-1]
        actions = np.resize(answers_BGK, (places, group, width)).reshape(-1, width)
        _, paid, _, _, infos = self.envs.step(actions)
        final = infos["final_info"]

        def grouped(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
            return values[: groups * group].reshape(groups, group)

        return Rollouts(
            rows_B=np.asarray(rows_B, dtype=np.int64),
            rankings_BGK=answers_BGK,
            tokens_BGT=samples.tokens_BNT,
            logprobs_BGT=samples.logprobs_BNT,
            entropy_BGT=samples.entropies_BNT,
            rewards_BG=grouped(np.asarray(paid)).astype(np.float64),
            raw_BG=grouped(final["metrics"][self.metric]).astype(np.float64),
            valid_BG=grouped(final["valid"]).astype(np.bool_),
            identity_BG=grouped(final["identity"]).astype(np.bool_),
        )

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def _concatenated(first: Any, second: Any) -> Any:
    return torch.cat([first, second]) if isinstance(first, Tensor) else np.concatenate([first, second])
