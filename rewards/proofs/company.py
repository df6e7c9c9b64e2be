"""Properties of a sound reward that concern company: what else is in the batch, and the other answers of a group.

One function a property, as in `properties`. May import numpy only.
"""

from __future__ import annotations

import numpy as np

from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.expression import number_text
from rerank_env.rewards.proofs.properties import first
from rerank_env.rewards.proofs.trials import Case, Subject, listed, named

MOST_TO_TELL = 4
"""How many of the other requests in a batch are written out."""

BATCHES = (16, 130)
"""How many answers stand in large batches, the first as they come and the second in reverse."""


def ignores_the_batch(subject: Subject, case: Case) -> str | None:
    """A group of answers earns the same alone, among others, in a batch turned round, and padded to any width.

    Nor does the number of a group matter: in the batch that is turned round, the numbers are others. Nor how many
    answers there are, and what the neighbours earn: see `_ignores_neighbours`.
    """
    alone, size = case.alone(), case.group_size
    alone_B, rows = subject.values(alone), len(case.slates)
    turned = case.take(np.arange(rows)[::-1], 1 + case.groups_B)
    beside = [f"{case.ranking(row)} to gains {listed(case.shown('relevance_BK', row))}" for row in range(size, rows)]
    if len(beside) > MOST_TO_TELL:
        beside[MOST_TO_TELL:] = [f"and {len(beside) - MOST_TO_TELL} more"]
    among_B, turned_B = subject.values(case), subject.values(turned)[::-1]
    for way, these_B in {"": among_B, " that is turned round": turned_B}.items():
        differs_B = np.abs(these_B[:size] - alone_B) > subject.slack
        if differs_B.any():
            row = int(differs_B.argmax())
            return alone.told(
                f"answer {alone.ranking(row)} earns {number_text(alone_B[row])} by itself",
                f"answer {alone.ranking(row)} earns {number_text(these_B[row])} in a batch of {rows}{way}, padded to "
                f"{case.slates.width} places{', beside ' if beside else ''}{', '.join(beside)}",
                *alone.companions(),
            )
    return first(
        np.abs(among_B - turned_B) > subject.slack,
        lambda row: case.take(np.array([row])).told(
            f"answer {case.ranking(row)} earns {number_text(among_B[row])} in a batch of {rows}",
            f"answer {case.ranking(row)} earns {number_text(turned_B[row])} in the same batch turned round",
        ),
    ) or _ignores_neighbours(subject, case)


def _ignores_neighbours(subject: Subject, case: Case) -> str | None:
    """The same in large batches of answers to the first request, whose neighbours differ."""
    answers_NK = case.answers_NK
    values_N = subject.earned(case, answers_NK)
    for n in sorted({0, 1, len(answers_NK) - 1}):
        alone = float(subject.earned(case, answers_NK[[n]])[0])
        if abs(values_N[n] - alone) > subject.slack:
            return _told_of_neighbours(case, np.arange(len(answers_NK)), n, values_N[n], alone)
    few, many = BATCHES
    for order_M in (np.arange(few) % len(answers_NK), np.arange(many)[::-1] % len(answers_NK)):
        values_M = subject.earned(case, answers_NK[order_M])
        differs_M = np.abs(values_M - values_N[order_M]) > subject.slack
        if differs_M.any():
            m = int(differs_M.argmax())
            return _told_of_neighbours(case, order_M, m, values_M[m], values_N[order_M[m]])
    return None


def _told_of_neighbours(case: Case, order_M: IntArray, m: int, value: float, usual: float) -> str:
    answer = named(case.answers_NK[order_M[m]], case.size)
    behind = f"behind {named(case.answers_NK[order_M[m - 1]], case.size)}" if m else "at its head"
    return case.told(
        f"{answer} earns {number_text(usual)} elsewhere",
        f"{answer} earns {number_text(value)} in a batch of {len(order_M)} answers to this request, {behind}",
        *case.companions(),
    )


def ignores_order_in_group(subject: Subject, case: Case) -> str | None:
    """The members of a group may stand in any order, and each earns the same."""
    if case.group_size == 1:
        return None
    group = case.alone()
    values_B = subject.values(group)
    rows_B = np.arange(group.group_size)
    for order_B in (rows_B[::-1], np.roll(rows_B, 1)):
        moved_B = subject.values(group.take(order_B))
        differs_B = np.abs(moved_B - values_B[order_B]) > subject.slack
        if differs_B.any():
            place = int(differs_B.argmax())
            row = int(order_B[place])
            return group.told(
                f"the group {_members(group, rows_B)}: member {row} earns {number_text(values_B[row])}",
                f"the group {_members(group, order_B)}: the same answer, now member {place}, "
                f"earns {number_text(moved_B[place])}",
            )
    return None


def _members(group: Case, rows_B: IntArray) -> str:
    return ", ".join(
        f"{group.ranking(row)} to the order {listed(group.shown('canonical_BK', row))}" for row in rows_B.tolist()
    )
