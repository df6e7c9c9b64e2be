"""`Rerank-v0`, many environments at once: the native vector form, with same-step autoreset.

May import numpy, gymnasium and the modules below the environment. It hands out what Gymnasium's `SyncVectorEnv` in
same-step mode hands out over as many `RerankEnv`, bit for bit, without a Python loop over environments but for the
rows of `final_obs`, which by Gymnasium's convention are objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rerank_env.data.catalog import Catalog
from rerank_env.data.requests import Requests
from rerank_env.episodes import Columns, Episodes
from rerank_env.prompts import DEFAULT, Budget, IdTable, Template
from rerank_env.rendering import RENDER_HINT, checked_render_mode, render_request
from rerank_env.rewards import Reward
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.spaces import action_space, observation_space
from rerank_env.streams import drawn_key, requested_rows
from rerank_env.task import METADATA, Task

BASE_KEYS = ("candidates", "feedback", "history", "scores")
"""The keys of every observation, whatever the action kind."""

Batch = dict[str, Any]


class RerankVectorEnv(VectorEnv[Batch, Any, npt.NDArray[Any]]):
    """`num_envs` environments of `Rerank-v0` stepped together; spaces, rewards, info and arguments as in `RerankEnv`.

    Made by `gym.make_vec("rerank_env:Rerank-v0", num_envs=n)`. Observations, actions, rewards and infos have a leading
    axis of environments; "text" takes a sequence of n completions. An environment whose episode ends is reset within
    the step: the observation is the next request's, the finished one is in `infos["final_obs"]` and
    `infos["final_info"]`. `reset(seed=s)` seeds environment i with s + i, a list seeds each;
    `reset(options={"request": rows})` takes one row or n rows. Environment i behaves as a
    single environment seeded alike, whatever the others do.
    """

    metadata: dict[str, Any] = {**METADATA, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        data: str | Requests = "synthetic",
        split: str = "train",
        kind: str | None = None,
        *,
        num_envs: int = 1,
        reward: str | Reward = "gain",
        action: str = "ranking",
        ties: str = "random",
        text_format: str = "list",
        metrics: Sequence[str | Reward] = ("ndcg@10",),
        data_options: Mapping[str, Any] | None = None,
        prompt: str | Template = DEFAULT,
        semantic_ids: IdTable | None = None,
        prompt_budget: int | Budget | None = None,
        render_mode: str | None = None,
    ) -> None:
        """See `RerankEnv` for the arguments; `num_envs` must be at least 1, else `InputError`."""
        self.num_envs = whole("num_envs", num_envs, least=1)
        self.task = Task.of(
            data=data,
            split=split,
            kind=kind,
            reward=reward,
            action=action,
            ties=ties,
            text_format=text_format,
            metrics=metrics,
            data_options=data_options,
            prompt=prompt,
            semantic_ids=semantic_ids,
            prompt_budget=prompt_budget,
        )
        self.metadata = self.metadata | self.task.metadata
        self.render_mode = checked_render_mode(render_mode)
        self.single_observation_space = observation_space(self.task.requests, action, self.task.prompts)
        self.single_action_space = action_space(self.task.width, action)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._episodes = Episodes(self.task, self.num_envs)
        self._seeded_B: BoolArray = np.zeros(self.num_envs, dtype=np.bool_)

    @property
    def requests(self) -> Requests:
        """The requests that episodes are drawn from; `infos["request"]` are rows of them."""
        return self.task.requests

    @property
    def catalog(self) -> Catalog:
        """The items that observations point into."""
        return self.task.requests.catalog

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Batch, Batch]:
        """Start the next episode everywhere, or the first of the seeds; see the class."""
        rows = requested_rows(options, len(self.requests), shapes=((), (self.num_envs,)))
        self._reseed(seed)
        self._episodes.begin(rows_E=None if rows is None else np.broadcast_to(rows, self.num_envs))
        return self._episodes.observe(), masked(self._episodes.info(), self._everywhere())

    def step(self, actions: Any) -> tuple[Batch, FloatArray, BoolArray, BoolArray, Batch]:
        """Answer everywhere, and reset where an episode ended.

        Raises `InputError` for actions of the wrong shape and `EpisodeError` before the first `reset`.
        """
        step = self._episodes.step(actions)
        ended_B = np.zeros(self.num_envs, dtype=np.bool_)
        ended_B[step.ended_E] = True
        infos: Batch = {}
        if len(step.ended_E):
            infos["final_obs"], infos["_final_obs"] = self._final_observations(step.ended_E), ended_B.copy()
            infos["final_info"], infos["_final_info"] = scattered(step.info_E, step.ended_E, ended_B), ended_B.copy()
            self._episodes.begin(step.ended_E)
        infos.update(masked(self._episodes.info(), self._everywhere()))
        return self._episodes.observe(), step.reward_B, ended_B, np.zeros_like(ended_B), infos

    def render(self) -> tuple[str, ...] | None:
        """Every environment's current request as text; None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn(RENDER_HINT)
            return None
        state = self._episodes
        picked = list(state.picked_BK) if self.task.action == "pick" else [None] * self.num_envs
        return tuple(
            render_request(self.requests, row, picked=chosen, earned=float(paid))
            for row, chosen, paid in zip(state.rows_B.tolist(), picked, state.paid_B, strict=True)
        )

    def _reseed(self, seed: int | Sequence[int | None] | None) -> None:
        """Draw new keys: for seeded environments from their seed, for those never seeded from this one's generator."""
        seeds: list[int | None] = [None] * self.num_envs
        if isinstance(seed, Sequence | np.ndarray):
            if len(seed) != self.num_envs:
                raise InputError(f"there are {len(seed)} seeds for {self.num_envs} environments; give one each")
            seeds = [None if each is None else whole("a seed", each, least=0) for each in seed]
        elif seed is not None:
            super().reset(seed=seed)
            seeds = [int(seed) + i for i in range(self.num_envs)]
        for i, each in enumerate(seeds):
            if each is not None:
                self._episodes.reseed([i], [drawn_key(seeding.np_random(each)[0])])
            elif not self._seeded_B[i]:
                self._episodes.reseed([i], [drawn_key(self.np_random)])
        self._seeded_B[:] = True

    def _final_observations(self, ended_E: IntArray) -> npt.NDArray[np.object_]:
        """One dictionary of fresh rows for each ended environment, None elsewhere, object [B]."""
        columns = self._episodes.observe(ended_E)
        shared = zip(*(list(columns.pop(name)) for name in BASE_KEYS), strict=True)
        # The hot loop of a step: a display of known keys is three times as fast as dict(zip(...)).
        rows = [
            {"candidates": candidates, "feedback": feedback, "history": history, "scores": scores}
            for candidates, feedback, history, scores in shared
        ]
        for name, column in columns.items():
            for row, value in zip(rows, column, strict=True):
                row[name] = value
        if len(rows) == self.num_envs:
            return np.fromiter(rows, dtype=object, count=self.num_envs)
        finals = np.full(self.num_envs, None, dtype=object)
        finals[ended_E] = rows
        return finals

    def _everywhere(self) -> BoolArray:
        return np.ones(self.num_envs, dtype=np.bool_)


def masked(columns: Columns, present_B: BoolArray) -> Batch:
    """Columns with Gymnasium's mask `_name` beside every `name`, saying which environments the values are of."""
    infos: Batch = {}
    for name, column in columns.items():
        infos[name] = masked(column, present_B) if isinstance(column, dict) else column
        infos[f"_{name}"] = present_B.copy()
    return infos


def scattered(columns_E: Columns, where_E: IntArray, present_B: BoolArray) -> Batch:
    """Columns of the environments `where_E` spread over all, 0 elsewhere, with masks as in `masked`."""
    everywhere = len(where_E) == len(present_B)
    return masked(columns_E if everywhere else _spread(columns_E, where_E, len(present_B)), present_B)


def _spread(columns_E: Columns, where_E: IntArray, n: int) -> Columns:
    spread: Columns = {}
    for name, column in columns_E.items():
        if isinstance(column, dict):
            spread[name] = _spread(column, where_E, n)
        else:
            values = np.zeros((n, *column.shape[1:]), dtype=column.dtype)
            values[where_E] = column
            spread[name] = values
    return spread
