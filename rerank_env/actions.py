"""How an action is read: whatever an agent hands over becomes rankings and verdicts, and nothing is ever refused.

May import numpy and `rerank_env.rewards`. Suffixes: `_B` environments, `_K` candidate places.

Only a wrong shape raises (`InputError`), since then it is not clear which environment was meant. Everything else has a
verdict: a number that is not whole (NaN, 1.5, True, None, "3") makes the answer MALFORMED, a whole number outside
0..size-1 UNKNOWN, a repetition DUPLICATE. Entries beyond a request's size are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray, VerdictArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import Ties, Verdict, from_scores, verdicts
from rerank_env.rewards.scoring import ReadAnswers, Scorer
from rerank_env.rewards.slates import Slates

_OUT_OF_RANGE = -2
"""Stands for a whole number that int64 cannot hold: no candidate has it, and it is not the padding."""

_HUGE = 1e300


def read_rankings(actions: object, sizes_B: IntArray, width: int) -> tuple[IntArray, VerdictArray]:
    """Rankings [B, K] as given, with a verdict each; raises `InputError` for another shape."""
    values_BK, whole_BK = whole_numbers(shaped(actions, (len(sizes_B), width), "a ranking names one candidate a place"))
    verdicts_B = verdicts(values_BK, sizes_B)
    if whole_BK is not None:
        broken_B = (~whole_BK & (np.arange(width) < sizes_B[:, None])).any(axis=1)
        verdicts_B = np.where(broken_B, np.int8(Verdict.MALFORMED), verdicts_B)
    return values_BK, verdicts_B


def read_scores(
    actions: object,
    sizes_B: IntArray,
    width: int,
    *,
    ties: Ties,
    tiebreak_BK: npt.NDArray[np.uint64] | None,
) -> tuple[IntArray, VerdictArray]:
    """Candidates by score [B, K], higher first, equal scores by the rule `ties`, with a verdict each.

    Raises `InputError` for another shape.
    """
    scores_BK = real_numbers(shaped(actions, (len(sizes_B), width), "scores are one number a candidate"))
    return from_scores(scores_BK, sizes_B, ties=ties, tiebreak_BK=tiebreak_BK)


def read_picks(actions: object, open_BK: BoolArray, sizes_B: IntArray) -> tuple[IntArray, VerdictArray]:
    """One candidate each [B], with a verdict each.

    `open_BK` says which candidates may still be picked. Raises `InputError` for another shape than [B].
    """
    picks_B, whole_B = whole_numbers(shaped(actions, sizes_B.shape, "a pick is one candidate number"))
    known_B = (picks_B >= 0) & (picks_B < sizes_B)
    safe_B = np.where(known_B, picks_B, 0)
    free_B = open_BK[np.arange(len(sizes_B)), safe_B]
    verdicts_B = np.where(known_B, np.where(free_B, Verdict.OK, Verdict.DUPLICATE), Verdict.UNKNOWN).astype(np.int8)
    if whole_B is not None:
        verdicts_B[~whole_B] = Verdict.MALFORMED
    return safe_B, verdicts_B


def read_texts(actions: object, slates: Slates, scorer: Scorer) -> ReadAnswers:
    """Completions [B] as the scorer reads them; what is not a string at all is MALFORMED.

    Raises `InputError` where there is not one completion for each environment.
    """
    if isinstance(actions, str | bytes) or not isinstance(actions, Sequence | np.ndarray):
        raise InputError(f"the actions are one {type(actions).__name__}; give a list of {len(slates)} texts")
    if len(actions) != len(slates):
        raise InputError(f"there are {len(actions)} texts for {len(slates)} environments; give one text each")
    is_text_B = np.array([isinstance(text, str | bytes) for text in actions], dtype=np.bool_)
    texts = [text if is_text else "" for text, is_text in zip(actions, is_text_B, strict=True)]
    read = scorer.read(texts, slates)
    return replace(read, verdicts_B=np.where(is_text_B, read.verdicts_B, np.int8(Verdict.MALFORMED)))


def shaped(actions: object, shape: tuple[int, ...], meaning: str) -> npt.NDArray[Any]:
    """The actions as an array of that shape and whatever dtype; `InputError` for any other shape."""
    try:
        array = np.asarray(actions)
    except (OverflowError, TypeError, ValueError):  # entries of no common type, or rows of different lengths
        try:
            array = np.asarray(actions, dtype=object)
        except ValueError as cause:
            raise InputError(f"the action has parts of different lengths; {meaning}") from cause
    if array.shape == shape:
        return array
    if array.shape[:1] == shape[:1]:
        raise InputError(f"the action has shape {array.shape[1:]} but shape {shape[1:]} was expected; {meaning}")
    raise InputError(
        f"the actions have shape {array.shape} but {shape[0]} environments need shape {shape}; give one action each"
    )


def whole_numbers(array: npt.NDArray[Any]) -> tuple[IntArray, BoolArray | None]:
    """The whole numbers in an array of any dtype as int64, and where they are; None where all entries are whole."""
    if array.dtype == np.int64:
        return array, None
    if array.dtype.kind == "i":
        return array.astype(np.int64), None
    if array.dtype.kind == "u":  # beyond 2**63 - 1, a cast would wrap round
        return np.where(array > np.iinfo(np.int64).max, _OUT_OF_RANGE, array.astype(np.int64)), None
    numbers = real_numbers(array)
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(numbers) & (np.floor(numbers) == numbers)
    held = np.abs(np.where(whole, numbers, 0.0)) < 2.0**62
    values = np.where(whole & held, numbers, _OUT_OF_RANGE).astype(np.int64)
    return values, whole


def real_numbers(array: npt.NDArray[Any]) -> FloatArray:
    """The real numbers in an array of any dtype as float64; NaN for what is not a number (a truth value included)."""
    kind = array.dtype.kind
    if kind in "iu":
        return array.astype(np.float64)
    if kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(np.float64)
    numbers = np.full(array.shape, np.nan)
    if kind == "O":
        for index, value in np.ndenumerate(array):
            numbers[index] = _real(value)
    return numbers


def _real(value: object) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return np.nan
    try:
        return float(value)
    except OverflowError:  # a whole number too large for a float is a whole number all the same
        return _HUGE if value > 0 else -_HUGE
