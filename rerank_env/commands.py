"""What the `rerank` command can do: the composition root, where names typed at a terminal become objects.

Needs the `cli` extra (typer, rich); what a command needs beyond that is imported inside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rerank_env import durable
from rerank_env.rewards.errors import InputError, MissingExtraError

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
except ImportError as error:
    raise MissingExtraError("the rerank command needs typer and rich; pip install 'rerank-env[cli]'") from error

if TYPE_CHECKING:
    from rerank_env.training.evaluate import Evaluation

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
data_app = typer.Typer(no_args_is_help=True, help="Fetch data sets and look at them before training.")
app.add_typer(data_app, name="data")

Data = Annotated[str, typer.Option(help="Data set: `movielens-100k` or `synthetic`.")]
Kind = Annotated[str, typer.Option(help="`graded` (several relevant candidates) or `next_item` (one).")]
Directory = Annotated[Path, typer.Option(help="Where checkpoints, logs and results go; run again to go on.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Updates a run (default: the method's).")]
Restart = Annotated[bool, typer.Option("--restart", help="Forget an earlier run in the directory.")]

MAIN_METRIC = "ndcg@10"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rerank-env {version('rerank-env')}")
        raise typer.Exit


@app.callback()
def rerank(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; give it first.")] = False,
    show_version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Re-ranking as a Gymnasium environment: fetch data, train policies, compare them honestly.

    Start with `rerank demo`. Step by step: `rerank data describe movielens-100k`, then
    `rerank train dapo --directory runs/mine`, then `rerank eval runs/mine`. With data, rewards and policies of
    your own, use Python: `rerank_env.training`.
    """


@app.command()
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
    with _progress() as progress:
        tasks = {name: progress.add_task(name, total=total, start=False) for name, total in runs.items()}

        def show(name: str, done: int, total: int) -> None:
            if not progress.tasks[tasks[name]].started:
                progress.start_task(tasks[name])
            progress.update(tasks[name], completed=done, total=total)
            if done == total:
                progress.stop_task(tasks[name])

        report = run(settings, directory, on_progress=show, restart=restart)
    _print_columns(report["metrics"], report["n_test"])
    rich.print(report["verdict"])
    print(f"Report: {directory / 'report.html'}")


@app.command()
def train(
    method: Annotated[str, typer.Argument(help="`dapo` (reinforcement learning in Rerank-v0) or `supervised`.")],
    directory: Directory,
    data: Data = "movielens-100k",
    kind: Kind = "graded",
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
        method=method, data=data, kind=kind, reward=reward, seed=seed, steps=steps, learning_rate=learning_rate
    )
    with _progress() as progress:
        task = progress.add_task(method, total=settings.config().steps)
        result = train_run(
            settings,
            directory,
            resume=not restart,
            on_step=lambda log: progress.update(task, completed=log.step, total=log.steps),
        )
    best = ""
    if result.best_validation is not None:
        best = f", validation {result.best_validation:.4f} at step {result.best_step}"
    print(f"trained {result.steps} steps{best}; policy in {directory / POLICY}")


