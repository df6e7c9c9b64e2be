"""What the `rerank` command can do: the composition root, where names typed at a terminal become objects.

Needs the `cli` extra (typer, rich); what a command needs beyond that is imported inside it.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

from rerank_env.rewards.errors import MissingExtraError

try:
    import rich  # noqa: F401 - asked for here, so that whoever lacks it is told
    import typer
except ImportError as error:
    raise MissingExtraError("the rerank command needs typer and rich; pip install 'rerank-env[cli]'") from error

from rerank_env.commands import data, judging, learning, recipe

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rerank-env {version('rerank-env')}")
        raise typer.Exit


@app.callback()
def rerank(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; give it first.")] = False,
    show_version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Re-ranking as a Gymnasium environment: fetch data, train policies, compare them honestly.

    Start with `rerank demo`. Step by step: `rerank data describe movielens-100k`, then
    `rerank train dapo --directory runs/mine`, then `rerank eval runs/mine`. With data, rewards and policies of
    your own, use Python: `rerank_env.training`.
    """


app.command()(learning.demo)
app.command()(learning.train)
app.command("eval")(judging.evaluate)
app.command()(judging.bias)
app.command()(judging.audit)
app.command()(recipe.recipe)
app.add_typer(data.app, name="data")
