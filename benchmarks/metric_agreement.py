"""How far our metrics are from other libraries' on tie-free rankings, and where the libraries part ways.

    python benchmarks/metric_agreement.py            # writes docs/results/metric-agreement.json
    python benchmarks/metric_agreement.py --dry-run  # prints only

Slates are ragged, 2 to 30 candidates, with grades 0 to 4 (most peers keep whole numbers only) or real gains where the
peer takes them; rankings are random permutations. Each row is one metric and one peer, over all cut-offs, on every
slate for which the peer has a value. What no peer computes is compared with the plain loops of
`reference.py`, and so is everything else. Two peers are coarse by design and stand outside the goal:
torchmetrics works in single precision, and gdeval prints five decimals. Then follow the rows of
`metric_differences.py`.

Needs ir_measures, pytrec_eval-terrier, cwl-eval, scikit-learn, ranx, torchmetrics, and perl for gdeval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import reference
from metric_differences import differences
from metric_peers import (
    FloatArray,
    Task,
    cwl_rbp,
    exp2_grades,
    ir_measured,
    ranx_scored,
    sklearn_ap,
    sklearn_auc,
    sklearn_ndcg,
    somers,
    tie_free,
    torch_ndcg,
    trec_eval,
)
from record import finish, options_of

from rerank_env.rewards import Slates, metrics
from rerank_env.rewards.rankings import random_rankings

TOLERANCE = 1e-12
SEED = 0
WIDEST = 30
GRADES = (0, 1, 2, 3, 4)
SHARES = (0.5, 0.2, 0.15, 0.1, 0.05)
CUTS = (1, 3, 5, 10)
PERSISTENCE = (0.5, 0.8, 0.95)

Compared = tuple[str, str, list[tuple[FloatArray, FloatArray]]]
"""A metric, a peer, and pairs of our values and the peer's."""


def tasks(n: int) -> tuple[Task, Task]:
    """The same rankings of slates with whole grades and with real gains, of which a third is 0."""
    rng = np.random.default_rng(SEED)
    sizes_B = rng.integers(2, WIDEST + 1, n)
    real_BK = np.arange(WIDEST) < sizes_B[:, None]
    rankings_BK = random_rankings(sizes_B, WIDEST, rng)
    grades_BK = rng.choice(GRADES, (n, WIDEST), p=SHARES) * real_BK
    gains_BK = np.maximum(rng.uniform(-2.5, 5.0, (n, WIDEST)), 0.0) * real_BK
    return Task(Slates(grades_BK, sizes_B), rankings_BK), Task(Slates(gains_BK, sizes_B), rankings_BK)


def of_trec_eval(task: Task) -> Iterator[Compared]:
    cuts = ",".join(map(str, CUTS))
    measures = {"ndcg", "map", "recip_rank", "Rprec", *(f"{m}.{cuts}" for m in ("ndcg_cut", "map_cut", "recall"))}
    theirs = trec_eval(task.judged, task.scored, {*measures, f"success.{cuts}"})
    exp2 = trec_eval(exp2_grades(task.judged), task.scored, {"ndcg", f"ndcg_cut.{cuts}"})
    ours, peer = Ours(task), "pytrec_eval"
    whole = [(ours.ndcg(), theirs["ndcg"])]
    yield "ndcg", peer, [*whole, *((ours.ndcg(k=k), theirs[f"ndcg_cut_{k}"]) for k in CUTS)]
    whole = [(ours.ndcg(gains="exp2"), exp2["ndcg"])]
    yield "ndcg exp2", peer, [*whole, *((ours.ndcg(gains="exp2", k=k), exp2[f"ndcg_cut_{k}"]) for k in CUTS)]
    yield "ap", peer, [(ours.ap(), theirs["map"]), *((ours.ap(k=k), theirs[f"map_cut_{k}"]) for k in CUTS)]
    yield "recall", peer, [(ours.recall(k=k), theirs[f"recall_{k}"]) for k in CUTS]
    yield "hit", peer, [(ours.hit(k=k), theirs[f"success_{k}"]) for k in CUTS]
    yield "mrr", peer, [(ours.mrr(), theirs["recip_rank"])]
    yield "exact_set (R-precision is 1)", peer, [(ours.exact_set(), (theirs["Rprec"] == 1.0).astype(float))]


