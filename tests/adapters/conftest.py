"""Shared by the adapters' tests: that nothing is fetched, and a tokenizer.

Each peer's tests run where that peer is installed (`make test-adapters`) and are skipped elsewhere. Warnings stay
errors; the few that peers raise of themselves are let through by name in each test module.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level tokenizer, so that every text survives it; long runs of blanks are few tokens."""
    pytest.importorskip("transformers", reason="needs the trl or verl extra")
    from tiny import tiny_tokenizer

    return tiny_tokenizer()
