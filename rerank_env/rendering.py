"""A request as text for people: who asks, what they saw, what is offered, and what an answer made of it.

May import `rerank_env.task` and what is below it. Candidates are numbered 1..size, as in prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.rankings import Verdict
from rerank_env.task import METADATA

RENDER_HINT = 'render() without a render mode shows nothing; make the environment with render_mode="ansi"'

_TEXT_COLUMNS = 44
_HISTORY_SHOWN = 10


def checked_render_mode(render_mode: str | None) -> str | None:
    """The render mode, if it exists; raises `UnknownNameError`."""
    return None if render_mode is None else one_of("render mode", render_mode, METADATA["render_modes"])


def render_request(
    requests: Requests,
    row: int,
    *,
    picked: IntArray | None = None,
    ended: Mapping[str, Any] | None = None,
    earned: float = 0.0,
) -> str:
    """The request at `row`; with `ended`, the final `info` of its episode, also the answer beside the incoming order.

    `picked` [K] are candidates picked so far, tail -1; `earned` is the sum of the episode's rewards. Relevance is shown
    only once the episode has ended. Ends with a line break.
    """
    head = f"request {row} of {requests.name}, user {int(requests.users_B[row])}\n"
    body = _history(requests, row)
    if ended is not None:
        body += _before_and_after(requests, row, ended) + f"reward {earned:+.4f}\n"
    else:
        body += _incoming(requests, row)
        if picked is not None:
            numbers = [str(int(candidate) + 1) for candidate in picked if candidate != PAD]
            body += f"picked so far: {', '.join(numbers) or 'nothing'}; earned {earned:+.4f}\n"
    return head + body


def _history(requests: Requests, row: int) -> str:
    texts = requests.catalog.texts
    seen = [
        f"  {_cut(texts[item]):<{_TEXT_COLUMNS}}  {value:g}\n"
        for item, value in zip(requests.history_BH[row].tolist(), requests.feedback_BH[row].tolist(), strict=True)
        if item != PAD
    ]
    hidden = len(seen) - _HISTORY_SHOWN
    earlier = f"  ... {hidden} earlier\n" if hidden > 0 else ""
    return "history, oldest first, with feedback\n" + earlier + ("".join(seen[-_HISTORY_SHOWN:]) or "  none\n")


def _incoming(requests: Requests, row: int) -> str:
    return "incoming order\n" + "".join(f"  {cell}\n" for cell in _cells(requests, row, _real(requests, row)))


def _before_and_after(requests: Requests, row: int, ended: Mapping[str, Any]) -> str:
    before = _cells(requests, row, _real(requests, row), gains=True)
    if not ended["valid"]:
        verdict = Verdict(ended["verdict"])
        after = [f"no ranking: {verdict.name.lower()}"] + [""] * (len(before) - 1)
        note = f"{verdict.sentence}\n"
    else:
        after = _cells(requests, row, ended["ranking"][: len(before)], gains=True)
        note = "The answer is the incoming order.\n" if ended["identity"] else ""
    width = max(len("before"), *map(len, before))
    table = [f"  {left:<{width}}  |  {right}".rstrip() + "\n" for left, right in zip(before, after, strict=True)]
    qualities = "".join(f"{name} {value:.4f}  " for name, value in ended["metrics"].items())
    return f"  {'before':<{width}}  |  after\n" + "".join(table) + note + qualities


def _real(requests: Requests, row: int) -> Iterable[int]:
    return range(int(requests.sizes_B[row]))


def _cells(requests: Requests, row: int, order: Iterable[int], *, gains: bool = False) -> list[str]:
    texts = requests.catalog.texts
    cells = []
    for candidate in order:
        cell = f"{int(candidate) + 1:>3}. {_cut(texts[requests.candidates_BK[row, candidate]]):<{_TEXT_COLUMNS}}"
        cells.append(f"{cell} {requests.relevance_BK[row, candidate]:>4g}" if gains else cell.rstrip())
    return cells


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_COLUMNS else text[: _TEXT_COLUMNS - 3] + "..."
