"""The `rerank` command: the composition root, where names typed at a terminal become objects.

Needs the `cli` extra (typer, rich); what a command needs beyond that is imported inside it. Every error the library
raises on purpose is one sentence on standard error and exit code 1 (`--debug` shows where it came from); a wrong option
is exit code 2, and Ctrl-C exit code 130.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from rerank_env.rewards.errors import InputError, MissingExtraError, RerankError

try:
    import rich
    import typer
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table
except ImportError:
    sys.exit("error: the rerank command needs typer and rich; pip install 'rerank-env[cli]'")

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
data_app = typer.Typer(no_args_is_help=True, help="Fetch data sets and look at them before training.")
app.add_typer(data_app, name="data")

Data = Annotated[str, typer.Option(help="Data set: `movielens-100k` or `synthetic`.")]
Kind = Annotated[str, typer.Option(help="`graded` (several relevant candidates) or `next_item` (one).")]
Directory = Annotated[Path, typer.Option(help="Where checkpoints, logs and results go; run again to go on.")]


@app.callback()
def rerank(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Re-ranking as a Gymnasium environment: fetch data, train policies, compare them honestly.

    Start with `rerank demo`. Step by step: `rerank data describe movielens-100k`, then
    `rerank train dapo --directory runs/mine`, then `rerank eval runs/mine`.
    """


@app.command()
def demo(
    directory: Directory = Path("runs/demo"),
    data: Data = "movielens-100k",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds each method is trained with.")] = 3,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps a run (default: the method's).")] = None,
) -> None:
    """Train a re-ranker with DAPO and its supervised rival, compare, audit, and write a report.

    On MovieLens-100K with three seeds this takes about four minutes on two cores. An interrupted demo goes on where
    it stopped when run again. Leaves `report.json` and `report.html` in the directory.
    """
    from rerank_env.training.demo import DemoSettings, run

    settings = DemoSettings(data=data, seeds=tuple(range(seeds)), steps=steps, command=_typed())
    runs = settings.runs()
    print(f"Training {len(runs)} policies on {data}; logs are in {directory}.", file=sys.stderr)
    with _progress() as progress:
        tasks = {name: progress.add_task(name, total=run.config().steps) for name, run in runs.items()}
        report = run(
            settings,
            directory,
            on_progress=lambda name, done, steps: progress.update(tasks[name], completed=done, total=steps),
        )
    _print_table(report["metrics"], report["paired"], report["n_test"])
    rich.print(report["verdict"])
    rich.print(f"Report: {directory / 'report.html'}")


@app.command()
def train(
    method: Annotated[str, typer.Argument(help="`dapo` (reinforcement learning in Rerank-v0) or `supervised`.")],
    directory: Directory,
    data: Data = "movielens-100k",
    kind: Kind = "graded",
    reward: Annotated[
        str, typer.Option(help="What dapo maximises, e.g. `gain`, `gr2`, `ndcg@10.over_incoming()`.")
    ] = "gain",
    seed: Annotated[int, typer.Option(min=0, help="Decides initial weights, order and sampling.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates (default: the method's).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the method's.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget an earlier run in the directory.")] = False,
) -> None:
    """Train a set-transformer re-ranker and keep the policy that is best on the validation split.

    Stop it at any time with Ctrl-C: the same command goes on where it stopped, to the same weights.
    """
    from rerank_env.training.runs import POLICY, RunSettings, train_run

    settings = RunSettings(method, data, kind, reward, seed, steps, learning_rate)
    with _progress() as progress:
        task = progress.add_task(method, total=settings.config().steps)
        result = train_run(
            settings, directory, resume=not restart,
            on_step=lambda log: progress.update(task, completed=log.step, total=log.steps),
        )  # fmt: skip
    best = (
        ""
        if result.best_validation is None
        else f", validation {result.best_validation:.4f} at step {result.best_step}"
    )
    print(f"trained {result.steps} steps{best}; policy in {directory / POLICY}")


