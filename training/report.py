"""The page people look at: one self-contained HTML file made from `report.json` alone.

Needs the `report` extra (jinja2, matplotlib), imported when a page is written. Titles and other text from data are
escaped. May import `rerank_env.durable` and the errors.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rerank_env import durable
from rerank_env.rewards.errors import MissingExtraError

LABELS = {
    "incoming": "incoming order",
    "random": "random order",
    "oracle": "oracle (best possible)",
    "supervised": "supervised listwise",
    "policy": "policy (DAPO)",
}

PANELS = (
    ("reward", "training reward"),
    ("validation", "validation NDCG@10"),
    ("identity_rate", "answers equal to the incoming order"),
)
"""Which logged values are drawn, with their titles; a step that logs none is skipped."""


def write_page(report: Mapping[str, Any], path: Path) -> None:
    """Write the page of `report` (as `demo.run` returns it) to `path`.

    Raises `MissingExtraError` where jinja2 or matplotlib are absent.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtraError("the report page needs jinja2; pip install 'rerank-env[report]'") from error
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.get_template("report.html.jinja")
    page = template.render(r=report, labels=LABELS, curves=_curves(report["curves"]))
    durable.replace(path, page.encode())


def _curves(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The training curves as inline SVG: `curves[run]` is that run's log, thinned, a mapping a step."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the report page needs matplotlib; pip install 'rerank-env[report]'") from error
    figure = Figure(figsize=(10.5, 3.1), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    for axis, (key, title) in zip(axes, PANELS, strict=True):
        drawn = set[str]()
        for run, lines in curves.items():
            method = run.partition("-")[0]
            points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
            if points:
                label = run if method != "supervised" else None if method in drawn else method
                drawn.add(method)
                look = {"color": "#8a94a3", "linestyle": "--"} if method == "supervised" else {}
                axis.plot(*zip(*points, strict=True), label=label, linewidth=1.2, **look)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("step", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].legend(fontsize=7, frameon=False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]
