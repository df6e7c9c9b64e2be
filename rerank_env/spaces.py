"""What the environment shows and what it accepts: observation and action spaces of every action kind.

May import numpy, gymnasium and `rerank_env.data`, `rerank_env.prompts`. All Box bounds are finite and come from the
data; padding (-1 for items, 0 for numbers) lies inside them. Spaces carry their own random state, so every
environment gets fresh ones.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from gymnasium import spaces

from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.arrays import PAD, Float32Array

ACTIONS: tuple[str, ...] = ("pick", "ranking", "scores", "text")
"""The action kinds: one candidate a step, a whole permutation, one score a candidate, a completion."""

ANSWER_CHARS = 4_096
"""The longest completion that `action_space.sample()` draws; a longer one is still read, up to the parser's limit."""

ANSWER_CHARSET = "".join(sorted(set(string.printable) - set("\t\r\x0b\x0c")))
"""The characters of a sampled completion: printable ASCII, space and line break; any other is still read."""


def observation_space(requests: Requests, action: str, prompts: PromptWriter) -> spaces.Dict:
    """The space of one observation, with K and H the widths of `requests` and I the size of its catalogue.

    `candidates` Box int64 [K] and `history` Box int64 [H]: item numbers, tail -1. `scores` Box float32 [K] and
    `feedback` Box float32 [H]: tail 0. For "pick", `action_mask` Box int8 [K] and `picked` Box int64 [K]. For "text",
    `prompt` Text, as `prompts` writes it.
    """
    width = requests.candidates_BK.shape[1]
    history = requests.history_BH.shape[1]
    last_item = len(requests.catalog) - 1
    parts: dict[str, spaces.Space[Any]] = {
        "candidates": spaces.Box(PAD, last_item, (width,), np.int64),
        "scores": _float_box(requests.scores_BK, (width,)),
        "history": spaces.Box(PAD, last_item, (history,), np.int64),
        "feedback": _float_box(requests.feedback_BH, (history,)),
    }
    if action == "pick":
        parts["action_mask"] = spaces.Box(0, 1, (width,), np.int8)
        parts["picked"] = spaces.Box(PAD, width - 1, (width,), np.int64)
    elif action == "text":
        parts["prompt"] = spaces.Text(prompts.longest_chars(requests), charset=prompts.characters(requests))
    return spaces.Dict(parts)


def action_space(width: int, action: str) -> spaces.Space[Any]:
    """The space of one action over `width` = K candidate places.

    "ranking" MultiDiscrete [K] of K values (it can express repetitions: they are scored as invalid); "scores" Box
    float32 [K] in -1..1 (numbers outside are accepted); "pick" Discrete of K; "text" Text.
    """
    if action == "ranking":
        return spaces.MultiDiscrete(np.full(width, width, dtype=np.int64))
    if action == "scores":
        return spaces.Box(-1.0, 1.0, (width,), np.float32)
    if action == "pick":
        return spaces.Discrete(width)
    return spaces.Text(ANSWER_CHARS, min_length=0, charset=ANSWER_CHARSET)


def feature_space(features_IF: Float32Array, places: int) -> spaces.Box:
    """The space of item features at `places` places, float32 [places, F], 0 where padded."""
    low_F, high_F = bounds(features_IF)
    return spaces.Box(np.tile(low_F, (places, 1)), np.tile(high_F, (places, 1)), dtype=np.float32)


def bounds(values: Float32Array) -> tuple[Float32Array, Float32Array]:
    """The least and greatest value over the first axis, widened to hold 0 (padding) and to differ."""
    low = values.min(axis=0, initial=0.0)
    high = values.max(axis=0, initial=0.0)
    return low, np.where(high > low, high, low + np.float32(1.0))


def _float_box(values: Float32Array, shape: tuple[int, ...]) -> spaces.Box:
    low, high = bounds(values.reshape(-1))
    return spaces.Box(np.full(shape, low, np.float32), np.full(shape, high, np.float32), dtype=np.float32)
