"""Requests as they are shown in one step of training: candidates shuffled anew, put in words, and in tokens.

May import numpy and `rerank_env`. A model that sees a request again sees its candidates in another order,
so that it cannot learn the order by heart, nor be paid for the one it was given:

- "across": a new order for every group of every step; all answers of a group are to the same prompt, which is read once
- "inside": a new order for every answer, so that what a group is compared by is not the luck of one order
- "none": always the order the requests came in

An order is decided by (seed, draw, round, request, place in the group) and nothing else, so it does not matter which
process shows it, nor what was shown before. Columns keep where each candidate came from (`input_order`), by which
`signals.WatchedReward` pays an answer what it would earn unshuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, Prompt, PromptWriter, ask
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.training.adapters.records import ANSWER_IDS, LOGGED

MODES = ("across", "inside", "none")


@dataclass(frozen=True)
class Shown:
    """Prompts, one an answer, group by group: plain `texts`, `token_ids`, and the `columns` that a reward reads.

    `asked`: the same prompts in the same order, each once where all answers of a group are to one.
    """

    asked: Asked
    texts: list[str]
    token_ids: list[list[int]]
    columns: dict[str, list[Any]]

    def rows(self) -> list[dict[str, Any]]:
        """One row an answer, with its `prompt`, as TRL hands rows on."""
        named = {"prompt": self.texts, **self.columns}
        return [dict(zip(named, values, strict=True)) for values in zip(*named.values(), strict=True)]


class Shuffles:
    """Shows `requests` in the words of `writer`, the way `mode` says.

    `prompt_ids` turns prompts into the tokens that the model reads, one list each. Raises what the writer raises for
    requests that it cannot show.
    """

    def __init__(
        self,
        requests: Requests,
        writer: PromptWriter,
        *,
        mode: str,
        seed: int,
        prompt_ids: Callable[[Sequence[Prompt]], list[list[int]]],
    ) -> None:
        writer.check(requests)
        self.requests, self.writer, self.prompt_ids = requests, writer, prompt_ids
        self.mode, self.seed = one_of("shuffle", mode, MODES), whole("seed", seed, least=0)

    def show(self, rows_B: Sequence[int] | IntArray, group_size: int, *, draw: int, round_: int = 0) -> Shown:
        """`group_size` prompts for each of `rows_B`, in that order; `draw` counts the steps, `round_` the resamples."""
        rows = np.asarray(rows_B, dtype=np.int64)
        copies = group_size if self.mode == "inside" else 1
        taken = self.requests.take(rows.repeat(copies))
        if self.mode != "none":
            taken = taken.reordered(self._orders(rows, copies, taken, draw, round_))
        asked = ask(taken, self.writer)
        prompts = asked.prompts
        token_ids = self.prompt_ids(prompts)
        again = np.arange(len(prompts)).repeat(group_size // copies).tolist()
        columns = _columns(taken, self.writer)
        return Shown(
            asked=asked,
            texts=[prompts[row].text for row in again],
            token_ids=[token_ids[row] for row in again],
            columns={name: [values[row] for row in again] for name, values in columns.items()},
        )

    def _orders(self, rows: IntArray, copies: int, asked: Requests, draw: int, round_: int) -> IntArray:
        orders_BK = np.full(asked.candidates_BK.shape, PAD, dtype=np.int64)
        sizes = asked.sizes_B.tolist()
        for place, size in enumerate(sizes):
            key = [self.seed, draw, round_, int(rows[place // copies]), place % copies]
            orders_BK[place, :size] = np.random.default_rng(key).permutation(size)
        return orders_BK


def _columns(shown: Requests, writer: PromptWriter) -> dict[str, list[Any]]:
    """The columns of `records.request_rows` that rewards read, one entry a request."""
    slates, sizes = shown.slates, shown.sizes_B.tolist()

    def lists(values_BK: Any) -> list[list[Any]]:
        return [row[:size] for row, size in zip(values_BK.tolist(), sizes, strict=True)]

    columns: dict[str, list[Any]] = {
        "request": shown.origins.tolist(),
        "data": [shown.name] * len(shown),
        "size": sizes,
        "text_format": [writer.text_format] * len(shown),
        "relevance": lists(slates.relevance_BK),
    }
    if slates.canonical_BK is not None:
        columns["input_order"] = lists(slates.canonical_BK)
    if writer.cites_ids:
        columns[ANSWER_IDS] = [list(ids) for ids in writer.answer_ids(shown) or ()]
    for name in LOGGED:
        if (values_BK := getattr(slates, f"{name}_BK")) is not None:
            columns[name] = lists(values_BK)
    return columns
