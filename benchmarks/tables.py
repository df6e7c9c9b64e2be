"""Write the tables in the documents from docs/results/*.json, so that no figure is typed by hand.

Run: python benchmarks/tables.py            (`--check` changes nothing and fails where a table is out of date)

A table stands between `<!-- table NAME: METRIC, METRIC -->` and `<!-- end -->`; a row is printed if it has one of the
metrics, and where rows are named (`<!-- table NAME: METRIC; ROW, ROW -->`) if it is one of them. `value [low, high]`
is printed where the interval is not a point. Of a result that was not recorded yet it is said that it was not.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "block-diffusion.md", ROOT / "README.md")
MARKED = re.compile(
    r"(<!-- table (?P<name>[\w-]+): (?P<metrics>[^>;]+)(; (?P<rows>[^>]+))? -->\n).*?<!-- end -->", re.DOTALL
)


def table(result: Mapping[str, Any], metrics: list[str], rows: list[str] | None = None) -> str:
    """The rows of one result that have any of `metrics`, as Markdown, under a line that says where they come from.

    `rows` names the rows to print (default: all).
    """
    lines = [
        f"`{result['command']}` · n = {result['n']} · seeds {result['seeds']} · {result['date']} · "
        f"goal: {result['goal']} · met: {'yes' if result['met'] else 'no'}",
        "",
        f"| | {' | '.join(metrics)} |",
        f"|---|{'---|' * len(metrics)}",
    ]
    for row in result["rows"]:
        if (rows is None or row["name"] in rows) and any(metric in row["metrics"] for metric in metrics):
            cells = [_cell(row["metrics"].get(metric)) for metric in metrics]
            lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(found: Mapping[str, float] | None) -> str:
    if found is None:
        return ""
    value, low, high = found["value"], found["low"], found["high"]
    shown = f"{value:.4g}" if abs(value) >= 10 else f"{value:.4f}"
    if low == high:
        return shown
    digits = ".4g" if abs(value) >= 10 else ".4f"
    return f"{shown} [{low:{digits}}, {high:{digits}}]"


def renewed(page: str) -> str:
    """The page with every marked table made anew."""

    def fill(found: re.Match[str]) -> str:
        path = ROOT / "docs" / "results" / f"{found['name']}.json"
        if not path.is_file():
            return f"{found[1]}Not measured yet.\n<!-- end -->"
        result = json.loads(path.read_text(encoding="utf-8"))
        rows = None if found["rows"] is None else _names(found["rows"])
        return f"{found[1]}{table(result, _names(found['metrics']), rows)}<!-- end -->"

    return MARKED.sub(fill, page)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables in the documents from docs/results/*.json.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a table is out of date")
    check = parser.parse_args().check
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        new = renewed(page)
        if check and new != page:
            sys.exit(f"{path.relative_to(ROOT)} is out of date; run python benchmarks/tables.py")
        if not check:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
