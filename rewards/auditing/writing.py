"""Answers as text: a list of candidates in one of the text formats, with or without something around it.

May import the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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


def has_reasoning(text_format: str) -> bool:
    """Whether an answer in that format can give reasons."""
    return text_format != "list" and text_format != "arrows"


def written(elements: Sequence[str], text_format: str, reasoning: str = "") -> str:
    """The elements as an answer; a reasoning stands before the answer tags, in the JSON object, or in front of it all.

    The last, in "list" and "arrows", is no answer: these formats have no place for it.
    """
    kind, tagged = text_format.removeprefix("tagged-"), text_format.startswith("tagged-")
    body = f"[{', '.join(elements)}]"
    if kind == "arrows":
        body = " > ".join(f"[{element}]" for element in elements)
    elif kind == "json":
        explained = f'"explanation": "{reasoning}", ' if reasoning and not tagged else ""
        body = f'{{{explained}"ranking": {body}}}'
    if tagged:
        return (f"<think>{reasoning}</think>" if reasoning else "") + f"<answer>{body}</answer>"
    return f"{reasoning}\n{body}" if reasoning and kind != "json" else body


def numbers(ranking: Iterable[int]) -> list[str]:
    """Candidate indices as they stand in text, counted from 1."""
    return [str(candidate + 1) for candidate in ranking]


def dressed(ranking: Sequence[int], text_format: str, dress: Dress) -> str:
    """A ranking as an answer, with what `dress` puts around it."""
    count = len(ranking) if dress.cited is None else min(dress.cited, len(ranking))
    reasoning = " ".join([dress.reasoning] * bool(dress.reasoning) + [f"[{n}]" for n in numbers(range(count))])
    return written(numbers(ranking), text_format, reasoning).ljust(dress.chars)
