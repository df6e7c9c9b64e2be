"""Other libraries' metrics behind one form: judged slates and legal rankings in, one float a request out.

Needs the packages that `metric_agreement.py` lists; the library itself never imports them. Rankings become strictly
falling scores, so that no peer has a tie to break, and candidate j of row b is document "j" of query "b".
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import ir_measures  # type: ignore[import-not-found]
import numpy as np
import numpy.typing as npt
import pytrec_eval  # type: ignore[import-not-found]
import ranx  # type: ignore[import-not-found]
import torch
from cwl.ruler.cwl_ruler import Ranking, RBPCWLMetric  # type: ignore[import-not-found]
from scipy.stats import somersd
from sklearn import metrics as sklearn
from torchmetrics.functional.retrieval import retrieval_normalized_dcg  # type: ignore[import-not-found]

from rerank_env.rewards import Slates
from rerank_env.rewards.rankings import invert

FloatArray = npt.NDArray[np.float64]
Judged = dict[str, dict[str, int]]
Scored = dict[str, dict[str, float]]


@dataclass(frozen=True, eq=False)
class Task:
    """Slates and one ranking of each, in the forms the peers read."""

    slates: Slates
    rankings_BK: npt.NDArray[np.int64]

    @cached_property
    def shown(self) -> list[list[float]]:
        """The relevance of each request's candidates in ranked order."""
        rows = zip(self.slates.relevance_BK, self.rankings_BK, self.slates.sizes_B, strict=True)
        return [relevance_K[ranking_K[:size]].tolist() for relevance_K, ranking_K, size in rows]

    @cached_property
    def judged(self) -> Judged:
        """Whole-number grades by query and document."""
        rows = zip(self.slates.relevance_BK.tolist(), self.slates.sizes_B.tolist(), strict=True)
        return {f"{row:06}": _named(map(int, gains[:size])) for row, (gains, size) in enumerate(rows)}

    @cached_property
    def scored(self) -> Scored:
        """The score of each document: the number of places from there down."""
        scores_BK = self.slates.sizes_B[:, None] - invert(self.rankings_BK, self.slates.sizes_B)
        rows = zip(scores_BK.tolist(), self.slates.sizes_B.tolist(), strict=True)
        return {f"{row:06}": _named(scores[:size]) for row, (scores, size) in enumerate(rows)}

    def each(self, rows_B: npt.NDArray[np.bool_] | None = None) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Relevance and score of each request's candidates in ranked order, of all requests or of some."""
        for row, shown in enumerate(self.shown):
            if rows_B is None or rows_B[row]:
                yield np.array(shown), np.arange(len(shown), 0, -1.0)


def _named(values: Iterable[Any]) -> dict[str, Any]:
    return {str(candidate): value for candidate, value in enumerate(values)}


def exp2_grades(judged: Judged) -> Judged:
    """Grades g as gains 2^g - 1, for peers that take gains as they are."""
    return {query: {name: 2**grade - 1 for name, grade in grades.items()} for query, grades in judged.items()}


def trec_eval(judged: Judged, scored: Scored, measures: set[str]) -> dict[str, FloatArray]:
    """`pytrec_eval`: every measure by the name that trec_eval gives it, with an underscore before the cut-off."""
    by_query = pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(scored)
    rows = [by_query[query] for query in sorted(by_query)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def ir_measured(judged: Judged, scored: Scored, measures: list[str]) -> dict[str, FloatArray]:
    """`ir_measures`: every measure by its text."""
    parsed = [ir_measures.parse_measure(text) for text in measures]
    place = {query: row for row, query in enumerate(sorted(judged))}
    values = {str(measure): np.full(len(judged), np.nan) for measure in parsed}
    for metric in ir_measures.iter_calc(parsed, judged, scored):
        values[str(metric.measure)][place[f"{int(metric.query_id):06}"]] = metric.value
    return {text: values[str(measure)] for text, measure in zip(measures, parsed, strict=True)}


def ranx_scored(judged: Judged, scored: Scored, measures: list[str]) -> dict[str, FloatArray]:
    """`ranx`: every measure by its text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its compiler warns of casts
        values = ranx.evaluate(ranx.Qrels(judged), ranx.Run(scored), [*measures, "hits"], return_mean=False)
    return {name: np.asarray(values[name]) for name in measures}  # for one measure alone it returns no dictionary


def sklearn_ndcg(task: Task, *, k: int | None, exp2: bool = False) -> FloatArray:
    """`sklearn.metrics.ndcg_score`, one request at a time."""
    pairs = ((2.0**gains_K - 1 if exp2 else gains_K, scores_K) for gains_K, scores_K in task.each())
    return np.array([sklearn.ndcg_score([gains_K], [scores_K], k=k) for gains_K, scores_K in pairs])


def sklearn_ap(task: Task, rows_B: npt.NDArray[np.bool_]) -> FloatArray:
    """`sklearn.metrics.average_precision_score` of the requests that have something relevant."""
    pairs = task.each(rows_B)
    return np.array([sklearn.average_precision_score(gains_K > 0, scores_K) for gains_K, scores_K in pairs])


def sklearn_auc(task: Task, rows_B: npt.NDArray[np.bool_]) -> FloatArray:
    """`sklearn.metrics.roc_auc_score` of the requests that have both kinds of candidates."""
    return np.array([sklearn.roc_auc_score(gains_K > 0, scores_K) for gains_K, scores_K in task.each(rows_B)])


def somers(task: Task, rows_B: npt.NDArray[np.bool_]) -> FloatArray:
    """(1 + D) / 2 by `scipy.stats.somersd`, of the requests that have two grades."""
    return np.array([(1 + somersd(gains_K, scores_K).statistic) / 2 for gains_K, scores_K in task.each(rows_B)])


def cwl_rbp(task: Task, *, p: float, max_grade: int | None = None) -> FloatArray:
    """Rank-biased precision of `cwl-eval`, which takes gains from 0 to 1."""
    gains = (np.minimum(g, max_grade) / max_grade if max_grade else (g > 0).astype(float) for g, _ in task.each())
    return np.array([RBPCWLMetric(p).measure(Ranking("", gains_K, np.ones(len(gains_K)))) for gains_K in gains])


def torch_ndcg(task: Task, *, k: int) -> FloatArray:
    """`torchmetrics`, one request at a time; it works in single precision."""
    pairs = ((torch.tensor(gains_K), torch.tensor(scores_K)) for gains_K, scores_K in task.each())
    return np.array([float(retrieval_normalized_dcg(scores_K, gains_K.long(), top_k=k)) for gains_K, scores_K in pairs])


def tie_free(scored: Scored) -> bool:
    """Whether no request has two equal scores."""
    return all(
        upper > lower for scores in scored.values() for upper, lower in pairwise(sorted(scores.values(), reverse=True))
    )
