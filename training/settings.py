"""Checks shared by the configurations of the trainers, and the learning rate they both follow.

May import the standard library and `rerank_env.rewards`.
"""

from __future__ import annotations

import math

from rerank_env.rewards.errors import InputError, UnknownNameError

DECAYS = ("cosine", "linear", "none")


def at_least(smallest: int, **settings: int | None) -> None:
    """Raise `InputError`, naming the setting, unless each is a whole number >= `smallest`; None is left alone."""
    for name, value in settings.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < smallest):
            raise InputError(f"{name} is {value!r}; give a whole number of at least {smallest}")


def above_zero(**settings: float) -> None:
    """Raise `InputError`, naming the setting, unless each is a finite number > 0."""
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value!r}; give a number above 0")


def not_negative(**settings: float) -> None:
    """Raise `InputError`, naming the setting, unless each is a finite number >= 0."""
    for name, value in settings.items():
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} is {value!r}; give a number of at least 0")


def one_of(kind: str, given: str, known: tuple[str, ...]) -> None:
    """Raise `UnknownNameError`, suggesting the nearest, unless `given` is known."""
    if given not in known:
        raise UnknownNameError.of(kind, given, known)


def learning_rate_at(step: int, *, steps: int, peak: float, warmup_steps: int, decay: str) -> float:
    """The learning rate of update number `step`, counted from 1: a linear warm-up to `peak`, then the decay to 0.

    The last of `steps` updates still learns: both decays reach 0 one step after it.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    if decay == "none":
        return peak
    done = (step - warmup_steps - 1) / max(steps - warmup_steps, 1)
    return peak * (1.0 - done) if decay == "linear" else peak * 0.5 * (1.0 + math.cos(math.pi * done))
