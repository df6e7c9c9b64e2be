"""A small world in which a step of training takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from rerank_env.data import Requests, load

if TYPE_CHECKING:
    from rerank_env.agents import ListwisePolicy


@pytest.fixture(scope="session")
def requests() -> Requests:
    """200 training requests of 3 to 6 candidates."""
    return load("synthetic", split="train", requests=200, slate_size=6, min_slate_size=3, history=8)


@pytest.fixture(scope="session")
def validation() -> Requests:
    return load("synthetic", split="validation", requests=200, slate_size=6, min_slate_size=3, history=8)


@pytest.fixture
def new_policy(requests: Requests) -> Callable[[], ListwisePolicy]:
    """Builds the same untrained policy every time; skips where torch is not installed."""
    torch = pytest.importorskip("torch")
    from rerank_env.agents import ListwisePolicy

    def build() -> ListwisePolicy:
        generator = torch.Generator().manual_seed(4)
        return ListwisePolicy.for_requests(
            requests, generator=generator, dim=16, layers=1, heads=2, feedforward=16, dropout=0.1
        )

    return build