@app.command("eval")
def evaluate(
    policies: Annotated[list[Path], typer.Argument(help="Directories of finished runs or saved policies.")],
    data: Data = "movielens-100k",
    split: Annotated[str, typer.Option(help="`train`, `validation` or `test`.")] = "test",
    kind: Kind = "graded",
    output: Annotated[Path | None, typer.Option(help="Write the whole evaluation to this JSON file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides shuffles and bootstrap resamples.")] = 0,
) -> None:
    """Compare saved policies with the incoming order, random and oracle, with intervals over users.

    Prints every metric, the paired NDCG@10 difference to the incoming order, the share of answers that copy it, and
    what is left when the candidates are shuffled.
    """
    from rerank_env.data import load
    from rerank_env.training import evaluate as evaluation
    from rerank_env.training.runs import trained_policy

    named = {str(path): trained_policy(path) for path in policies}
    if len(named) < len(policies):
        raise InputError("one policy is named twice; name every directory once")
    found = evaluation.evaluate(load(data, split=split, kind=kind), named, seed=seed).to_dict()
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rows = found["rows"]
    gains = {name: row["gain"] for name, row in rows.items()}
    _print_table({name: row["metrics"] for name, row in rows.items()}, None, found["n_requests"])
    for name in named:
        gain, row = gains[name]["ndcg@10"], rows[name]
        claim = "a gain" if gain["low"] > 0 else "no gain"
        rich.print(
            f"{name}: NDCG@10 {gain['value']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}] over the incoming order "
            f"({claim}); shuffled {row['shuffled']['ndcg@10']['value']:.4f}; "
            f"equal to the incoming order {row['identity_rate']:.1%}; "
            f"valid {row['validity']:.1%}"
        )


@data_app.command("fetch")
def fetch_data(name: Annotated[str, typer.Argument(help="Data set.")] = "movielens-100k") -> None:
    """Download a data set into the cache, once."""
    from rerank_env.data import DATASETS, movielens
    from rerank_env.data.fetch import fetch
    from rerank_env.rewards.errors import UnknownNameError

    if name not in DATASETS:
        raise UnknownNameError.of("data set", name, DATASETS)
    print("synthetic data is made, not fetched" if name == "synthetic" else fetch(movielens.SOURCE, progress=True))


@data_app.command("describe")
def describe_data(
    name: Annotated[str, typer.Argument(help="Data set: `movielens-100k` or `synthetic`.")] = "movielens-100k",
    kind: Kind = "graded",
) -> None:
    """Print sizes, label density, the incoming order's NDCG@10, head-room and traps of every split."""
    from rerank_env.data import SPLITS, load
    from rerank_env.data.describe import describe

    found = {split: describe(load(name, split=split, kind=kind)) for split in SPLITS}
    table = Table(title=f"{name}, {kind}")
    table.add_column("")
    for split in SPLITS:
        table.add_column(split, justify="right")
    for key in found["test"]:
        values = [found[split][key] for split in SPLITS]
        if not isinstance(values[0], list) and key != "name":
            table.add_row(key, *(f"{value:.4f}" if isinstance(value, float) else str(value) for value in values))
    rich.print(table)
    for split in SPLITS:
        for key in ("notes", "warnings"):
            for sentence in found[split][key]:  # type: ignore[union-attr]
                print(f"{split}: {'warning: ' if key == 'warnings' else ''}{sentence}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Progress bars with the time to go; Ctrl-C under them is one sentence and exit code 130."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            yield progress
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "interrupted; run the same command again to go on", file=sys.stderr)
        raise typer.Exit(130) from interrupt


def _print_table(metrics: dict[str, Any], paired: dict[str, Any] | None, requests: int) -> None:
    """One column a policy, one row a metric: eight metrics beside one another do not fit a terminal."""
    table = Table(title=f"{requests} requests")
    table.add_column("")
    for policy in metrics:
        table.add_column(policy, justify="right", overflow="fold")
    if paired is not None:
        table.add_column("policy - incoming", justify="right")
    for name in next(iter(metrics.values())):
        cells = [f"{values[name]['value']:.4f}" for values in metrics.values()]
        table.add_row(name, *cells, *([f"{paired[name]['diff']:+.4f}"] if paired is not None else []))
    rich.print(table)


def _typed() -> str:
    return " ".join(["rerank", *sys.argv[1:]])


def main() -> None:
    """Run the command line, turning errors into one sentence and an exit code."""
    debug = "--debug" in sys.argv[1:]
    try:
        app()
    except (RerankError, ImportError) as error:
        if debug or (isinstance(error, ImportError) and not isinstance(error, MissingExtraError)):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
