"""What an audit found: one row for each way of answering, and the whole as a table. May import numpy only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rerank_env.rewards.auditing.layout import laid_out
from rerank_env.rewards.rankings import Verdict

Kind = Literal["yardstick", "blind", "malformed", "dressed"]
"""An honest measure; a ranking given without reading; a text that is no ranking; a ranking with something added."""


@dataclass(frozen=True)
class AuditRow:
    """One way of answering, and what it earns: the mean with a 95 % interval, `low` to `high`, over users.

    `share_of_oracle` is what it takes of what the oracle earns on the same requests, for a "dressed" answer what the
    addition takes; 0 for less than nothing, None where the oracle earns nothing. `valid_share` counts all its answers,
    `identity_rate` and `near_identity_rate` (see `copies`) the valid ones, 0 where there are none; `verdict` is what
    most of them are. `passed` is None for a yardstick and for what cannot be judged; `reason` says why, `about` what is
    done, `step` at which training step.
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
    step: int = 0


@dataclass(frozen=True)
class AuditReport:
    """The rows of an audit of `reward`, as it was `asked` for, on `n_requests` requests; `str()` is a table.

    `text_format` is what texts were written in, `steps` the training steps at which all was tried; of several, the
    names of rows end in " at step N". `undecided` has a sentence for each thing that could not be judged and `warnings`
    for what rows cannot show.
    """

    reward: str
    asked: str
    n_requests: int
    text_format: str
    steps: tuple[int, ...]
    rows: tuple[AuditRow, ...]
    undecided: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool | None:
        """Whether no attack is paid; None where none is and something could not be judged."""
        if self.failures:
            return False
        return None if self.undecided else True

    @property
    def failures(self) -> tuple[AuditRow, ...]:
        """The attacks that are paid."""
        return tuple(row for row in self.rows if row.passed is False)

    @property
    def verdict(self) -> str:
        """The audit in one sentence, which begins with PASS, FAIL or UNDECIDED."""
        attacks = sum(row.passed is not None for row in self.rows)
        if self.passed is None:
            return f"UNDECIDED: {self.undecided[0]}"
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
        return asdict(self) | {
            "steps": list(self.steps),
            "passed": self.passed,
            "verdict": self.verdict,
            "undecided": list(self.undecided),
            "warnings": list(self.warnings),
            "rows": [asdict(row) | {"verdict": row.verdict.name.lower()} for row in self.rows],
        }

    def text(self, *, width: int = 100, everything: bool = True) -> str:
        """The verdict with its reasons, and a table in lines of about `width` characters.

        Without `everything`, which takes 80 of them, it has the yardsticks, what is paid, and some that are not.
        """
        return laid_out(self, width=width, everything=everything)

    def __str__(self) -> str:
        """All of it."""
        return self.text()
