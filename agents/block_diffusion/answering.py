"""Where the answer of a completion begins, and its form with a slot for each place of the ranking.

May import the module `filling`, the tokenizer that is given, `rerank_env.agents.language.spans` and the layers below.

For answers that are decoded by a named decoder (see `answers`) rather than freely. What was written up to the answer
stands, token by token; behind it the answer is laid as `rerank_env.rewards.formats.answer_text` writes one, and ended:

    tagged formats    from <answer> on
    json              from "ranking" on; reasons that would come behind it are left out
    list, arrows      from the first token on: these have no place for reasons

A completion that never comes to its answer, because it was too long or is no text of its format, has no form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rerank_env.agents.block_diffusion.filling import Form
from rerank_env.agents.language.spans import completion_spans
from rerank_env.prompts import Asked
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import answer_text

_OPENINGS = {"tagged": re.compile(re.escape("<answer>")), "json": re.compile(r'(?<!\\)"ranking"')}


def opening_of(text_format: str) -> re.Pattern[str] | None:
    """What an answer begins with in texts of a format; None where it begins with the text."""
    return next((found for name, found in _OPENINGS.items() if text_format.startswith(name)), None)


class AnswerForms:
    """The forms of answers to requests that were `asked`; what does not depend on a completion is read once.

    Making one for a completion raises `InputError` where the tokenizer does not have one token for the name of each
    candidate that is the same in every place of a ranking, such as for numbers that it splits into digits.
    """

    def __init__(self, tokenizer: Any, asked: Asked, *, mask_id: int, end_id: int) -> None:
        self._tokenizer, self._asked, self._mask_id, self._end_id = tokenizer, asked, mask_id, end_id
        self._laid: dict[tuple[str, tuple[str, ...] | int], tuple[list[int], list[int]]] = {}

    def of(self, row: int, prompt: Sequence[int], completion: Sequence[int]) -> Form | None:
        """The form of a completion of request `row`, None where it does not come to its answer."""
        kept, begun = self._before(completion)
        if kept is None:
            return None
        size = int(self._asked.shown.sizes_B[row])
        ids = None if self._asked.answer_ids is None else tuple(self._asked.answer_ids[row])
        key = (begun, size if ids is None else ids)
        if key not in self._laid:
            self._laid[key] = self._answer(begun, size, ids)
        answer, names = self._laid[key]
        return Form(prompt, list(completion[:kept]), answer, names)

    def _before(self, completion: Sequence[int]) -> tuple[int | None, str]:
        """How many tokens stand before the answer, and what of the next one does, if it begins in the middle of it."""
        opening = opening_of(self._asked.text_format)
        if opening is None:
            return 0, ""
        found = opening.search(self._text(completion))
        if found is None:
            return None, ""
        start = found.start()
        kept, text = 0, ""
        for count in range(1, len(completion) + 1):
            written = self._text(completion[:count])
            if len(written) > start or found.string[: len(written)] != written:
                continue  # also in the middle of a character of several tokens
            kept, text = count, written
        return kept, found.string[len(text) : start]

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def _answer(self, begun: str, size: int, ids: tuple[str, ...] | None) -> tuple[list[int], list[int]]:
        """The tokens of an answer, hidden where it names candidates, and the token of each candidate's name."""
        names: list[int | None] = [None] * size
        laid: list[int] = []
        for turn in range(size):  # every candidate in every place
            ranking = [(place + turn) % size for place in range(size)]
            tokens, slots = self._spelt(begun, ranking, ids)
            for place, candidate in enumerate(ranking):
                at = [number for number, slot in enumerate(slots) if slot == place]
                token = tokens[at[0]] if len(at) == 1 else None
                if token is None or names[candidate] not in (None, token):
                    raise InputError(
                        f"the tokenizer has no single token for candidate {ids[candidate] if ids else candidate + 1} "
                        f"that is the same wherever an answer in the format {self._asked.text_format!r} names it; use "
                        "a tokenizer of which one token is one number, or decode answers freely"
                    )
                names[candidate] = token
            hidden = [token if slot < 0 else self._mask_id for token, slot in zip(tokens, slots, strict=True)]
            if laid and hidden != laid:
                raise InputError(
                    f"the tokenizer spells the signs of an answer in the format {self._asked.text_format!r} in other "
                    "ways for other rankings; use a tokenizer that keeps numbers apart, or decode answers freely"
                )
            laid = hidden
        return [*laid, self._end_id], [int(name) for name in names if name is not None]

    def _spelt(self, begun: str, ranking: list[int], ids: tuple[str, ...] | None) -> tuple[list[int], list[int]]:
        """The tokens of an answer, and of each the place of the ranking that it is a part of, -1 where of none."""
        text = answer_text(ranking, text_format=self._asked.text_format, ids=ids)
        elements = completion_spans(text, self._asked.text_format).elements
        opening = opening_of(self._asked.text_format)
        found = None if opening is None else opening.search(text)
        start = 0 if found is None else found.start()
        read = self._tokenizer(begun + text[start:], add_special_tokens=False, return_offsets_mapping=True)
        moved = len(begun) - start
        slots = [
            next(
                (slot for slot, name in enumerate(elements) if name.start + moved < last and first < name.stop + moved),
                -1,
            )
            for first, last in read["offset_mapping"]
        ]
        return list(read["input_ids"]), slots
