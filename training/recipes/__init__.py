"""Recipes: whole trainings of several stages, run, resumed and described by one command, `rerank recipe`.

`stages` says what a stage is and which need not be repeated, `planning` how plans are written, `folder` what a run
leaves on the disk, `adopting` what is taken over from another run, `crew` which of several processes writes.
`recipe_of` gives a recipe by name; its own modules, and what they need, are loaded then.

    recipe = recipe_of("gr2", data="amazon-beauty", size="tiny")
    recipe.run(RunFolder(Path("runs/gr2-beauty")))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rerank_env import durable
from rerank_env.rewards.arguments import one_of
from rerank_env.training.recipes.crew import Crew
from rerank_env.training.recipes.folder import DONE, RunFolder
from rerank_env.training.recipes.stages import OnProgress, OnSaid, OnStage, Plan, Stage, Work

__all__ = ["CARD", "RECIPES", "Crew", "Plan", "Recipe", "RunFolder", "Stage", "Work", "recipe_of"]

CARD = "README.md"
"""The model card, in a run's folder."""

RECIPES: dict[str, str] = {
    "gr2": "rerank_env.training.recipes.gr2",
    "diffusion-gr2": "rerank_env.training.recipes.diffusion",
}
"""The module of each recipe, whose `recipe(data=, size=, options=, changes=)` makes it."""


def _unknown(_: RunFolder, __: Collection[str]) -> Mapping[str, float]:
    return {}


def _silent(_: RunFolder) -> str:
    return ""


def _plain(_: RunFolder, __: Collection[str]) -> Sequence[str]:
    return ()


def _nothing(todo: Collection[str]) -> None:
    """All is well."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """A plan and what is said of it.

    `about` goes into `run.json`: recipe, data, size and settings. `card` makes the model card of what is finished in a
    run's folder, and `ending` what is worth reading on a terminal when the run ends. `minutes`, given a run's folder
    and the stages of it that will be forgotten, foretells how long each stage takes, of those left out nobody knows;
    `machine` says on what. `notes`, given the same, are sentences that belong to the plan of such a run.
    `check`, given the stages that are to be run, raises where a setting cannot be used or a library is missing: before
    the first of them, not at the last.
    """

    plan: Plan
    about: Mapping[str, Any]
    card: Callable[[RunFolder], str]
    minutes: Callable[[RunFolder, Collection[str]], Mapping[str, float]] = _unknown
    machine: str = ""
    check: Callable[[Collection[str]], None] = _nothing
    ending: Callable[[RunFolder], str] = _silent
    notes: Callable[[RunFolder, Collection[str]], Sequence[str]] = _plain

    def checked(
        self, folder: RunFolder, *, only: Sequence[str] = (), until: str | None = None, restart: Sequence[str] = ()
    ) -> None:
        """Raise what a run of these stages would be refused for, as `check` does for those that are not finished."""
        again = self.plan.dependents(restart)
        chosen = self.plan.chosen(only=only, until=until)
        self.check([name for name in chosen if name in again or not (folder.stage(name) / DONE).is_file()])

    def run(
        self,
        folder: RunFolder,
        *,
        only: Sequence[str] = (),
        until: str | None = None,
        restart: Sequence[str] = (),
        on_stage: OnStage | None = None,
        on_progress: OnProgress | None = None,
        on_said: OnSaid | None = None,
    ) -> dict[str, Any]:
        """Check, then as `Plan.run`; writes the model card, also where a stage fails, of those that are finished."""
        self.checked(folder, only=only, until=until, restart=restart)
        return self.plan.run(
            folder,
            only=only,
            until=until,
            restart=restart,
            about=self.about,
            on_stage=on_stage,
            on_progress=on_progress,
            on_said=on_said,
            afterwards=lambda: durable.replace(folder.directory / CARD, self.card(folder).encode()),
        )


def recipe_of(
    name: str, *, data: str, size: str = "tiny", options: str | None = None, changes: Sequence[str] = ()
) -> Recipe:
    """The recipe called `name`, for a data set with its `options` and a `size`, with `changes` such as "dapo.steps=9".

    Raises `UnknownNameError` for a name, size or setting that there is not, `InputError` for values that cannot be, and
    `MissingExtraError` where a library is missing.
    """
    module = import_module(RECIPES[one_of("recipe", name, RECIPES)])
    found: Recipe = module.recipe(data=data, size=size, options=options, changes=changes)
    return found
