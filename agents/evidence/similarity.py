"""How alike two items are by what is written about them: cosines of TF-IDF words, of labels, or of given embeddings.

Nothing here is counted on a log, so there is nothing of a user's to leave out. May import numpy, scipy and
`rerank_env.rewards`. Suffixes: `_I` items, `_D` dimensions, `_M` pairs that are asked about.

A word w of item i weighs (1 + ln tf(w, i)) (1 + ln((1 + I) / (1 + df(w)))), and rows have length 1: the smoothed,
sublinear form of Salton and Buckley (1988) that scikit-learn has too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from rerank_env.rewards.arrays import Float32Array, IntArray
from rerank_env.rewards.errors import InputError

WORD = re.compile(r"\w+")

PAIRS_AT_A_TIME = 200_000
"""Bounds the memory of comparing: so many rows of each side at once."""


@dataclass(frozen=True, eq=False)
class ItemVectors:
    """One row of length 1 an item (or of zeros, where nothing is known of it): scipy CSR or an array [I, D]."""

    rows_ID: sparse.csr_matrix | Float32Array

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> ItemVectors:
        """TF-IDF over lower-case words, runs of letters and digits in any script."""
        return cls.of_terms([WORD.findall(text.lower()) for text in texts])

    @classmethod
    def of_terms(cls, terms: Sequence[Sequence[str]]) -> ItemVectors:
        """TF-IDF over the terms of each item, which may repeat."""
        numbers: dict[str, int] = {}
        columns = [numbers.setdefault(term, len(numbers)) for listed in terms for term in listed]
        owners = np.repeat(np.arange(len(terms)), [len(listed) for listed in terms])
        shape = (len(terms), max(len(numbers), 1))
        counted = sparse.csr_matrix((np.ones(len(columns)), (owners, np.array(columns, dtype=np.int64))), shape=shape)
        holders = np.bincount(counted.indices, minlength=shape[1])
        idf = 1.0 + np.log((1.0 + shape[0]) / (1.0 + holders))
        counted.data = (1.0 + np.log(counted.data)) * idf[counted.indices]
        lengths = np.sqrt(np.asarray(counted.multiply(counted).sum(axis=1)).ravel())
        counted.data /= np.repeat(lengths, np.diff(counted.indptr))
        return cls(counted.astype(np.float32))

    @classmethod
    def of_embeddings(cls, embeddings: npt.ArrayLike) -> ItemVectors:
        """Rows [I, D] of any finite numbers, brought to length 1; rows of zeros stay. Raises `InputError`."""
        rows = np.asarray(embeddings, dtype=np.float32)
        if rows.ndim != 2 or not np.isfinite(rows).all():
            raise InputError(f"embeddings have shape {rows.shape}; give one row of finite numbers an item")
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return cls(rows / np.where(lengths > 0, lengths, 1.0))

    def __len__(self) -> int:
        """How many items."""
        return int(self.rows_ID.shape[0])

    def cosines(self, left_M: IntArray, right_M: IntArray) -> Float32Array:
        """The cosine of each pair of items, float32 [M]; 0 where nothing is known of one of them."""
        cosines_M = np.zeros(len(left_M), dtype=np.float32)
        for start in range(0, len(left_M), PAIRS_AT_A_TIME):
            chunk = slice(start, start + PAIRS_AT_A_TIME)
            left, right = self.rows_ID[left_M[chunk]], self.rows_ID[right_M[chunk]]
            if isinstance(left, np.ndarray):
                cosines_M[chunk] = np.einsum("md,md->m", left, right)
            else:
                cosines_M[chunk] = np.asarray(left.multiply(right).sum(axis=1)).ravel()
        return cosines_M

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Everything in arrays, for saving; `of_arrays` undoes it."""
        if isinstance(self.rows_ID, np.ndarray):
            return {"dense": self.rows_ID}
        parts = {name: getattr(self.rows_ID, name) for name in ("data", "indices", "indptr")}
        return {**parts, "shape": np.array(self.rows_ID.shape)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> ItemVectors:
        """What `arrays` gave. Raises whatever numpy and scipy find fault with where they are not."""
        if "dense" in arrays:
            dense = np.asarray(arrays["dense"], dtype=np.float32)
            if dense.ndim != 2:
                raise ValueError(f"vectors have shape {dense.shape}")
            return cls(dense)
        rows, columns = (int(length) for length in arrays["shape"])
        parts = np.asarray(arrays["data"], dtype=np.float32), arrays["indices"], arrays["indptr"]
        matrix = sparse.csr_matrix(parts, shape=(rows, columns))
        matrix.check_format(full_check=True)  # scipy's loops trust the columns blindly
        return cls(matrix)
