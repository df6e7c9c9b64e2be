"""Where libraries part ways on the same metric: small cases, each measured in every library that answers.

A case is one query, or a few, with labels and scores by document. A library without an entry has no such measure; one
that refuses the input, or has no number for it, has an entry that says so, and is left out of the row: should it answer
one day, the run stops. Why they differ is said in `docs/results.md`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from metric_peers import ir_measured, ranx_scored, trec_eval
from sklearn import metrics as sklearn
from torchmetrics.functional import retrieval as torchmetrics  # type: ignore[import-not-found]

from rerank_env.rewards import Ndcg, SlateError, Slates, metrics
from rerank_env.rewards.rankings import from_scores

Answer = Callable[[], float]
Case = tuple[str, Mapping[str, Answer]]

REFUSALS = (TypeError, ValueError, AssertionError, SlateError)
"""What a library raises for input that it does not take."""


def refused(answer: Answer) -> Answer:
    """An answer that must not come: the library raises, or gives no number."""

    def asked() -> float:
        try:
            value = answer()
        except REFUSALS:
            return math.nan
        if not math.isnan(value):
            raise SystemExit(f"a library that used to refuse this input now answers {value}; mend the case")
        return value

    return asked


def ours(metric: str, labels: Sequence[float], scores: Sequence[float], **arguments: Any) -> Answer:
    """Our metric of the order by score, equal scores in incoming order."""

    def asked() -> float:
        rankings_BK, _ = from_scores([scores], [len(scores)], ties="incoming")
        return float(getattr(metrics, metric)(rankings_BK, Slates.of([labels]), **arguments)[0])

    return asked


def by_document(values: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """One query, documents "a", "b", "c" ... in that order."""
    return {"000000": dict(zip("abcdefgh", values, strict=False))}


def trec(measure: str, labels: Sequence[Any], scores: Sequence[float]) -> Answer:
    return lambda: next(iter(trec_eval(by_document(labels), by_document(scores), {measure}).values())).item()


def ir(measure: str, labels: Sequence[Any], scores: Sequence[float]) -> Answer:
    return lambda: ir_measured(by_document(labels), by_document(scores), [measure])[measure].item()


def ranx(measure: str, labels: Sequence[Any], scores: Sequence[float]) -> Answer:
    return lambda: ranx_scored(by_document(labels), by_document(scores), [measure])[measure].item()


def scikit(measure: str, labels: Sequence[Any], scores: Sequence[float], **arguments: Any) -> Answer:
    flat = measure != "ndcg_score"
    form = (labels, scores) if flat else ([labels], [scores])
    return lambda: float(getattr(sklearn, measure)(*form, **arguments))


def torch_(measure: str, labels: Any, scores: Any, **arguments: Any) -> Answer:
    function = getattr(torchmetrics, f"retrieval_{measure}")
    return lambda: float(function(torch.tensor(scores), torch.tensor(labels), **arguments))


def ndcg(labels: Sequence[Any], scores: Sequence[float]) -> dict[str, Answer]:
    """Plain NDCG of the whole list, everywhere."""
    return {
        "ours": ours("ndcg", labels, scores),
        "pytrec_eval": trec("ndcg", labels, scores),
        "ir_measures": ir("nDCG", labels, scores),
        "scikit-learn": scikit("ndcg_score", labels, scores),
        "ranx": ranx("ndcg", labels, scores),
        "torchmetrics": torch_("normalized_dcg", labels, scores),
    }


def tie_cases() -> list[Case]:
    equal = [1.0, 1.0, 1.0]
    cases = [
        (f"ties: three equal scores and document {d} relevant (ndcg)", p) for d, p in zip("abc", np.eye(3), strict=True)
    ]
    whole = [(name, ndcg(labels.astype(int).tolist(), equal)) for name, labels in cases]
    cut: dict[str, Answer] = {
        "ours": ours("ndcg", [1, 0], [1.0, 1.0], k=1),
        "pytrec_eval": trec("ndcg_cut.1", [1, 0], [1.0, 1.0]),
        "ir_measures": ir("nDCG@1", [1, 0], [1.0, 1.0]),
        "scikit-learn": scikit("ndcg_score", [1, 0], [1.0, 1.0], k=1),
        "ranx": ranx("ndcg@1", [1, 0], [1.0, 1.0]),
        "torchmetrics": torch_("normalized_dcg", [1, 0], [1.0, 1.0], top_k=1),
    }
    return [*whole, ("ties across the cut: two equal scores and document a relevant (ndcg@1)", cut)]


def cut_off_cases() -> list[Case]:
    labels, scores = [1, 0, 0, 1], [4.0, 3.0, 2.0, 1.0]
    answers: dict[str, Answer] = {
        "ours": ours("ap", labels, scores, k=2),
        "pytrec_eval": trec("map_cut.2", labels, scores),
        "ir_measures": ir("AP@2", labels, scores),
        "ranx": ranx("map@2", labels, scores),
        "torchmetrics": torch_("average_precision", labels, scores, top_k=2),
    }
    return [("cut-off: first and fourth of four relevant (ap@2)", answers)]


def gain_cases() -> list[Case]:
    labels, scores = [3, 1, 0], [1.0, 2.0, 3.0]
    exp2: dict[str, Answer] = {
        "ours": ours("ndcg", labels, scores, gains="exp2"),
        "ir_measures": ir("nDCG(dcg='exp-log2')@3", labels, scores),
        "ranx": ranx("ndcg_burges", labels, scores),
    }
    rbp: dict[str, Answer] = {
        "ours": ours("rbp", [3, 0], [2.0, 1.0], p=0.5),
        "ir_measures": ir("RBP(p=0.5,rel=1)", [3, 0], [2.0, 1.0]),
        "ranx": ranx("rbp.50", [3, 0], [2.0, 1.0]),
    }
    return [
        ("gains: grades 0 1 3 in that order (ndcg as it comes)", ndcg(labels, scores)),
        ("gains: the same with 2^grade - 1", exp2),
        ("gains: grade 3 before 0 (rbp with p 0.5)", rbp),
    ]


def empty_cases() -> list[Case]:
    scores = [2.0, 1.0]

    def auc(labels: list[int]) -> dict[str, Answer]:
        return {
            "ours": ours("auc", labels, scores),
            "scikit-learn": refused(scikit("roc_auc_score", labels, scores)),
            "torchmetrics": torch_("auroc", labels, scores),
        }

    def absent() -> dict[str, Answer]:
        judged, scored = {q: {"a": 1, "b": 0} for q in ("000000", "000001")}, {"000000": {"a": 2.0, "b": 1.0}}
        one_empty = Ndcg()([[0, 1], [-1, -1]], Slates.of([[1, 0]] * 2))
        return {
            "ours": lambda: float(one_empty.mean()),
            "pytrec_eval": lambda: float(trec_eval(judged, scored, {"ndcg"})["ndcg"].mean()),
            "ir_measures": lambda: float(ir_measured(judged, scored, ["nDCG"])["nDCG"].mean()),
            "ranx": refused(lambda: float(ranx_scored(judged, scored, ["ndcg"])["ndcg"].mean())),
        }

    return [
        ("empty query: nothing relevant (ndcg)", ndcg([0, 0], scores)),
        ("empty query: nothing relevant (auc)", auc([0, 0])),
        ("empty query: all relevant (auc)", auc([1, 1])),
        ("empty answer: of two queries one perfect and one not answered (mean ndcg)", absent()),
    ]


def label_cases() -> list[Case]:
    scores = [3.0, 2.0, 1.0]
    small, big, negative = ndcg([0.4, 0.9, 0.0], scores), ndcg([1.2, 1.9, 0.0], scores), ndcg([-1, 2, 0], scores)
    for answers in (small, big):
        answers |= {peer: refused(answers[peer]) for peer in ("pytrec_eval", "ir_measures")}
    negative |= {peer: refused(negative[peer]) for peer in ("ours", "scikit-learn")}
    return [
        ("real labels: 0.4 0.9 0 in that order (ndcg)", small),
        ("real labels: 1.2 1.9 0 in that order (ndcg)", big),
        ("negative labels: -1 2 0 in that order (ndcg)", negative),
    ]


def form_cases() -> list[Case]:
    labels, scores = [[1, 0, 0], [0, 1, 0]], [[3.0, 2.0, 1.0], [9.0, 8.0, 7.0]]
    two_queries: dict[str, Answer] = {
        "ours": lambda: float(metrics.ndcg([[0, 1, 2]] * 2, Slates.of(labels)).mean()),
        "scikit-learn": lambda: float(sklearn.ndcg_score(labels, scores)),
        "torchmetrics": torch_("normalized_dcg", labels, scores),
    }
    below_zero: dict[str, Answer] = {
        "ours": ours("ap", [1, 0], [-1.0, -2.0]),
        "pytrec_eval": trec("map", [1, 0], [-1.0, -2.0]),
        "ir_measures": ir("AP", [1, 0], [-1.0, -2.0]),
        "scikit-learn": scikit("average_precision_score", [1, 0], [-1.0, -2.0]),
        "ranx": ranx("map", [1, 0], [-1.0, -2.0]),
        "torchmetrics": torch_("average_precision", [1, 0], [-1.0, -2.0]),
    }
    return [
        ("form: two queries as rows of one array (mean ndcg)", two_queries),
        ("form: scores below zero (ap of a perfect order)", below_zero),
    ]


def differences() -> list[dict[str, Any]]:
    """One row a case, in the form of a result; what was refused is left out."""
    rows = []
    for name, answers in (*tie_cases(), *cut_off_cases(), *gain_cases(), *empty_cases(), *label_cases(), *form_cases()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several warn before they give no number
            values = {peer: answer() for peer, answer in answers.items()}
        print(name, {peer: round(value, 4) for peer, value in values.items()})
        known = {peer: value for peer, value in values.items() if not math.isnan(value)}
        rows.append(
            {"name": name, "metrics": {p: dict.fromkeys(("value", "low", "high"), v) for p, v in known.items()}}
        )
    return rows