def of_ir_measures(task: Task) -> Iterator[Compared]:
    names = {"ndcg": "nDCG", "ap": "AP", "recall": "R", "hit": "Success", "mrr": "RR"}
    rbp = [f"RBP(p={p},rel=1)" for p in PERSISTENCE]
    measures = ["nDCG", "AP", "RR", *(f"{names[m]}@{k}" for m in ("ndcg", "ap", "recall", "hit") for k in CUTS), *rbp]
    theirs = ir_measured(task.judged, task.scored, measures)
    ours = Ours(task)
    for metric, name in names.items():
        pairs = [(getattr(ours, metric)(), theirs[name])] if name in theirs else []
        cut = [(getattr(ours, metric)(k=k), theirs[f"{name}@{k}"]) for k in CUTS if f"{name}@{k}" in theirs]
        yield metric, "ir_measures", pairs + cut
    pairs = [(ours.rbp(p=p), theirs[text]) for p, text in zip(PERSISTENCE, rbp, strict=True)]
    yield "rbp", "ir_measures (cwl-eval)", pairs


def of_ranx(task: Task) -> Iterator[Compared]:
    names = {"ndcg": "ndcg", "ap": "map", "recall": "recall", "hit": "hit_rate"}
    cut = {(metric, k): f"{name}@{k}" for metric, name in names.items() for k in CUTS}
    exp2 = {k: f"ndcg_burges@{k}" for k in CUTS}
    theirs = ranx_scored(task.judged, task.scored, ["mrr", *cut.values(), *exp2.values()])
    ours = Ours(task)
    for metric in names:
        yield metric, "ranx", [(getattr(ours, metric)(k=k), theirs[cut[metric, k]]) for k in CUTS]
    yield "ndcg exp2", "ranx", [(ours.ndcg(k=k, gains="exp2"), theirs[exp2[k]]) for k in CUTS]
    yield "mrr", "ranx", [(ours.mrr(), theirs["mrr"])]


def of_scientific_python(task: Task, real: Task) -> Iterator[Compared]:
    ours, peer = Ours(task), "scikit-learn"
    cuts = (*CUTS, None)
    yield "ndcg", peer, [(ours.ndcg(k=k), sklearn_ndcg(task, k=k)) for k in cuts]
    yield "ndcg of real gains", peer, [(Ours(real).ndcg(k=k), sklearn_ndcg(real, k=k)) for k in cuts]
    yield "ndcg exp2", peer, [(ours.ndcg(k=k, gains="exp2"), sklearn_ndcg(task, k=k, exp2=True)) for k in (10, None)]
    relevant_BK = task.slates.relevance_BK > 0
    some_B: npt.NDArray[np.bool_] = relevant_BK.max(axis=1)
    both_B = some_B & (relevant_BK.sum(axis=1) < task.slates.sizes_B)
    yield "ap", peer, [(ours.ap()[some_B], sklearn_ap(task, some_B))]
    yield "auc", peer, [(ours.auc()[both_B], sklearn_auc(task, both_B))]
    grades_B = np.array([len(set(shown)) > 1 for shown in task.shown])
    yield "pairwise_accuracy", "scipy (Somers' D)", [(ours.pairwise_accuracy()[grades_B], somers(task, grades_B))]


def of_cwl(real: Task) -> Iterator[Compared]:
    yield "rbp graded", "cwl-eval", [(Ours(real).rbp(p=0.8, max_grade=4), cwl_rbp(real, p=0.8, max_grade=4))]


