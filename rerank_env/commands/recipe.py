"""The command that runs a whole training of many stages: `rerank recipe`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich
import typer
from rich.progress import Progress, TaskID
from rich.table import Table

from rerank_env.commands.console import Options, progress

if TYPE_CHECKING:
    from rerank_env.training.recipes import Recipe, RunFolder

NEGLIGIBLE = 0.05
"""Minutes below which a stage is said to take next to none."""

LONG = 120
"""Minutes above which hours are told."""


def recipe(
    name: Annotated[
        str,
        typer.Argument(
            help="`gr2`: a language model that reasons, then re-ranks; `diffusion-gr2`: converted to block diffusion."
        ),
    ],
    data: Annotated[
        str, typer.Option(help="Data set: `amazon-beauty`, `amazon-sports` or `amazon-toys`.")
    ] = "amazon-beauty",
    size: Annotated[str, typer.Option(help="`tiny` (CPU), `small` or `8b` (GPUs).")] = "tiny",
    directory: Annotated[
        Path | None, typer.Option(help="Where all stages leave what they make (default: runs/RECIPE-DATA-SIZE).")
    ] = None,
    options: Options = None,
    only: Annotated[str | None, typer.Option(help="Run these stages alone: `dapo` or `sft-targeted,dapo`.")] = None,
    until: Annotated[str | None, typer.Option(help="Stop after this stage.")] = None,
    restart: Annotated[
        str | None, typer.Option(help="Forget these stages and all that depend on them, then run.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the size: `dapo.steps=200`; repeat at will.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the stages and their costs, and run none.")] = False,
) -> None:
    """Run all stages of a recipe, or go on where it was stopped; leaves policies, metrics and a model card.

    A stage that is finished is not repeated, one that was interrupted goes on. One that was made from other settings is
    refused until it is named with --restart. With several GPUs, run one training stage under a launcher:
    `accelerate launch -m rerank_env recipe gr2 --only dapo`. `diffusion-gr2` takes over what a run of `gr2` has
    finished in the same way: that beside its own folder, or the one named with `--set gr2=FOLDER`.
    """
    from rerank_env.training.recipes import Crew, RunFolder, recipe_of

    folder = RunFolder(directory or Path("runs") / f"{name}-{data}-{size}")
    made = recipe_of(name, data=data, size=size, options=options, changes=changes or ())
    chosen, again = _names(only), _names(restart)
    todo = made.plan.chosen(only=chosen, until=until)
    main = Crew.here().is_main
    if main:
        made.checked(folder, only=chosen, until=until, restart=again)
        _print_plan(made, folder, todo, again)
    if plan:
        return
    if not main:
        made.run(folder, only=chosen, until=until, restart=again)
        return
    with progress() as bars:
        shown = _Shown(bars)
        made.run(
            folder, only=chosen, until=until, restart=again,
            on_stage=shown.stage, on_progress=shown.told, on_said=shown.said,
        )  # fmt: skip
    from rerank_env.training.recipes import CARD

    ending = made.ending(folder)
    if ending:
        print(f"{ending}\n")
    print(f"Model card: {folder.directory / CARD}")


class _Shown:
    """Stages as lines, and what they are doing as bars under them."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.tasks: dict[str, TaskID] = {}

    def stage(self, name: str, state: str) -> None:
        """A stage begins, or is finished: its bars go, and a line stays."""
        for task in self.tasks.values():
            self.bars.remove_task(task)
        self.tasks.clear()
        print(f"{name}: {state}", file=sys.stderr, flush=True)

    def said(self, sentence: str) -> None:
        """A line that stays."""
        print(sentence, file=sys.stderr, flush=True)

    def told(self, what: str, done: int, total: int) -> None:
        """How far a part of the stage is."""
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(what, total=total)
        self.bars.update(self.tasks[what], completed=done, total=total)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _print_plan(made: Recipe, folder: RunFolder, todo: list[str], again: list[str]) -> None:
    from rerank_env.training.recipes.stages import FINISHED

    forgotten = made.plan.dependents(again)
    states = made.plan.states(folder, forgotten=forgotten)
    table = Table("stage", "state", "foretold", title=f"{folder.directory}")
    table.columns[2].justify = "right"
    foretold = made.minutes(folder, forgotten)
    going = [name for name in todo if states[name] != FINISHED]
    for name, state in states.items():
        text = _cost(foretold.get(name)) if name in going else ""
        table.add_row(name, state if name in todo else f"{state}, left out", text)
    rich.print(table)
    for note in made.notes(folder, forgotten):
        print(note)
    known = [foretold[name] for name in going if name in foretold]
    on = f"{made.machine and ' on '}{made.machine}"
    if known or not going:
        print(f"foretold: about {_time(sum(known), '.0f')} to go{on}")
    if len(known) < len(going):
        print(f"not foretold: how long {', '.join(name for name in going if name not in foretold)} will take")


def _cost(minutes: float | None) -> str:
    if minutes is None:
        return "not foretold"
    return _time(minutes, ".1f") if minutes >= NEGLIGIBLE else "-"


def _time(minutes: float, form: str) -> str:
    """Minutes in that form, or hours and minutes where there are many."""
    if minutes <= LONG:
        return f"{minutes:{form}} minutes"
    return "{} hours {} minutes".format(*divmod(round(minutes), 60))