@app.command("eval")
def evaluate(
    policies: Annotated[
        list[str],
        typer.Argument(help="Directories of runs or saved policies; `NAME=DIR,DIR` pools the seeds of one policy."),
    ],
    data: Annotated[str | None, typer.Option(help="Data set (default: what the first run was trained on).")] = None,
    split: Annotated[str, typer.Option(help="`train`, `validation` or `test`.")] = "test",
    kind: Annotated[str | None, typer.Option(help="`graded` or `next_item` (default: the first run's).")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the whole evaluation to this JSON file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides shuffles and bootstrap resamples.")] = 0,
) -> None:
    """Compare saved policies with the incoming order, random and oracle, with intervals over users.

    Prints every metric, then for every policy the paired NDCG@10 difference to the incoming order and to the first
    policy, the share of answers that copy the order, and what is left when the candidates are shuffled.
    """
    from rerank_env.data import load
    from rerank_env.training.evaluate import evaluate as evaluated
    from rerank_env.training.runs import run_settings, trained_policy

    named: dict[str, list[Path]] = {}
    for given in policies:
        name, _, paths = given.rpartition("=")
        if (name or paths) in named:
            raise InputError(f"{name or paths!r} is named twice; name every policy once")
        named[name or paths] = [Path(path) for path in (paths.split(",") if name else [paths])]
    _check_folder(output)
    loaded = {name: [trained_policy(path) for path in paths] for name, paths in named.items()}
    settings = run_settings(next(iter(named.values()))[0])
    requests = load(
        data or (settings.data if settings else "movielens-100k"),
        split=split,
        kind=kind or (settings.kind if settings else "graded"),
    )
    found = evaluated(requests, loaded, seed=seed)
    if output is not None:
        durable.replace(output, (json.dumps(found.to_dict(), indent=1) + "\n").encode())
    rows = found.to_dict()["rows"]
    print(requests.name)
    _print_columns({name: row["metrics"] for name, row in rows.items()}, found.n_requests)
    first = next(iter(loaded))
    for name in loaded:
        print(_sentence(found, name, first))


@app.command()
def bias(
    policy: Annotated[
        str, typer.Argument(help="Directory of a run or saved policy; or `incoming`, `random` or `popularity`.")
    ],
    data: Annotated[str | None, typer.Option(help="Data set (default: what the run was trained on).")] = None,
    split: Annotated[str, typer.Option(help="`train`, `validation` or `test`.")] = "validation",
    kind: Annotated[str | None, typer.Option(help="`graded` or `next_item` (default: the run's).")] = None,
    shuffles: Annotated[int, typer.Option(min=2, help="Random orders of each request.")] = 8,
    metric: Annotated[str, typer.Option(help="Whose variance under the orders is reported: any reward.")] = MAIN_METRIC,
    output: Annotated[Path | None, typer.Option(help="Write the whole report to this JSON file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides orders and bootstrap resamples.")] = 0,
) -> None:
    """Show how much a policy goes by position: the same requests under several random orders of their candidates.

    Prints how far two answers to one request agree (Kendall's tau, flip rate), how places and the metric vary, how
    often the order that was shown is copied, and for every incoming slot how often its candidate is answered first.
    """
    from rerank_env.agents import Incoming, Policy, Popularity, Random
    from rerank_env.data import load
    from rerank_env.training.position_bias import position_bias

    _check_folder(output)
    baselines: dict[str, Policy] = {"incoming": Incoming(), "random": Random(), "popularity": Popularity()}
    asked, settings = baselines.get(policy), None
    if asked is None:
        from rerank_env.training.runs import run_settings, trained_policy

        if not Path(policy).is_dir():
            raise InputError(f"{policy!r} is no directory, and no baseline, which are {', '.join(baselines)}")
        asked, settings = trained_policy(Path(policy)), run_settings(Path(policy))
    requests = load(
        data or (settings.data if settings else "movielens-100k"),
        split=split,
        kind=kind or (settings.kind if settings else "graded"),
    )
    found = position_bias(asked, requests, shuffles=shuffles, seed=seed, metric=metric)
    if output is not None:
        durable.replace(output, (json.dumps(found.to_dict(), indent=1) + "\n").encode())
    print(found)


@app.command()
def audit(
    reward: Annotated[str, typer.Argument(help="The reward: `gain`, `gr2`, `ndcg@10.over_incoming()`, ...")],
    data: Data = "movielens-100k",
    split: Annotated[str, typer.Option(help="`train`, `validation` or `test`.")] = "validation",
    kind: Kind = "graded",
    text_format: Annotated[
        str, typer.Option(help="How texts are written: `list`, `arrows`, `json`, `tagged-...`")
    ] = "list",
    step: Annotated[int, typer.Option(min=0, help="The training step that schedules are asked for.")] = 0,
    search: Annotated[bool, typer.Option(help="Train an input-blind policy against the reward.")] = True,
    output: Annotated[Path | None, typer.Option(help="Write every row to this JSON file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides random answers, the search and bootstrap resamples.")] = 0,
) -> None:
    """Try to be paid by a reward for nothing: every known attack, attacks on its parts, and a search for others.

    Prints what each earns beside the oracle, and PASS or FAIL: an answer that took no reading may take 1 % of what the
    oracle earns, and one that is no ranking must earn less than any that is. The exit code is 0 if the reward passes
    and 1 if it fails. With a function or a parser of your own, use Python: `rerank_env.rewards.audit`.
    """
    from rerank_env.data import load
    from rerank_env.prompts import build_prompts
    from rerank_env.rewards import audit as audited
    from rerank_env.rewards import parse_reward
    from rerank_env.rewards.arguments import one_of
    from rerank_env.rewards.formats import FORMATS

    _check_folder(output)
    parsed = parse_reward(reward)
    one_of("text format", text_format, FORMATS)
    requests = load(data, split=split, kind=kind)
    found = audited(
        parsed,
        requests.slates,
        seed=seed,
        text_format=text_format,
        step=step,
        users_B=requests.users_B,
        popularity_BK=requests.catalog.popularity_I[requests.candidates_BK.clip(0)],
        prompts=build_prompts(requests, text_format=text_format),
        search=search,
    )
    if output is not None:
        durable.replace(output, (json.dumps(found.to_dict() | {"data": requests.name}, indent=1) + "\n").encode())
    print(requests.name)
    print(found)
    raise typer.Exit(0 if found.passed else 1)


@data_app.command("fetch")
def fetch_data(name: Annotated[str, typer.Argument(help="Data set.")] = "movielens-100k") -> None:
    """Download a data set into the cache, once, with a progress bar."""
    from rerank_env.data import fetch_dataset

    folder = fetch_dataset(name, progress=True)
    print(f"{name} is made up when it is loaded; there is nothing to fetch" if folder is None else folder)


@data_app.command("describe")
def describe_data(
    name: Annotated[str, typer.Argument(help="Data set: `movielens-100k` or `synthetic`.")] = "movielens-100k",
    kind: Kind = "graded",
) -> None:
    """Print sizes, label density, the incoming order's NDCG@10, head-room and traps of every split."""
    from rerank_env.data import SPLITS, load
    from rerank_env.data.describe import describe

    found = {split: describe(load(name, split=split, kind=kind)) for split in SPLITS}
    table = Table("", title=f"{name}, {kind}")
    for split in SPLITS:
        table.add_column(split, justify="right")
    columns = [description.to_dict() for description in found.values()]
    for key, value in columns[0].items():
        if isinstance(value, int | float):
            table.add_row(key, *(f"{c[key]:.4f}" if isinstance(c[key], float) else str(c[key]) for c in columns))
    rich.print(table)
    for split, description in found.items():
        for note in description.notes:
            print(f"{split}: {note}")
        for warning in description.warnings:
            print(f"{split}: warning: {warning}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Progress bars with the time to go; Ctrl-C under them is one sentence and exit code 130."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
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


def _check_folder(output: Path | None) -> None:
    """Before the work rather than after it."""
    if output is not None and not output.parent.is_dir():
        raise InputError(f"{output.parent} is not a folder; make it before writing {output.name} there")


def _print_columns(metrics: Mapping[str, Mapping[str, Any]], requests: int) -> None:
    """One column a policy, one row a metric: eight metrics beside one another do not fit a terminal."""
    table = Table("", title=f"{requests} requests")
    for policy in metrics:
        table.add_column(policy, justify="right", overflow="fold", min_width=6)
    for name in next(iter(metrics.values())):
        table.add_row(name, *(f"{values[name]['value']:.4f}" for values in metrics.values()))
    rich.print(table)


def _sentence(found: Evaluation, name: str, first: str) -> str:
    gain, row = found.gain(name, MAIN_METRIC), found.rows[name]
    beside = ""
    if name != first:
        rival = found.difference(name, first, MAIN_METRIC)
        beside = f"; {rival.value:+.4f} [{rival.low:+.4f}, {rival.high:+.4f}] over {first}"
    return (
        f"{name}: NDCG@10 {gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] over the incoming order "
        f"({'a gain' if gain.is_gain else 'no gain'}){beside}; shuffled {found.shuffled(name, MAIN_METRIC).value:.4f}; "
        f"equal to the incoming order {row.identity_rate:.1%}, near it {row.near_identity_rate:.1%}; "
        f"valid {row.validity:.1%}"
    )


def _typed() -> str:
    return " ".join(["rerank", *sys.argv[1:]])
