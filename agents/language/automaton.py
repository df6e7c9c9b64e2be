"""The answers to one request as an automaton over signs: what may come next, and how far the end is at most.

May import `rerank_env.rewards` and `rerank_env.agents.language.spelling`. The answers are those that
`rerank_env.rewards.formats.written` writes, with their blanks, plus free text where a format has room for reasons:

    list, arrows   body
    json           {"ranking": [...]} or {"explanation": "free", "ranking": [...]}
    tagged-F       free</think><answer>F</answer>, <think> or nothing before it, or <answer>F</answer>

Free text holds none of the four tags, and in JSON no quote, backslash or control character either. A state is either
`At`, a few signs into a choice between texts, or `Free`, inside free text with the beginning of what may become a tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rerank_env.agents.language.spelling import Sign, Spelling
from rerank_env.rewards.formats import numbered

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""What answers are read with: text, and single tokens of a tokenizer from nothing all the same."""

_NO_STRING = frozenset('"\\') | frozenset(map(chr, range(32)))
"""What cannot stand as it is inside a JSON string."""

_BODIES = {
    "list": ("[", ", ", "]"),
    "arrows": ("[", "] > [", "]"),
    "json": ('{"ranking": [', ", ", "]}"),
}
"""What stands before the first element, between two, and behind the last."""

_EXPLAINED, _RANKED = '{"explanation": "', '", "ranking": ['

Place = str | frozenset[int]
"""Where a choice is: "thought", "body", "quoted" or "end", or the candidates that are not ranked yet."""


class At(NamedTuple):
    """`written` signs into one of the texts that may stand at `place`."""

    place: Place
    written: tuple[Sign, ...] = ()


class Free(NamedTuple):
    """Inside free text, in the JSON string or before the answer: `tail` begins a tag, `begun` if not by spaces only."""

    in_string: bool
    tail: str = ""
    begun: bool = True


State = At | Free

END = At("end")


