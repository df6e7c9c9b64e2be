"""What is written about items, as vectors that a first stage can read.

TF-IDF of words and labels, reduced by truncated SVD (latent semantic analysis, Deerwester et al., 1990). The
decomposition is the randomised one of scikit-learn (Halko et al., 2011) with a fixed seed, because ARPACK's differs
from run to run where singular values are equal. May import numpy, scikit-learn and the layers below.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.utils.extmath import randomized_svd

from rerank_env.agents.evidence.similarity import WORD, ItemVectors
from rerank_env.rewards.arrays import Float32Array

POWER_ITERATIONS = 7


def text_vectors(texts: Sequence[str], labels: Sequence[Sequence[str]], width: int) -> Float32Array:
    """A row of length 1 an item, float32 [I, width]; zeros where nothing is written, or beyond the rank of the words.

    Items with equal words and labels get equal rows. `labels` may be empty. The same for the same arguments.
    """
    marks = labels if labels else [()] * len(texts)
    terms = [[*WORD.findall(text.lower()), *marked] for text, marked in zip(texts, marks, strict=True)]
    rows_IW = ItemVectors.of_terms(terms).rows_ID.astype(np.float64)
    rank = min(width, min(rows_IW.shape) - 1)
    vectors_ID = np.zeros((len(texts), width))
    if rank >= 1:
        left_IR, values_R, _ = randomized_svd(rows_IW, rank, n_iter=POWER_ITERATIONS, random_state=0)
        vectors_ID[:, :rank] = left_IR * values_R
    lengths_I = np.linalg.norm(vectors_ID, axis=1, keepdims=True)
    found: Float32Array = (vectors_ID / np.where(lengths_I > 1e-9, lengths_I, np.inf)).astype(np.float32)
    return found
