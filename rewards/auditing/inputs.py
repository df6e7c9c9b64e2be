"""What an audit is given, checked: each argument in one sentence that says what to do. May import numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.auditing.scene import Parser
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import short
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.slates import Slates


def checked_reward(reward: object) -> Reward:
    """A reward, given as such or by its text; of a plain function it says how to make one of it."""
    if callable(reward) and not isinstance(reward, Reward | type):
        name = getattr(reward, "__name__", "mine")
        name = name if name.isidentifier() else "mine"  # a lambda has none that a reward could have
        raise InputError(
            f"{short(reward)} is a plain function, which says nothing of its range; give "
            f'FunctionReward({name}, "{name}", low=0.0, high=1.0, invalid=-0.1) with its own numbers'
        )
    return parse_reward(reward)  # type: ignore[arg-type]


def checked_slates(slates: object) -> Slates:
    """Slates, at least one."""
    if not isinstance(slates, Slates):
        raise InputError(f"slates are of type {type(slates).__name__}; give Slates.of(rows), one row of relevance each")
    if not len(slates):
        raise InputError("there are no slates to audit on; give at least one request")
    return slates


def checked_users(users_B: npt.ArrayLike, rows: int) -> IntArray:
    """One whole number a request."""
    users = _array("users", users_B, "give one whole number a request")
    if users.shape != (rows,) or users.dtype.kind not in "iu":
        raise InputError(
            f"users have shape {users.shape} and dtype {users.dtype} for {rows} requests; give one whole number a "
            "request"
        )
    return users.astype(np.int64)


def checked_popularity(popularity_BK: npt.ArrayLike, slates: Slates) -> FloatArray:
    """One finite number a candidate, float64 [B, K], 0 where padded."""
    popularity = _array("popularity", popularity_BK, "give one number a candidate, padded like the slates")
    if popularity.shape != slates.relevance_BK.shape:
        raise InputError(
            f"popularity has shape {popularity.shape}, but the slates have shape {slates.relevance_BK.shape}; give one "
            "number a candidate, padded like the slates"
        )
    if popularity.dtype.kind not in "iuf":
        raise InputError(f"popularity has dtype {popularity.dtype}; give numbers")
    found: FloatArray = np.where(slates.mask_BK, popularity, 0).astype(np.float64)
    if not np.isfinite(found).all():
        row, column = np.argwhere(~np.isfinite(found))[0].tolist()
        raise InputError(
            f"popularity of candidate {column} of request {row} is {found[row, column]}; give a finite number, such as "
            "0 for one that was never seen"
        )
    return found


def checked_prompts(prompts: Sequence[str], rows: int) -> Sequence[str]:
    """One text a request."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence) or len(prompts) != rows:
        given = "one text" if isinstance(prompts, str) else f"of type {type(prompts).__name__}"
        given = f"{len(prompts)} texts" if isinstance(prompts, list | tuple) else given
        raise InputError(f"prompts are {given} for {rows} requests; give a list with one text a request")
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise InputError(f"the prompt of request {row} is {short(prompt)}; give a text, or no prompts at all")
    return prompts


def checked_parser(parse: Parser | None) -> Parser | None:
    """A function, or None for the strict parser."""
    if parse is not None and not callable(parse):
        raise InputError(f"the parser is {short(parse)}; give a function of (text, number of candidates), or None")
    return parse


def _array(what: str, values: npt.ArrayLike, remedy: str) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as cause:
        said = " ".join(str(cause).split())
        raise InputError(f"{what} cannot be read as an array ({said}); {remedy}") from cause