class Automaton:
    """The answers to a request with these `names` of candidates, as they stand in the text, spelled in signs.

    Every state has the signs that lead on, `after`, and `room`: how many signs it takes at most to the end, the end of
    text counted as one, where free text is ended at once.
    """

    def __init__(self, spelling: Spelling, text_format: str, names: Sequence[str]) -> None:
        kind, self.is_tagged = text_format.removeprefix("tagged-"), text_format.startswith("tagged-")
        before, between, behind = _BODIES[kind]
        self._spelling = spelling
        signs = spelling.signs
        self._names = [signs(name) for name in names]
        self._between = signs(between)
        self._behind = signs(behind) + (signs("</answer>") if self.is_tagged else ())
        everybody = frozenset(range(len(names)))
        bodies: list[tuple[tuple[Sign, ...], State]] = [(signs(before), At(everybody))]
        if kind == "json":
            bodies.append((signs(_EXPLAINED), Free(in_string=True)))
        opened = [(signs("<answer>") + text, state) for text, state in bodies] if self.is_tagged else []
        self._choices: dict[Place, list[tuple[tuple[Sign, ...], State]]] = {
            "body": bodies,
            "thought": opened,
            "quoted": [(signs(_RANKED), At(everybody))] if kind == "json" else [],
            "end": [],
        }
        self.start: State = Free(in_string=False, begun=False) if self.is_tagged else At("body")
        self._rooms: dict[State, int] = {}

    def alphabet(self) -> set[Sign]:
        """Every sign that may have to be written one by one."""
        texts: list[Iterable[Sign]] = [*self._names, self._between, self._behind]
        texts += [text for choices in self._choices.values() for text, _ in choices]
        if self.is_tagged:
            texts += ["</think>", "<answer>", self._spelling.signs("</think>")]
        return {sign for text in texts for sign in text}

    def openings(self) -> set[Sign]:
        """The signs that an answer without reasons can begin with."""
        if isinstance(self.start, Free):
            return {text[0] for text, _ in self.exits(self.start)}
        return {text[0] for text, _ in self.choices(self.start.place)}

    def choices(self, place: Place) -> list[tuple[tuple[Sign, ...], State]]:
        """The texts that may stand at a place, none the beginning of another, and where each leads."""
        if isinstance(place, str):
            return self._choices[place]
        if place not in self._choices:
            more = len(place) > 1
            behind = self._between if more else self._behind
            self._choices[place] = [
                (self._names[one] + behind, At(place - {one}) if more else END) for one in sorted(place)
            ]
        return self._choices[place]

    def nexts(self, state: State) -> Iterable[Sign] | None:
        """The signs that may come next; None in free text, where `after` has to be asked."""
        if isinstance(state, Free):
            return None
        depth = len(state.written)
        return dict.fromkeys(text[depth] for text, _ in self.choices(state.place) if text[:depth] == state.written)

    def after(self, state: State, sign: Sign) -> State | None:
        """The state behind one more sign, None where it may not come."""
        if isinstance(state, At):
            written = (*state.written, sign)
            for text, follows in self.choices(state.place):
                if text[: len(written)] == written:
                    return follows if text == written else At(state.place, written)
            return None
        if state.in_string and (ended := self.after(At("quoted"), sign)) is not None:
            return ended
        current: State = state
        for character in self._spelling.texts[sign] if isinstance(sign, int) else sign:
            if isinstance(current, At):  # a tag in the middle of an added token
                return None
            stepped = self._in_text(current, character)
            if stepped is None:
                return None
            current = stepped
        return current

    def _in_text(self, state: Free, character: str) -> State | None:
        if state.in_string and character in _NO_STRING:
            return None
        if not self.is_tagged:
            return Free(state.in_string)
        text = state.tail + character
        if text in TAGS:
            return self._tagged(state, text)
        if any(tag.startswith(text) for tag in TAGS):
            return Free(state.in_string, text, state.begun)
        begun = state.begun or bool(state.tail) or character != " "
        return Free(state.in_string, "<" if character == "<" else "", begun)

    def _tagged(self, state: Free, tag: str) -> State | None:
        if state.in_string:
            return None
        if tag == "</think>":
            return At("thought")
        if state.begun or tag == "</answer>":
            return None
        return Free(in_string=False) if tag == "<think>" else At("body")

    def goes_on(self, state: Free, character: str) -> bool:
        """Whether the character goes on with a tag that may have begun."""
        return bool(state.tail) and any(tag.startswith(state.tail + character) for tag in TAGS)

    def room(self, state: State) -> int:
        """How many signs it takes at most from here to the end where no more free text is written."""
        if state not in self._rooms:
            self._rooms[state] = self._room(state)
        return self._rooms[state]

    def _room(self, state: State) -> int:
        if isinstance(state, Free):
            return min(len(text) + self.room(follows) for text, follows in self.exits(state))
        if state == END:
            return 1
        if isinstance(state.place, frozenset):
            size = len(state.place)
            names = sum(len(self._names[one]) for one in state.place)
            return names + (size - 1) * len(self._between) + len(self._behind) + 1 - len(state.written)
        depth = len(state.written)
        texts = [(t, follows) for t, follows in self.choices(state.place) if t[:depth] == state.written]
        return min(len(text) - depth + self.room(follows) for text, follows in texts)

    def exits(self, state: Free) -> list[tuple[tuple[Sign, ...], State]]:
        """The texts that end free text at once, and where they lead."""
        if state.in_string:
            return [((), At("quoted"))]
        exits: list[tuple[tuple[Sign, ...], State]] = [(self._rest("</think>", state.tail), At("thought"))]
        if not state.begun and "<answer>".startswith(state.tail):
            exits.append((self._rest("<answer>", state.tail), At("body")))
        return exits

    def _rest(self, tag: str, tail: str) -> tuple[Sign, ...]:
        return tuple(tag[len(tail) :]) if tail and tag.startswith(tail) else self._spelling.signs(tag)


def shown_names(size: int, ids: Sequence[str] | None, text_format: str) -> tuple[str, ...]:
    """What the candidates of a request are called in an answer, as it stands there."""
    if ids is None:
        return tuple(numbered(range(size)))
    quote = '"' if text_format.endswith("json") else ""
    return tuple(f"{quote}{one}{quote}" for one in ids)
