"""Context: what a reward may know of a batch of answers besides the rankings and the slates.

Most rewards need nothing of it. A schedule needs the training step, a group reward which answers belong together, a
reward of the text its length or its reasoning. What is not known is None, and a reward that needs it says so before it
scores anything. May import numpy only. Suffix: `_B` answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError

UNITS = ("chars", "tokens")
"""What the length of an answer is counted in."""

HINTS: Mapping[str, str] = {
    "chars": "score completions with a Scorer, or pass context=Context(lengths={'chars': ...})",
    "clicks": "give the slates clicks and propensities",
    "groups": "pass groups_B, one group number an answer, to the Scorer, or context=Context(groups_B=...)",
    "predictions": "give the slates predictions, the expected click of each candidate when it is seen",
    "reasonings": "score completions with a Scorer, or pass context=Context(reasonings=...)",
    "step": "pass step, the number of updates done, to the Scorer, or context=Context(step=...)",
    "tokens": "pass token counts to the Scorer, or context=Context(lengths={'tokens': ...})",
}
"""What a reward may need, and what a caller of it or of a `Scorer` can do where it is missing."""


@dataclass(frozen=True, eq=False)
class Context:
    """`step`: updates done; `groups_B` int64: which rollout group each answer belongs to; `reasonings`: the text that
    came before each answer, "" where there was none; `lengths` int64 [B] by unit, "chars" or "tokens".

    Raises `InputError` where a field has the wrong form.
    """

    step: int | None = None
    groups_B: IntArray | None = None
    reasonings: tuple[str, ...] | None = None
    lengths: Mapping[str, IntArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check and convert."""
        if self.step is not None:
            object.__setattr__(self, "step", whole("step", self.step, least=0))
        if self.groups_B is not None:
            object.__setattr__(self, "groups_B", _counts("groups", self.groups_B))
        if self.reasonings is not None:
            texts = self.reasonings if isinstance(self.reasonings, list | tuple) else (None,)
            if not all(isinstance(text, str) for text in texts):
                raise InputError(f"reasonings are {self.reasonings!r:.60}; give a list of texts, one an answer")
            object.__setattr__(self, "reasonings", tuple(texts))
        if not isinstance(self.lengths, Mapping):
            raise InputError(f"lengths are {self.lengths!r:.60}; give a mapping from unit to one number an answer")
        if stray := set(self.lengths) - set(UNITS):
            raise InputError(f"lengths are given in {sorted(stray)}; the units are {', '.join(UNITS)}")
        object.__setattr__(self, "lengths", {unit: _counts(unit, counts) for unit, counts in self.lengths.items()})

    @property
    def provides(self) -> frozenset[str]:
        """The needs of rewards that are met."""
        given = {"step": self.step, "groups": self.groups_B, "reasonings": self.reasonings, **self.lengths}
        return frozenset(need for need, value in given.items() if value is not None)

    def check_rows(self, rows: int) -> None:
        """Raise `InputError` unless every field speaks of `rows` answers."""
        sized = {"groups": self.groups_B, "reasonings": self.reasonings, **self.lengths}
        for what, values in sized.items():
            if values is not None and len(values) != rows:
                raise InputError(f"the context has {len(values)} {what} for {rows} answers; give one an answer")


NOTHING = Context()
"""Nothing is known."""


def check_met(
    needs: Iterable[str], provided: frozenset[str], what: object, remedies: Mapping[str, str] = HINTS
) -> None:
    """Raise `InputError` if `what` needs something that is not provided, with the remedy that the caller can follow."""
    for need in sorted(set(needs) - provided):
        raise InputError(f"{what} needs {need}, which is not known here; {remedies[need]}")


def _counts(what: str, values: object) -> IntArray:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(f"{what} have shape {array.shape} and dtype {array.dtype}; give one whole number an answer")
    return array.astype(np.int64, copy=False)
