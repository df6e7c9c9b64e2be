"""How fast 100,000 rankings of 20 candidates are scored by NDCG@10, beside other libraries and beside copying them.

    python benchmarks/metric_speed.py            # writes docs/results/metric-speed.json
    python benchmarks/metric_speed.py --dry-run  # prints only

Ours is the public path, checks included: `Ndcg(k=10)(rankings, Slates(relevance, sizes))`, the slates made anew each
time, so that nothing is remembered from before. Every rival is handed what it likes best, made beforehand: dictionaries
and a ready evaluator for pytrec_eval and ir_measures, tensors with query numbers for torchmetrics, arrays for
scikit-learn, and for ranx the arrays that its compiled functions read (after compilation, on all cores) and, in another
row, the `Qrels` and `Run` of its manual, which it converts at every call. All must agree on the same slates before
anything is timed.

In a repeat each rival is timed with ours just before it, so that a slow spell of the machine hits both, each as the
better of two calls; the ratio is that of the neighbours. Processor time is reported beside the clock on the wall: other
programs do not count in it, but a rival on two cores counts twice.

Needs the packages of `metric_agreement.py`.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import ir_measures  # type: ignore[import-not-found]
import numpy as np
import pytrec_eval  # type: ignore[import-not-found]
import ranx  # type: ignore[import-not-found]
import torch
from metric_peers import FloatArray, Task
from record import finish, options_of, spread
from sklearn.metrics import ndcg_score
from torchmetrics.retrieval import RetrievalNormalizedDCG  # type: ignore[import-not-found]

from rerank_env.rewards import Ndcg, Slates, metrics
from rerank_env.rewards.rankings import random_rankings

REQUESTS, CANDIDATES, CUT = 100_000, 20, 10
GRADES = 4
SEED = 0
RIVAL_GOAL, COPY_GOAL = 20.0, 10.0
OURS, FUNCTION = "ours: the reward", "ours: metrics.ndcg"
COPY, COPY_READY = "copying the arrays", "copying the arrays into memory that is ready"
RIVALS = ("pytrec_eval", "ir_measures", "ranx arrays", "ranx Qrels and Run", "torchmetrics")
"""Those of the goal; scikit-learn only gives the mean over requests, and is shown beside them."""

Run = Callable[[], Any]


def task(requests: int) -> Task:
    rng = np.random.default_rng(SEED)
    sizes_B = np.full(requests, CANDIDATES)
    relevance_BK = rng.integers(0, GRADES, (requests, CANDIDATES)).astype(np.float64)
    return Task(Slates(relevance_BK, sizes_B), random_rankings(sizes_B, CANDIDATES, rng))


def contestants(made: Task) -> dict[str, Run]:
    """What is timed, by name; everything that a call does not have to do itself is done here."""
    relevance_BK, sizes_B, rankings_BK = made.slates.relevance_BK, made.slates.sizes_B, made.rankings_BK
    room = np.empty_like(relevance_BK), np.empty_like(rankings_BK)

    def copied_ready() -> None:
        np.copyto(room[0], relevance_BK)
        np.copyto(room[1], rankings_BK)

    return {
        OURS: lambda: Ndcg(k=CUT)(rankings_BK, Slates(relevance_BK, sizes_B)),
        FUNCTION: lambda: metrics.ndcg(rankings_BK, Slates(relevance_BK, sizes_B), k=CUT),
        COPY: lambda: (relevance_BK.copy(), rankings_BK.copy()),
        COPY_READY: copied_ready,
        **rivals(made),
    }


def rivals(made: Task) -> dict[str, Run]:
    judged, scored = made.judged, made.scored
    trec_evaluator = pytrec_eval.RelevanceEvaluator(judged, {f"ndcg_cut.{CUT}"})
    ir_evaluator = ir_measures.evaluator([ir_measures.nDCG @ CUT], judged)
    qrels, run = ranx.Qrels(judged), ranx.Run(scored)

    relevance_BK, rankings_BK = made.slates.relevance_BK, made.rankings_BK
    falling_K = np.arange(CANDIDATES, 0, -1.0)
    best_first_BK = np.argsort(-relevance_BK, axis=1, kind="stable")
    judged_BK2 = np.stack([best_first_BK, np.take_along_axis(relevance_BK, best_first_BK, axis=1)], axis=2)
    shown_BK2 = np.stack([rankings_BK, np.broadcast_to(falling_K, rankings_BK.shape)], axis=2)

    scores_BK = np.empty_like(relevance_BK)
    np.put_along_axis(scores_BK, rankings_BK, falling_K[None], axis=1)
    scores, grades = torch.tensor(scores_BK.ravel()), torch.tensor(relevance_BK.ravel()).long()
    queries = torch.arange(len(relevance_BK)).repeat_interleave(CANDIDATES)

    def torch_metric() -> torch.Tensor:
        metric = RetrievalNormalizedDCG(top_k=CUT)
        metric.update(scores, grades, indexes=queries)
        result: torch.Tensor = metric.compute()
        return result

    return {
        "pytrec_eval": lambda: trec_evaluator.evaluate(scored),
        "ir_measures": lambda: list(ir_evaluator.iter_calc(scored)),
        "ranx arrays": lambda: ranx.metrics.ndcg(judged_BK2, shown_BK2, CUT),
        "ranx Qrels and Run": lambda: ranx.evaluate(qrels, run, f"ndcg@{CUT}", save_results_in_run=False),
        "torchmetrics": torch_metric,
        "scikit-learn": lambda: ndcg_score(relevance_BK, scores_BK, k=CUT, ignore_ties=True),
    }


def check_equal(timed: dict[str, Run]) -> None:
    """All must do the same work, or nothing is worth timing; this also compiles ranx."""
    expected_B: FloatArray = timed[OURS]()
    each: dict[str, Iterable[float]] = {
        FUNCTION: timed[FUNCTION](),
        "pytrec_eval": [values[f"ndcg_cut_{CUT}"] for values in timed["pytrec_eval"]().values()],
        "ir_measures": [metric.value for metric in timed["ir_measures"]()],
        "ranx arrays": timed["ranx arrays"](),
    }
    for name, values in each.items():
        if np.abs(np.array(values) - expected_B).max() > 1e-12:
            raise SystemExit(f"{name} disagrees; run metric_agreement.py before this")
    for name, tolerance in (("ranx Qrels and Run", 1e-12), ("scikit-learn", 1e-12), ("torchmetrics", 1e-6)):
        if abs(float(timed[name]()) - expected_B.mean()) > tolerance:
            raise SystemExit(f"the mean of {name} disagrees; run metric_agreement.py before this")


def seconds(run: Run) -> tuple[float, float]:
    """The better of two calls, by the clock on the wall and by processor time."""
    return min(_one_call(run) for _ in range(2))


def _one_call(run: Run) -> tuple[float, float]:
    """Timed with the garbage collector standing still."""
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        made = run()
        took = time.perf_counter() - wall, time.process_time() - cpu
        del made
    finally:
        gc.enable()
    return took


def measured(timed: dict[str, Run], repeats: int) -> tuple[dict[str, list[tuple[float, float]]], dict[str, Any]]:
    """Seconds of every contestant over the repeats, and of ours just before it."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in timed}
    beside: dict[str, list[tuple[float, float]]] = {name: [] for name in timed}
    for repeat in range(repeats):
        for name, run in timed.items():
            beside[name].append(seconds(timed[OURS]))
            took[name].append(seconds(run))
        print(f"repeat {repeat + 1} of {repeats} is done")
    return took, beside


