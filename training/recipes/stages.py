"""Stages of a recipe: what has to be made from what, and what of it need not be made again.

A stage is finished when its record says so and was made by the same fingerprint: the hash of its name, its version, its
settings and the results (hashes of files) of the stages it needs. A finished stage is not repeated, an interrupted one
is called again and goes on, and one that was made from other settings or inputs is neither built on nor overwritten in
silence: whoever asked is told what differs, and restarts it by name. May import the standard library and `rerank_env`.

    plan = Plan([Stage("lists", make_lists), Stage("model", fit, needs=("lists",), settings={"steps": 300})])
    plan.run(RunFolder(Path("runs/mine")))
"""

from __future__ import annotations

import errno
import json
import re
import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.training.recipes.crew import Crew
from rerank_env.training.recipes.folder import TRAINING, RunFolder, hash_of

FINISHED, INTERRUPTED, NEW, WAITING, OUTDATED = "finished", "interrupted", "new", "waiting", "outdated"
NAME = r"[a-z][a-z0-9-]*"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says of a full disk, a used up quota, and a file longer than it may be."""

OnProgress = Callable[[str, int, int], None]
"""Called as `on_progress(what, done, total)` by a stage that works."""

OnSaid = Callable[[str], None]
"""Called with a sentence that whoever watches should read."""

OnStage = Callable[[str, str], None]
"""Called as `on_stage(name, state)`: "running" before a stage works, `FINISHED` after it or where it was."""


def _quiet(*told: object) -> None:
    """Nothing."""


@dataclass(frozen=True, eq=False)
class Work:
    """What a stage is given: its own `folder`, those of the stages it needs, its `settings`, and whom to tell how far
    it is (`tell`) and what has to be read (`say`).

    What others read goes into `folder`; what an interrupted training goes on from into `training`.
    """

    folder: Path
    inputs: Mapping[str, Path]
    settings: Mapping[str, Any]
    crew: Crew
    tell: OnProgress
    say: OnSaid = _quiet

    @property
    def training(self) -> Path:
        """Where the stage keeps what it goes on from."""
        return self.folder / TRAINING


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a recipe, called `name`.

    `run(work)` makes the files of the stage and returns what it measured, as plain data. It is called again after a
    crash, and has to go on from what it finds. `needs` names the stages whose files it reads. `settings` is plain data
    and everything that decides the result besides those files; whoever changes what `run` does raises `version`.
    `together`: whether several processes can run it at once, each calling `run`.
    """

    name: str
    run: Callable[[Work], Mapping[str, Any]]
    needs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    together: bool = False

    def __post_init__(self) -> None:
        """Raises `InputError` for a name that is no folder's, and settings that are no plain data."""
        if not re.fullmatch(NAME, self.name):
            raise InputError(f"a stage is called {self.name!r}; use small letters, digits and hyphens")
        hash_of(dict(self.settings))
        object.__setattr__(self, "settings", json.loads(json.dumps(dict(self.settings))))  # as a record gives it back

    def fingerprint(self, inputs: Mapping[str, str]) -> str:
        """The hash of all that decides the result, given the results of what it needs."""
        return hash_of([self.name, self.version, dict(self.settings), {need: inputs[need] for need in self.needs}])

    def begun(self, results: Mapping[str, str]) -> dict[str, Any]:
        """What the stage is begun with, given the results of what it needs and maybe of others; see `unlike`."""
        inputs = {need: results[need] for need in self.needs}
        return {"fingerprint": self.fingerprint(inputs), "inputs": inputs, "settings": dict(self.settings)}


