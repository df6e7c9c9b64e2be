"""What is wrong with answers before any repair, counted.

The parser's verdict names the first thing wrong and the share of valid answers says how often, but not what a decoder
does: one that writes several names at once repeats and drops candidates where one that writes them in turn does
neither. Here every fault of every answer is counted, by the grammar that the parser reads with. The faults of one list
hold together: a name either is a candidate's first, or names it again, or names none, so that

    named = size - dropped + duplicates + unknown        of every answer that can be read

Which numbers to print is from the evaluation of Diffusion-GR2 (arXiv 2607.01170); how each is averaged is ours. Suffix:
`_B` answers. May import numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS, agreed
from rerank_env.rewards.parsing import MAX_CHARS, read
from rerank_env.rewards.rankings import Verdict

_UNREAD = (Verdict.EMPTY, Verdict.MALFORMED, Verdict.TRUNCATED, Verdict.OVERLONG)
"""The verdicts on texts in which no list is looked at."""


@dataclass(frozen=True, eq=False)
class Faults:
    """The faults of answers, one entry each [B].

    `sizes_B` int64, the candidates there were; `parsed_B` bool, whether the text is of its format, so that there is a
    list; `named_B` int64, the names in the list; `duplicates_B`, those of a candidate that was named before;
    `dropped_B`, the candidates that are never named; `unknown_B`, the names of no candidate, each time one stands
    there; `valid_B` bool, what the strict parser calls OK. A text without a list names nobody: 0 named, all dropped.
    """

    sizes_B: IntArray
    parsed_B: BoolArray
    named_B: IntArray
    duplicates_B: IntArray
    dropped_B: IntArray
    unknown_B: IntArray
    valid_B: BoolArray

    def rates(self) -> dict[str, float]:
        """The faults of all answers as six numbers by name, none of them nan.

        Shares of all answers: "valid"; "unparseable", those without a list; "wrong length", those whose list has
        another number of names than there are candidates. Means of counts: "dropped a list" over all answers, where an
        unparseable one drops every candidate; "duplicates a list" and "out of set a list" over the parsed ones, as no
        others have names. A mean over no answers is 0.0, the sum of nothing: all six are where there are no answers,
        the last two where none is parsed, so read "unparseable" beside them.

        >>> faults(["[2, 2, 9]", "[1, 2, 3]", "I rank"], [3, 3, 3], text_format="list").rates()["duplicates a list"]
        0.5
        """
        wrong_B = self.parsed_B & (self.named_B != self.sizes_B)
        return {
            "valid": _mean(self.valid_B),
            "unparseable": _mean(~self.parsed_B),
            "wrong length": _mean(wrong_B),
            "duplicates a list": _mean(self.duplicates_B[self.parsed_B]),
            "dropped a list": _mean(self.dropped_B),
            "out of set a list": _mean(self.unknown_B[self.parsed_B]),
        }


def faults(
    texts: Sequence[str | bytes],
    sizes_B: npt.ArrayLike,
    *,
    text_format: str,
    ids: Sequence[Sequence[str]] | None = None,
) -> Faults:
    """Count what is wrong with one text a request of so many candidates [B], by number or by the `ids` of each request.

    No text raises; texts longer than `MAX_CHARS` are not looked at, as in `parse`. Raises `UnknownNameError` for a
    format that does not exist; `InputError` where there is not one size and, if any, one row of IDs a text, for sizes
    that are no whole numbers of at least 2, for texts that are neither str nor bytes, and for IDs as `parse` does.

    >>> faults(["[2, 2, 9]"], [3], text_format="list").dropped_B.tolist()
    [2]
    """
    one_of("text format", text_format, FORMATS)
    sizes = np.asarray(sizes_B)
    if sizes.shape != (len(texts),):
        raise InputError(f"{len(texts)} texts came with sizes of shape {sizes.shape}; give one whole number a text")
    if ids is not None and len(ids) != len(texts):
        raise InputError(f"{len(texts)} texts came with IDs of {len(ids)} requests; give one row of IDs a text")
    rows = ids if ids is not None else [None] * len(texts)
    counted = [
        _counted(text, size, text_format, candidates)
        for text, size, candidates in zip(texts, sizes.tolist(), rows, strict=True)
    ]
    columns = np.array(counted, dtype=np.int64).reshape(len(texts), 6).T
    parsed_B, named_B, duplicates_B, dropped_B, unknown_B, valid_B = columns
    return Faults(sizes.astype(np.int64), parsed_B > 0, named_B, duplicates_B, dropped_B, unknown_B, valid_B > 0)


def _counted(
    text: str | bytes, size: int, text_format: str, ids: Sequence[str] | None
) -> tuple[bool, int, int, int, int, bool]:
    """One answer: parsed, named, duplicates, dropped, unknown, valid."""
    form, named = agreed(text_format, size, ids)
    verdict, elements, _ = read(text, named, form, max_chars=MAX_CHARS)
    known = [element for element in elements if element in named]
    different = len(set(known))
    return (
        verdict not in _UNREAD,
        len(elements),
        len(known) - different,
        size - different,
        len(elements) - len(known),
        verdict is Verdict.OK,
    )


def _mean(values_B: BoolArray | IntArray) -> float:
    return float(values_B.mean()) if len(values_B) else 0.0
