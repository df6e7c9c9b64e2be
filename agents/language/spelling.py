"""How a tokenizer spells texts: each token as the characters it adds, in a tree to look up what can come next.

May import transformers (through the tokenizer that is given) and `rerank_env.rewards`. A sign is a character, or an
added token that a text holds whole: a tokenizer takes added tokens out of a text before anything else, so they are
never spelled by characters. What a token adds is what decoding shows of it behind another token; the first token of a
text may show less (a blank that decoding leaves out there).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from rerank_env.rewards.errors import InputError

Sign = str | int
"""A character, or the number of an added token."""


class Node(dict[Sign, "Node"]):
    """A place in a tree of tokens: the signs that lead on, and the `tokens` that end here."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[int] = []


class Spelling:
    """The tokens of one tokenizer by what they add to a text; `of` keeps one a tokenizer.

    `texts` by token, behind others, and `first_texts` at the beginning; "" for those that no text is written with.
    `hidden`: the tokens that decoding leaves out; `added`: added tokens that it shows; `plain`: tokens without a
    character that means anything to an answer's format, in or out of strings; `unseen`: blanks that are no text at the
    beginning, behind which all tokens are as behind others.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.size = len(tokenizer)
        added = tokenizer.added_tokens_decoder
        self.hidden = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
        self.added = {number for number in added if number not in self.hidden}
        self._words = {token.content: number for number, token in added.items() if token.content}
        longest_first = sorted(self._words, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.texts, self.first_texts = _texts(tokenizer, self.size, self.hidden)
        for number in self.added:
            self.texts[number] = self.first_texts[number] = added[number].content
        self.plain = {number for number, text in enumerate(self.texts) if text and not _SIGNS.search(text)}
        self.inside, self.first = self._tree(self.texts), self._tree(self.first_texts)
        self.unseen = {n for n, text in enumerate(self.texts) if text and not self.first_texts[n]}
        self._signs: dict[str, tuple[Sign, ...]] = {}

    @staticmethod
    def of(tokenizer: Any) -> Spelling:
        """The spelling of a tokenizer, made when first asked for, and anew where tokens were added since."""
        found = _KNOWN.get(tokenizer)
        if found is None or found.size != len(tokenizer):
            found = _KNOWN[tokenizer] = Spelling(tokenizer)
        return found

    def signs(self, text: str) -> tuple[Sign, ...]:
        """A text as signs. Raises `InputError` where it holds an added token that decoding leaves out."""
        if text not in self._signs:
            self._signs[text] = tuple(self._cut(text))
        return self._signs[text]

    def check(self, signs: Iterable[Sign], first: Iterable[Sign]) -> None:
        """Raise `InputError` unless each sign has a token of its own, so that no beginning is without an end.

        `first` are the signs that a text can begin with.
        """
        for root, needed in ((self.inside, signs), (self.first, first)):
            for sign in needed:
                if sign not in root or not root[sign].tokens:
                    raise InputError(
                        f"the tokenizer has no token for {sign!r} alone, so not every answer can be spelled; use one "
                        "with single characters or bytes as tokens, or decode without a constraint"
                    )

    def _cut(self, text: str) -> Iterator[Sign]:
        end = 0
        for match in self._pattern.finditer(text):
            yield from text[end : match.start()]
            number = self._words[match[0]]
            if number in self.hidden:
                raise InputError(
                    f"answers hold {match[0]!r}, a special token that decoding leaves out; add it to the tokenizer as "
                    "a token that is text (special=False)"
                )
            yield number
            end = match.end()
        yield from text[end:]

    def _tree(self, texts: Sequence[str]) -> Node:
        root = Node()
        for number, text in enumerate(texts):
            if text and text.isascii():  # all that is spelled is ASCII
                node = root
                for sign in (number,) if number in self.added else text:
                    node = node.setdefault(sign, Node())
                node.tokens.append(number)
        return root


_KNOWN: WeakKeyDictionary[Any, Spelling] = WeakKeyDictionary()

_SIGNS = re.compile(r'[<>"\\\x00-\x1f]')

_BYTE = re.compile(r"<0x([0-7][0-9A-F])>")
"""An ASCII byte as a token of its own: between other bytes it can be decoded as a part of a character."""


def _texts(tokenizer: Any, size: int, hidden: set[int]) -> tuple[list[str], list[str]]:
    """What each token adds behind another token, and at the beginning of a text; "" for `hidden` ones.

    Also "" for ASCII bytes that stand in for missing characters, but for line breaks, which are plain text at most.
    """
    anchors = [ids[-1] for text in ("[", "a", "1") if (ids := tokenizer(text, add_special_tokens=False)["input_ids"])]
    if not anchors:
        raise InputError("the tokenizer makes no tokens of '[', 'a' or '1', so no answer can be spelled with it")
    before = tokenizer.decode(anchors[:1])
    shown = [number for number in range(size) if number not in hidden]
    pairs = tokenizer.batch_decode([[anchors[0], number] for number in shown])
    alone = tokenizer.batch_decode([[number] for number in shown])
    forms = tokenizer.convert_ids_to_tokens(shown)
    texts, first_texts = [""] * size, [""] * size
    for number, pair, text, form in zip(shown, pairs, alone, forms, strict=True):
        found = _BYTE.fullmatch(str(form))
        if found and text != form and text != "\n":
            continue
        texts[number] = pair[len(before) :] if pair.startswith(before) else ""
        first_texts[number] = text
    return texts, first_texts
