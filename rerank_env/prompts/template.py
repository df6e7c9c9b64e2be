"""The wording of a prompt as a value: its blocks, their order, which message they stand in, and a hash of all of it.

May import `rerank_env.prompts.guard`, `rerank_env.prompts.items` and `rerank_env.rewards`. Nothing here knows requests:
lines come in, a prompt comes out.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from rerank_env.prompts.guard import RULES
from rerank_env.prompts.items import LEVEL, MARK, SEPARATOR
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS, has_reasoning

CITED = ("ids", "numbers")
"""What answers may name candidates by: their semantic IDs, or the numbers 1..size."""

KNOWN = ("id", "text", "labels")
"""What a line may say of an item of the catalogue: its semantic ID, its text, and its labels as a path."""

PARTS = (*KNOWN, "remark")
"""The same of a candidate, which may have a remark too: see `Requests.remarks_BK`."""

BLOCKS = ("opening", "priming", "steps", "answer", "candidates", "history", "closing")
"""The parts that a message is put together from, with an empty line between them."""

SIZED = ("candidates", "closing")
"""The fields that may say how many candidates there are, besides the answers."""

HASH_CHARS = 16
"""64 bits of SHA-256: enough to tell templates apart, short enough for a column."""


class Message(NamedTuple):
    """One turn of a chat: who speaks, and what."""

    role: str
    content: str


@dataclass(frozen=True)
class Template:
    """The wording of a prompt.

    `version` is the name it goes by; it changes when any word changes, so that results can say what a model read.
    `cites` says what answers name: "numbers" or "ids". `system` and `user` list the blocks of the two messages, in
    order (no `system`: one message). The blocks: `opening` (role and task); `priming`, what is known of the domain, and
    `steps`, how to reason, under their headings and left out where empty (`steps` also in a text format without room
    for reasons); "answer", from `answers` by text format; "candidates" and "history", lines under a heading; `closing`.

    `offered` and `seen` are the lines of candidates and history, with `{number}`, `{item}`, `{feedback}`; an item is
    those of `shows` that are known of it, with ` | ` between them. A "remark" is known of candidates only, stands last
    and is never cut; where it is shown, the history may be left out. A history without a line says `nothing`, one whose
    `{count}` oldest entries were left out begins with `earlier`, an item without text is called `untitled`. `{size}` is
    the number of candidates, in `answers`, `candidates` and `closing`; no other block is formatted. `guarded` texts
    have the characters replaced that could pass for tags, tokens or separators, see `rerank_env.prompts.guard`.

    A placeholder stands at most once in a text, bare (no `:` or `!`), and `{item}` in both kinds of line, `{number}` in
    those of candidates where answers cite it; braces that are meant as such are doubled where a text is formatted.

    Raises `InputError` for blocks, parts, answers or placeholders that do not exist or are missing, `UnknownNameError`
    for `cites`.
    """

    version: str
    cites: str
    system: tuple[str, ...]
    user: tuple[str, ...]
    opening: str
    answers: Mapping[str, str] = field(hash=False)
    candidates: str
    history: str
    offered: str
    seen: str
    shows: tuple[str, ...] = KNOWN
    nothing: str = "(none)"
    earlier: str = "({count} earlier left out)"
    untitled: str = "(no text)"
    priming_heading: str = ""
    priming: str = ""
    steps: str = ""
    closing: str = ""
    guarded: bool = True

    def __post_init__(self) -> None:
        """Check that a prompt can be made of it."""
        one_of("kind of name", self.cites, CITED)
        blocks = (*self.system, *self.user)
        needed = {"answer", "candidates"} | (set() if self.shows_remarks else {"history"})
        if not needed <= set(blocks) <= set(BLOCKS) or len(set(blocks)) < len(blocks):
            raise InputError(
                f"template {self.version!r} has the blocks {blocks}; use each of {BLOCKS} at most once, and "
                "'answer', 'candidates' and, unless it shows a 'remark', 'history' in any case"
            )
        if self.shows_history and set(self.shows) == {"remark"}:
            raise InputError(
                f"template {self.version!r} shows remarks only, which entries of a history do not have; leave the "
                f"block 'history' out, or show some of {KNOWN} too"
            )
        if not set(self.shows) <= set(PARTS) or (self.cites == "ids" and "id" not in self.shows):
            raise InputError(
                f"template {self.version!r} shows {self.shows} of an item; use {PARTS}, and 'id' where answers cite it"
            )
        if set(self.answers) != set(FORMATS):
            raise InputError(f"template {self.version!r} has answers for {sorted(self.answers)}; give {list(FORMATS)}")
        self._check_placeholders("offered", self.offered, ["item"] + ["number"] * (self.cites == "numbers"), ["number"])
        self._check_placeholders("seen", self.seen, ["item"], ["feedback"])
        self._check_placeholders("earlier", self.earlier, [], ["count"])
        for name in SIZED:
            self._check_placeholders(name, getattr(self, name), [], ["size"])
        for name, text in self.answers.items():
            self._check_placeholders(f"answers[{name!r}]", text, [], ["size"])

    def _check_placeholders(self, name: str, text: object, needed: list[str], optional: list[str]) -> None:
        """Raise `InputError` unless a text can be formatted, and grows by no more than one of each value."""
        known = dict.fromkeys(needed + optional)
        found: list[str] = []
        usual = isinstance(text, str)
        try:
            for _, placeholder, spec, conversion in string.Formatter().parse(str(text)):
                if placeholder is not None:
                    found.append(placeholder)
                    usual = usual and placeholder in known and not spec and not conversion
        except ValueError:  # a brace without its other half
            usual = False
        if not usual or len(set(found)) < len(found) or not set(needed) <= set(found):
            raise InputError(
                f"template {self.version!r} has {name}={text!r}; use {' and '.join(f'{{{field}}}' for field in known)} "
                f"at most once each, bare, {' and '.join(f'{{{field}}}' for field in needed) or 'none'} in any case, "
                "and doubled braces for others"
            )

    @property
    def shows_remarks(self) -> bool:
        """Whether it shows what `Requests.remarks_BK` says of a candidate, and so needs requests that have remarks."""
        return "remark" in self.shows

    @property
    def shows_history(self) -> bool:
        """Whether it shows the history."""
        return "history" in (*self.system, *self.user)

    @cached_property
    def hash(self) -> str:
        """The first characters of the SHA-256 of all fields and of how items are written: equal hash, equal prompt."""
        text = json.dumps(
            [asdict(self), SEPARATOR, LEVEL, MARK, RULES[self.guarded]], sort_keys=True, ensure_ascii=True
        )
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:HASH_CHARS]

    def primed(self, priming: str) -> Template:
        """The same with what is known of the domain, such as which purchases tend to follow which.

        The version stays, the hash tells the two apart. It is the operator's own text and shown as it is.
        """
        if not isinstance(priming, str):
            raise InputError(f"priming is {priming!r}; give a text")
        if "priming" not in (*self.system, *self.user):
            raise InputError(f"template {self.version!r} has no block 'priming'; use one that has")
        return replace(self, priming=priming)

    def messages(
        self, seen: Sequence[str], offered: Sequence[str], text_format: str, *, dropped: int = 0
    ) -> tuple[Message, ...]:
        """The prompt with these lines as a chat: the system's message, where there is one, and the user's.

        `dropped` entries of the history were left out before those of `seen`.
        """
        history = [self.earlier.format(count=dropped)] * bool(dropped) + [*seen]
        size = len(offered)
        texts = {
            **self._constant(text_format, size),
            "candidates": "\n".join([self.candidates.format(size=size), *offered]),
            "history": "\n".join([self.history, *(history or [self.nothing])]),
        }
        parts = {"system": self.system, "user": self.user}
        return tuple(
            Message(role, "\n\n".join(texts[name] for name in names if texts[name]))
            for role, names in parts.items()
            if names
        )

    def words(self, text_format: str) -> str:
        """As long as a prompt without its lines and numbers, or longer, and in the same characters."""
        headings = [self.candidates, self.history, self.nothing, self.earlier]
        return "\n\n".join([*self._constant(text_format, size=0).values(), *headings])

    def _constant(self, text_format: str, size: int) -> dict[str, str]:
        """The blocks that say the same of all requests with as many candidates."""
        return {
            "opening": self.opening,
            "priming": "\n".join(filter(None, [self.priming_heading, self.priming])) if self.priming else "",
            "steps": self.steps if has_reasoning(text_format) else "",
            "answer": self.answers[text_format].format(size=size),
            "closing": self.closing.format(size=size),
        }
