"""A second reader of answers, written from the description of the formats, for the first to be compared with.

It walks through the text sign by sign, without regular expressions and without a JSON parser, and imports nothing of
the library. It says only whether a text is a valid answer, not what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping

BLANKS = " \t\r\n"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class NoAnswerError(Exception):
    """The text is no valid answer; never leaves this module."""


def strictly_read(
    text: str | bytes, names: Mapping[str, int], text_format: str, *, with_ids: bool, max_chars: int
) -> tuple[list[int], str] | None:
    """The ranking and the reasoning of a valid answer, None for any other text.

    `names` says which candidate each element names, all of which have to be named; `with_ids`: they are IDs.
    """
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        plain.encode()
        if len(plain) > max_chars:
            return None
        reasonings, cursor = [], _Cursor(plain)
        kind = text_format.removeprefix("tagged-")
        if kind != text_format:
            thoughts, cursor = _behind_reasoning(plain)
            reasonings.append(thoughts)
            cursor.take("<answer>")
        cursor.skip_blanks()
        if kind == "json":
            elements, explanation = cursor.read_object('"' if with_ids else "")
            reasonings.append(explanation)
        else:
            elements = cursor.read_list() if kind == "list" else cursor.read_arrows()
        cursor.skip_blanks()
        if kind != text_format:
            cursor.take("</answer>")
            cursor.skip_blanks()
        cursor.end()
    except (NoAnswerError, UnicodeError):
        return None
    ranking = [names.get(element, -1) for element in elements]
    valid = sorted(ranking) == list(range(len(names)))
    return (ranking, "\n".join(filter(None, reasonings))) if valid else None


def _behind_reasoning(text: str) -> tuple[str, _Cursor]:
    """The text of the reasoning block, and a cursor before the answer tag."""
    thinks, closed, opened, ended = (text.count(tag) for tag in TAGS)
    if (opened, ended) != (1, 1) or not thinks <= closed <= 1:
        raise NoAnswerError
    thoughts, tag, rest = text.partition("</think>")
    if not tag:
        thoughts, rest = "", text
    elif thinks:
        start = _Cursor(thoughts)
        start.skip_blanks()
        start.take("<think>")
        thoughts = thoughts[start.at :]
    cursor = _Cursor(rest)
    cursor.skip_blanks()
    return thoughts, cursor


class _Cursor:
    """A place in a text, and what may come next there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def sees(self, sign: str) -> bool:
        return self.text.startswith(sign, self.at)

    def take(self, sign: str) -> None:
        if not self.sees(sign):
            raise NoAnswerError
        self.at += len(sign)

    def one(self) -> str:
        """The next sign, whichever it is."""
        if self.at == len(self.text):
            raise NoAnswerError
        self.at += 1
        return self.text[self.at - 1]

    def skip_blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in BLANKS:
            self.at += 1

    def end(self) -> None:
        if self.at < len(self.text):
            raise NoAnswerError

    def element(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in BLANKS + ',[]"':
            self.at += 1
        return self.text[start : self.at]

    def read_list(self, quote: str = "") -> list[str]:
        elements = []
        self.take("[")
        while True:
            self.skip_blanks()
            self.take(quote)
            elements.append(self.element())
            self.take(quote)
            self.skip_blanks()
            if not self.sees(","):
                break
            self.take(",")
        self.take("]")
        return elements

    def read_arrows(self) -> list[str]:
        elements = []
        while True:
            self.take("[")
            elements.append(self.element())
            self.take("]")
            behind = self.at
            self.skip_blanks()
            if not self.sees(">"):
                self.at = behind
                return elements
            self.take(">")
            self.skip_blanks()

    def read_object(self, quote: str) -> tuple[list[str], str]:
        """The elements of the ranking, each without its quotes, and the explanation."""
        found: dict[str, tuple[list[str], str]] = {}
        self.take("{")
        while True:
            self.skip_blanks()
            name = next((name for name in ("ranking", "explanation", "reasoning") if self.sees(f'"{name}"')), None)
            if name is None or name in found or len(found) == 2:
                raise NoAnswerError
            self.take(f'"{name}"')
            self.skip_blanks()
            self.take(":")
            self.skip_blanks()
            found[name] = (self.read_list(quote), "") if name == "ranking" else ([], self.read_string())
            self.skip_blanks()
            if not self.sees(","):
                break
            self.take(",")
        self.take("}")
        if "ranking" not in found:
            raise NoAnswerError
        return found["ranking"][0], "".join(text for _, text in found.values())

    def read_string(self) -> str:
        units = []  # of UTF-16, in which JSON writes a sign outside the basic plane as a pair of escapes
        self.take('"')
        while (sign := self.one()) != '"':
            if sign < " ":
                raise NoAnswerError
            if sign == "\\":
                sign = self.one()
                if sign == "u":
                    digits = "".join(self.one() for _ in range(4))
                    if not set(digits) <= set("0123456789abcdefABCDEF"):
                        raise NoAnswerError
                    sign = chr(int(digits, 16))
                elif sign in ESCAPES:
                    sign = ESCAPES[sign]
                else:
                    raise NoAnswerError
            units.append(sign)
        return "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
