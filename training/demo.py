"""The demo: train, compare and audit on held-out data, and leave a report. What `rerank demo` does.

Every run is a `rerank train` command in a process of its own, as many at once as there are cores to spare, so that the
demo shows nothing a user could not do by hand, and an interrupted demo goes on where each run stopped. The test split
is read once, at the end. May import all layers below; the page needs the `report` extra.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env.agents import Policy
from rerank_env.data import Requests, load
from rerank_env.rewards import audit, parse_reward
from rerank_env.rewards.errors import RerankError
from rerank_env.training.evaluate import Evaluation, evaluate
from rerank_env.training.logs import LOG_NAME, read_log
from rerank_env.training.report import write_page
from rerank_env.training.runs import RunSettings, arguments, trained_policy

ROWS = ("incoming", "random", "oracle", "supervised", "policy")
AUDITED = ("naive", "gr2", "gr2_industrial", "gain")
MAIN_METRIC = "ndcg@10"
CURVE_POINTS = 120
POLL_SECONDS = 0.5


class RunFailedError(RerankError, RuntimeError):
    """A training process ended with an error; the message names its output file."""


@dataclass(frozen=True)
class DemoSettings:
    """What the demo trains on and with; the defaults are what `make demo` runs."""

    data: str = "movielens-100k"
    kind: str = "graded"
    reward: str = "gain"
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int | None = None
    command: str = "make demo"

    def runs(self) -> dict[str, RunSettings]:
        """The training runs by name, dapo first because they take longer."""
        return {
            f"{method}-seed{seed}": RunSettings(
                method=method, data=self.data, kind=self.kind, reward=self.reward, seed=seed, steps=self.steps
            )
            for method in ("dapo", "supervised")
            for seed in self.seeds
        }


def run(settings: DemoSettings, directory: Path, *, on_progress: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Run the demo and return its report, also written to `directory/report.json` and `report.html`.

    `on_progress(run, step, steps)` is called as training goes on. Raises `RunFailedError` if a training run fails;
    a KeyboardInterrupt reaches the runs too, which save themselves, and running the demo again goes on.
    """
    splits = {split: load(settings.data, split=split, kind=settings.kind) for split in ("train", "validation", "test")}
    runs = settings.runs()
    started = time.monotonic()
    train_all(runs, directory, on_progress=on_progress)
    trained = time.monotonic()
    policies: dict[str, list[Policy]] = {
        row: [trained_policy(directory / f"{method}-seed{seed}") for seed in settings.seeds]
        for row, method in (("supervised", "supervised"), ("policy", "dapo"))
    }
    each: dict[str, Policy | list[Policy]] = {
        _seed_row(seed): policy for seed, policy in zip(settings.seeds, policies["policy"], strict=True)
    }
    evaluation = evaluate(splits["test"], {**policies, **each}, seed=0)
    report = _report(settings, splits, evaluation, policies["policy"][0], directory)
    report["seconds"] = {"train": trained - started, "evaluate": time.monotonic() - trained}
    (directory / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    write_page(report, directory / "report.html")
    return report


def train_all(
    runs: Mapping[str, RunSettings], directory: Path, *, on_progress: Callable[[str, int, int], None]
) -> None:
    """Train every run in `directory/NAME`, several at once, each with its share of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = max(1, min(cores, len(runs)))
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, cores // workers))}
    waiting, going = list(runs.items()), dict[str, subprocess.Popen[bytes]]()
    try:
        while waiting or going:
            while waiting and len(going) < workers:
                name, settings = waiting.pop(0)
                going[name] = _start(settings, directory / name, environment)
            time.sleep(POLL_SECONDS)
            for name, process in list(going.items()):
                ended = process.poll()
                on_progress(name, _steps_done(directory / name), runs[name].config().steps)
                if ended is not None:
                    del going[name]
                    if ended != 0:
                        raise RunFailedError(_failure(name, directory / name, ended))
    finally:
        for process in going.values():  # Ctrl-C has reached them already, and they are saving
            if not isinstance(sys.exception(), KeyboardInterrupt):
                process.terminate()
            process.wait()


def _start(settings: RunSettings, directory: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rerank_env", "train", *arguments(settings), "--directory", str(directory)]
    with (directory / "output.txt").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def _steps_done(directory: Path) -> int:
    log = directory / LOG_NAME
    if not log.is_file():
        return 0
    lines = read_log(log)
    return int(lines[-1]["step"]) if lines else 0


def _failure(name: str, directory: Path, code: int) -> str:
    output = directory / "output.txt"
    last = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["no output"]
    return f"training run {name} ended with exit code {code} ({last[0]}); its output is in {output}"


def _report(
    settings: DemoSettings,
    splits: Mapping[str, Requests],
    evaluation: Evaluation,
    shown: Policy,
    directory: Path,
) -> dict[str, Any]:
    table = {name: row for name, row in evaluation.to_dict()["rows"].items() if name in ROWS}
    differences = {
        key: {m: _difference(evaluation, name, baseline, m) for m in evaluation.metrics}
        for key, name, baseline in (
            ("paired", "policy", "incoming"),
            ("paired_supervised", "supervised", "incoming"),
            ("paired_to_supervised", "policy", "supervised"),
        )
    }
    audits = {name: audit(parse_reward(name), splits["validation"].slates, seed=0) for name in AUDITED}
    rows = next(iter(audits.values())).rows
    gain = differences["paired"][MAIN_METRIC]
    return {
        "title": "A re-ranker learns in Rerank-v0",
        "command": settings.command,
        "date": date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("rerank-env", "torch", "gymnasium", "numpy", "scipy")},
        "data": {
            "name": splits["test"].name,
            "notes": list(splits["test"].notes),
            **{f"n_{split}": len(requests) for split, requests in splits.items()},
        },
        "reward": str(parse_reward(settings.reward)),
        "seeds": list(settings.seeds),
        "n_test": evaluation.n_requests,
        "n_users": evaluation.n_users,
        "main_metric": MAIN_METRIC,
        "metric_names": list(evaluation.metrics),
        "metrics": {name: row["metrics"] for name, row in table.items()},
        **differences,
        "per_seed": {
            str(seed): {m: _difference(evaluation, _seed_row(seed), "incoming", m) for m in evaluation.metrics}
            for seed in settings.seeds
        },
        "gain_found": gain["low"] > 0,
        "verdict": _verdict(gain, len(settings.seeds)),
        "identity_rate": table["policy"]["identity_rate"],
        "behaviour": {
            name: {key: row[key] for key in ("identity_rate", "kendall_tau", "validity", "agreement")}
            for name, row in table.items()
        },
        "shuffled": {name: row["shuffled"] for name, row in table.items()},
        "strategies": [{"name": row.name, "kind": row.kind} for row in rows],
        "audit": {name: {row["name"]: row for row in found.to_dict()["rows"]} for name, found in audits.items()},
        "audit_rewards": {name: str(parse_reward(name)) for name in AUDITED},
        "curves": {name: _thinned(read_log(directory / name / LOG_NAME)) for name in settings.runs()},
        "slates": _before_and_after(splits["test"], shown),
    }


def _seed_row(seed: int) -> str:
    return f"policy, seed {seed}"


def _difference(evaluation: Evaluation, name: str, baseline: str, metric: str) -> dict[str, float]:
    interval = evaluation.difference(name, baseline, metric).to_dict()
    return {"diff": interval["value"], "low": interval["low"], "high": interval["high"]}


def _verdict(gain: Mapping[str, float], seeds: int) -> str:
    interval = f"{gain['diff']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]"
    claim = "ranks better than the incoming order" if gain["low"] > 0 else "shows no gain over the incoming order"
    over = f"Over {seeds} seeds" if seeds > 1 else "With one seed"
    return f"{over} the policy {claim}: {MAIN_METRIC.upper()} {interval} (95 % interval over users)."


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
    before_B = metric(np.tile(np.arange(answers_BK.shape[1]), (len(requests), 1)), requests.slates)
    after_B = metric(answers_BK, requests.slates)
    order = np.argsort(after_B - before_B, kind="stable")
    chosen = {"Largest gain": order[-1], "Median change": order[len(order) // 2], "Largest loss": order[0]}
    texts = requests.catalog.texts
    shown = []
    for label, row in chosen.items():
        size = int(requests.sizes_B[row])
        items, gains = requests.candidates_BK[row], requests.relevance_BK[row]
        places = [
            {
                "incoming": texts[items[place]],
                "incoming_gain": f"{gains[place]:g}",
                "policy": texts[items[answers_BK[row, place]]],
                "policy_gain": f"{gains[answers_BK[row, place]]:g}",
            }
            for place in range(size)
        ]
        shown.append({"label": label, "before": before_B[row], "after": after_B[row], "places": places})
    return shown
