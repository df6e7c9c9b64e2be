"""Plans that are written as tables: a line a stage, whose module is imported when the stage is run.

May import the standard library and its neighbour `stages`.

    told = [Told("data", "inputs.make_lists"), Told("ids", "inputs.make_ids", needs=("data",), settings={"epochs": 3})]
    plan = planned(told, ends=["ids"], why="nothing needs it")
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from rerank_env.training.recipes.stages import Plan, Stage, Work

PACKAGE = "rerank_env.training.recipes"


class Told(NamedTuple):
    """A stage as a line: its name, what `Later` is made of (`run` and `of`), what it needs, and its settings."""

    name: str
    run: str
    of: str = ""
    needs: Sequence[str] = ()
    settings: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Later:
    """A stage whose module is imported when it runs: `run` is MODULE.FUNCTION, and `of` what a function that makes the
    stage is told, "" where it is the stage.
    """

    run: str
    of: str = ""

    def function(self) -> Any:
        """The stage itself."""
        home, _, name = self.run.partition(".")
        found = getattr(import_module(f"{PACKAGE}.{home}"), name)
        return found(self.of) if self.of else found

    def __call__(self, work: Work) -> Mapping[str, Any]:
        """Run it."""
        measured: Mapping[str, Any] = self.function()(work)
        return measured


def later(told: Told) -> Later:
    """What a line runs."""
    return Later(told.run, told.of)


def planned(
    told: Sequence[Told],
    *,
    ends: Collection[str],
    why: str,
    versions: Mapping[str, int] = MappingProxyType({}),
    together: Collection[str] = (),
    run: Callable[[Told], Callable[[Work], Mapping[str, Any]]] = later,
) -> Plan:
    """The plan of the lines that `ends` are, or that these need by way of others or not; `why` the rest is left out.

    `versions` of stages that are not at their first, `together` those that several processes can run at once; `run`
    makes of a line what is run. Raises `InputError` as `Plan` does.
    """
    wanted = set(ends)
    for line in reversed(told):
        wanted |= set(line.needs) if line.name in wanted else set()
    return Plan(
        [
            Stage(
                line.name, run(line), tuple(line.needs), line.settings, versions.get(line.name, 1),
                together=line.name in together,
            )
            for line in told
            if line.name in wanted
        ],
        left_out={line.name: why for line in told if line.name not in wanted},
    )  # fmt: skip


def command_of(recipe: str, *, data: str, size: str, options: str | None, changes: Sequence[str]) -> str:
    """What makes such a run from a shell, however it was begun."""
    told = ["rerank", "recipe", recipe, "--data", data, "--size", size]
    told += [] if options is None else ["--options", options]
    return shlex.join([*told, *(part for change in changes for part in ("--set", change))])
