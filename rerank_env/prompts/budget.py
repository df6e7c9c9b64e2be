"""How long a prompt may be, and what is left out of one that is longer.

The rule, in this order, and no further than it takes to fit:

1. the oldest entries of the history are left out, down to the `keep` newest;
2. if that is not enough, the texts of all items that are left (text and labels, not the ID) are cut to the same number
   of characters, at the end of a word and with a visible mark, down to `SHORTEST` characters;
3. if that is not enough, the history is left whole and only texts are cut: the line that says how many entries were
   left out can be longer than the few that it stands for;
4. if that is not enough either, the budget cannot hold the candidates, which is an `InputError`.

No candidate is ever left out, and neither are the task and the answer's format. How much is left out is found by
halving, with the prompt itself counted at every step, so that what comes back always fits. Halving takes it that a
prompt which leaves out more, other than nothing, counts no more. This is so of characters: there the least cut of the
first step that has a fit is found, and no prompt is refused that leaving out entries and cutting texts could make fit.
Other counts can break it by a little, as a word that is cut can have more tokens than the whole one: then more may be
cut than it takes, and a prompt be refused that only a cut between the ends of a step would make fit. May import
`rerank_env.rewards`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
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

        most = max(0, entries - self.keep)
        dropped, cut_to = self._first_that_fits(filled, ((0, None), (most, None), (most, SHORTEST), (0, SHORTEST)))
        if cut_to is None:
            # The first of 1..dropped that fits; the last of them is known to, and so is 0 where it is that.
            least = bisect_left(range(dropped), True, lo=min(1, dropped), key=lambda fewer: fits(fewer, None))
            return least, None
        # The longest below `longest` that fits, counted from the end; the shortest of them is known to.
        limits = range(max(SHORTEST, longest - 1), SHORTEST, -1)
        place = bisect_left(limits, True, key=lambda limit: fits(dropped, limit))
        return dropped, limits[place] if place < len(limits) else SHORTEST

    def check(self, filled: Callable[[int, int | None], str], entries: int) -> None:
        """Raise `InputError` where `cut` would; as a rule at the price of one count."""
        most = max(0, entries - self.keep)
        self._first_that_fits(filled, ((most, SHORTEST), (0, SHORTEST), (most, None), (0, None)))

    def _first_that_fits(
        self, filled: Callable[[int, int | None], str], ends: Iterable[tuple[int, int | None]]
    ) -> tuple[int, int | None]:
        """The first of `ends`, those of all steps, at which the prompt fits; raises `InputError` where none is."""
        counts = []
        for end in dict.fromkeys(ends):
            counts.append(self.count(filled(*end)))
            if counts[-1] <= self.limit:
                return end
        raise InputError(
            f"takes {min(counts)} with its history left out and its texts cut to {SHORTEST} characters as far as may "
            f"be and helps, but the budget is {self.limit}; raise it, or offer fewer candidates"
        )


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
