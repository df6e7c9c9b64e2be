"""The model card of a run: README.md in the form of the Hugging Face hub, made from what is in the run's folder.

May import `rerank_env` and its neighbours `folder` and `tables`; huggingface_hub, which writes the front matter, is
loaded inside functions. A card says what is finished, so there is one from the first stage on; the table comes with the
evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank_env.rewards.errors import CheckpointError, MissingExtraError
from rerank_env.training.recipes.folder import RunFolder
from rerank_env.training.recipes.tables import SHORT, markdown

EVALUATE, TABLE = "evaluate", "table.json"
"""The stage that leaves the table, and its file."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a recipe says of itself: a `title`, what it does in a paragraph or two, `papers` by arXiv identifier, the
    row of the table that the hub is to show (`headline`), how a policy is loaded (`usage`), where in the run's folder
    that `policy` is, as `usage` has it, what it is not good for (`limits`), how the table is put in Markdown
    (`results`), and the pretrained `base`, "" where there is none. `license` is of weights from nothing: those made
    from a base are under the base's own, so that their card states none.
    """

    title: str
    summary: str
    papers: Mapping[str, str]
    headline: str
    usage: str
    limits: str
    base: str = ""
    license: str = "apache-2.0"
    policy: str = ""
    results: Callable[[Mapping[str, Any]], str] = markdown


def card(folder: RunFolder, about: About, *, stages: list[str]) -> str:
    """The card of what is finished of `stages`.

    Raises `MissingExtraError` without huggingface_hub, `CheckpointError` where the table cannot be read.
    """
    run = folder.described()
    told = _table(folder)
    parts = [
        f"# {about.title}",
        about.summary,
        "## Results",
        "The evaluation is not finished." if told is None else about.results(told),
        "## How to use",
        about.usage,
        "## Training",
        _training(folder, run, stages),
        "## Limits",
        about.limits,
        "## Papers",
        "\n".join(f"- [{name}](https://arxiv.org/abs/{paper})" for paper, name in about.papers.items()),
    ]
    return f"---\n{_front(run, about, told)}---\n\n" + "\n\n".join(parts) + "\n"


def ending(folder: RunFolder, about: About) -> str:
    """What a run ends with on a terminal: the table, and how the policy is loaded from here, each once it is there.

    Raises `CheckpointError` where the table cannot be read.
    """
    told, policy = _table(folder), folder.directory / about.policy
    usage = about.usage.replace(about.policy, str(policy)) if about.policy and policy.is_dir() else ""
    return "\n\n".join(part for part in ("" if told is None else about.results(told), usage) if part)


def _front(run: Mapping[str, Any], about: About, told: Mapping[str, Any] | None) -> str:
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'a model card needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
        ) from error
    name = f"{run.get('recipe')}-{run.get('data')}-{run.get('size')}"
    row = None if told is None else told["rows"].get(about.headline)
    results = [
        EvalResult(
            task_type="text-ranking",
            task_name="Re-ranking",
            dataset_type=str(run.get("data")),
            dataset_name=f"{run.get('data')}, test requests whose target is listed",
            metric_type=metric,
            metric_name=SHORT[metric],
            metric_value=round(value["value"], 4),
        )
        for metric, value in (row["metrics"].items() if row else ())
    ]
    data = ModelCardData(
        license=None if about.base else about.license,
        language="en",
        library_name="transformers",
        pipeline_tag="text-ranking",
        tags=["re-ranking", "recommendation", "reinforcement-learning", "rerank-env", str(run.get("recipe"))],
        base_model=about.base or None,
        datasets=[],
        metrics=list(SHORT),
        model_name=name if results else None,
        eval_results=results or None,
    )
    return f"{data.to_yaml()}\n"


def _training(folder: RunFolder, run: Mapping[str, Any], stages: list[str]) -> str:
    lines = ["| stage | minutes | measured |", "| --- | --- | --- |"]
    settings: list[str] = []
    for name in stages:
        record = folder.record(name)
        if record is None:
            lines.append(f"| {name} | | not finished |")
            continue
        begun = folder.started(name) or {}
        settings.append(f"    {name}: {json.dumps(begun.get('settings', {}))}")
        measured = "; ".join(f"{_short(key)} {_short(value)}" for key, value in folder.metrics(name).items())
        lines.append(f"| {name} | {record.seconds / 60:.1f} | {measured} |")
    versions = ", ".join(f"{name} {number}" for name, number in run.get("versions", {}).items())
    command = run.get("command")
    return "\n\n".join(
        [
            *([f"Made by `{command}`."] if command else []),
            "\n".join(lines),
            *(["Settings that each stage was made with:", "\n".join(settings)] if settings else []),
            f"Versions: {versions}.",
        ]
    )


def _short(value: Any) -> str:
    """A measured value in a cell: numbers to four places, longer things by their size."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_short(key)}: {_short(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _table(folder: RunFolder) -> Mapping[str, Any] | None:
    if folder.record(EVALUATE) is None:
        return None
    path: Path = folder.stage(EVALUATE) / TABLE
    try:
        found: Mapping[str, Any] = json.loads(path.read_bytes())
        return found
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); restart {EVALUATE}") from error
