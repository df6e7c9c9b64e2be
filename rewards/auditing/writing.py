"""Answers with something around them that a reward may pay for. May import numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rerank_env.rewards.formats import has_reasoning, numbered, written
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.textual import Cites, Length

CHARS_PER_TOKEN = 4
"""What a token is taken to be where a reward counts tokens: there is no tokeniser here."""


@dataclass(frozen=True)
class Dress:
    """What stands around a ranking: `reasoning` where the format has a place for it, `cited` candidates cited in it
    (from the first on, None: all of them), and blanks at the end up to a length of `chars`.
    """

    reasoning: str = ""
    cited: int | None = 0
    chars: int = 0

    def __str__(self) -> str:
        """In words."""
        said = ["cites every candidate" if self.cited is None else f"cites {self.cited}"] if self.cited != 0 else []
        return ", ".join(said + ([f"blanks up to {self.chars} characters"] if self.chars else []))


PLAIN = Dress()
"""Nothing."""


def dressed(ranking: Sequence[int], text_format: str, dress: Dress) -> str:
    """A ranking as an answer, with what `dress` puts around it."""
    count = len(ranking) if dress.cited is None else min(dress.cited, len(ranking))
    reasoning = " ".join([dress.reasoning] * bool(dress.reasoning) + [f"[{n}]" for n in numbered(range(count))])
    return written(numbered(ranking), text_format, reasoning).ljust(dress.chars)


def dresses(reward: Reward, text_format: str) -> list[Dress]:
    """Nothing, and what can be written around a ranking to be paid by the text terms of a reward, combined where there
    are both: as many citations, and as many characters, as some term asks for.
    """
    citing: list[Dress] = []
    if has_reasoning(text_format):
        least = sorted({node.least for node in reward.walk() if isinstance(node, Cites)})
        citing = [Dress(cited=count) for count in [*least, None]] if least else []
    lengths = sorted(
        {
            node.least * (CHARS_PER_TOKEN if node.unit == "tokens" else 1)
            for node in reward.walk()
            if isinstance(node, Length) and node.least
        }
    )
    padding = [Dress(chars=chars) for chars in lengths]
    both = [Dress(cited=one.cited, chars=other.chars) for one in citing for other in padding]
    return [PLAIN, *citing, *padding, *both]
