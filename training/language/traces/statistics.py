"""How collecting went: what was accepted, what was dropped and where its target stood, and what it cost.

May import the standard library only. Rejection sampling drops the requests that a teacher finds hard without a word;
the acceptance by the incoming place of the target shows how far what is left differs from what was asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Statistics:
    """Counts over the settled requests.

    `asked`: those with a target; `no_target`: those without; `accepted`; `own`: accepted with the teacher's own list;
    `calls` to the teacher, and `tokens_in`, `tokens_out` that they took; `first`: accepted at the first try;
    `by_incoming`: for each incoming place of a target, from 1, how many requests were asked and how many of them
    accepted; `dropped`: the requests that were asked and not accepted; `verdicts`: of the answers that settled a
    request, by name.
    """

    asked: int
    no_target: int
    accepted: int
    own: int
    first: int
    calls: int
    tokens_in: int
    tokens_out: int
    by_incoming: Mapping[int, tuple[int, int]]
    dropped: tuple[int, ...]
    verdicts: Mapping[str, int]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Statistics:
        """The statistics of rows of traces, in any order."""
        asked, accepted, verdicts = Counter[int](), Counter[int](), Counter[str]()
        dropped: list[int] = []
        sums = Counter[str]()
        for row in rows:
            verdicts[row["verdict"]] += 1
            sums.update(calls=row["tries"], tokens_in=row["tokens_in"], tokens_out=row["tokens_out"])
            if not row["incoming"]:
                sums["no_target"] += 1
                continue
            asked[row["incoming"]] += 1
            if row["accepted"]:
                accepted[row["incoming"]] += 1
                sums.update(own=row["tail"] == "own", first=row["tries"] == 1)
            else:
                dropped.append(row["request"])
        return cls(
            asked=asked.total(),
            no_target=sums["no_target"],
            accepted=accepted.total(),
            own=sums["own"],
            first=sums["first"],
            calls=sums["calls"],
            tokens_in=sums["tokens_in"],
            tokens_out=sums["tokens_out"],
            by_incoming={place: (asked[place], accepted[place]) for place in sorted(asked)},
            dropped=tuple(sorted(dropped)),
            verdicts=dict(sorted(verdicts.items())),
        )

    @property
    def acceptance(self) -> float:
        """The share of the asked that were accepted, 0.0 where nothing was asked."""
        return self.accepted / self.asked if self.asked else 0.0

    def numbers(self) -> dict[str, float]:
        """What is worth a log: counts, shares, and `acceptance/incoming_PLACE`."""
        counts = ("asked", "no_target", "accepted", "own", "first", "calls", "tokens_in", "tokens_out")
        return {
            **{name: float(getattr(self, name)) for name in counts},
            "acceptance": self.acceptance,
            "dropped": float(len(self.dropped)),
            **{f"acceptance/incoming_{place}": told / asked for place, (asked, told) in self.by_incoming.items()},
        }
