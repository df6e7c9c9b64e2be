"""No prompt of rejection sampling says which candidate is the target.

May import numpy, `rerank_env.data` and `rerank_env.prompts`. Three questions, each with its own way to fail:

1. is a prompt the same, byte for byte, when the relevance of its candidates is moved to others? If not, whoever writes
   it looks at relevance;
2. does it hold the hint of targeted sampling?
3. is there a word of the remarks that stands with the target in every request and never with another candidate? Remarks
   are made before the prompts, so that the first question does not reach them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.prompts import Prompt
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.errors import DataError
from rerank_env.training.language.traces.prompting import HINT, best, hinted_rows

JUDGED = 32
"""Fewest requests in which a word of the remarks is judged: evidence that is right this often in a row is none.

With 10 candidates, a word that half of the best evidence earns is with the target alone 32 times with chance 2**-32.
"""

Build = Callable[[Requests], Sequence[Prompt]]
"""Prompts of requests: remarks are made and put in words in here, candidates shuffled the same way every time."""


def check_no_leak(build: Build, requests: Requests, *, prompts: Sequence[Prompt] | None = None) -> None:
    """Raise `DataError` naming the first request whose prompt, as `build` makes it, tells the target.

    `prompts` are those of `requests` where they have been built already. Requests whose candidates are all worth the
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
    check_remarks(requests)


def check_remarks(requests: Requests) -> None:
    """Raise `DataError` where a word of the remarks that came with the requests tells the target: `telling_word`."""
    if (word := telling_word(requests)) is not None:
        raise DataError(
            f"the word {word!r} of the remarks stands with the target and with no other candidate in every request, so "
            "it tells the target; make remarks from what a policy may see only"
        )


def telling_word(requests: Requests) -> str | None:
    """A word of the remarks that is with the target, and with no other candidate, in every request; None if none is.

    Also None without remarks and for fewer than `JUDGED` requests that have one target.
    """
    remarks_BK = requests.remarks_BK
    if remarks_BK is None:
        return None
    best_BK = best(requests)
    rows = np.flatnonzero(best_BK.sum(axis=1) == 1)
    if len(rows) < JUDGED:
        return None
    times: Counter[str] = Counter()
    for row in rows.tolist():
        target = int(np.argmax(best_BK[row]))
        others = {
            word for place, remark in enumerate(remarks_BK[row]) if place != target for word in str(remark).split()
        }
        times.update(set(str(remarks_BK[row, target]).split()) - others)
        if row == rows[0]:
            first = set(times)
        if not any(times[word] for word in first):
            return None
    return next((word for word in sorted(times) if times[word] == len(rows)), None)


def _moved(requests: Requests) -> FloatArray:
    """The gains one place further round in each request, which moves them wherever they are not all the same."""
    columns_K = np.arange(requests.relevance_BK.shape[1])
    places_BK = np.where(columns_K < requests.sizes_B[:, None], (columns_K + 1) % requests.sizes_B[:, None], columns_K)
    return np.take_along_axis(requests.relevance_BK, places_BK, axis=1)
