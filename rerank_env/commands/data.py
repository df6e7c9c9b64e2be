"""The commands about data sets: `rerank data fetch`, `describe`, `build` and `fit`."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import rich
import typer
from rich.progress import Progress, TaskID
from rich.table import Table

from rerank_env.commands.console import Kind, Options, progress
from rerank_env.rewards.errors import InputError

if TYPE_CHECKING:
    from rerank_env.data.interactions import Interactions
    from rerank_env.training.first_stage.settings import FirstStageSettings

app = typer.Typer(no_args_is_help=True, help="Fetch data sets and look at them before training.")


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="Data set.")] = "movielens-100k") -> None:
    """Download a data set into the cache, once, with a progress bar."""
    from rerank_env.data import fetch_dataset

    folder = fetch_dataset(name, progress=True)
    print(f"{name} is made up when it is loaded; there is nothing to fetch" if folder is None else folder)


FirstStage = Annotated[str, typer.Option(help="`sasrec`, `popularity` or `bm25`.")]
Seed = Annotated[int, typer.Option(min=0, help="Decides folds, weights and the order of equal scores.")]
Folds = Annotated[int, typer.Option(min=2, help="Models for the lists of train, each blind to its share of the users.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs of a SASRec (default: those of its settings).")]
Text = Annotated[int | None, typer.Option(min=0, help="Numbers a SASRec reads of an item's text (0: ids only).")]


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="Data set: `amazon-beauty`, `amazon-sports` or `amazon-toys`.")],
    first_stage: FirstStage = "sasrec",
    seed: Seed = 0,
    folds: Folds = 4,
    epochs: Epochs = None,
    text: Text = None,
) -> None:
    """Make the candidate lists of a data set: train the first stage, and for train one a fold that never saw its users.

    Prints recall, the ceiling of any re-ranker, and the share of targets on top of the list, and warns where that is
    not alike for train, validation and test. A SASRec takes some minutes a model and core; one that was trained is
    kept, and an interrupted one goes on when the command is run again.
    """
    from rerank_env.data import SPLITS, amazon
    from rerank_env.training.first_stage import building

    settings = _settings(first_stage, seed, folds, epochs, text)
    log = _log(name)
    if first_stage == "sasrec":
        epochs = settings.sasrec.epochs
        print(f"{len(building.parts(log, settings))} models of {epochs} epochs, those that are there aside; then lists")
    with progress() as bars:
        tasks: dict[str, TaskID] = {}
        show = partial(_show, bars, tasks)
        building.train_parts(name, log, settings, on_progress=show)
        made = building.kept(name, log, settings, on_progress=show)
    places = {split: building.TargetPlaces.of(made[split], log) for split in SPLITS}
    table = Table("", *SPLITS, title=f"{name}, {first_stage}, seed {seed}: all targets")
    table.add_row("targets", *(str(found.targets) for found in places.values()))
    for cut in next(iter(places.values())).recall:
        table.add_row(f"recall@{cut}", *(f"{found.recall[cut]:.4f}" for found in places.values()))
    for cut in (5, 10):
        table.add_row(f"ndcg@{cut}", *(f"{found.ndcg[cut]:.4f}" for found in places.values()))
    table.add_row("on top, of those in the top 10", *(f"{found.on_top:.4f}" for found in places.values()))
    rich.print(table)
    for warning in building.disagreements(places):
        print(f"warning: {warning}")
    given = {"first_stage": first_stage, "seed": seed} | ({"variant": settings.variant} if settings.variant else {})
    print(amazon.lists_path(name, first_stage, seed, settings.variant))
    print("use them with: --options " + ",".join(f"{option}={value}" for option, value in given.items()))


@app.command()
def fit(
    name: Annotated[str, typer.Argument(help="Data set: `amazon-beauty`, `amazon-sports` or `amazon-toys`.")],
    part: Annotated[str, typer.Option(help="`main`, which sees all of train, or `fold-0`, `fold-1`, ...")] = "main",
    seed: Seed = 0,
    folds: Folds = 4,
    epochs: Epochs = None,
    text: Text = None,
    settings: Annotated[str | None, typer.Option(help="All settings as JSON, in place of the options above.")] = None,
) -> None:
    """Train one SASRec of those that `rerank data build` needs, and print where it is."""
    from rerank_env.rewards.arguments import one_of
    from rerank_env.training.first_stage import building
    from rerank_env.training.first_stage.sasrec import fit as fitted

    chosen_settings = _settings("sasrec", seed, folds, epochs, text) if settings is None else _read(settings)
    parts = building.parts(_log(name), chosen_settings)
    chosen = parts[one_of("part", part, parts)]
    with progress() as bars:
        task = bars.add_task(part, total=chosen_settings.sasrec.epochs)
        fitted(chosen, building.models_dir() / chosen.key, on_epoch=lambda done, _: bars.update(task, completed=done))
    print(building.models_dir() / chosen.key)


def _show(bars: Progress, tasks: dict[str, TaskID], what: str, done: int, total: int) -> None:
    if what not in tasks:
        tasks[what] = bars.add_task(what, total=total)
    bars.update(tasks[what], completed=done)


def _settings(first_stage: str, seed: int, folds: int, epochs: int | None, text: int | None) -> FirstStageSettings:
    from rerank_env.training.first_stage.sasrec import SasRecSettings
    from rerank_env.training.first_stage.settings import FirstStageSettings

    given: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    sasrec = SasRecSettings(shape={} if text is None else {"text": text}, **given)
    return FirstStageSettings(first_stage=first_stage, seed=seed, folds=folds, sasrec=sasrec)


def _read(settings: str) -> FirstStageSettings:
    from rerank_env.training.first_stage.settings import FirstStageSettings

    try:
        fields = json.loads(settings)
    except json.JSONDecodeError as error:
        raise InputError(f"the settings {settings!r} are not JSON ({error})") from error
    return FirstStageSettings.of_dict(fields if isinstance(fields, dict) else {"settings": fields})


def _log(name: str) -> Interactions:
    from rerank_env.data import amazon
    from rerank_env.rewards.arguments import one_of

    return amazon.read(one_of("data set with a first stage", name, amazon.NAMES))


@app.command()
def describe(
    name: Annotated[
        str, typer.Argument(help="Data set: `movielens-100k`, `synthetic`, `amazon-beauty`, ...")
    ] = "movielens-100k",
    kind: Kind = None,
    options: Options = None,
) -> None:
    """Print sizes, label density, the incoming order's NDCG@10, head-room and traps of every split."""
    from rerank_env.data import SPLITS, load, read_options
    from rerank_env.data.describe import describe as described

    given = read_options(options)
    found = {split: described(load(name, split=split, kind=kind, **given)) for split in SPLITS}
    table = Table("", title=name if kind is None else f"{name}, {kind}")
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
