"""How good answers are, and a picture of that beside how fast they are written; for benchmarks/diffusion_speed.py.

May import numpy, matplotlib where a picture is drawn, and the layers below `rerank_env.training`. Suffixes: `_B`
requests, `_C` columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from recipe_rows import Numbers, point, told

from rerank_env import durable
from rerank_env.data import load
from rerank_env.rewards import faults, parse_reward
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.bootstrap import cluster_bootstrap
from rerank_env.rewards.parsing import parse_batch
from rerank_env.rewards.slates import Slates

TEACHER = "autoregressive teacher"
METRIC = "recall@1"
RESAMPLES = 2000


@dataclass(frozen=True)
class Asking:
    """Requests as they are put to policies: `prompts` in tokens, and what their answers are judged by. Plain values."""

    prompts: list[list[int]]
    relevance: list[list[float]]
    sizes: list[int]
    users: list[int]
    text_format: str
    ids: list[list[str]] | None

    def first(self, most: int | None) -> Asking:
        """So many of them."""
        lists = ("prompts", "relevance", "sizes", "users", "ids")
        return replace(self, **{name: value[:most] for name in lists if (value := getattr(self, name)) is not None})

    def scored(self, texts: Sequence[str]) -> FloatArray:
        """`METRIC` of one answer a request, 0 where it is no ranking, and whether it is one, [2, B]."""
        read = parse_batch(
            list(texts), np.array(self.sizes), text_format=self.text_format, width=len(self.relevance[0]), ids=self.ids
        )
        slates = Slates(np.array(self.relevance), np.array(self.sizes))
        valid_B = (read.rankings_BK[:, 0] >= 0).astype(np.float64)
        return np.stack([parse_reward(METRIC).score(read.rankings_BK, slates).total_B * valid_B, valid_B])


def asking_of(path: Path | None, policies: Sequence[Any], *, data: str) -> Asking:
    """What is kept at `path`, or the test requests of `data` as these policies all put them, then kept there."""
    if path is not None and path.is_file():
        return Asking(**json.loads(path.read_bytes()))
    asked = policies[0].ask(load(data, split="test"))
    prompts = [policy.prompt_ids(asked.prompts) for policy in policies]
    if any(other != prompts[0] for other in prompts):
        raise SystemExit("the policies do not read the same tokens; give a teacher and what it was converted to")
    shown, ids = asked.shown, asked.answer_ids
    made = Asking(
        prompts[0],
        shown.relevance_BK.tolist(),
        shown.sizes_B.tolist(),
        shown.users_B.tolist(),
        asked.text_format,
        None if ids is None else [list(row) for row in ids],
    )
    if path is not None:
        durable.replace(path, json.dumps(asdict(made)).encode())
    return made


def qualities(asking: Asking, answers: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, dict[str, Numbers]]:
    """By setting, `TEACHER` among them: `METRIC` and validity with intervals, the paired difference to the teacher's,
    and the faults; each the mean over that setting's sets of answers, users resampled.
    """
    scores = [np.mean([asking.scored(texts) for texts in sets], axis=0) for sets in answers.values()]
    bootstrap = cluster_bootstrap(
        np.concatenate(scores).T, np.array(asking.users), resamples=RESAMPLES, rng=np.random.default_rng(0)
    )
    teacher = 2 * list(answers).index(TEACHER)
    found: dict[str, dict[str, Numbers]] = {}
    for number, (setting, sets) in enumerate(answers.items()):
        rates = [faults(texts, asking.sizes, text_format=asking.text_format, ids=asking.ids).rates() for texts in sets]
        found[setting] = {
            METRIC: told(bootstrap.interval(2 * number).to_dict()),
            f"{METRIC} - teacher": told(bootstrap.difference(2 * number, teacher).to_dict()),
            "valid": told(bootstrap.interval(2 * number + 1).to_dict()),
        }
        found[setting] |= {
            name: point(float(np.mean([rate[name] for rate in rates]))) for name in rates[0] if name != "valid"
        }
    return found


def draw(path: Path, metrics: Mapping[str, Mapping[str, Numbers]], chosen: str) -> None:
    """Speed at batch 1 against quality, above, and against validity, below, as an SVG. Equal numbers, equal files."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 6.5), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    teacher = metrics[TEACHER][METRIC]
    panels[0].axhspan(teacher["low"], teacher["high"], color="0.9", linewidth=0.0)
    for name, own in metrics.items():
        kind, _, number = name.rstrip(")").partition("(")
        colour = {"threshold": "C0", "static": "C1"}.get(kind, "0.2" if name == TEACHER else "C2")
        for panel, measure in zip(panels, (METRIC, "valid"), strict=True):
            x, y = own["tokens/s"], own[measure]
            panel.errorbar(
                [x["value"]], [y["value"]],
                xerr=[[x["value"] - x["low"]], [x["high"] - x["value"]]],
                yerr=[[y["value"] - y["low"]], [y["high"] - y["value"]]],
                fmt="D" if name == chosen else "o", markersize=5 if name == chosen else 3, color=colour, linewidth=0.8,
            )  # fmt: skip
            label = name if name in (TEACHER, chosen) or not number else f"{kind[0]} {number}"
            panel.annotate(label, (x["value"], y["value"]), xytext=(4, 4), textcoords="offset points", fontsize=7)
    for panel, measure in zip(panels, (METRIC, "valid before repair"), strict=True):
        panel.set_ylabel(measure, fontsize=8)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    panels[1].set_xlabel("tokens/s at batch 1, as a multiple of the teacher's (t: threshold, s: static)", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
