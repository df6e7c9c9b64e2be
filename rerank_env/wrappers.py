"""Wrappers that add what the catalogue knows about items to the observation.

May import numpy, gymnasium and the modules below the environment. Suffixes as in `rerank_env.data.requests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space

from rerank_env.data.catalog import Catalog
from rerank_env.rewards.arrays import Float32Array
from rerank_env.rewards.errors import InputError
from rerank_env.spaces import feature_space

Observation = dict[str, Any]

if TYPE_CHECKING:
    _VectorWrapper = gym.vector.VectorWrapper[Observation, Any, Observation, Any, npt.NDArray[Any]]
else:  # the oldest supported Gymnasium has no type parameters here
    _VectorWrapper = gym.vector.VectorWrapper

FEATURES: Mapping[str, str] = {"candidates": "candidate_features", "history": "history_features"}
"""Which key of item numbers gets its features under which key."""


class ItemFeatures(gym.ObservationWrapper[Observation, Any, Observation], RecordConstructorArgs):
    """Adds `candidate_features` float32 [K, F] and `history_features` float32 [H, F], the catalogue's rows.

    Rows of padding are 0; `env.unwrapped.catalog.feature_names` names the columns. Raises `InputError` for an
    environment without a catalogue. For the vector form see `VectorItemFeatures`.
    """

    def __init__(self, env: gym.Env[Observation, Any]) -> None:
        """Wrap an environment of Rerank-v0, wrapped or not."""
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self._features_IF = padded_features(env.unwrapped)
        self.observation_space = with_features(env.observation_space, self._features_IF)

    def observation(self, observation: Observation) -> Observation:
        """The observation with the two keys added."""
        return looked_up(observation, self._features_IF)


class VectorItemFeatures(_VectorWrapper):
    """`ItemFeatures` for the vector form: the two keys [n, K, F] and [n, H, F], in `final_obs` as well.

    Not a `VectorObservationWrapper`, because Gymnasium allows those with next-step autoreset only and they leave
    `final_obs` as it was.
    """

    def __init__(self, env: gym.vector.VectorEnv[Observation, Any, npt.NDArray[Any]]) -> None:
        """Wrap the vector form of Rerank-v0, wrapped or not."""
        super().__init__(env)
        self._features_IF = padded_features(env.unwrapped)
        self.single_observation_space = with_features(env.single_observation_space, self._features_IF)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """As the environment's, with the two keys added."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return looked_up(observations, self._features_IF), infos

    def step(
        self, actions: Any
    ) -> tuple[Observation, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """As the environment's, with the two keys added to the observations, final ones included."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            finals = infos["final_obs"]
            for index in np.flatnonzero(infos["_final_obs"]):
                finals[index] = looked_up(finals[index], self._features_IF)
        return looked_up(observations, self._features_IF), rewards, terminated, truncated, infos


def padded_features(env: object) -> Float32Array:
    """The catalogue's features [I + 1, F] with a last row of zeros, which is where item -1, the padding, points."""
    catalog = getattr(env, "catalog", None)
    if not isinstance(catalog, Catalog):
        raise InputError(f"{type(env).__name__} has no catalogue of items; wrap an environment of Rerank-v0")
    return np.concatenate([catalog.features_IF, np.zeros((1, catalog.features_IF.shape[1]), np.float32)])


def looked_up(observation: Observation, features_IF: Float32Array) -> Observation:
    """The observation, batched or not, with the features of its items added under `FEATURES`."""
    return observation | {name: features_IF[observation[key]] for key, name in FEATURES.items()}


def with_features(space: spaces.Space[Any], features_IF: Float32Array) -> spaces.Dict:
    """The observation space with the two keys added."""
    if not isinstance(space, spaces.Dict) or not FEATURES.keys() <= space.spaces.keys():
        raise InputError(f"the observation space is {space} but one with {' and '.join(FEATURES)} was expected")
    places = {name: int(np.prod(space[key].shape or ())) for key, name in FEATURES.items()}
    added = {name: feature_space(features_IF, count) for name, count in places.items()}
    return spaces.Dict({**space.spaces, **added})
