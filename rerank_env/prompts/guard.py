"""What is done to the texts of items, so that none can break out of its line or say what nobody sees.

May import the standard library only. It is done character by character, and no character becomes more than one, so that
bounds on length and alphabet follow from the catalogue's. In a guarded text

- `<`, `>` and `|`, and whatever a Unicode normalisation makes one of them (NFKC, as some tokenizers do it: full-width
  and small forms; NFD: the struck-through ones), become the look-alikes U+2039, U+203A and U+00A6, which no
  normalisation changes. So no title holds a tag, a special token of a chat template such as `<|im_end|>`, a semantic ID
  in angle brackets, or this library's own separator, not even once it is normalised;
- control characters become U+FFFD, and the Braille blank, which looks like one, a blank;
- invisible characters (bidirectional overrides, zero-width blanks, fillers, the tag characters and variation selectors
  that smuggle text: Unicode's default-ignorable code points) are left out. Scripts and emoji need some of them: behind
  a character that is drawn, one joiner stays, and in front of it one selector of emoji, text or Mongolian shape. A text
  of nothing else is empty.

Special tokens in square brackets, `[INST]`, are not touched: brackets are common in titles. Half a surrogate pair,
which no tokenizer can encode, becomes U+FFFD in guarded and plain texts alike. Line breaks of every kind are gone
already: a catalogue makes white space single.
"""

from __future__ import annotations

import re
import unicodedata

RULES = {True: 2, False: 1}
"""For guarded and for plain texts: goes up when they are cleaned or shortened in another way, so that templates get
another hash."""

_LOOKALIKES = {"<": "\u2039", ">": "\u203a", "|": "\u00a6"}
_UNREADABLE = "\ufffd"
_BRAILLE_BLANK = "\u2800"
_JOINERS = "\u200c\u200d"
_SELECTORS = "\u180b\u180c\u180d\u180f\ufe0e\ufe0f"
_VISIBLE_FORMATS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
"""Format characters that are drawn: signs in front of Arabic and Syriac numbers."""

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U0001d159\U000e0000-\U000e0fff]"
)
"""What is not drawn besides format characters: the rest of Unicode's default-ignorable code points (derived core
properties), those without a character yet included, and the null notehead."""

_RUN = re.compile(f"[{_JOINERS}{_SELECTORS}]+")


class _Plain(dict[int, str]):
    """A table for `str.translate` that is filled as it is asked: halves of surrogate pairs are replaced."""

    def __missing__(self, code: int) -> str:
        self[code] = self.of(chr(code))
        return self[code]

    @staticmethod
    def of(character: str) -> str:
        return _UNREADABLE if unicodedata.category(character) == "Cs" else character


class _Guarded(_Plain):
    """The same for guarded texts."""

    @staticmethod
    def of(character: str) -> str:
        category = unicodedata.category(character)
        if category in ("Cc", "Cs"):
            return _UNREADABLE
        if character in _JOINERS or character in _SELECTORS or character in _VISIBLE_FORMATS:
            return character
        if category == "Cf" or _INVISIBLE.match(character):
            return ""
        if character == _BRAILLE_BLANK:
            return " "
        meant = unicodedata.normalize("NFKD", character)
        return next((other for sign, other in _LOOKALIKES.items() if sign in meant), character)


_PLAIN, _GUARDED = _Plain(), _Guarded()


def cleaned(text: str, *, guarded: bool) -> str:
    """The text as it may stand in a line, see the module; blanks that are left at an end or doubled are taken out."""
    if not guarded:
        return text.translate(_PLAIN)
    return " ".join(_RUN.sub(_needed, text.translate(_GUARDED)).split())


def alphabet(characters: str, *, guarded: bool) -> str:
    """Every character that texts made of `characters` can hold once they are `cleaned`."""
    return characters.translate(_GUARDED if guarded else _PLAIN)


def _needed(run: re.Match[str]) -> str:
    """What stays of some joiners and selectors: none where they stand behind nothing that is drawn."""
    first, begin = run[0][0], run.start()
    if begin == 0 or run.string[begin - 1].isspace():
        return ""
    selector = first if first in _SELECTORS else ""
    return selector + next((mark for mark in run[0] if mark in _JOINERS), "")