def of_plain_loops(task: Task, real: Task) -> Iterator[Compared]:
    """Every metric, on whole grades and on real gains."""
    cuts = [{"k": k} for k in CUTS]
    with_all: list[dict[str, Any]] = [{}, *cuts]
    variants: dict[str, list[dict[str, Any]]] = {
        "ndcg": [*with_all, *({"gains": "exp2", **cut} for cut in with_all)],
        "recall": [*cuts],
        "hit": [*cuts],
        "mrr": [{}],
        "ap": with_all,
        "rbp": [{"p": p, "max_grade": top} for p in PERSISTENCE for top in (None, 4)],
        "err": [{"max_grade": 4, **cut} for cut in with_all],
        "auc": [{}],
        "pairwise_accuracy": [{}],
        "exact_set": with_all,
    }
    for metric, settings in variants.items():
        loop: Callable[..., float] = getattr(reference, metric)
        pairs = [
            (getattr(Ours(kind), metric)(**chosen), np.array([loop(shown, **chosen) for shown in kind.shown]))
            for kind in (task, real)
            for chosen in settings
        ]
        yield metric, "plain loops", pairs
    rows = list(zip(real.slates.relevance_BK, real.rankings_BK, real.slates.sizes_B, strict=True))
    expected = [reference.rank_promotion(gains[:size].tolist(), order[:size].tolist()) for gains, order, size in rows]
    yield "rank_promotion", "plain loops", [(Ours(real).rank_promotion(), np.array(expected))]


def of_coarse_peers(task: Task) -> Iterator[Compared]:
    some = np.flatnonzero((task.slates.relevance_BK > 0).any(axis=1))  # gdeval leaves the others out
    theirs = ir_measured(task.judged, task.scored, ["ERR@10"])["ERR@10"]
    yield "err@10 (printed to five decimals)", "gdeval", [(Ours(task).err(max_grade=4, k=10)[some], theirs[some])]
    first = Task(task.slates.take(np.arange(1_000)), task.rankings_BK[:1_000])
    yield "ndcg@10 (single precision)", "torchmetrics", [(Ours(first).ndcg(k=10), torch_ndcg(first, k=10))]


class Ours:
    """`rewards.metrics` of one task: `Ours(task).ndcg(k=10)`."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Callable[..., FloatArray]:
        return lambda **arguments: getattr(metrics, name)(self.task.rankings_BK, self.task.slates, **arguments)


def row(compared: Compared) -> dict[str, Any]:
    metric, peer, pairs = compared
    largest = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
    found = {
        "largest difference": largest,
        "difference in 1e-16": largest / 1e-16,
        "values": sum(len(ours) for ours, _ in pairs),
    }
    print(f"{metric} · {peer}: {largest:.2g} of {found['values']} values")
    return {"name": f"{metric} · {peer}", "metrics": {name: _exact(value) for name, value in found.items()}}


def _exact(value: npt.ArrayLike) -> dict[str, float]:
    return dict.fromkeys(("value", "low", "high"), float(np.asarray(value)))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--slates", type=int, default=10_000)
    options = parser.parse_args()

    task, real = tasks(options.slates)
    assert tie_free(task.scored)
    exact = [of_trec_eval(task), of_ir_measures(task), of_scientific_python(task, real), of_cwl(real)]
    rows = [
        row(compared) for compareds in (*exact, of_ranx(task), of_plain_loops(task, real)) for compared in compareds
    ]
    met = all(row["metrics"]["largest difference"]["value"] <= TOLERANCE for row in rows)
    print("all within" if met else "NOT all within", TOLERANCE)
    rows += [row(compared) for compared in of_coarse_peers(task)]
    rows += differences()
    finish(
        options,
        "metric-agreement",
        command="python benchmarks/metric_agreement.py",
        data=f"random slates of 2 to {WIDEST} candidates, grades {GRADES} with shares {SHARES} or real gains up to 5, "
        "random rankings without ties",
        n=options.slates,
        seeds=[SEED],
        rows=rows,
        goal=f"every metric within {TOLERANCE:g} of every peer that works in double precision and prints all digits",
        met=met,
    )


if __name__ == "__main__":
    main()
