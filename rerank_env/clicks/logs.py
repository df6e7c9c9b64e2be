"""Logs made up by users who click: what they were shown, what they clicked, and how likely they looked.

The columns of a log are the places of the list as it was shown. `propensities_BK` is the model's exact examination of
each candidate given that list, which is what a perfect log would know; whether dividing by it is enough is said with
each model. May import numpy and `rerank_env`'s data and rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rerank_env.clicks.models import ClickModel, Rankings
from rerank_env.clicks.names import parse_click_model
from rerank_env.data.requests import Requests
from rerank_env.rewards.answers import legal_orders
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError

MADE = "clicks made up by "
"""How the note begins that a log carries of the model that made it."""

ROWS = 2**16
"""Requests in a batch of a log that is made piece by piece: some tens of megabytes for lists of ten."""


def logged(
    requests: Requests,
    model: ClickModel | str,
    *,
    rankings: Rankings = None,
    rng: np.random.Generator,
    sessions: int = 1,
) -> Requests:
    """The same requests as shown to users of `model`, with `clicks_BK` and `propensities_BK`.

    `rankings`: what is shown, one ranking a request; None: the incoming order. Candidates come re-listed in that order,
    as by `Requests.reordered`, so that place i is column i - 1. Each request is shown `sessions` times, in a row (b0 b0
    b1 b1), every time anew, `origins` kept. Predictions stay with their candidates; give some to the requests for
    doubly robust credit (`model.attraction_BK(requests)` are the right ones). Clicks of an older log are dropped.
    Relevance stays, so hand a policy's trainer a reward that reads clicks only.

    Raises `InputError` for illegal rankings, fewer than one session, and lists in which somebody is looked at with
    probability 0: nothing logged could ever tell of such a candidate.
    """
    users = parse_click_model(model)
    shown = requests
    rows_B = np.repeat(np.arange(len(requests)), whole("sessions", sessions, least=1))
    if sessions > 1:
        shown = requests.take(rows_B)
    if rankings is not None:
        shown = shown.reordered(legal_orders(rankings, requests.slates)[rows_B])
    propensities_BK = users.examination_BK(shown)
    for row, column in np.argwhere(shown.slates.mask_BK & ~(propensities_BK > 0.0))[:1]:
        raise InputError(
            f"nobody under {users} ever looks at place {column + 1} of request {row}; give an attraction below 1, such "
            "as grades(most=0.9), a flatter examination, or shorter lists"
        )
    order = "the incoming order" if rankings is None else "rankings of the requests"
    return replace(
        shown,
        clicks_BK=users.sample(shown, rng=rng),
        propensities_BK=propensities_BK,
        notes=(*shown.notes, f"{MADE}{users} on {order}, {sessions} a request"),
    )


def maker(log: Requests) -> str | None:
    """The text of the model that made the clicks of `log` up, by its latest note of that; None where there is none."""
    notes = [note.removeprefix(MADE) for note in log.notes if note.startswith(MADE)]
    return notes[-1].rpartition(" on ")[0] if notes else None


def logged_in_batches(
    requests: Requests | Iterable[Requests],
    model: ClickModel | str,
    *,
    rank: Callable[[Requests], npt.ArrayLike] | None = None,
    rng: np.random.Generator,
    sessions: int = 1,
    rows: int = ROWS,
) -> Iterator[Requests]:
    """`logged`, piece by piece: batches of at most `rows` shown requests (`sessions` of one if that is more).

    `requests` may itself come in pieces, each asked for when the one before is done with. `rank` gives the rankings to
    show of some requests, None the incoming order. The clicks are those of `logged` from the same `rng`,
    wherever batches end, if `rank` ranks each request by itself and draws from no generator that `rng` shares.

    Raises as `logged`, when the batch at fault is reached.
    """
    users = parse_click_model(model)
    step = max(whole("rows", rows, least=1) // whole("sessions", sessions, least=1), 1)
    return _batches([requests] if isinstance(requests, Requests) else requests, users, rank, rng, sessions, step)


def _batches(
    pieces: Iterable[Requests],
    users: ClickModel,
    rank: Callable[[Requests], npt.ArrayLike] | None,
    rng: np.random.Generator,
    sessions: int,
    step: int,
) -> Iterator[Requests]:
    for piece in pieces:
        for first in range(0, len(piece), step):
            batch = piece.take(np.arange(first, min(first + step, len(piece))))
            rankings = None if rank is None else rank(batch)
            yield logged(batch, users, rankings=rankings, rng=rng, sessions=sessions)
