"""What a property of a reward is tried on: the reward with its promises, and a request with the answers worth trying.

A case is a small batch. The first group in it, which is one answer where a reward does not compare answers, is the one
looked at, and most properties ask what its first member would earn for other answers, all else being kept. May import
numpy only. Suffixes: `_B` answers, `_N` answers to try, `_K` candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import Failure
from rerank_env.rewards.arrays import PAD, FloatArray, IntArray
from rerank_env.rewards.context import Context
from rerank_env.rewards.expression import number_text
from rerank_env.rewards.function import RANGE_SLACK, FunctionReward
from rerank_env.rewards.rankings import Verdict, identity_rankings
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.slates import Slates, ideal_rankings

LooksAt = Literal["gains", "incoming", "places"]

Worth = Callable[[Slates], npt.ArrayLike]
"""How good each candidate is, [B, K]."""

MOST_TO_PERMUTE = 4
"""Requests with no more candidates are tried with every answer there is."""

RANDOM_ANSWERS = 8
"""How many random answers stand for the rest where there are more candidates."""


class UndefinedError(Exception):
    """The reward gave no numbers; says what it did instead, and never leaves the package."""


@dataclass(frozen=True, eq=False)
class Case:
    """The answers `rankings_BK` to `slates`; `context.groups_B` says which belong together, the first group first."""

    slates: Slates
    rankings_BK: IntArray
    context: Context

    @cached_property
    def groups_B(self) -> IntArray:
        """The group of each answer."""
        assert self.context.groups_B is not None, "cases have groups"
        return self.context.groups_B

    @cached_property
    def group_size(self) -> int:
        """How many answers the first group has."""
        return int((self.groups_B == self.groups_B[0]).sum())

    @property
    def size(self) -> int:
        """How many candidates the first request has."""
        return int(self.slates.sizes_B[0])

    def take(self, rows_B: IntArray, groups_B: IntArray | None = None) -> Case:
        """These rows, in groups of other numbers if given."""
        context = self.context
        reasonings = context.reasonings
        taken = Context(
            step=context.step,
            groups_B=self.groups_B[rows_B] if groups_B is None else groups_B,
            reasonings=None if reasonings is None else tuple(reasonings[row] for row in rows_B.tolist()),
            lengths={unit: lengths_B[rows_B] for unit, lengths_B in context.lengths.items()},
        )
        return Case(self.slates.take(rows_B), self.rankings_BK[rows_B], taken)

    def copy(self) -> Case:
        """The same with arrays of its own, which a reward may spoil."""
        return self.take(np.arange(len(self.slates)))

    def alone(self) -> Case:
        """The first group by itself, at its own width."""
        own = self.take(np.arange(self.group_size))
        narrow = {name: values_BK[:, : self.size] for name, values_BK in own.slates.by_candidate.items()}
        return Case(replace(own.slates, **narrow), own.rankings_BK[:, : self.size], own.context)

    def answered(self, answers_NK: IntArray) -> Case:
        """The first group once for each answer, given by its first member."""
        rows_B = np.tile(np.arange(self.group_size), len(answers_NK))
        copies = self.take(rows_B, np.repeat(np.arange(len(answers_NK)), self.group_size))
        copies.rankings_BK[:: self.group_size] = answers_NK
        return copies

    def exchanged(self, a: int, b: int) -> Case:
        """Candidates a and b of the first request exchange their incoming places, and all that is known of them moves.

        What was called a is called b then: rename answers with `renamed`.
        """
        orders_BK = identity_rankings(self.slates.sizes_B, self.slates.width)
        orders_BK[0] = renamed(orders_BK[0], a, b)
        return Case(self.slates.reordered(orders_BK), self.rankings_BK, self.context)

    def renumbered(self, a: int, b: int) -> Case:
        """The original numbers a and b exchanged in every copy of the first request."""
        assert self.slates.canonical_BK is not None, "asked of copies only"
        numbers_BK, own = self.slates.canonical_BK.copy(), slice(self.group_size)
        numbers_BK[own] = renamed(numbers_BK[own], a, b)
        return Case(replace(self.slates, canonical_BK=numbers_BK), self.rankings_BK, self.context)

    def are_equal(self, a: int, b: int) -> bool:
        """Whether all that is known of candidates a and b of the first request is the same."""
        return all(
            values_BK[0, a] == values_BK[0, b]
            for name, values_BK in self.slates.by_candidate.items()
            if name != "canonical_BK"
        )

    @cached_property
    def answers_NK(self) -> IntArray:
        """Answers to the first request that are worth trying, the incoming order first: all, or some of many."""
        size = self.size
        if size <= MOST_TO_PERMUTE:
            orders = np.array(list(itertools.permutations(range(size))))
        else:
            same, ideal = np.arange(size), ideal_rankings(self.slates.take([0]))[0, :size]
            swapped = [renamed(same, place, place + 1) for place in range(size - 1)]
            rng = np.random.default_rng(size)
            shuffled = [rng.permutation(size) for _ in range(RANDOM_ANSWERS)]
            orders = np.array([same, *swapped, same[::-1], ideal, ideal[::-1], *shuffled])
        tail_NK = np.full((len(orders), self.slates.width - size), PAD)
        return np.concatenate([orders, tail_NK], axis=1)

    @cached_property
    def invalid_NK(self) -> IntArray:
        """Answers to the first request that are no rankings: a number twice, one too high, too low, far out."""
        spoilt_NK = np.repeat(self.answers_NK[:1], 4, axis=0)
        spoilt_NK[:, self.size - 1] = [0, self.size, PAD, 2**62]
        return spoilt_NK

    def told(self, *facts: str) -> str:
        """The first request in words, and what there is to say of it, a line each."""
        lines = [f"gains {listed(self.shown('relevance_BK'))}, candidates numbered from 0 in the incoming order"]
        for name in ("clicks", "propensities", "predictions"):
            if getattr(self.slates, f"{name}_BK") is not None:
                lines.append(f"{name} {listed(self.shown(f'{name}_BK'))}")
        context = self.context
        if context.step is not None:
            lines.append(f"step {context.step}")
        lines += [f"{lengths_B[0]} {unit}" for unit, lengths_B in context.lengths.items()]
        if context.reasonings is not None:
            lines.append(f"reasoning {context.reasonings[0]!r}")
        return "\n".join([*lines, *facts])

    def shown(self, name: str, row: int = 0) -> list[float]:
        """A row of a field of the slates without its padding."""
        values: list[float] = getattr(self.slates, name)[row, : self.slates.sizes_B[row]].tolist()
        return values

    def companions(self) -> tuple[str, ...]:
        """The other answers of the first group, a line for all of them."""
        rows = range(1, self.group_size)
        if not rows:
            return ()
        texts = [f"{self.ranking(row)} to the order {listed(self.shown('canonical_BK', row))}" for row in rows]
        return (f"the others in its group answer {', '.join(texts)}",)

    def ranking(self, row: int) -> str:
        """An answer of the case in words."""
        return listed(self.rankings_BK[row, : self.slates.sizes_B[row]])


@dataclass(frozen=True, eq=False)
class Subject:
    """A reward under test: what echoing may earn, what better means, and what it looks at besides the answer's gains.

    The function of a `FunctionReward` is called as it is, without a time limit, so that its faults are seen and not
    only their consequences.
    """

    reward: Reward
    identity: float
    worth: Worth
    looks_at: LooksAt

    @property
    def slack(self) -> float:
        """Differences up to this are rounding."""
        return RANGE_SLACK * max(abs(self.reward.low), abs(self.reward.high))

    def values(self, case: Case) -> FloatArray:
        """What valid answers earn, float64 [B]; raises `UndefinedError` unless these are numbers, one an answer."""
        return self.values_of(case.copy())

    def values_of(self, case: Case) -> FloatArray:
        """The same, the arrays of the case themselves being given to the reward."""
        failures: tuple[Failure, ...] = ()
        try:
            if isinstance(self.reward, FunctionReward):
                given = np.asarray(self.reward.function(case.rankings_BK, case.slates))
            else:
                score = self.reward.score(case.rankings_BK, case.slates, context=case.context)
                failures, given = score.failures, np.asarray(score.total_B)
        except Exception as cause:
            raise UndefinedError(f"raises {type(cause).__name__}: {cause}") from cause
        if failures:
            raise UndefinedError(f"fails: {failures[0].message}")
        if given.shape != (len(case.slates),):
            raise UndefinedError(f"gives shape {given.shape} for {len(case.slates)} answers")
        is_right = given.dtype.kind in "fiub" if isinstance(self.reward, FunctionReward) else given.dtype == np.float64
        if not is_right:
            raise UndefinedError(f"gives dtype {given.dtype}")
        return given.astype(np.float64)

    def earned(self, case: Case, answers_NK: IntArray) -> FloatArray:
        """What the first answer of a case would earn for each of N other rankings, float64 [N]."""
        return self.values(case.answered(answers_NK))[:: case.group_size]

    def paid_invalid(self, case: Case) -> FloatArray:
        """What `case.invalid_NK` earn, and after them a ranking whose text did not parse."""
        copies = case.answered(np.concatenate([case.invalid_NK, case.answers_NK[:1]]))
        verdicts_B = np.full(len(copies.slates), Verdict.OK, dtype=np.int8)
        verdicts_B[-case.group_size] = Verdict.MALFORMED
        try:
            paid_B = self.reward(copies.rankings_BK, copies.slates, verdicts_B=verdicts_B, context=copies.context)
        except Exception as cause:
            raise UndefinedError(f"raises {type(cause).__name__}: {cause}") from cause
        return paid_B[:: case.group_size]


def renamed(answers_NK: IntArray, a: int, b: int) -> IntArray:
    """Answers in which candidates a and b have exchanged their numbers."""
    return np.where(answers_NK == a, b, np.where(answers_NK == b, a, answers_NK))


def listed(values: Iterable[float]) -> str:
    """Numbers as a list, padding left out: whole ones without a point."""
    return f"[{', '.join(number_text(value) for value in values)}]"


def named(answer_K: IntArray, size: int) -> str:
    """An answer in words."""
    return f"answer {listed(answer_K[:size])}"
