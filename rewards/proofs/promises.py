"""The promises of a sound reward: in words, how a breach is found, and what to do about it. May import numpy only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rerank_env.rewards.proofs.company import ignores_order_in_group, ignores_the_batch
from rerank_env.rewards.proofs.properties import (
    ignores_labels,
    is_bounded,
    is_finite,
    is_pure,
    pays_identity_as_declared,
    pays_invalid_least,
    pays_the_better_order,
)
from rerank_env.rewards.proofs.trials import Case, Subject, UndefinedError


@dataclass(frozen=True)
class Promise:
    """What is promised, the `rule`; a `check` of one case, which tells of a breach or gives None; and the `remedy`."""

    rule: str
    check: Callable[[Subject, Case], str | None]
    remedy: str

    def breach(self, subject: Subject, case: Case) -> str | None:
        """What `check` finds, and nothing where the reward gives no numbers: that breaks a promise of its own."""
        try:
            return self.check(subject, case)
        except UndefinedError:
            return None

    def in_words(self, breach: str) -> str:
        """The promise, how it was broken, and the remedy."""
        return "\n  ".join([self.rule, *breach.splitlines(), f"remedy: {self.remedy}"])


PROMISES = {
    "finite": Promise(
        "every answer to every request earns one finite number",
        is_finite,
        "decide what such an answer is worth, and return one finite float64 an answer",
    ),
    "pure": Promise(
        "the same answers earn the same twice, and what is passed in is not changed",
        is_pure,
        "keep no state, draw no random numbers, and copy what you sort or change",
    ),
    "batch": Promise(
        "an answer earns the same whatever else is in the batch, in any order and padded to any width",
        ignores_the_batch,
        "score each row from that row, and only up to slates.sizes_B: no means over the batch, no row numbers; what "
        'compares the answers of a group is a class with own_needs = frozenset({"groups"})',
    ),
    "group_order": Promise(
        "the answers of a group may stand in any order",
        ignores_order_in_group,
        "compare the answers of a group by what they say, never by where they stand",
    ),
    "bounded": Promise(
        "a ranking earns no less than low and no more than high, and anything else exactly invalid",
        is_bounded,
        "declare all of the range, or clip; leave what is no ranking to the declared score",
    ),
    "invalid_below_valid": Promise(
        "an answer that is no ranking earns less than any ranking",
        pays_invalid_least,
        "declare a lower score for it, with `invalid` or .gate(valid, otherwise=...)",
    ),
    "identity": Promise(
        "echoing the incoming order earns no more than declared",
        pays_identity_as_declared,
        "pay what an answer adds to the incoming order, as .over_incoming() does, or declare what echoing may earn",
    ),
    "relabelling": Promise(
        "a candidate counts for its gain, not for its number",
        ignores_labels,
        "look up gains with slates.relevance_BK[row, candidate] and leave candidate numbers out of it; if it is meant "
        "to count who moved where, say looks_at='places'",
    ),
    "monotone": Promise(
        "moving a better candidate up past a worse one never costs",
        pays_the_better_order,
        "pay at least as much for the better order; if better means something else than relevance, say so with worth=",
    ),
}
"""The promises by name, those first that explain breaches of later ones."""
