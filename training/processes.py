"""Training runs as processes: several `rerank train` commands at once, watched from outside.

May import the standard library, `rerank_env.rewards.errors` and its neighbours `runs` and `logs`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rerank_env.rewards.errors import RerankError
from rerank_env.training.logs import LOG_NAME, read_log
from rerank_env.training.runs import RunSettings, arguments

POLL_SECONDS = 0.5

OnProgress = Callable[[str, int, int], None]
"""Called as `on_progress(run, step, steps)`, from the moment a run's process starts."""


class RunFailedError(RerankError, RuntimeError):
    """A training process ended with an error; the message names its output file."""


def train_all(
    runs: Mapping[str, RunSettings], directory: Path, *, on_progress: OnProgress, restart: bool = False
) -> None:
    """Train every run in `directory/NAME`, as many at once as there are cores, each with its share of the cores.

    A run that an earlier call left unfinished goes on, a finished one is kept, unless `restart`. Raises
    `RunFailedError` if a process fails, after stopping the others; Ctrl-C is passed on to them, so that each saves
    itself, and then raised.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = max(1, min(cores, len(runs)))
    environment = {"OMP_NUM_THREADS": str(max(1, cores // workers))} | os.environ
    waiting, going = list(runs), dict[str, subprocess.Popen[bytes]]()
    with _ended_by_signals():
        try:
            while waiting or going:
                while waiting and len(going) < workers:
                    name = waiting.pop(0)
                    going[name] = _start(runs[name], directory / name, environment, restart=restart)
                time.sleep(POLL_SECONDS)
                for name, process in list(going.items()):
                    ended = process.poll()
                    on_progress(name, _steps_done(directory / name), runs[name].config().steps)
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


def _start(
    settings: RunSettings, directory: Path, environment: Mapping[str, str], *, restart: bool
) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rerank_env", "train", *arguments(settings), "--directory", str(directory)]
    with (directory / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [*command, *(["--restart"] if restart else [])],
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
