"""The search for the smallest case in which something is wrong, with hypothesis, which draws and shrinks.

The search is quick, the same each time, leaves no files, and depends on no profile. May import hypothesis.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

from hypothesis import HealthCheck, Phase, configuration, find, settings
from hypothesis.errors import Flaky, NoSuchExample
from hypothesis.strategies import SearchStrategy

Drawn = TypeVar("Drawn")


def smallest(told: Callable[[Drawn], str | None], cases: SearchStrategy[Drawn], *, max_examples: int) -> str | None:
    """What is told of the smallest case found in which there is something to tell; None if there is none.

    A case of which something else is told each time cannot be shrunk: then it is the shortest text of those seen.
    """
    seen: list[str] = []

    def is_telling(case: Drawn) -> bool:
        text = told(case)
        if text is not None:
            seen.append(text)
        return text is not None

    quick = settings(
        max_examples=max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    with _no_files_here():
        try:
            find(cases, is_telling, settings=quick)
        except NoSuchExample:
            return None
        except Flaky:
            return min(seen, key=len)
    return seen[-1]


@contextmanager
def _no_files_here() -> Iterator[None]:
    """Hypothesis keeps a cache in the working directory; for the time being, it goes to a folder that is removed."""
    usual = configuration.storage_directory(intent_to_write=False)
    home = cast(Path, getattr(usual, "home_directory", usual))  # older versions give the path itself
    with tempfile.TemporaryDirectory() as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(home)
