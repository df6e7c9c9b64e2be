"""The metrics as plain loops over one request, from their definitions: what the array kernels are compared with.

`shown` lists the relevance of the candidates in ranked order; a candidate is relevant if its relevance is above 0.
Where there is a choice the loops go another way than the kernels (from the back, pair by pair, by sorting). This file
imports nothing of the library; `benchmarks/metric_agreement.py` uses it too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations


def ndcg(shown: Sequence[float], *, k: int | None = None, gains: str = "linear") -> float:
    def gain(relevance: float) -> float:
        return relevance if gains == "linear" else 2.0**relevance - 1.0

    def dcg(ordered: Sequence[float]) -> float:
        return sum(gain(relevance) / math.log2(place + 1) for place, relevance in enumerate(ordered[:k], start=1))

    ideal = dcg(sorted(shown, reverse=True))
    return dcg(shown) / ideal if ideal > 0 else 0.0


def recall(shown: Sequence[float], *, k: int) -> float:
    places = _relevant_places(shown)
    return sum(place <= k for place in places) / len(places) if places else 0.0


def hit(shown: Sequence[float], *, k: int) -> float:
    return float(any(place <= k for place in _relevant_places(shown)))


def mrr(shown: Sequence[float]) -> float:
    return max((1 / place for place in _relevant_places(shown)), default=0.0)


def ap(shown: Sequence[float], *, k: int | None = None) -> float:
    places = _relevant_places(shown)
    precisions = [sum(other <= place for other in places) / place for place in places if k is None or place <= k]
    return sum(precisions) / len(places) if places else 0.0


def rbp(shown: Sequence[float], *, p: float, max_grade: int | None = None) -> float:
    value = 0.0
    for relevance in reversed(shown):
        gain = float(relevance > 0) if max_grade is None else min(relevance, max_grade) / max_grade
        value = (1 - p) * gain + p * value
    return value


def err(shown: Sequence[float], *, max_grade: int, k: int | None = None) -> float:
    value = 0.0
    for place, relevance in reversed(list(enumerate(shown[:k], start=1))):
        satisfied = (2 ** min(relevance, max_grade) - 1) / 2**max_grade
        value = satisfied / place + (1 - satisfied) * value
    return value


def auc(shown: Sequence[float]) -> float:
    return pairwise_accuracy([float(relevance > 0) for relevance in shown])


def pairwise_accuracy(shown: Sequence[float]) -> float:
    pairs = [(upper, lower) for upper, lower in combinations(shown, 2) if upper != lower]
    return sum(upper > lower for upper, lower in pairs) / len(pairs) if pairs else 1.0


def exact_set(shown: Sequence[float], *, k: int | None = None) -> float:
    places = _relevant_places(shown)
    count = len(places) if k is None else k
    best = sorted(shown, reverse=True)[:count]
    return float(bool(places) and sorted(shown[:count], reverse=True) == best)


def rank_promotion(gains: Sequence[float], ranking: Sequence[int]) -> float:
    moved = sum(gains[candidate] * (candidate - place) for place, candidate in enumerate(ranking))
    return moved / (len(gains) * sum(gains)) if any(gains) else 0.0


def _relevant_places(shown: Sequence[float]) -> list[int]:
    return [place for place, relevance in enumerate(shown, start=1) if relevance > 0]
