"""What recipes record: a recipe run to its end, and the rows of its table in the form of a result."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from rerank_env.training.recipes import Recipe, RunFolder
from rerank_env.training.recipes.card import EVALUATE, TABLE

Numbers = dict[str, float]

SHUFFLED = ("recall@1", "ndcg@5")
"""The metrics that are also told of shuffled candidates."""

RATES = {"identity rate": "identity_rate", "near identity rate": "near_identity_rate", "validity": "validity"}


def evaluated(recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
    """The table of a recipe that is run, or gone on with, in that folder; what happens goes to standard error."""
    say = partial(print, file=sys.stderr, flush=True)
    recipe.run(folder, on_stage=lambda name, state: say(f"{name}: {state}"), on_said=say)
    table: dict[str, Any] = json.loads((folder.stage(EVALUATE) / TABLE).read_bytes())
    return table


def told(interval: Mapping[str, float | None]) -> Numbers:
    """An interval as the record wants it, a point where it has no width."""
    value = float(interval["value"] or 0.0)
    low, high = interval.get("low"), interval.get("high")
    return {
        "value": value,
        "low": value if low is None else min(low, value),
        "high": value if high is None else max(high, value),
    }


def point(value: float) -> Numbers:
    """A number that no interval was made for."""
    return {"value": value, "low": value, "high": value}


def row_of(name: str, row: Mapping[str, Any], *, rival: str | None) -> dict[str, Any]:
    """A row of a recipe's table in the form of a record; `rival` is who it was compared with, if it was."""
    metrics = {metric: told(value) for metric, value in row["metrics"].items()}
    metrics |= {f"{metric} over incoming": told(value) for metric, value in row["relative"].items()}
    metrics |= {f"{metric} over {rival}": told(value) for metric, value in row.get("over_rival", {}).items()}
    metrics |= {f"{metric} of all users": told(value) for metric, value in row.get("all_users", {}).items()}
    metrics |= {f"{metric} shuffled": told(row["shuffled"][metric]) for metric in SHUFFLED}
    metrics |= {rate: point(row[key]) for rate, key in RATES.items() if row[key] is not None}
    metrics |= {"seeds": point(row["seeds"])}
    return {"name": name.replace(",", ":"), "metrics": metrics}


def say_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows as they are recorded, without what is told over others."""
    for row in rows:
        print(row["name"], {m: round(v["value"], 4) for m, v in row["metrics"].items() if "over" not in m}, flush=True)
