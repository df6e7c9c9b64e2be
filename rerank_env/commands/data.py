"""The commands about data sets: `rerank data fetch` and `rerank data describe`."""

from __future__ import annotations

from typing import Annotated

import rich
import typer
from rich.table import Table

from rerank_env.commands.console import Kind

app = typer.Typer(no_args_is_help=True, help="Fetch data sets and look at them before training.")


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="Data set.")] = "movielens-100k") -> None:
    """Download a data set into the cache, once, with a progress bar."""
    from rerank_env.data import fetch_dataset

    folder = fetch_dataset(name, progress=True)
    print(f"{name} is made up when it is loaded; there is nothing to fetch" if folder is None else folder)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(help="Data set: `movielens-100k` or `synthetic`.")] = "movielens-100k",
    kind: Kind = "graded",
) -> None:
    """Print sizes, label density, the incoming order's NDCG@10, head-room and traps of every split."""
    from rerank_env.data import SPLITS, load
    from rerank_env.data.describe import describe as described

    found = {split: described(load(name, split=split, kind=kind)) for split in SPLITS}
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
