"""The record of semantic IDs: what an item is called, and which item a name means.

May import numpy and `rerank_env.rewards`. An ID is one code a level, written as `<|id|><|a_12|><|b_200|><|/id|>`: a
marker, one word a level (levels are lettered), a marker. Every word is a single token once `tokens()` are added to a
vocabulary, and the text is a legal candidate ID of every answer format of `rerank_env.rewards`. Suffixes: `_I` items,
`_L` levels.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.semantic_ids.trie import PrefixTrie

BEGIN, END = "<|id|>", "<|/id|>"

MAX_LEVELS = len(string.ascii_lowercase)


@dataclass(frozen=True, eq=False)
class SemanticIds:
    """The codes of every item of one catalogue.

    `codes_IL` int64 [I, L], the code of each item at each level, 0 <= code < `sizes[level]`. `drawn_from_I` int64 [I]
    is the first level of each item whose code was drawn at random and means nothing, L where none was. `catalogue` is
    the `catalogue_hash` of the items' texts. `method` says in words how the codes were made.

    Raises `InputError`, naming item and level, where the fields disagree.
    """

    codes_IL: IntArray
    sizes: tuple[int, ...]
    drawn_from_I: IntArray
    catalogue: str
    method: str = ""

    def __post_init__(self) -> None:
        """Convert and check the fields."""
        sizes = tuple(whole("a codebook's size", size, least=1) for size in self.sizes)
        codes_IL = _whole_numbers("codes", self.codes_IL)
        if not 1 <= len(sizes) <= MAX_LEVELS:
            raise InputError(f"there are {len(sizes)} codebooks; give one to {MAX_LEVELS}, one a level")
        if codes_IL.ndim != 2 or codes_IL.shape[1] != len(sizes) or not len(codes_IL):
            raise InputError(
                f"codes have shape {codes_IL.shape} but there are {len(sizes)} codebooks; give one row an item and one "
                "column a codebook"
            )
        for item, level in np.argwhere((codes_IL < 0) | (codes_IL >= np.array(sizes)))[:1]:
            raise InputError(
                f"item {item} has code {codes_IL[item, level]} at level {level}, but the codebook there has codes "
                f"0..{sizes[level] - 1}"
            )
        drawn = _whole_numbers("drawn_from", self.drawn_from_I)
        if drawn.shape != (len(codes_IL),) or drawn.min() < 0 or drawn.max() > len(sizes):
            raise InputError(f"drawn_from has shape {drawn.shape}; give one level from 0 to {len(sizes)} an item")
        codes_IL.setflags(write=False)
        drawn.setflags(write=False)
        object.__setattr__(self, "codes_IL", codes_IL)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "drawn_from_I", drawn)

    @classmethod
    def of(
        cls,
        codes: npt.ArrayLike,
        sizes: Sequence[int],
        *,
        texts: Sequence[str],
        drawn_from: npt.ArrayLike | None = None,
        method: str = "",
    ) -> SemanticIds:
        """The IDs of a catalogue with these `texts`, none of whose codes are random unless `drawn_from` says so.

        Raises `InputError` as the class does, and where there is not one row of codes a text.
        """
        codes_IL = np.asarray(codes)
        if len(codes_IL) != len(texts):
            raise InputError(f"there are {len(codes_IL)} rows of codes but {len(texts)} texts; give one row an item")
        drawn = np.full(len(texts), len(sizes)) if drawn_from is None else np.asarray(drawn_from)
        return cls(codes_IL, tuple(sizes), drawn, catalogue_hash(texts), method)

    def __len__(self) -> int:
        """How many items."""
        return len(self.codes_IL)

    @property
    def levels(self) -> int:
        """How many codes an ID has, L; in words it has two more, the markers."""
        return len(self.sizes)

    @property
    def meaning_levels(self) -> int:
        """How many first levels have codes that were not drawn at random, for all items but those that spilled."""
        return int(self.drawn_from_I.max())

    @property
    def spilled_I(self) -> BoolArray:
        """Which items had no room under their own prefix, and got a random code at a level that has a meaning."""
        spilled: BoolArray = self.drawn_from_I < self.meaning_levels
        return spilled

    def tokens(self) -> tuple[str, ...]:
        """Every word an ID is written with: both markers, then level by level; Σ sizes + 2 words."""
        return (BEGIN, END, *(_word(level, code) for level, size in enumerate(self.sizes) for code in range(size)))

    def words(self, item: int) -> tuple[str, ...]:
        """The ID of an item, word by word. Raises `InputError` for an item that does not exist."""
        if not 0 <= whole("item", item, least=0) < len(self):
            raise InputError(f"item {item} is not in the catalogue, which has items 0..{len(self) - 1}")
        return (BEGIN, *(_word(level, int(code)) for level, code in enumerate(self.codes_IL[item])), END)

    def text(self, item: int) -> str:
        """The ID of an item as it stands in a text. Raises `InputError` for an item that does not exist."""
        return "".join(self.words(item))

    def parse(self, text: str, *, among: Iterable[int] | None = None) -> int | None:
        """The one item that `text` is the ID of; None where it is no ID, or the ID of no item or of several.

        With `among`, the candidates of a request, only these count: an ID that several items of the catalogue share
        still names one of them if the others are no candidates. Nothing is repaired: blanks, leading zeros and missing
        markers make it no ID.
        """
        codes = self.codes(text)
        if codes is None:
            return None
        items = self.trie.items(codes).tolist()
        if among is not None:
            candidates = set(among)
            items = [item for item in items if item in candidates]
        return items[0] if len(items) == 1 else None

    def codes(self, text: str) -> tuple[int, ...] | None:
        """The codes that `text` writes, whether an item has them or not; None where it is not written as an ID."""
        found = self._form.fullmatch(text)
        if found is None:
            return None
        codes = tuple(int(code) for code in found.groups())
        return codes if all(code < size for code, size in zip(codes, self.sizes, strict=True)) else None

    @cached_property
    def trie(self) -> PrefixTrie:
        """The prefixes of the whole catalogue."""
        return PrefixTrie(self.codes_IL)

    def trie_of(self, items: npt.ArrayLike) -> PrefixTrie:
        """The prefixes of some items, such as the candidates of a request that are not ranked yet."""
        return PrefixTrie(self.codes_IL, items)

    def allowed(self, prefix: Sequence[int] = (), *, among: npt.ArrayLike | None = None) -> IntArray:
        """The codes that may follow `prefix`, sorted, in the IDs of all items or of those `among`.

        For many questions about one set of items ask its `trie_of` instead, which this builds anew each time.
        """
        return (self.trie if among is None else self.trie_of(among)).allowed(prefix)

    def allowed_words(self, words: Sequence[str], trie: PrefixTrie | None = None) -> tuple[str, ...]:
        """The words that may follow the `words` of an ID that is being written, sorted by code.

        First the marker, then codes that lead to an item of `trie` (default: the whole catalogue), then the marker;
        none after that, after what no item's ID begins with, and where the trie is empty.
        """
        trie = self.trie if trie is None else trie
        if not words:
            return (BEGIN,) if len(trie) else ()
        prefix = [self._coded(level, word) for level, word in enumerate(words[1:])]
        if words[0] != BEGIN or -1 in prefix or not len(trie.items(prefix)):
            return ()
        if len(prefix) == self.levels:
            return (END,)
        return tuple(_word(len(prefix), int(code)) for code in trie.allowed(prefix))

    def uniqueness_L(self) -> FloatArray:
        """For every length of prefix from 1 to L: distinct prefixes over items."""
        return np.array([len(np.unique(self.codes_IL[:, : end + 1], axis=0)) for end in range(self.levels)]) / len(self)

    def collisions(self) -> tuple[tuple[int, ...], ...]:
        """The groups of items that share a whole ID, each group and each list in rising order; empty where none do."""
        order = np.lexsort((np.arange(len(self)), *self.codes_IL.T[::-1])).tolist()
        groups = (tuple(group) for _, group in groupby(order, key=lambda item: self.codes_IL[item].tobytes()))
        return tuple(sorted(group for group in groups if len(group) > 1))

    def check_catalogue(self, texts: Sequence[str]) -> None:
        """Raise `DataError` unless these are the texts, in this order, of the items that have these IDs."""
        if len(texts) != len(self) or catalogue_hash(texts) != self.catalogue:
            raise DataError(
                f"the semantic IDs are those of another catalogue of {len(self)} items, not of these {len(texts)}; "
                "make them anew for this one, or load the data with the seed it had then"
            )

    @cached_property
    def _form(self) -> re.Pattern[str]:
        words = "".join(rf"<\|{letter}_(0|[1-9][0-9]{{0,8}})\|>" for letter in string.ascii_lowercase[: self.levels])
        return re.compile(re.escape(BEGIN) + words + re.escape(END))

    def _coded(self, level: int, word: str) -> int:
        """The code that a word means at a level, -1 where it means none there."""
        if level >= self.levels:
            return -1
        found = re.fullmatch(rf"<\|{string.ascii_lowercase[level]}_(0|[1-9][0-9]{{0,8}})\|>", word)
        return -1 if found is None or int(found[1]) >= self.sizes[level] else int(found[1])


def catalogue_hash(texts: Sequence[str]) -> str:
    """One hash of the items' texts in their order; runs of white space count as one space, as in a `Catalog`."""
    digest = hashlib.sha256()
    for text in texts:
        written = " ".join(text.split()).encode(errors="surrogatepass")
        digest.update(len(written).to_bytes(8, "little") + written)
    return digest.hexdigest()


def _word(level: int, code: int) -> str:
    return f"<|{string.ascii_lowercase[level]}_{code}|>"


def _whole_numbers(what: str, values: object) -> IntArray:
    """A copy as int64; `InputError` where they are not whole numbers."""
    given = np.asarray(values)
    if given.dtype.kind not in "iu":
        raise InputError(f"{what} have dtype {given.dtype}; give whole numbers")
    return given.astype(np.int64)
