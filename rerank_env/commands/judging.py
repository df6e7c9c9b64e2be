"""The commands that say what a policy or a reward is worth: `rerank eval`, `rerank bias` and `rerank audit`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rerank_env.commands.console import Data, Kind, Options, check_folder, print_columns, write_json
from rerank_env.rewards.errors import InputError

if TYPE_CHECKING:
    from rerank_env.data import Requests
    from rerank_env.training.evaluate import Evaluation
    from rerank_env.training.runs import RunSettings

MAIN_METRIC = "ndcg@10"

COLUMNS = 80
"""What fits any terminal."""

UNDECIDED = 3
"""The exit code of an audit that could not judge; 2 is that of a mistake."""


def evaluate(
    policies: Annotated[
        list[str],
        typer.Argument(help="Directories of runs or saved policies; `NAME=DIR,DIR` pools the seeds of one policy."),
    ],
    data: Annotated[str | None, typer.Option(help="Data set (default: what the first run was trained on).")] = None,
    split: Annotated[str, typer.Option(help="`train`, `validation` or `test`.")] = "test",
    kind: Annotated[str | None, typer.Option(help="`graded` or `next_item` (default: the first run's).")] = None,
    options: Options = None,
    output: Annotated[Path | None, typer.Option(help="Write the whole evaluation to this JSON file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides shuffles and bootstrap resamples.")] = 0,
) -> None:
    """Compare saved policies with the incoming order, random and oracle, with intervals over users.

    Prints every metric, then for every policy the paired NDCG@10 difference to the incoming order and to the first
    policy, the share of answers that copy the order, and what is left when the candidates are shuffled.
    """
    from rerank_env.training.evaluate import evaluate as evaluated
    from rerank_env.training.runs import run_settings, trained_policy

    named: dict[str, list[Path]] = {}
    for given in policies:
        name, _, paths = given.rpartition("=")
        if (name or paths) in named:
            raise InputError(f"{name or paths!r} is named twice; name every policy once")
        named[name or paths] = [Path(path) for path in (paths.split(",") if name else [paths])]
    check_folder(output)
    loaded = {name: [trained_policy(path) for path in paths] for name, paths in named.items()}
    settings = run_settings(next(iter(named.values()))[0])
    requests = _requests(data, split=split, kind=kind, options=options, like=settings)
    found = evaluated(requests, loaded, seed=seed)
    write_json(output, found.to_dict())
    rows = found.to_dict()["rows"]
    print(requests.name)
    print_columns({name: row["metrics"] for name, row in rows.items()}, found.n_requests)
    first = next(iter(loaded))
    for name in loaded:
        print(_sentence(found, name, first))


def bias(
    policy: Annotated[
        str, typer.Argument(help="Directory of a run or saved policy; or `incoming`, `random`, `popularity`, `oracle`.")
    ],
    data: Annotated[str | None, typer.Option(help="Data set (default: what the run was trained on).")] = None,
    split: Annotated[str, typer.Option(help="`train`, `validation` or `test`.")] = "validation",
    kind: Annotated[str | None, typer.Option(help="`graded` or `next_item` (default: the run's).")] = None,
    options: Options = None,
    shuffles: Annotated[int, typer.Option(min=2, help="Random orders of each request.")] = 8,
    metric: Annotated[str, typer.Option(help="Whose variance under the orders is reported: any reward.")] = MAIN_METRIC,
    output: Annotated[Path | None, typer.Option(help="Write the whole report to this JSON file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides orders and bootstrap resamples.")] = 0,
) -> None:
    """Show how much a policy goes by position: the same requests under several random orders of their candidates.

    Prints how far two answers to one request agree (Kendall's tau, flip rate), how places and the metric vary, how
    often the order that was shown is copied, and for every incoming slot how often its candidate is answered first.
    """
    from rerank_env.agents import Incoming, Oracle, Policy, Popularity, Random
    from rerank_env.training.position_bias import position_bias

    check_folder(output)
    baselines: dict[str, Policy] = {
        "incoming": Incoming(),
        "random": Random(),
        "popularity": Popularity(),
        "oracle": Oracle(),
    }
    asked, settings = baselines.get(policy), None
    if asked is None:
        from rerank_env.training.runs import run_settings, trained_policy

        if not Path(policy).is_dir():
            raise InputError(f"{policy!r} is no directory, and no baseline, which are {', '.join(baselines)}")
        asked, settings = trained_policy(Path(policy)), run_settings(Path(policy))
    requests = _requests(data, split=split, kind=kind, options=options, like=settings)
    found = position_bias(asked, requests, shuffles=shuffles, seed=seed, metric=metric)
    write_json(output, found.to_dict())
    print(found)


def audit(
    reward: Annotated[str, typer.Argument(help="The reward: `gain`, `gr2`, `ndcg@10.over_incoming()`, ...")],
    data: Data = "movielens-100k",
    split: Annotated[str, typer.Option(help="`train`, `validation` or `test`.")] = "validation",
    kind: Kind = None,
    options: Options = None,
    text_format: Annotated[
        str, typer.Option(help="How texts are written: `list`, `arrows`, `json`, `tagged-...`")
    ] = "list",
    step: Annotated[
        int | None, typer.Option(min=0, help="Ask schedules for this step only (default: wherever they change).")
    ] = None,
    search: Annotated[bool, typer.Option(help="Train an input-blind policy against the reward.")] = True,
    everything: Annotated[bool, typer.Option("--all", help="Print every row and column, 100 characters wide.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write every row to this JSON file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides random answers, the search and bootstrap resamples.")] = 0,
) -> None:
    """Try to be paid by a reward for nothing: every known attack, attacks on its parts, and a search for others.

    Prints what each earns beside the oracle, and a verdict: an answer that took no reading may take 1 % of what the
    oracle earns, and one that is no ranking must earn less than any that is. UNDECIDED is what could not be judged:
    fewer than 30 users, an oracle that is paid nothing, a part of the reward that this text format cannot meet.

    Exit codes: 0 PASS, 1 FAIL, 3 UNDECIDED; 2 for any mistake, such as a name that does not exist. With a function or
    a parser of your own, use Python: `rerank_env.rewards.audit`.
    """
    from rerank_env.data import load, read_options
    from rerank_env.rewards import parse_reward
    from rerank_env.rewards.arguments import one_of
    from rerank_env.rewards.formats import FORMATS
    from rerank_env.training.audits import audit_requests

    check_folder(output)
    parse_reward(reward)  # a wrong name is found before the data are read
    one_of("text format", text_format, FORMATS)
    requests = load(data, split=split, kind=kind, **read_options(options))
    found = audit_requests(reward, requests, seed=seed, text_format=text_format, step=step, search=search)
    write_json(output, found.to_dict() | {"data": requests.name})
    print(requests.name)
    print(found if everything else found.text(width=COLUMNS, everything=False))
    if not everything:
        print("every row and column: --all")
    raise typer.Exit({True: 0, False: 1, None: UNDECIDED}[found.passed])


def _requests(
    data: str | None, *, split: str, kind: str | None, options: str | None, like: RunSettings | None
) -> Requests:
    """The requests that are named; what is left out is that of the run, and without one MovieLens-100K."""
    from rerank_env.data import load, read_options

    same = like is not None and data in (None, like.data)
    return load(
        data or (like.data if like else "movielens-100k"),
        split=split,
        kind=kind or (like.kind if same and like else None),
        **read_options(options if options is not None else (like.options if same and like else None)),
    )


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _sentence(found: Evaluation, name: str, first: str) -> str:
    gain, row = found.gain(name, MAIN_METRIC), found.rows[name]
    beside = ""
    if name != first:
        rival = found.difference(name, first, MAIN_METRIC)
        beside = f"; {rival.value:+.4f} [{rival.low:+.4f}, {rival.high:+.4f}] over {first}"
    return (
        f"{name}: NDCG@10 {gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] over the incoming order "
        f"({'a gain' if gain.is_gain else 'no gain'}){beside}; shuffled {found.shuffled(name, MAIN_METRIC).value:.4f}; "
        f"equal to the incoming order {_share(row.identity_rate)}, near it {_share(row.near_identity_rate)}; "
        f"valid {row.validity:.1%}"
    )
