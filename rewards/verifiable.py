"""Rewards that follow from the labels alone: list metrics, rank promotion, and being a ranking at all.

The formulas are those of `metrics`. Each declares its range over valid answers and the score of an invalid one, which
can be overridden. May import numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank_env.rewards import kernels
from rerank_env.rewards.answers import Answers
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.reward import Leaf


@dataclass(frozen=True, repr=False)
class RankPromotion(Leaf):
    """R_rank of GR2: (r_pre - r_out) / K for one relevant candidate, the relevance-weighted mean for more.

    Over valid answers it stays within (-1, 1): at most (K - 1) / K either way. Invalid: -1, below every valid answer.
    """

    invalid: float = -1.0
    name = "rank_promotion"
    valid_range = (-1.0, 1.0)
    identity_at_most = 0.0

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.rank_promotion`."""
        return kernels.rank_promotion(answers.orders_BK, answers.slates)


@dataclass(frozen=True, repr=False)
class Ndcg(Leaf):
    """NDCG at `k` (None: the whole list) with "linear" or "exp2" gains; nothing relevant: 0."""

    k: int | None = None
    gains: kernels.Gains = "linear"
    invalid: float = 0.0
    name = "ndcg"

    def __post_init__(self) -> None:
        """Check the gains too."""
        one_of("gain", self.gains, kernels.GAINS)
        super().__post_init__()

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.ndcg`."""
        return kernels.ndcg(answers.orders_BK, answers.slates, k=self.k, gains=self.gains)


@dataclass(frozen=True, repr=False)
class Recall(Leaf):
    """Share of the relevant candidates found among the first `k`; nothing relevant: 0."""

    k: int
    invalid: float = 0.0
    name = "recall"

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.recall`."""
        return kernels.recall(answers.orders_BK, answers.slates, k=self.k)


@dataclass(frozen=True, repr=False)
class Hit(Leaf):
    """1 if one of the first `k` candidates is relevant, else 0."""

    k: int
    invalid: float = 0.0
    name = "hit"

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.hit`."""
        return kernels.hit(answers.orders_BK, answers.slates, k=self.k)


@dataclass(frozen=True, repr=False)
class Mrr(Leaf):
    """1 / place of the first relevant candidate; nothing relevant: 0."""

    invalid: float = 0.0
    name = "mrr"

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.mrr`."""
        return kernels.mrr(answers.orders_BK, answers.slates)


@dataclass(frozen=True, repr=False)
class Ap(Leaf):
    """Average precision at `k` (None: the whole list) over all relevant candidates; nothing relevant: 0."""

    k: int | None = None
    invalid: float = 0.0
    name = "ap"

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.ap`."""
        return kernels.ap(answers.orders_BK, answers.slates, k=self.k)


@dataclass(frozen=True, repr=False)
class Rbp(Leaf):
    """Rank-biased precision with persistence `p`; gains 0 or 1, or graded up to `max_grade`; nothing relevant: 0."""

    p: float
    max_grade: int | None = None
    invalid: float = 0.0
    name = "rbp"

    def __post_init__(self) -> None:
        """Check the persistence and the top grade too."""
        object.__setattr__(self, "p", kernels.checked_p(self.p))
        if self.max_grade is not None:
            object.__setattr__(self, "max_grade", kernels.checked_max_grade(self.max_grade))
        super().__post_init__()

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.rbp`."""
        return kernels.rbp(answers.orders_BK, answers.slates, p=self.p, max_grade=self.max_grade)


@dataclass(frozen=True, repr=False)
class Err(Leaf):
    """Expected reciprocal rank at `k` (None: the whole list) on a scale up to `max_grade`; nothing relevant: 0."""

    max_grade: int
    k: int | None = None
    invalid: float = 0.0
    name = "err"

    def __post_init__(self) -> None:
        """Check the top grade too."""
        object.__setattr__(self, "max_grade", kernels.checked_max_grade(self.max_grade))
        super().__post_init__()

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.err`."""
        return kernels.err(answers.orders_BK, answers.slates, max_grade=self.max_grade, k=self.k)


@dataclass(frozen=True, repr=False)
class Auc(Leaf):
    """Share of (relevant, not relevant) pairs in the right order, R_AUC of GR2 Technical Report; no pair: 1."""

    invalid: float = 0.0
    name = "auc"

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.auc`."""
        return kernels.auc(answers.orders_BK, answers.slates)


@dataclass(frozen=True, repr=False)
class PairwiseAccuracy(Leaf):
    """Share of the pairs of different relevance in the right order; no such pair: 1."""

    invalid: float = 0.0
    name = "pairwise_accuracy"

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.pairwise_accuracy`."""
        return kernels.pairwise_accuracy(answers.orders_BK, answers.slates)


@dataclass(frozen=True, repr=False)
class ExactSet(Leaf):
    """1 if the first `k` (None: as many as are relevant) are exactly the best, in any order; nothing relevant: 0."""

    k: int | None = None
    invalid: float = 0.0
    name = "exact_set"

    def evaluate(self, answers: Answers) -> FloatArray:
        """`metrics.exact_set`."""
        return kernels.exact_set(answers.orders_BK, answers.slates, k=self.k)


@dataclass(frozen=True, repr=False)
class ValidFormat(Leaf):
    """R_fmt of GR2: 1 for a valid answer, 0 for an invalid one. On its own it pays for echoing the order."""

    invalid: float = 0.0
    name = "valid_format"
    valid_range = (1.0, 1.0)

    def evaluate(self, answers: Answers) -> FloatArray:
        """1 for each."""
        return np.ones(len(answers.slates))