def quotients(over: list[tuple[float, float]], under: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """By the wall clock and by processor time, one quotient a repeat."""
    wall, cpu = zip(*(np.array(a) / np.array(b) for a, b in zip(over, under, strict=True)), strict=True)
    return {"ratio": spread([*map(float, wall)]), "processor_time_ratio": spread([*map(float, cpu)])}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ranx's compiler warns of casts
        timed = contestants(task(options.requests))
        check_equal(timed)
        took, beside = measured(timed, options.repeats)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "metrics": {
                "milliseconds": spread([wall * 1e3 for wall, _ in times]),
                "processor_milliseconds": spread([cpu * 1e3 for _, cpu in times]),
            },
        }
        for name, times in took.items()
    ]
    for copying in (COPY, COPY_READY):
        rows.append({"name": f"ours / {copying}", "metrics": quotients(beside[copying], took[copying])})
    for name in (*RIVALS, "scikit-learn"):
        rows.append({"name": f"{name} / ours", "metrics": quotients(took[name], beside[name])})
    for row in rows:
        shown = (f"{m} {v['value']:.3g} ({v['low']:.3g} to {v['high']:.3g})" for m, v in row["metrics"].items())
        print(f"{row['name']}: {', '.join(shown)}")
    ratio = {row["name"]: row["metrics"]["ratio"] for row in rows if "ratio" in row["metrics"]}
    least = min(ratio[f"{name} / ours"]["low"] for name in RIVALS)
    most = ratio[f"ours / {COPY}"]["high"]
    met = least >= RIVAL_GOAL and most <= COPY_GOAL
    print(
        f"at least {least:.3g} times every rival (goal {RIVAL_GOAL:g}), at most {most:.3g} copies (goal {COPY_GOAL:g})"
    )
    finish(
        options,
        "metric-speed",
        command="python benchmarks/metric_speed.py",
        data=f"random rankings of {CANDIDATES} candidates, grades 0 to {GRADES - 1}, NDCG@{CUT}",
        n=options.requests,
        seeds=[SEED],
        rows=rows,
        goal=f"in every repeat at least {RIVAL_GOAL:g} times as fast as pytrec_eval, ir_measures, ranx and "
        f"torchmetrics in their fastest form, and at most {COPY_GOAL:g} times as long as copying the same arrays; "
        "value is the median, low and high the range over repeats",
        met=met,
    )


if __name__ == "__main__":
    main()
