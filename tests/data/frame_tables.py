"""Two requests as tables of both forms, and what makes frames of them in either library."""

from collections.abc import Callable
from typing import Any

import pytest

from rerank_env.rewards.errors import DataError

Frame = Callable[[dict[str, list[Any]]], Any]

LIBRARIES = ("pandas", "polars")


def framed(library: str) -> Frame:
    """What makes a frame of columns; the test is skipped where the library is not installed."""
    module = pytest.importorskip(library, reason=f"needs {library}")
    return lambda columns: module.DataFrame(columns)


def says(text: str) -> Any:
    return pytest.raises(DataError, match=text)


LISTS: dict[str, list[Any]] = {
    "candidates": [["b", "a", "c"], ["c", "z"]],
    "relevance": [[0.0, 1.0, 0.0], [2.0, 0.0]],
    "scores": [[3.0, 2.5, -1.0], [0.5, 0.25]],
    "history": [["z"], []],
    "feedback": [[4.0], []],
    "user": ["ann", "bob"],
    "request": ["r1", "r2"],
    "clicks": [[0, 1, 0], [0, 0]],
    "propensities": [[1.0, 0.5, 0.25], [1.0, 0.5]],
    "predictions": [[0.5, 0.5, 0.5], [0.0, 1.0]],
    "texts": [["Bee", "Ay", "Sea"], ["Sea", "Zed"]],
    "history_texts": [["Zed"], []],
    "day": [1, 2],
}

ROWS: dict[str, list[Any]] = {
    "request": ["r1", "r2", "r1", "r2", "r1"],
    "candidate": ["c", "c", "a", "z", "b"],
    "relevance": [0, 2, 1, 0, 0],
    "scores": [-1.0, 0.5, 2.5, 0.25, 3.0],
    "history": [["z"], [], ["z"], [], ["z"]],
    "feedback": [[4.0], [], [4.0], [], [4.0]],
    "user": ["ann", "bob", "ann", "bob", "ann"],
    "clicks": [False, False, True, False, False],
    "propensities": [0.25, 1.0, 0.5, 0.5, 1.0],
    "predictions": [0.5, 0.0, 0.5, 1.0, 0.5],
    "text": ["Sea", "Sea", "Ay", "Zed", "Bee"],
    "history_texts": [["Zed"], [], ["Zed"], [], ["Zed"]],
    "day": [1, 2, 1, 2, 1],
}
