"""Requests built by hand for the environment's tests: ragged, small, and with every oddity a row may have."""

import numpy as np
import pytest

from rerank_env.data.catalog import Catalog
from rerank_env.data.requests import Requests


def made_catalog() -> Catalog:
    texts = ("Alien", "Brazil", "Casablanca", "Dune,\n  Part  Two", "Élan", "Fargo", "Gilda", "Heat")
    features = [[i, -i / 2] for i in range(len(texts))]
    return Catalog.of(texts, features, np.arange(len(texts)), feature_names=("year", "mood"))


def made_requests() -> Requests:
    """Six requests of 2 to 5 candidates; row 2 has no history, row 4 no relevant candidate, rows 1 and 5 one each."""
    return Requests.of(
        [[3, 4, 5, 6, 7], [2, 4, 5, 6], [0, 1], [7, 6, 5], [0, 1, 2, 3, 4], [2, 3, 4, 5, 6]],
        [[0, 2, 0, 1, 0], [0, 0, 1, 0], [1, 2], [0, 1, 2], [0] * 5, [0, 0, 0, 0, 1]],
        [[0.9, 0.8, 0.7, 0.6, 0.5], [2, 1, 0, -1], [0.5, 0.5], [3, 2, 1], [0.1] * 5, [5, 4, 3, 2, 1]],
        history=[[0, 1, 2], [0, 1, 3], [], [4], [5, 6], [7, 0, 1]],
        feedback=[[4, 5, 1], [4, 5, 2], [], [3.5], [1, 2], [5, 4, 3]],
        users=[7, 7, 8, 9, 9, 9],
        catalog=made_catalog(),
        name="by hand",
    )


@pytest.fixture(scope="session")
def requests() -> Requests:
    return made_requests()