class Plan:
    """The stages of a recipe, each after those it needs."""

    def __init__(self, stages: Sequence[Stage], *, left_out: Mapping[str, str] = MappingProxyType({})) -> None:
        """`left_out` says of stages that there would be with other settings why there are none.

        Raises `InputError` for two stages of one name, and one that needs what does not come before it."""
        self.stages: dict[str, Stage] = {}
        self.left_out = dict(left_out)
        for stage in stages:
            if stage.name in self.stages:
                raise InputError(f"two stages are called {stage.name!r}; give each a name of its own")
            missing = [need for need in stage.needs if need not in self.stages]
            if missing:
                raise InputError(f"stage {stage.name!r} needs {missing[0]!r}, which is not before it; put it there")
            self.stages[stage.name] = stage

    def dependents(self, names: Collection[str]) -> list[str]:
        """`names` and every stage that needs one of them, by way of others or not, in the order of the plan.

        Raises `UnknownNameError` for a stage that there is not.
        """
        for name in names:
            self._known(name)
        reached: set[str] = set()
        for name, stage in self.stages.items():
            if name in names or reached.intersection(stage.needs):
                reached.add(name)
        return [name for name in self.stages if name in reached]

    def chosen(self, *, only: Sequence[str] = (), until: str | None = None) -> list[str]:
        """The stages to run: those named, or all up to and including `until`, or all.

        Raises `UnknownNameError` for a stage that there is not, `InputError` where both are given.
        """
        if only and until is not None:
            raise InputError("both only and until were given; choose one")
        for name in (*only, *([] if until is None else [until])):
            self._known(name)
        names = list(self.stages)
        return [name for name in names if name in only] if only else names[: names.index(until) + 1 if until else None]

    def _known(self, name: str) -> None:
        if name in self.left_out:
            raise InputError(f"stage {name!r} is left out of this run: {self.left_out[name]}")
        one_of("stage", name, self.stages)

    def states(self, folder: RunFolder, *, forgotten: Collection[str] = ()) -> dict[str, str]:
        """How far each stage is: `FINISHED`, `INTERRUPTED`, `NEW`, `OUTDATED`, or `WAITING` for one it needs.

        What the `forgotten` left is not read, which may be why they are.
        """
        results: dict[str, str] = {}
        states: dict[str, str] = {}
        for name, stage in self.stages.items():
            if name in forgotten:
                states[name] = NEW if all(need in results for need in stage.needs) else WAITING
                continue
            states[name] = self._state(stage, folder, results)
            record = folder.record(name) if states[name] == FINISHED else None
            if record is not None:
                results[name] = record.result
        return states

    def run(
        self,
        folder: RunFolder,
        *,
        only: Sequence[str] = (),
        until: str | None = None,
        restart: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
        on_stage: OnStage | None = None,
        on_progress: OnProgress | None = None,
        on_said: OnSaid | None = None,
        afterwards: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Run the stages that are not finished, and return the metrics of all that are.

        `restart` first forgets those stages and all that depend on them, whether they are to be run or not. `about` is
        written into `run.json`, which else keeps what it says; see `RunFolder.describe`. `afterwards` is called at the
        end, while the folder is still held; also where a stage failed, whose error is then the one raised. Under
        several processes all of them call this, and the main one writes. What a stage is made from, by way of others or
        not, is read once and compared with the hashes in its record.

        Raises `InputError` where a stage needs one that is neither finished nor to be run, it or one that it needs was
        made from other settings or inputs, it cannot be run by several processes, or its folder is not of a run;
        `CheckpointError` where another process runs the recipe here, the disk is full, or a file of what is needed was
        harmed; and what the stages raise. What can be told beforehand is, before anything is forgotten or described.
        """
        crew = Crew.here()
        chosen = self.chosen(only=only, until=until)
        forgotten = self.dependents(restart)
        intact: set[str] = set()
        with folder.held() if crew.is_main else nullcontext():
            for name in chosen:
                self._look(self.stages[name], folder, coming=chosen, forgotten=forgotten)
            if crew.is_main:
                for name in forgotten:
                    folder.forgettable(name)
                folder.describe(folder.described() if about is None else about)
                for name in reversed(forgotten):
                    folder.forget(name)
            crew.wait()
            ended = afterwards if afterwards is not None and crew.is_main else _quiet
            try:
                for name in chosen:
                    results, state = self._look(self.stages[name], folder)
                    if state != FINISHED:
                        if crew.is_main:
                            for need in [need for need in results if need not in intact]:
                                folder.intact(need)
                        self._run(self.stages[name], folder, crew, results, on_stage, on_progress, on_said)
                        intact |= {name, *results}
                    crew.wait()
                    if on_stage is not None:
                        on_stage(name, FINISHED)
            except BaseException:
                with suppress(Exception):  # what ended the run is what has to be told
                    ended()
                raise
            ended()
            return {name: folder.metrics(name) for name, state in self.states(folder).items() if state == FINISHED}

    def _look(
        self, stage: Stage, folder: RunFolder, *, coming: Collection[str] = (), forgotten: Collection[str] = ()
    ) -> tuple[dict[str, str], str]:
        """The results of all that a stage needs, by way of others or not, and its state.

        Before a run, `coming` are the stages that will be run and `forgotten` those that will be forgotten; what rests
        on one that is still to be made cannot be looked at, and waits. Raises `InputError` for what `run` refuses.
        """
        needed = set(stage.needs)
        for name in reversed(self.stages):
            needed |= set(self.stages[name].needs) if name in needed else set()
        results: dict[str, str] = {}
        waiting: set[str] = set()
        for name in [name for name in self.stages if name in needed or name == stage.name]:
            other = self.stages[name]
            state = NEW if name in forgotten else self._state(other, folder, results)
            if waiting.intersection(other.needs):
                state = WAITING
            if state == OUTDATED:
                where = f" in {folder.directory}" if name == stage.name else f" needs {name!r}, which"
                differs = unlike(folder.started(name) or {}, other.begun(results))
                raise InputError(
                    f"stage {stage.name!r}{where} was made from other {differs}; make it anew with --restart {name}, "
                    "or " + ("name another directory" if name == stage.name else "give what it was made from")
                )
            if name == stage.name:
                break
            record = folder.record(name) if state == FINISHED else None
            if record is not None:
                results[name] = record.result
            elif name in coming or state == WAITING:
                waiting.add(name)
            else:
                raise InputError(f"stage {stage.name!r} needs {name!r}, which is not finished; run that first")
        return results, state

    def _run(
        self,
        stage: Stage,
        folder: RunFolder,
        crew: Crew,
        results: Mapping[str, str],
        on_stage: OnStage | None,
        tell: OnProgress | None,
        say: OnSaid | None,
    ) -> None:
        if crew.size > 1 and not stage.together:
            raise InputError(f"stage {stage.name!r} runs in one process; run it first, without a launcher")
        if on_stage is not None:
            on_stage(stage.name, "running")
        if crew.is_main:
            harmed = folder.harmed(stage.name)
            if harmed is not None and say is not None:
                say(f"{harmed} is no longer what stage {stage.name!r} left, so the stage is made again")
            folder.begin(stage.name, **stage.begun(results))
        crew.wait()
        self._work(stage, folder, crew, tell or _quiet, say or _quiet)

    @staticmethod
    def _work(stage: Stage, folder: RunFolder, crew: Crew, tell: OnProgress, say: OnSaid) -> None:
        started = time.monotonic()
        inputs = {need: folder.stage(need) for need in stage.needs}
        try:
            metrics = stage.run(Work(folder.stage(stage.name), inputs, stage.settings, crew, tell, say))
            if crew.is_main:
                folder.finish(stage.name, metrics, seconds=time.monotonic() - started)
        except CheckpointError:
            raise
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise CheckpointError(
                f"stage {stage.name!r} could not write ({error.strerror}); free some space and run it again, it goes on"
            ) from error

    @staticmethod
    def _state(stage: Stage, folder: RunFolder, results: Mapping[str, str]) -> str:
        begun = folder.started(stage.name)
        if any(need not in results for need in stage.needs):
            return WAITING
        if begun is None:
            return NEW
        if begun.get("fingerprint") != stage.fingerprint(results):
            return OUTDATED
        return INTERRUPTED if folder.record(stage.name) is None else FINISHED


def unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs, in words, between what a stage was begun with and is `now`, both as `RunFolder.started` has it."""
    was, told = _flat(before.get("settings", {})), _flat(now.get("settings", {}))
    settings = [
        f"{key} was {_valued(was, key)}, now {_valued(told, key)}"
        for key in {**was, **told}
        if (key in was, was.get(key)) != (key in told, told.get(key))
    ]
    made, given = before.get("inputs", {}), now.get("inputs", {})
    inputs = [need for need in given if made.get(need) != given[need]]
    named = [("settings", settings), ("results of stages", inputs)]
    return (
        " and ".join(f"{what} ({', '.join(keys)})" for what, keys in named if keys)
        or "code (another version of the stage)"
    )


def _flat(settings: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Settings by their names with those of their groups before them, as in "dapo.steps"."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        found |= _flat(value, f"{group}{name}.") if inner else {f"{group}{name}": value}
    return found


def _valued(settings: Mapping[str, Any], name: str) -> str:
    """The value of a setting, shortened, as it may be long."""
    return textwrap.shorten(json.dumps(settings[name]), 60) if name in settings else "not given"
