"""The typed errors of the whole library, each with a standard-library parent.

Every message is one sentence that says what was given, what was expected and what to do. Layers above raise these
same classes, so that `except RerankError` catches everything the library raises on purpose.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class RerankError(Exception):
    """Parent of every error the library raises on purpose."""


class InputError(RerankError, ValueError):
    """An argument cannot be used: wrong shape, range, type or spelling."""


class SlateError(InputError):
    """Relevance or sizes do not describe re-ranking requests."""


class RankingError(InputError):
    """An array cannot be read as rankings at all, or holds an illegal one where only legal ones have an answer.

    Rewards never raise it for an illegal ranking: there it is a verdict, with a declared score.
    """


class UnknownNameError(InputError):
    """A reward, data set, split, action kind or policy that does not exist; the message suggests the nearest name."""

    @classmethod
    def of(cls, kind: str, given: object, known: Iterable[str]) -> UnknownNameError:
        """Build the sentence: what was given, the nearest known name if one is near, and all known names."""
        names = sorted(known)
        near = difflib.get_close_matches(str(given), names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return cls(f"unknown {kind} {given!r}; {hint}known: {', '.join(names)}")


class RewardError(RerankError, RuntimeError):
    """A reward function raised or returned something other than one finite number a row.

    `name` is the reward's and `row` the first row at fault, each None where it is not known.
    """

    def __init__(self, message: str, *, name: str | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.row = row


class UnsoundRewardError(RerankError, AssertionError):
    """A reward breaks what it promises; `counterexamples` has the name of each broken promise with one in words.

    The message has the first of them in full.
    """

    def __init__(self, reward: str, counterexamples: Mapping[str, str]) -> None:
        names = list(counterexamples)
        also = f", and also {', '.join(names[1:])}" if names[1:] else ""
        super().__init__(f"{reward} is unsound, it breaks {names[0]}{also}\n{names[0]}: {counterexamples[names[0]]}")
        self.counterexamples = dict(counterexamples)


class DataError(InputError):
    """A data file is torn, malformed or inconsistent; the message names file and line."""


class FetchError(RerankError, OSError):
    """Data is neither cached nor reachable."""


class CheckpointError(RerankError, OSError):
    """A checkpoint could not be written or read; the previous one is untouched."""


class DivergedError(RerankError, ArithmeticError):
    """Training met a loss or gradient that is not finite, before it reached the weights; checkpoints are untouched."""


class MissingExtraError(RerankError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class ServerError(RerankError, ConnectionError):
    """A server that answers for a model is dead, refuses, or says what is no answer; what it said before is kept."""
