"""The commands that train: `rerank demo` and `rerank train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import rich
import typer

from rerank_env.commands.console import Data, Kind, Options, print_columns, progress

Directory = Annotated[Path, typer.Option(help="Where checkpoints, logs and results go; run again to go on.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Updates a run (default: the method's).")]
Restart = Annotated[bool, typer.Option("--restart", help="Forget an earlier run in the directory.")]


def demo(
    directory: Directory = Path("runs/demo"),
    data: Data = "movielens-100k",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds each method is trained with.")] = 3,
    steps: Steps = None,
    restart: Restart = False,
) -> None:
    """Train a re-ranker with DAPO and its supervised rival, compare, audit, and write a report.

    On MovieLens-100K with three seeds this takes about two minutes on two cores. An interrupted demo goes on where it
    stopped when run again. Leaves `report.json` and `report.html` in the directory.
    """
    from rerank_env.data import load
    from rerank_env.training.demo import DemoSettings, run

    settings = DemoSettings(data=data, seeds=tuple(range(seeds)), steps=steps, command=_typed())
    load(data)  # a wrong name or a missing file is found before anything starts
    runs = {name: one.config().steps for name, one in settings.runs().items()}
    print(f"Training {len(runs)} policies on {data}, {sum(runs.values())} steps in all; logs are in {directory}.")
    with progress() as bars:
        tasks = {name: bars.add_task(name, total=total, start=False) for name, total in runs.items()}

        def show(name: str, done: int, total: int) -> None:
            if not bars.tasks[tasks[name]].started:
                bars.start_task(tasks[name])
            bars.update(tasks[name], completed=done, total=total)
            if done == total:
                bars.stop_task(tasks[name])

        report = run(settings, directory, on_progress=show, restart=restart)
    print_columns(report["metrics"], report["n_test"])
    rich.print(report["verdict"])
    print(f"Report: {directory / 'report.html'}")


def train(
    method: Annotated[str, typer.Argument(help="`dapo` (reinforcement learning in Rerank-v0) or `supervised`.")],
    directory: Directory,
    data: Data = "movielens-100k",
    kind: Kind = None,
    options: Options = None,
    reward: Annotated[
        str | None, typer.Option(help="What dapo maximises: `gain` (default), `gr2`, `ndcg@10.over_incoming()`, ...")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides initial weights, order and sampling.")] = 0,
    steps: Steps = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the method's.")] = None,
    restart: Restart = False,
) -> None:
    """Train a set-transformer re-ranker and keep the policy that is best on the validation split.

    Stop it at any time with Ctrl-C: the same command goes on where it stopped, to the same weights.
    """
    from rerank_env.training.runs import POLICY, RunSettings, train_run

    settings = RunSettings(
        method=method,
        data=data,
        kind=kind,
        options=options,
        reward=reward,
        seed=seed,
        steps=steps,
        learning_rate=learning_rate,
    )
    with progress() as bars:
        task = bars.add_task(method, total=settings.config().steps)
        result = train_run(
            settings,
            directory,
            resume=not restart,
            on_step=lambda log: bars.update(task, completed=log.step, total=log.steps),
        )
    best = ""
    if result.best_validation is not None:
        best = f", validation {result.best_validation:.4f} at step {result.best_step}"
    print(f"trained {result.steps} steps{best}; policy in {directory / POLICY}")


def _typed() -> str:
    return " ".join(["rerank", *sys.argv[1:]])
