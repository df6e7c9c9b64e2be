"""What the demo found, as one JSON-ready mapping: everything on the page, and nothing that is not in it.

May import all layers below.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_env.agents import Policy
from rerank_env.data import Requests
from rerank_env.rewards import parse_reward
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.training.audits import audit_requests
from rerank_env.training.evaluate import Evaluation
from rerank_env.training.logs import LOG_NAME, read_log

if TYPE_CHECKING:
    from rerank_env.training.demo import DemoSettings

ROWS = ("incoming", "random", "oracle", "supervised", "policy")
DIFFERENCES = {
    "paired": ("policy", "incoming"),
    "paired_supervised": ("supervised", "incoming"),
    "paired_to_supervised": ("policy", "supervised"),
}
AUDITED = ("naive", "gr2", "gr2_industrial", "gain")
ATTACKS = (
    "oracle",
    "random",
    "identity",
    "one_swap",
    "top_swap",
    "reverse",
    "popularity",
    "random_on_shuffled",
    "truncated",
    "duplicate_top",
    "prompt_echo",
    "empty",
)
"""The rows of the audit that are shown; its verdict is on all of them."""
MAIN_METRIC = "ndcg@10"
CURVE_POINTS = 120


@dataclass(frozen=True, eq=False)
class Found:
    """What the demo measured: evaluations of two of the `splits`; `shown` is the policy of the examples."""

    splits: Mapping[str, Requests]
    test: Evaluation
    validation: Evaluation
    shown: Policy
    directory: Path


def summary(settings: DemoSettings, found: Found) -> dict[str, Any]:
    """The report of a finished demo, all numbers plain floats."""
    table = found.test.to_dict()["rows"]
    paired = {key: _differences(found.test, *pair) for key, pair in DIFFERENCES.items()}
    # without the search, which `rerank audit` adds
    audits = {name: audit_requests(name, found.splits["validation"], search=False) for name in AUDITED}
    shown = [next(iter(audits.values()))[name] for name in ATTACKS]
    test = found.splits["test"]
    return {
        "title": "A re-ranker learns in Rerank-v0",
        "command": settings.command,
        "date": date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("rerank-env", "torch", "gymnasium", "numpy", "scipy")},
        "data": {
            "name": test.name,
            "notes": list(test.notes),
            **{f"n_{split}": len(requests) for split, requests in found.splits.items()},
        },
        "reward": str(parse_reward(settings.reward)),
        "seeds": list(settings.seeds),
        "n_test": found.test.n_requests,
        "n_users": found.test.n_users,
        "main_metric": MAIN_METRIC,
        "metric_names": list(found.test.metrics),
        "metrics": {name: table[name]["metrics"] for name in ROWS},
        **paired,
        "per_seed": {
            str(seed): _differences(found.test, f"policy, seed {seed}", "incoming") for seed in settings.seeds
        },
        "validation": {key: _differences(found.validation, *pair) for key, pair in DIFFERENCES.items()},
        "hidden": {
            what: table[f"policy, {what} hidden"]["metrics"][MAIN_METRIC] | {"gain": _gain(found.test, what)}
            for what in ("history", "scores")
        },
        "verdict": _verdict(paired, table, len(settings.seeds)),
        "gain_found": paired["paired"][MAIN_METRIC]["low"] > 0,
        "identity_rate": table["policy"]["identity_rate"],
        "behaviour": {
            name: {key: table[name][key] for key in ("identity_rate", "kendall_tau", "validity", "agreement")}
            for name in ROWS
        },
        "shuffled": {name: table[name]["shuffled"] for name in ROWS},
        "strategies": [{"name": row.name, "kind": row.kind, "about": row.about} for row in shown],
        "audit": {
            name: {row["name"]: row for row in done.to_dict()["rows"] if row["name"] in ATTACKS}
            for name, done in audits.items()
        },
        "audit_verdicts": {name: done.verdict for name, done in audits.items()},
        "audit_rewards": {name: str(parse_reward(name)) for name in AUDITED},
        "curves": {name: _thinned(read_log(found.directory / name / LOG_NAME)) for name in settings.runs()},
        "slates": _before_and_after(test, found.shown),
    }


def _differences(evaluation: Evaluation, name: str, baseline: str) -> dict[str, dict[str, float]]:
    """The paired difference of every metric with its interval."""
    differences = {}
    for metric in evaluation.metrics:
        interval = evaluation.difference(name, baseline, metric)
        differences[metric] = {"diff": interval.value, "low": interval.low, "high": interval.high}
    return differences


def _gain(evaluation: Evaluation, what: str) -> dict[str, float]:
    return _differences(evaluation, f"policy, {what} hidden", "incoming")[MAIN_METRIC]


def _verdict(paired: Mapping[str, Any], table: Mapping[str, Any], seeds: int) -> str:
    gain, rival = paired["paired"][MAIN_METRIC], paired["paired_to_supervised"][MAIN_METRIC]
    room = table["oracle"]["metrics"][MAIN_METRIC]["value"] - table["incoming"]["metrics"][MAIN_METRIC]["value"]
    over = f"Over {seeds} seeds" if seeds > 1 else "With one seed"
    claim = "ranks better than the incoming order" if gain["low"] > 0 else "shows no gain over the incoming order"
    share = f", {gain['diff'] / room:.0%} of the head-room" if gain["low"] > 0 and room > 0 else ""
    beside = "better than" if rival["low"] > 0 else "worse than" if rival["high"] < 0 else "not distinguishable from"
    return (
        f"{over} the policy {claim}: {MAIN_METRIC.upper()} {_shown(gain)}{share}. "
        f"It is {beside} the supervised rival: {_shown(rival)}. Intervals are 95 %, over users."
    )


def _shown(difference: Mapping[str, float]) -> str:
    return f"{difference['diff']:+.4f} [{difference['low']:+.4f}, {difference['high']:+.4f}]"


def _thinned(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most `CURVE_POINTS` lines: block means of what every step logs, and every validation where it happened."""
    block = max(1, -(-len(lines) // CURVE_POINTS))
    thinned: list[Mapping[str, Any]] = []
    for start in range(0, len(lines), block):
        part = lines[start : start + block]
        numbers = {key for key, value in part[-1].items() if isinstance(value, int | float) and key != "step"}
        means = {key: float(np.mean([line[key] for line in part if line.get(key) is not None])) for key in numbers}
        validations = [line["validation"] for line in part if line.get("validation") is not None]
        thinned.append({**means, "step": part[-1]["step"], "validation": validations[-1] if validations else None})
    return thinned


def _before_and_after(requests: Requests, policy: Policy) -> list[dict[str, Any]]:
    """The request that gained most, a median one and the one that lost most, so that no one picks the examples."""
    metric = parse_reward(MAIN_METRIC)
    answers_BK = policy.rank(requests, rng=np.random.default_rng(0))
    incoming_BK = identity_rankings(requests.sizes_B, answers_BK.shape[1])
    before_B, after_B = metric(incoming_BK, requests.slates), metric(answers_BK, requests.slates)
    order = np.argsort(after_B - before_B, kind="stable")
    chosen = {"Largest gain": order[-1], "Median change": order[len(order) // 2], "Largest loss": order[0]}
    texts = requests.catalog.texts
    shown = []
    for label, row in chosen.items():
        items, relevance = requests.candidates_BK[row], requests.relevance_BK[row]
        places = [
            {
                "incoming": texts[items[place]],
                "incoming_relevance": f"{relevance[place]:g}",
                "policy": texts[items[answers_BK[row, place]]],
                "policy_relevance": f"{relevance[answers_BK[row, place]]:g}",
            }
            for place in range(int(requests.sizes_B[row]))
        ]
        shown.append({"label": label, "before": float(before_B[row]), "after": float(after_B[row]), "places": places})
    return shown
