"""Requests built by hand for the environment's tests: ragged, small, and with every oddity a row may have."""

import numpy as np
import pytest

from rerank_env.data.requests import Catalog, Requests


def made_catalog() -> Catalog:
    texts = ("Alien", "Brazil", "Casablanca", "Dune,\n  Part  Two", "Élan", "Fargo", "Gilda", "Heat")
    return Catalog(
        texts=texts,
        features_IF=np.array([[i, -i / 2] for i in range(len(texts))], dtype=np.float32),
        feature_names=("year", "mood"),
        popularity_I=np.arange(len(texts), dtype=np.float64),
    )


def made_requests() -> Requests:
    """Six requests of 2 to 5 candidates; row 2 has no history, row 4 no relevant candidate, rows 1 and 5 one each."""
    return Requests(
        catalog=made_catalog(),
        users_B=np.array([7, 7, 8, 9, 9, 9]),
        history_BH=np.array([[0, 1, 2], [0, 1, 3], [-1, -1, -1], [4, -1, -1], [5, 6, -1], [7, 0, 1]]),
        feedback_BH=np.array([[4, 5, 1], [4, 5, 2], [0, 0, 0], [3.5, 0, 0], [1, 2, 0], [5, 4, 3]], dtype=np.float32),
        candidates_BK=np.array(
            [
                [3, 4, 5, 6, 7],
                [2, 4, 5, 6, -1],
                [0, 1, -1, -1, -1],
                [7, 6, 5, -1, -1],
                [0, 1, 2, 3, 4],
                [2, 3, 4, 5, 6],
            ]
        ),
        scores_BK=np.array(
            [
                [0.9, 0.8, 0.7, 0.6, 0.5],
                [2, 1, 0, -1, 0],
                [0.5, 0.5, 0, 0, 0],
                [3, 2, 1, 0, 0],
                [0.1] * 5,
                [5, 4, 3, 2, 1],
            ],
            dtype=np.float32,
        ),
        relevance_BK=np.array(
            [[0, 2, 0, 1, 0], [0, 0, 1, 0, 0], [1, 2, 0, 0, 0], [0, 1, 2, 0, 0], [0] * 5, [0, 0, 0, 0, 1]],
            dtype=np.float64,
        ),
        sizes_B=np.array([5, 4, 2, 3, 5, 5]),
        name="by hand",
    )


@pytest.fixture(scope="session")
def requests() -> Requests:
    return made_requests()
