"""No prompt of rejection sampling says which candidate is the target.

May import numpy, `rerank_env.data` and `rerank_env.prompts`. Three questions, each with its own way to fail:

1. is a prompt the same, byte for byte, when the relevance of its candidates is moved to others? If not, whoever writes
   it looks at relevance;
2. does it hold the hint of targeted sampling?
3. is there a word of the remarks that stands with the target alone, or with every candidate but the target, in 90 % of
   the requests or more? Remarks that came with the requests are made before the prompts, so that the first question
   does not reach them; those that are put on while collecting are judged as well. Numbers are amounts, of which the
   target may honestly have most or least, and are not judged.

What marks the target by anything else than one word, such as two words together, is not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.prompts import Prompt
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import DataError
from rerank_env.training.language.traces.prompting import HINT, best, hinted_rows

JUDGED = 32
"""Fewest requests in which a word of the remarks is judged: evidence that is right this often is none."""

MOST_JUDGED = 4096
"""Most requests in which words are judged, evenly spread."""

NEARLY_ALL = 0.9
"""The share of requests from which on a word tells the target.

A word that marks the target in each request with chance 1/2 does so in 29 of 32 or more with chance 1.3e-6.
"""

Build = Callable[[Requests], Sequence[Prompt]]
"""Prompts of requests: remarks are made and put in words in here, candidates shuffled the same way every time."""


def check_no_leak(
    build: Build, requests: Requests, *, prompts: Sequence[Prompt] | None = None, remarked: Requests | None = None
) -> None:
    """Raise `DataError` naming the first request whose prompt, as `build` makes it, tells the target.

    `prompts` are those of `requests` where they have been built already; `remarked` the requests with the remarks that
    `build` puts on, themselves where it puts on none. Requests whose candidates are all worth the
    same have no target to tell. See the module for what is asked.
    """
    given = list(build(requests) if prompts is None else prompts)
    moved = list(build(replace(requests, relevance_BK=_moved(requests))))
    for row, (one, other) in enumerate(zip(given, moved, strict=True)):
        if one.messages != other.messages:
            raise DataError(
                f"the prompt of request {row} changes when the relevance of its candidates does and so tells it; "
                "write prompts from what a policy may see only"
            )
    for row in hinted_rows(given)[:1]:
        raise DataError(
            f"the prompt of request {row} holds the hint {HINT.strip()!r}, which is for targeted sampling; leave it out"
        )
    check_remarks(requests if remarked is None else remarked)


def check_remarks(requests: Requests) -> None:
    """Raise `DataError` where a word of the remarks that are on the requests tells the target: `telling_word`."""
    if (word := telling_word(requests)) is not None:
        raise DataError(
            f"the word {word!r} of the remarks stands with the target alone, or with all candidates but the target, in "
            f"at least {NEARLY_ALL:.0%} of the requests, so it tells the target; make remarks from what a policy may "
            "see only"
        )


def judged_rows(requests: Requests) -> IntArray:
    """The rows by which words are judged: those with one target, at most `MOST_JUDGED`; none if below `JUDGED`."""
    rows = np.flatnonzero(best(requests).sum(axis=1) == 1)
    if len(rows) < JUDGED:
        return rows[:0]
    places = np.linspace(0, len(rows) - 1, min(len(rows), MOST_JUDGED)).astype(np.int64)
    return np.asarray(rows[places], dtype=np.int64)


def telling_word(requests: Requests) -> str | None:
    """A word that the target alone has, or alone lacks, in nearly all of the rows judged; None if none is.

    Also None without remarks and for fewer than `JUDGED` requests that have one target.
    """
    remarks_BK, rows = requests.remarks_BK, judged_rows(requests)
    if remarks_BK is None or not len(rows):
        return None
    targets_B, sizes_B = best(requests).argmax(axis=1), requests.sizes_B
    has: Counter[str] = Counter()
    lacks: Counter[str] = Counter()
    for row in rows.tolist():
        words = [set(str(remark).split()) for remark in remarks_BK[row, : sizes_B[row]]]
        target = words.pop(int(targets_B[row]))
        has.update(target.difference(*words))
        lacks.update(set.intersection(*words) - target)
    found = ((word, times[word]) for times in (has, lacks) for word in sorted(times) if not word.isdecimal())
    return next((word for word, rows_told in found if rows_told >= NEARLY_ALL * len(rows)), None)


def _moved(requests: Requests) -> FloatArray:
    """The gains one place further round in each request, which moves them wherever they are not all the same."""
    columns_K = np.arange(requests.relevance_BK.shape[1])
    places_BK = np.where(columns_K < requests.sizes_B[:, None], (columns_K + 1) % requests.sizes_B[:, None], columns_K)
    return np.take_along_axis(requests.relevance_BK, places_BK, axis=1)
