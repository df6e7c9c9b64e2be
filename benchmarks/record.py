"""Write one measured result to docs/results/NAME.json, in the form every result of this project has.

    {"command", "commit", "date", "versions", "machine", "data", "n", "seeds",
     "rows": [{"name", "metrics": {METRIC: {"value", "low", "high"}}}], "goal", "met"}

`low` and `high` bound the value: the range over repeats of a timing, the 95 % interval of an estimate; `goal` says
which. A result says what was run, on what, and whether the goal was met, also where it was not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PACKAGES = (
    *("rerank-env", "numpy", "scipy", "gymnasium", "torch", "safetensors"),
    *("accelerate", "datasets", "peft", "tokenizers", "transformers", "trl", "verl"),
    *("pyarrow", "pandas", "lightgbm", "bm25s"),
    *("cwl-eval", "ir_measures", "numba", "pytrec-eval-terrier", "ranx", "scikit-learn", "torchmetrics"),
)

Metric = Mapping[str, float]
Row = Mapping[str, Any]


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of repeated measurements with their whole range."""
    return {"value": median(values), "low": min(values), "high": max(values)}


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser of the options that every benchmark has, described by the first paragraph of its `doc`."""
    parser = argparse.ArgumentParser(description=doc.split("\n\n")[0] if doc else None)
    parser.add_argument("--dry-run", action="store_true", help="print only, record nothing")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the result goes")
    return parser


def finish(options: argparse.Namespace, name: str, **result: Any) -> None:
    """`record` the result where the options say so, and print where it is; nothing on a dry run."""
    if not options.dry_run:
        print(f"wrote {record(name, directory=options.directory, **result).name}")


def record(
    name: str,
    *,
    command: str,
    data: str,
    n: int,
    seeds: Sequence[int],
    rows: Sequence[Row],
    goal: str,
    met: bool,
    directory: Path = RESULTS,
) -> Path:
    """Write the result and return its path; an earlier result of that name is replaced only by a whole new one.

    `n` is the number of things measured (requests, environments, completions); each row is {"name", "metrics"} with
    value, low and high for every metric. Raises `ValueError`, naming the row, where a result has another form.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"result name {name!r} is not lower-case words joined by hyphens")
    if not rows:
        raise ValueError(f"result {name!r} has no rows")
    for row in rows:
        _check(row)
    result = {
        "command": command,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
        "data": data,
        "n": int(n),
        "seeds": [int(seed) for seed in seeds],
        "rows": rows,
        "goal": goal,
        "met": bool(met),
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path


def _check(row: Row) -> None:
    if set(row) != {"name", "metrics"} or not row["metrics"]:
        raise ValueError(f"row {row!r} needs exactly a name and metrics")
    for metric, numbers in row["metrics"].items():
        if set(numbers) != {"value", "low", "high"}:
            raise ValueError(f"{metric} of row {row['name']!r} has {sorted(numbers)}; give value, low and high")
        value, low, high = (float(numbers[key]) for key in ("value", "low", "high"))
        if not all(map(math.isfinite, (value, low, high))) or not low <= value <= high:
            raise ValueError(f"{metric} of row {row['name']!r} is {value} in {low}..{high}; give low <= value <= high")


def commit() -> str:
    """The commit that was measured, with "+changes" where tracked files differed; "unknown" outside a repository."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def versions() -> dict[str, str]:
    """Python and the installed packages that can move a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int | float]:
    """What the numbers depend on besides versions; no names of hosts or users."""
    described: dict[str, str | int | float] = {
        "system": platform.system(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        described["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return described


def _cpu_model() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
