"""An audit as text: what was asked, the verdict with its reasons, a table that fits a terminal, and a legend.

May import the standard library only.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rerank_env.rewards.auditing.report import AuditReport, AuditRow

ALLOWED_SHARE = 0.01
"""What share of the oracle's pay an attack may take."""

MANY_TIMES = 10.0
"""Shares of the oracle's pay from here on are written as so many times."""

NAME_WIDTH = 20
"""Longer names stand in a line of their own."""

SHOWN = (
    "oracle",
    "anti_oracle",
    "random",
    "identity",
    "one_swap",
    "top_swap",
    "reverse",
    "popularity",
    "random_on_shuffled",
    "best_response",
)
"""The rows that are worth a line even where they pass."""

HEADER = ("answer", "pay", "95 % interval", "of oracle", "echo", "near", "valid", "read as", "result")
COLUMNS = (0, 1, 2, 3, 4, 5, 8)
"""The columns that fit a terminal of 80."""

LEGEND = (
    f"of oracle: share of what the oracle earns in its best text; {ALLOWED_SHARE:.0%} is allowed",
    "echo, near: answers equal to the incoming order, and within two exchanges",
    "malformed texts must earn less than any ranking; a result of ? is not judged",
)
READ_AS = "valid, read as: share of the answers that are read as rankings, and what most of them are read as"

Cells = tuple[str, ...]


def laid_out(report: AuditReport, *, width: int, everything: bool) -> str:
    """The text of a report in lines of about `width` characters; without `everything` with what matters only."""
    lines = _head(report, width)
    table, details = _table(report, everything)
    columns = range(len(HEADER)) if everything else COLUMNS
    widths = {n: max(len(cells[n]) for cells in (HEADER, *table) if n or len(cells[n]) <= NAME_WIDTH) for n in columns}
    lines.append(_line(HEADER, widths))
    step = None
    for cells, (row, detail) in zip(table, details, strict=True):
        if len(report.steps) > 1 and row.step != step:
            step = row.step
            lines.append(f"at step {step}")
        if len(cells[0]) > NAME_WIDTH:
            lines += textwrap.wrap(cells[0], width, subsequent_indent="  ")
            cells = ("", *cells[1:])
        lines.append(_line(cells, widths))
        if detail:
            lines += textwrap.wrap(detail, width, initial_indent="    ", subsequent_indent="    ")
    passing = sum(row.passed is True for row in report.rows)
    if not everything and passing:
        lines.append(f"{passing} attacks pass, not all of them are shown")
    return "\n".join([*lines, *LEGEND, *([READ_AS] if everything else [])])


def percent(share: float) -> str:
    """A share to three digits, and large ones as a number of times."""
    return f"{share:,.0f} times" if share >= MANY_TIMES else f"{100 * share:.3g}%"


def _head(report: AuditReport, width: int) -> list[str]:
    """What was audited, the verdict, and what is to be said about it."""
    steps = ""
    if len(report.steps) > 1:
        steps = f", at steps {', '.join(map(str, report.steps))}"
    title = f"audit of {report.asked} on {report.n_requests} requests, texts as {report.text_format}{steps}"
    said = [title] + ([f"  = {report.reward}"] if report.asked != report.reward else [])
    said += [report.verdict]
    said += [f"undecided: {reason}" for reason in report.undecided[report.passed is None :]]
    said += [f"warning: {warning}" for warning in report.warnings]
    return [line for text in said for line in textwrap.wrap(text, width, subsequent_indent="    ")]


def _table(report: AuditReport, everything: bool) -> tuple[list[Cells], list[tuple[AuditRow, str]]]:
    """The cells of each line, and the row that it is about with what stands under it."""
    table, details = [], []
    refused: dict[tuple[object, ...], list[AuditRow]] = {}
    for row in report.rows:
        if row.kind == "malformed" and not row.valid_share:
            refused.setdefault((row.step, _signed(row.mean_reward), row.reason), []).append(row)
    for row in report.rows:
        alike = refused.get((row.step, _signed(row.mean_reward), row.reason), [])
        name = row.name.removesuffix(f" at step {row.step}") if len(report.steps) > 1 else row.name
        detail = _detail(row)
        if row in alike and len(alike) > 1:  # texts that are refused alike are one line
            if row is not alike[0]:
                continue
            name, detail = f"{len(alike)} malformed texts", row.reason if row.passed is False else ""
        elif not everything and row.passed is not False and name not in SHOWN:
            continue
        table.append(_cells(row, name, "refused" if len(alike) > 1 else row.verdict.name.lower()))
        details.append((row, detail))
    return table, details


def _detail(row: AuditRow) -> str:
    """What a failing row is paid for, and how near to failing another one is."""
    if row.passed is False:
        return f"{row.reason}: {row.about}"
    return row.reason if row.passed and (row.share_of_oracle or 0.0) > ALLOWED_SHARE else ""


def _cells(row: AuditRow, name: str, verdict: str) -> Cells:
    share = "-" if row.share_of_oracle is None else f"{row.share_of_oracle:.1%}"
    if row.share_of_oracle is not None and row.share_of_oracle >= MANY_TIMES:
        share = percent(row.share_of_oracle)
    outcome = {True: "pass", False: "FAIL", None: "" if row.kind == "yardstick" else "?"}[row.passed]
    return (
        name,
        _signed(row.mean_reward),
        f"{_signed(row.low)} {_signed(row.high)}",
        share,
        f"{row.identity_rate:.0%}",
        f"{row.near_identity_rate:.0%}",
        f"{row.valid_share:.0%}",
        verdict,
        outcome,
    )


def _line(cells: Sequence[str], widths: dict[int, int]) -> str:
    shown = [cells[n].ljust(size) if n == 0 else cells[n].rjust(size) for n, size in widths.items()]
    return "  ".join(shown).rstrip()


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"
