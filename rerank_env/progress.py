"""How far long work has come, with the time left: a bar by rich where it is installed, plain lines where it is not.

On standard error, and unless it is asked for only where that is a terminal. May import the standard library only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

SECONDS_BETWEEN = 2.0
"""Between two plain lines."""


@contextmanager
def shown(label: str, total: int, *, progress: bool | None = None) -> Iterator[Callable[[int], None]]:
    """A function that is told how much of `total` is done; `progress` None shows it only on a terminal.

    The bar is made by rich on a terminal; elsewhere, or without rich, there are lines such as
    "reading log.csv: 40 %, 12 s left".
    """
    terminal = sys.stderr.isatty()
    if not (terminal if progress is None else progress):
        yield _quiet
    elif terminal and find_spec("rich") is not None:
        bars = import_module("rich.progress")  # by name, because nothing below the command line depends on rich
        console = import_module("rich.console").Console(stderr=True)
        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TaskProgressColumn())
        with bars.Progress(*columns, bars.TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.update(task, completed=done)
    else:
        yield _lines(label, total)


def _quiet(_: int) -> None:
    """Nothing."""


def _lines(label: str, total: int) -> Callable[[int], None]:
    began = last = time.monotonic()

    def told(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN and done < total:
            return
        last = now
        left = (now - began) * (total - done) / done if done else float("inf")
        remaining = f", {left:.0f} s left" if 0 < left < float("inf") else ""
        print(f"{label}: {100 * done / max(total, 1):.0f} %{remaining}", file=sys.stderr)

    return told
