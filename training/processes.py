"""Training runs as processes: several commands at once, `rerank train` or others, watched from outside.

May import the standard library, `rerank_env.rewards.errors` and its neighbours `runs` and `logs`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rerank_env.rewards.errors import RerankError
from rerank_env.training.logs import LOG_NAME, read_log
from rerank_env.training.runs import RunSettings, arguments

POLL_SECONDS = 0.5

OnProgress = Callable[[str, int, int], None]
"""Called as `on_progress(run, step, steps)`, from the moment a run's process starts."""


class RunFailedError(RerankError, RuntimeError):
    """A training process ended with an error; the message names its output file."""


@dataclass(frozen=True)
class Run:
    """A command that trains for `steps` steps and logs them as our trainers do."""

    command: Sequence[str]
    steps: int


def train_all(
    runs: Mapping[str, RunSettings], directory: Path, *, on_progress: OnProgress, restart: bool = False
) -> None:
    """Train every run in `directory/NAME` with `rerank train`; see `run_all`.

    A run that an earlier call left unfinished goes on, a finished one is kept, unless `restart`.
    """
    train = (sys.executable, "-m", "rerank_env", "train")
    again = ("--restart",) if restart else ()
    commands = {
        name: Run((*train, *arguments(run), "--directory", str(directory / name), *again), run.config().steps)
        for name, run in runs.items()
    }
    run_all(commands, directory, on_progress=on_progress)


def run_all(runs: Mapping[str, Run], directory: Path, *, on_progress: OnProgress, workers: int | None = None) -> None:
    """Run every command, which logs into `directory/NAME`, `workers` at once, each with its share of the cores.

    `workers` None: as many as there are cores. Raises `RunFailedError` if a process fails, after stopping the others;
    Ctrl-C is passed on to them, so that each saves itself, and then raised.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = max(1, min(cores if workers is None else workers, len(runs)))
    environment = {"OMP_NUM_THREADS": str(max(1, cores // most))} | os.environ
    waiting, going = list(runs), dict[str, subprocess.Popen[bytes]]()
    with _ended_by_signals():
        try:
            while waiting or going:
                while waiting and len(going) < most:
                    name = waiting.pop(0)
                    going[name] = _start(runs[name].command, directory / name, environment)
                time.sleep(POLL_SECONDS)
                for name, process in list(going.items()):
                    ended = process.poll()
                    on_progress(name, _steps_done(directory / name), runs[name].steps)
                    if ended is not None:
                        del going[name]
                        if ended != 0:
                            raise RunFailedError(_failure(name, directory / name, ended))
        except BaseException as stopped:
            for process in going.values():
                process.send_signal(signal.SIGINT if isinstance(stopped, KeyboardInterrupt) else signal.SIGTERM)
            for process in going.values():
                process.wait()
            raise


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal raise SystemExit, so that the runs are stopped too and do not train on."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            before[number] = signal.signal(number, lambda caught, _: sys.exit(128 + caught))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "output.txt").open("wb") as output:
        return subprocess.Popen(
            list(command),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C reaches us alone; we pass it on, once
        )


def _steps_done(directory: Path) -> int:
    log = directory / LOG_NAME
    lines = read_log(log) if log.is_file() else []
    return int(lines[-1]["step"]) if lines else 0


def _failure(name: str, directory: Path, code: int) -> str:
    output = directory / "output.txt"
    last = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["no output"]
    return f"training run {name} ended with exit code {code} ({last[0]}); its output is in {output}"
