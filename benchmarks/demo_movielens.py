"""Run the demo on MovieLens-100K and record its result in docs/results/demo-movielens.json.

Run: python benchmarks/demo_movielens.py            (some minutes on two cores)

Trained afresh each time, in a folder of its own: weights left by an earlier state of the code must not be recorded.

Goal: over three seeds the policy's NDCG@10 gain over the incoming order has an interval above zero on at least 1,500
held-out slates.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from record import record

from rerank_env.training.demo import DemoSettings, run

COMMAND = "python benchmarks/demo_movielens.py"
NEEDED_REQUESTS = 1500
NEEDED_SEEDS = 3


def rows_of(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The report as rows of the house form: means, then paired differences, then the signs of copying."""
    rows = [
        {"name": name, "metrics": {**metrics, **_plain(report["behaviour"][name]), **_under_shuffle(report, name)}}
        for name, metrics in report["metrics"].items()
    ]
    for name, key in (
        ("policy - incoming", "paired"),
        ("supervised - incoming", "paired_supervised"),
        ("policy - supervised", "paired_to_supervised"),
    ):
        rows.append({"name": name, "metrics": _differences(report[key])})
    for seed, differences in report["per_seed"].items():
        rows.append({"name": f"policy - incoming, seed {seed}", "metrics": _differences(differences)})
    main = report["main_metric"]
    for key, label in (("paired", "policy - incoming"), ("paired_to_supervised", "policy - supervised")):
        rows.append({"name": f"{label}, validation", "metrics": _differences({main: report["validation"][key][main]})})
    for what, shown in report["hidden"].items():
        rows.append({"name": f"policy with {what} hidden - incoming", "metrics": _differences({main: shown["gain"]})})
    for reward, strategies in report["audit"].items():
        earned = {name: row["mean_reward"] for name, row in strategies.items()}
        rows.append({"name": f"audit of {reward}", "metrics": _plain(earned)})
    return rows


def _plain(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    return {name: {"value": value, "low": value, "high": value} for name, value in values.items()}


def _under_shuffle(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    metric = report["main_metric"]
    return {f"{metric} shuffled": report["shuffled"][name][metric]}


def _differences(differences: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {m: {"value": d["diff"], "low": d["low"], "high": d["high"]} for m, d in differences.items()}


def _print_progress(name: str, done: int, steps: int) -> None:
    print(f"{name}: {done} of {steps}", file=sys.stderr)


def main() -> None:
    settings = DemoSettings(command=COMMAND)
    with tempfile.TemporaryDirectory() as directory:
        report = run(settings, Path(directory), on_progress=_print_progress)
    gain = report["paired"][report["main_metric"]]
    met = gain["low"] > 0 and report["n_test"] >= NEEDED_REQUESTS and len(report["seeds"]) >= NEEDED_SEEDS
    record(
        "demo-movielens",
        command=COMMAND,
        data=f"{report['data']['name']}; {'; '.join(report['data']['notes'])}",
        n=report["n_test"],
        seeds=report["seeds"],
        rows=rows_of(report),
        goal=f"over {NEEDED_SEEDS} seeds, NDCG@10 gain over the incoming order with an interval above zero "
        f"on >= {NEEDED_REQUESTS} held-out slates",
        met=met,
    )
    print(report["verdict"])


if __name__ == "__main__":
    main()
