"""BM25 over item texts against the formula worked out by hand."""

import math

import numpy as np
import pytest

from rerank_env.rewards.errors import InputError

pytest.importorskip("bm25s", reason="needs the first-stage extra")
from rerank_env.agents.retrieval import bm25

TEXTS = ("red nail polish", "red lipstick", "shampoo", "")


def test_scores_are_those_of_the_formula_of_lucene() -> None:
    # idf = ln(1 + (N - df + 0.5) / (df + 0.5)); the weight of a word that stands once in a text of length l is
    # idf / (1 + k1 (1 - b + b l / mean)), k1 = 1.5, b = 0.75; lengths 3, 2, 1, 0, so the mean is 1.5.
    def weight(df: int, length: int) -> float:
        idf = math.log(1 + (4 - df + 0.5) / (df + 0.5))
        return idf / (1 + 1.5 * (1 - 0.75 + 0.75 * length / 1.5))

    retriever = bm25.Bm25Retriever(TEXTS)
    scores = retriever.scores(np.array([[1, -1]]))  # asks for "lipstick red"
    expected = [weight(2, 3), weight(2, 2) + weight(1, 2), 0.0, 0.0]
    assert scores[0] == pytest.approx(expected, rel=1e-5)


def test_only_the_last_items_of_a_history_ask() -> None:
    retriever = bm25.Bm25Retriever(TEXTS, last=1)
    both, last = retriever.scores(np.array([[0, 2], [2, -1]]))
    assert both.tolist() == last.tolist() and both.argmax() == 2


def test_a_history_without_words_or_items_scores_nothing() -> None:
    retriever = bm25.Bm25Retriever(TEXTS)
    assert not retriever.scores(np.array([[3, -1], [-1, -1]])).any()
    assert retriever.scores(np.empty((0, 2), dtype=np.int64)).shape == (0, 4)


def test_texts_without_any_word_are_refused() -> None:
    with pytest.raises(InputError, match="none of the texts holds a word"):
        bm25.Bm25Retriever(["", "?!"])
