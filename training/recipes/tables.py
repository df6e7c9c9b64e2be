"""The table of a recipe: every policy on the same held-out requests, beside the incoming order and a rival.

May import numpy, the layers below and `rerank_env.training`. What the papers' tables (2602.07774, 2606.31984) lack
is in every row: intervals over users, paired with the incoming order and with the rival, how often the answer copies
the order, and how many answers are rankings before any repair. An answer that is none scores 0; a second row shows what
is left where it is replaced by the incoming order, as 2607.01170 scores it. Numbers are of requests whose target is
listed; those of the whole system count all other users as 0. Suffixes: `_B` requests, `_K` candidates.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.agents import Policy
from rerank_env.data.requests import Requests
from rerank_env.rewards import rankings
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.training.evaluate import INCOMING, Evaluation, evaluate, ranked
from rerank_env.training.fingerprints import requests_hash

METRICS = ("recall@1", "recall@3", "recall@5", "ndcg@3", "ndcg@5")
SHORT = {"recall@1": "R@1", "recall@3": "R@3", "recall@5": "R@5", "ndcg@3": "N@3", "ndcg@5": "N@5"}
SERVED = ", incoming order where invalid"
"""What is added to the name of a row whose invalid answers were replaced."""


@dataclass(frozen=True, eq=False)
class Kept:
    """A policy whose answers are kept in `folder`, so that nobody is asked twice, whatever happens in between.

    `load` makes the policy at its first question. It has to be one that draws nothing. A `Policy` itself.
    """

    load: Callable[[], Policy]
    folder: Path

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """The answers kept for these requests, or the policy's, [B, K]; `InputError` for what cannot be rankings."""
        path = self.folder / f"{requests_hash(requests)[:32]}.npy"
        if path.is_file():
            kept: IntArray = np.load(path, allow_pickle=False)
            return kept
        answers_BK = ranked(self.folder.name, self.load(), requests, rng)
        buffer = io.BytesIO()
        np.save(buffer, answers_BK, allow_pickle=False)
        durable.replace(path, buffer.getvalue())
        return answers_BK


@dataclass(frozen=True, eq=False)
class OrIncoming:
    """A policy with the incoming order in the place of each answer that is no ranking. A `Policy` itself."""

    policy: Policy

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """The policy's answers, each a ranking, [B, K]."""
        answers_BK = ranked("policy", self.policy, requests, rng)
        valid_B = rankings.verdicts(answers_BK, requests.sizes_B) == rankings.Verdict.OK
        return np.where(valid_B[:, None], answers_BK, rankings.identity_rankings(requests.sizes_B, answers_BK.shape[1]))


@dataclass(frozen=True, eq=False)
class Table:
    """`found` has the numbers; `rival` names the row that others are also compared with, None for none.

    `asked` is how many targets there are in all, listed or not, None where that is not known.
    """

    found: Evaluation
    rival: str | None
    asked: int | None

    @property
    def listed(self) -> float | None:
        """The share of targets that are listed."""
        return None if self.asked is None else self.found.n_requests / self.asked

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: `Evaluation.to_dict` with, in each row, relative gains, the rival and the whole system."""
        told = self.found.to_dict()
        for name, row in told["rows"].items():
            row["relative"] = {metric: self.found.relative(name, metric).to_dict() for metric in METRICS}
            if self.rival is not None and name != self.rival:
                row["over_rival"] = {m: self.found.difference(name, self.rival, m).to_dict() for m in METRICS}
            if self.listed is not None:
                means = {metric: self.found.mean(name, metric).to_dict() for metric in METRICS}
                row["all_users"] = {
                    metric: {key: None if value is None else value * self.listed for key, value in mean.items()}
                    for metric, mean in means.items()
                }
        return {**told, "rival": self.rival, "asked": self.asked, "listed": self.listed}


def table(
    requests: Requests,
    policies: Mapping[str, Sequence[Policy]],
    *,
    rival: str | None = None,
    asked: int | None = None,
    seed: int = 0,
    resamples: int = 2000,
) -> Table:
    """Evaluate `policies`, several seeds each, on `requests`, whose targets are all listed; `asked` targets there were.

    A policy with invalid answers has a second row, with the incoming order in their place. Raises `InputError` where
    there are more requests than targets, for a rival that is no row, and as `evaluate` does.
    """
    if asked is not None and whole("asked", asked, least=1) < len(requests):
        raise InputError(f"{len(requests)} requests cannot come from {asked} targets; give the number of all targets")
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Policy]] = {}
    for name, given in policies.items():
        rows[name] = list(given)
        answers = [ranked(name, policy, requests, rng) for policy in given]
        verdicts = [rankings.verdicts(answers_BK, requests.sizes_B) for answers_BK in answers]
        if any((verdicts_B != rankings.Verdict.OK).any() for verdicts_B in verdicts):
            rows[name + SERVED] = [OrIncoming(policy) for policy in given]
    found = evaluate(requests, rows, seed=seed, resamples=resamples, metrics=METRICS)
    if rival is not None and rival not in found.rows:
        raise InputError(f"the rival {rival!r} is no row; name one of {', '.join(found.rows)}")
    return Table(found, rival, asked)


def markdown(told: Mapping[str, Any]) -> str:
    """What `Table.to_dict` gave as a table in Markdown, with its legend."""
    head = ["", *SHORT.values(), "R@1 over incoming", "N@5 over incoming", "copies", "valid", "seeds"]
    if told["rival"] is not None:
        head.insert(-3, f"N@5 over {told['rival']}")
    if told["listed"] is not None:
        head[-3:-3] = ["all users R@5", "all users N@5"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name, row in told["rows"].items():
        cells = [name, *(_number(row["metrics"][metric]["value"]) for metric in METRICS)]
        cells += ["" if name == INCOMING else _percent(row["relative"][metric]) for metric in ("recall@1", "ndcg@5")]
        if told["rival"] is not None:
            cells.append(_interval(row["over_rival"]["ndcg@5"]) if "over_rival" in row else "")
        if told["listed"] is not None:
            cells += [_number(row["all_users"][metric]["value"]) for metric in ("recall@5", "ndcg@5")]
        cells += [_share(row["identity_rate"]), _share(row["validity"]), str(row["seeds"])]
        lines.append(f"| {' | '.join(cells)} |")
    part = "" if told["listed"] is None else f", of {told['asked']} targets ({told['listed']:.1%} are listed)"
    legend = (
        f"{told['n_requests']} requests of {told['n_users']} users whose target is listed{part}. In brackets: "
        f"{told['level']:.0%} intervals, {told['resamples']} paired bootstrap resamples of users, seeds as given. "
        'Gains over the incoming order are relative to it; those over a rival are differences. "copies" is the share '
        'of valid answers that equal the incoming order, "valid" the share of answers that are rankings, before any '
        'repair. "all users" counts users whose target is not listed as 0.'
    )
    return "\n".join([*lines, "", legend])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _interval(interval: Mapping[str, float | None]) -> str:
    value, low, high = interval["value"], interval["low"], interval["high"]
    return "-" if value is None or low is None or high is None else f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"


def _percent(interval: Mapping[str, float | None]) -> str:
    value, low, high = interval["value"], interval["low"], interval["high"]
    return "-" if value is None or low is None or high is None else f"{value:+.1%} [{low:+.1%}, {high:+.1%}]"
