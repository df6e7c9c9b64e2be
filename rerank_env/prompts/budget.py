"""How long a prompt may be, and what is left out of one that is longer.

The rule, in this order, and no further than it takes to fit:

1. the oldest entries of the history are left out, down to the `keep` newest;
2. if that is not enough, the texts of all items that are left (text and labels, not the ID) are cut to the same number
   of characters, at the end of a word and with a visible mark, down to `SHORTEST` characters;
3. if that is not enough either, the budget cannot hold the candidates, which is an `InputError`.

No candidate is ever left out, and neither are the task and the answer's format. How much is left out is found by
halving, with the prompt itself counted at every step, so that what comes back always fits. May import
`rerank_env.rewards`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError

SHORTEST = 16
"""The fewest characters that an item's text is cut to: two or three words, below which titles say nothing."""


@dataclass(frozen=True)
class Budget:
    """At most `limit` of whatever `count` counts in the plain text of a prompt; characters where it is not given.

    `keep`: how many of the newest entries of the history are never left out. A chat template adds tokens of its own:
    leave room for them, or give a `count` that applies it. Raises `InputError` for a limit below 1, `keep` below 0, or
    a `count` that cannot be called.
    """

    limit: int
    count: Callable[[str], int] = len
    keep: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "limit", whole("limit of a prompt", self.limit, least=1))
        object.__setattr__(self, "keep", whole("keep", self.keep, least=0))
        if not callable(self.count):
            raise InputError(f"count is of type {type(self.count).__name__}; give a function from a text to a number")

    def __deepcopy__(self, memo: dict[int, object]) -> Budget:
        """Itself: tokenizers are large, and nothing here changes."""
        return self

    def cut(self, filled: Callable[[int, int | None], str], entries: int, longest: int) -> tuple[int, int | None]:
        """How many of the oldest of `entries` to leave out, and to how many characters to cut texts (None: uncut).

        `filled(dropped, limit)` is the prompt so cut; `longest` is the length of the longest text of an item. Raises
        `InputError` where nothing that the rule allows makes it fit.
        """

        def fits(dropped: int, limit: int | None) -> bool:
            return self.count(filled(dropped, limit)) <= self.limit

        if fits(0, None):
            return 0, None
        most = max(0, entries - self.keep)
        if most and fits(most, None):
            # The first of 1..most that fits; the last of them is known to.
            return 1 + bisect_left(range(1, most), True, key=lambda dropped: fits(dropped, None)), None
        if not fits(most, SHORTEST):
            raise InputError(
                f"takes {self.count(filled(most, SHORTEST))} with its history left out and its texts cut to {SHORTEST} "
                f"characters, but the budget is {self.limit}; raise it, or offer fewer candidates"
            )
        # The longest below `longest` that fits, counted from the end; the shortest of them is known to.
        limits = range(max(SHORTEST, longest - 1), SHORTEST, -1)
        place = bisect_left(limits, True, key=lambda limit: fits(most, limit))
        return most, limits[place] if place < len(limits) else SHORTEST


@dataclass(frozen=True)
class TokensOf:
    """Counts tokens, as a `Budget` does: `Budget(4096, TokensOf(tokenizer))`. Special tokens are not added.

    `tokenizer` is one of transformers, or a `tokenizers.Tokenizer`: anything whose `encode(text,
    add_special_tokens=False)` gives tokens, or an object whose `ids` they are.
    """

    tokenizer: Any

    def __call__(self, text: str) -> int:
        """How many tokens the text is."""
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        return len(getattr(encoded, "ids", encoded))


def budget_of(given: int | Budget | None) -> Budget | None:
    """The budget itself, or that of so many characters. Raises `InputError` for what is neither."""
    return given if given is None or isinstance(given, Budget) else Budget(given)
