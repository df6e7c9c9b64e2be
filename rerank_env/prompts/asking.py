"""Candidates shuffled, shown, and answers read back in the numbering the requests came with: one call each way.

A model that is asked under a shuffled order cannot be paid for the order it was given, and what it answers is still an
answer to the request as it was. May import numpy and the modules below.

    asked = ask(requests, PromptWriter("json"), rng=np.random.default_rng(0))
    completions = generate([prompt.chat for prompt in asked.prompts])
    asked.read(completions).rankings_BK  # candidates of `requests`, in their own incoming order
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rerank_env.data.requests import Requests
from rerank_env.prompts.lines import Prompt
from rerank_env.prompts.writer import PromptWriter
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import answer_text
from rerank_env.rewards.parsing import MAX_CHARS, ParsedBatch, parse_batch
from rerank_env.rewards.rankings import completed, identity_rankings, invert, legal, random_rankings
from rerank_env.rewards.scoring import as_text


@dataclass(frozen=True, eq=False)
class Asked:
    """Requests as they were shown, and the way back.

    `shown` are the requests in the order of the prompts, whose slates a reward scores answers on (`shown` rankings);
    `order_BK` int64 is the candidate of the given requests in each place, padded with -1; `prompts` one a request;
    `answer_ids` the names that answers cite, None where they cite numbers.
    """

    shown: Requests
    order_BK: IntArray
    prompts: tuple[Prompt, ...]
    answer_ids: Sequence[Sequence[str]] | None
    text_format: str

    def read(self, completions: Sequence[object], *, max_chars: int = MAX_CHARS) -> ParsedBatch:
        """What the completions say, one a request, as `parse_batch` does, in the numbering of the given requests.

        A completion is a text, or a list of messages whose last is the assistant's. An answer that is no ranking is a
        row of -1. Raises `InputError` where there is not one completion a request.
        """
        if isinstance(completions, str | bytes) or len(completions) != len(self.shown):
            given = "one text" if isinstance(completions, str | bytes) else f"{len(completions)} completions"
            raise InputError(f"{given} came for {len(self.shown)} prompts; give a list with one completion a prompt")
        read = parse_batch(
            [as_text(completion) for completion in completions],
            self.shown.sizes_B,
            text_format=self.text_format,
            max_chars=max_chars,
            width=self.order_BK.shape[1],
            ids=self.answer_ids,
        )
        places_BK = read.rankings_BK
        given_BK = np.take_along_axis(completed(self.order_BK, self.shown.sizes_B), np.maximum(places_BK, 0), axis=1)
        return read._replace(rankings_BK=np.where(places_BK == PAD, PAD, given_BK))

    def answers(self, rankings_BK: npt.ArrayLike, reasonings: Sequence[str] | None = None) -> list[str]:
        """The texts that answer the prompts with `rankings_BK` of the given requests, as `read` reads them back.

        Such as what a model is taught to write. Raises `RankingError` for what is no ranking, and as `answer_text` does
        for a reasoning that the format has no room for.
        """
        rankings, sizes_B = legal(rankings_BK, self.shown.sizes_B)
        place_BK = completed(invert(self.order_BK, sizes_B), sizes_B)
        places_BK = np.take_along_axis(place_BK, completed(rankings, sizes_B), axis=1)
        return [
            answer_text(
                places[:size],
                text_format=self.text_format,
                ids=None if self.answer_ids is None else self.answer_ids[row],
                reasoning="" if reasonings is None else reasonings[row],
            )
            for row, (places, size) in enumerate(zip(places_BK.tolist(), sizes_B.tolist(), strict=True))
        ]


def ask(requests: Requests, writer: PromptWriter | None = None, *, rng: np.random.Generator | None = None) -> Asked:
    """The prompts of all requests, with the candidates of each in an order drawn from `rng` (as they are where None).

    `writer`: how they are put in words, the default's where None. Raises as `PromptWriter.write` does.
    """
    used = PromptWriter() if writer is None else writer
    width = requests.candidates_BK.shape[1]
    drawn = identity_rankings(requests.sizes_B, width) if rng is None else random_rankings(requests.sizes_B, width, rng)
    shown = requests.reordered(drawn)
    return Asked(shown, drawn, tuple(used.write(shown)), used.answer_ids(shown), used.text_format)
