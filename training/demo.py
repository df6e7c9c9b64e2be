"""The demo: train, compare and audit on held-out data, and leave a report. What `rerank demo` does.

Every run is a `rerank train` command in a process of its own (`processes.py`), so that the demo shows nothing a user
could not do by hand, and an interrupted demo goes on where each run stopped. The test split is evaluated once, at the
end. May import all layers below; the page needs the `report` extra.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank_env import durable
from rerank_env.agents import Policy
from rerank_env.data import SPLITS, load
from rerank_env.training.evaluate import evaluate
from rerank_env.training.hidden import Hidden
from rerank_env.training.processes import OnProgress, train_all
from rerank_env.training.report import write_page
from rerank_env.training.runs import METHODS, RunSettings, trained_policy
from rerank_env.training.summary import Found, summary


@dataclass(frozen=True)
class DemoSettings:
    """What the demo trains on and with; the defaults are what `make demo` runs."""

    data: str = "movielens-100k"
    kind: str | None = None
    reward: str = "gain"
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int | None = None
    command: str = "make demo"

    def run_settings(self, method: str, seed: int) -> RunSettings:
        """The training run of one method and seed."""
        reward = self.reward if method == "dapo" else None
        return RunSettings(
            method=method, data=self.data, kind=self.kind, reward=reward, seed=seed, steps=self.steps
        )  # fmt: skip

    def runs(self) -> dict[str, RunSettings]:
        """The training runs by name, dapo first because they take longer."""
        return {run_name(method, seed): self.run_settings(method, seed) for method in METHODS for seed in self.seeds}


def run_name(method: str, seed: int) -> str:
    """What a run is called, and its folder."""
    return f"{method}-seed{seed}"


def run(settings: DemoSettings, directory: Path, *, on_progress: OnProgress, restart: bool = False) -> dict[str, Any]:
    """Run the demo and return its report, also written to `directory/report.json` and `report.html`.

    Raises `RunFailedError` if a training run fails; Ctrl-C is passed on to the runs, which save themselves, and running
    the demo again goes on, unless `restart`.
    """
    splits = {split: load(settings.data, split=split, kind=settings.kind) for split in SPLITS}
    started = time.monotonic()
    train_all(settings.runs(), directory, on_progress=on_progress, restart=restart)
    trained = time.monotonic()
    seeds: dict[str, list[Policy]] = {
        method: [trained_policy(directory / run_name(method, seed)) for seed in settings.seeds] for method in METHODS
    }
    rivals = {"supervised": seeds["supervised"], "policy": seeds["dapo"]}
    hidden: dict[str, list[Policy]] = {
        f"policy, {what} hidden": [Hidden(policy, what) for policy in seeds["dapo"]] for what in ("history", "scores")
    }
    each = {f"policy, seed {seed}": [policy] for seed, policy in zip(settings.seeds, seeds["dapo"], strict=True)}
    found = Found(
        splits=splits,
        test=evaluate(splits["test"], {**rivals, **hidden, **each}, seed=0),
        validation=evaluate(splits["validation"], rivals, seed=0),
        shown=seeds["dapo"][0],
        directory=directory,
    )
    report = summary(settings, found)
    report["seconds"] = {"train": trained - started, "evaluate": time.monotonic() - trained}
    durable.replace(directory / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    write_page(report, directory / "report.html")
    return report
