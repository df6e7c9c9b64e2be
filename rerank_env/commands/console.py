"""What several commands share: options, progress bars, a table of metrics, JSON files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import rich
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rerank_env import durable
from rerank_env.rewards.errors import InputError

Data = Annotated[str, typer.Option(help="Data set: `movielens-100k`, `synthetic`, `amazon-beauty`, ...")]
Kind = Annotated[str | None, typer.Option(help="`graded` or `next_item` (default: what the data set has first).")]

Options = Annotated[str | None, typer.Option(help="Options of the data set: `first_stage=bm25,slate_size=20`, ...")]


@contextmanager
def progress() -> Iterator[Progress]:
    """Progress bars with the time to go; Ctrl-C under them is one sentence and exit code 130."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=Console(stderr=True)) as bars:
            yield bars
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "interrupted; run the same command again to go on", file=sys.stderr)
        raise typer.Exit(130) from interrupt


def check_folder(output: Path | None) -> None:
    """Raise `InputError` if there is no folder for a file: before the work rather than after it."""
    if output is not None and not output.parent.is_dir():
        raise InputError(f"{output.parent} is not a folder; make it before writing {output.name} there")


def write_json(output: Path | None, content: Mapping[str, Any]) -> None:
    """Write the file that was asked for, if any."""
    if output is not None:
        durable.replace(output, (json.dumps(content, indent=1) + "\n").encode())


def print_columns(metrics: Mapping[str, Mapping[str, Any]], requests: int) -> None:
    """One column a policy, one row a metric: eight metrics beside one another do not fit a terminal."""
    table = Table("", title=f"{requests} requests")
    for policy in metrics:
        table.add_column(policy, justify="right", overflow="fold", min_width=6)
    for name in next(iter(metrics.values())):
        table.add_row(name, *(f"{values[name]['value']:.4f}" for values in metrics.values()))
    rich.print(table)
