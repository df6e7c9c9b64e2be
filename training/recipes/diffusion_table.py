"""The table of Diffusion-GR2: what block diffusion keeps of its teacher, what is wrong with answers, and their cost.

To the table of all recipes (`tables`) each row of block diffusion adds the faults of its answers before any repair, the
passes of the model an answer takes, and the share of the way from the incoming order to the teacher in recall@1 that is
recovered (the last column of the results in papers on Diffusion-GR2, 2607.01170, worked out there without intervals):

    recovered = (mean of the row - mean of the incoming order) / (mean of the teacher - mean of the incoming order)

Numerator and denominator are resampled together, over users. May import numpy, the layers below and, inside functions,
the extra `language`. Suffix: `_B` requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.agents.policy import Policy
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.bootstrap import ClusterBootstrap, Interval, cluster_bootstrap
from rerank_env.training.evaluate import INCOMING, ORACLE, RANDOM
from rerank_env.training.recipes.card import TABLE
from rerank_env.training.recipes.diffusion_settings import CFT, OPD, RL
from rerank_env.training.recipes.kept_texts import KeptTexts, told_of
from rerank_env.training.recipes.stages import Work
from rerank_env.training.recipes.tables import METRICS, SERVED, Kept, Table, markdown, table

TEACHER, NAIVE, TUNED = "AR teacher", "naive conversion", "CFT"
METRIC = "recall@1"
"""What the way from the incoming order to the teacher is measured in."""

GAP = 29
"""Tells the resamples of shares from other draws of the same seed."""


def names_of(start: str) -> dict[str, str]:
    """What the rows of block diffusion are called, by the stage that makes each; reinforcement begins at `start`."""
    names = {"convert": NAIVE, CFT: TUNED, OPD: f"{TUNED} + OPD"}
    return {**names, RL: f"{names[start]} + RL"}


def evaluated(work: Work) -> Mapping[str, Any]:
    """Stage: every policy on the test split, once, with its answers kept, and the table of all of them."""
    from rerank_env.training.recipes.inputs import prepared
    from rerank_env.training.recipes.policies import POLICY, load_blocks, load_policy, seed_folder

    settings, answers = work.settings, work.folder / "answers"
    found, seeds = prepared(work.inputs["data"], settings), settings["seeds"]
    taught = seed_folder(work.inputs["dapo"], settings["teacher"]) / POLICY
    policies: dict[str, list[Policy]] = {TEACHER: [Kept(partial(load_policy, taught, settings), answers / "teacher")]}
    kept: dict[str, list[KeptTexts]] = {}
    for stage, name in names_of(settings["start"]).items():
        own = work.inputs[stage]
        folders = [seed_folder(own, seed) for seed in seeds] if stage == RL else [own]
        kept[name] = [
            KeptTexts(partial(load_blocks, folder / POLICY, settings), answers / f"{stage}-{number}")
            for number, folder in enumerate(folders)
        ]
        policies[name] = list(kept[name])
    resamples = settings["evaluation"]["resamples"]
    made = table(
        found.test, policies, rival=TEACHER, asked=found.asked["test"], seed=settings["seed"], resamples=resamples
    )
    told = made.to_dict()
    for name, row in told["rows"].items():
        if name not in (INCOMING, RANDOM, ORACLE, TEACHER, TEACHER + SERVED):
            row["gap"] = gap_of(made, name, found.test.users_B, seed=settings["seed"], resamples=resamples).to_dict()
        if name in kept:
            row |= told_of([one.written(found.test) for one in kept[name]])
    durable.replace(work.folder / TABLE, (json.dumps(told, indent=1) + "\n").encode())
    return measured(told, headline=names_of(settings["start"])[RL])


def measured(told: Mapping[str, Any], *, headline: str) -> dict[str, Any]:
    """What the stage measures: the metrics of the last row, how many of its answers are rankings, and its share."""
    row = told["rows"][headline]
    return {
        **{metric: row["metrics"][metric]["value"] for metric in METRICS},
        "valid": row["validity"],
        "gap recovered": row["gap"]["value"],
        f"{METRIC} of the teacher": told["rows"][TEACHER]["metrics"][METRIC]["value"],
    }


def gap_of(made: Table, name: str, users_B: IntArray, *, seed: int, resamples: int) -> Interval:
    """The share of a row of a table, see `recovered`."""
    values_B, floor_B, teacher_B = (made.found.rows[row].values[METRIC] for row in (name, INCOMING, TEACHER))
    return recovered(values_B, floor_B, teacher_B, users_B, seed=seed, resamples=resamples)


def recovered(
    values_B: FloatArray, floor_B: FloatArray, teacher_B: FloatArray, users_B: IntArray, *, seed: int, resamples: int
) -> Interval:
    """The share of the way from `floor_B` to `teacher_B` that `values_B` go, on average over requests, [B] each.

    With an interval over users. All nan where the interval of the way itself does not lie above zero: a share of
    nothing is undefined. Of the resamples those in which there is no way, a few at most, are left out.

    >>> import numpy as np
    >>> recovered(np.r_[1, 1, 0, 0.], np.zeros(4), np.ones(4), np.arange(4), seed=0, resamples=9).value
    0.5
    """
    ways_BC = np.stack([values_B - floor_B, teacher_B - floor_B], axis=1)
    found = cluster_bootstrap(ways_BC, users_B, resamples=resamples, rng=np.random.default_rng([seed, GAP]))
    if not found.interval(1).is_gain:
        return Interval(math.nan, math.nan, math.nan)
    some_RC = found.resampled_RC[found.resampled_RC[:, 1] > 0]
    shares_RC = some_RC[:, :1] / some_RC[:, 1:]
    return ClusterBootstrap(found.means_C[:1] / found.means_C[1:], shares_RC, found.level).interval(0)


def results(told: Mapping[str, Any]) -> str:
    """The table in Markdown, and a second one of block diffusion alone, each with its legend."""
    head = ["", "R@1 gap recovered", "valid", "unparseable", "wrong length", "duplicates", "dropped", "out of set"]
    head += ["forwards", "tokens a forward"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name, row in told["rows"].items():
        if "gap" in row:
            lines.append(f"| {' | '.join([name, _gap(row['gap']), *_counts(row)])} |")
    legend = (
        "The gap is the way from the incoming order to the teacher in R@1, and what is recovered of it a ratio of "
        f"differences, resampled together ({told['level']:.0%} intervals); it is undefined where the interval of the "
        "way includes zero. Everything else is of answers before any repair: shares of all answers, then means a list: "
        "names that repeat, candidates that are never named, names of no candidate. Forwards are the passes of the "
        "model an answer takes, written alone, those that read its prompt left out."
    )
    return "\n".join([markdown(told), "", *lines, "", legend])


def _counts(row: Mapping[str, Any]) -> list[str]:
    if "faults" not in row:
        return [""] * 8
    shares = [f"{row['faults'][name]:.1%}" for name in ("valid", "unparseable", "wrong length")]
    means = [f"{row['faults'][f'{name} a list']:.3f}" for name in ("duplicates", "dropped", "out of set")]
    return [*shares, *means, f"{row['forwards']:.1f}", f"{row['tokens_per_forward']:.2f}"]


def _gap(gap: Mapping[str, float | None]) -> str:
    value, low, high = gap["value"], gap["low"], gap["high"]
    return "undefined" if value is None or low is None or high is None else f"{value:.0%} [{low:.0%}, {high:.0%}]"
