"""What an audit found: one row for each way of answering, and the whole as a table. May import numpy only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rerank_env.rewards.rankings import Verdict

Kind = Literal["yardstick", "blind", "malformed", "dressed"]
"""An honest measure; a ranking given without reading; a text that is no ranking; a ranking with something added."""

HEADER = ("answer", "pay", "95 % interval", "of oracle", "valid", "echo", "near", "read as", "")
"""The columns of the table; "echo" and "near" are the shares of answers equal and near to the incoming order."""


@dataclass(frozen=True)
class AuditRow:
    """One way of answering, and what it earns: the mean with a 95 % interval, `low` to `high`, over users.

    `share_of_oracle` is what it takes of what the oracle earns on the same requests, for a "dressed" answer what the
    addition takes; 0 for less than nothing, None where the oracle earns nothing. `valid_share` counts all its answers,
    `identity_rate` and `near_identity_rate` (see `copies`) the valid ones, 0 where there are none; `verdict` is what
    most of them are. `passed` is None for a yardstick; `reason` says why, `about` what is done.
    """

    name: str
    kind: Kind
    mean_reward: float
    low: float
    high: float
    share_of_oracle: float | None
    valid_share: float
    identity_rate: float
    near_identity_rate: float
    verdict: Verdict
    passed: bool | None
    reason: str
    about: str


@dataclass(frozen=True)
class AuditReport:
    """The rows of an audit of `reward` on `n_requests` requests; `str()` is a table.

    `text_format` is what texts were written in, `step` the training step that schedules were asked for; `warnings` are
    sentences on what rows cannot show.
    """

    reward: str
    n_requests: int
    text_format: str
    step: int
    rows: tuple[AuditRow, ...]
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no attack is paid."""
        return not self.failures

    @property
    def failures(self) -> tuple[AuditRow, ...]:
        """The attacks that are paid."""
        return tuple(row for row in self.rows if row.passed is False)

    @property
    def verdict(self) -> str:
        """The audit in one sentence."""
        attacks = sum(row.passed is not None for row in self.rows)
        if self.passed:
            return f"PASS: none of {attacks} attacks is paid"
        most = max(self.failures, key=lambda row: (row.share_of_oracle or 0.0, row.mean_reward))
        return f"FAIL: {len(self.failures)} of {attacks} attacks are paid, most of all {most.name}, which {most.reason}"

    def __getitem__(self, name: str) -> AuditRow:
        """The row of that name. Raises `KeyError` if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; verdicts by name in lower case."""
        rows = [asdict(row) | {"verdict": row.verdict.name.lower()} for row in self.rows]
        return {
            "reward": self.reward,
            "n_requests": self.n_requests,
            "text_format": self.text_format,
            "step": self.step,
            "passed": self.passed,
            "warnings": list(self.warnings),
            "rows": rows,
        }

    def table(self) -> list[tuple[str, ...]]:
        """A header and lines of cells; texts that are refused alike are one line."""
        lines: list[tuple[str, ...]] = [HEADER]
        refused: dict[tuple[str, str], list[AuditRow]] = {}
        for row in self.rows:
            if row.kind == "malformed" and not row.valid_share:
                refused.setdefault((_signed(row.mean_reward), row.reason), []).append(row)
            else:
                lines.append(_cells(row, row.name))
        lines += [_cells(rows[0], f"{len(rows)} malformed texts", verdict="refused") for rows in refused.values()]
        return lines

    def __str__(self) -> str:
        """The verdict, a table of fixed-width columns, and the warnings."""
        table = self.table()
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        lines = [f"audit of {self.reward} on {self.n_requests} requests, texts as {self.text_format}", self.verdict]
        for cells in table:
            shown = [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:-1], widths[1:-1], strict=True))]
            lines.append("  ".join([*shown, cells[-1]]).rstrip())
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def _cells(row: AuditRow, name: str, *, verdict: str = "") -> tuple[str, ...]:
    share = "-" if row.share_of_oracle is None else f"{row.share_of_oracle:.1%}"
    outcome = "yardstick" if row.passed is None else f"pass: {row.reason}" if row.passed else f"FAIL: {row.reason}"
    if row.passed is False and not verdict:
        outcome += f" ({row.about})"
    return (
        name,
        _signed(row.mean_reward),
        f"{_signed(row.low)} {_signed(row.high)}",
        share,
        f"{row.valid_share:.0%}",
        f"{row.identity_rate:.0%}",
        f"{row.near_identity_rate:.0%}",
        verdict or row.verdict.name.lower(),
        outcome,
    )


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"
