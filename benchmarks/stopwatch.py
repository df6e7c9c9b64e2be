"""Which part of a program takes how long, where parts call each other."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


class Stopwatch:
    """The `seconds` that each named part took itself: while a part is inside another, the other's time stands still.

    So the parts add up to the time inside any of them, and what a part calls that is no part is its own.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._clock = clock
        self._inside: list[str] = []
        self._since = 0.0

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Inside, time is that of `part`."""
        self._pass_on()
        self._inside.append(part)
        try:
            yield
        finally:
            self._pass_on()
            self._inside.pop()

    def around(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The same function, whose time is that of `part`."""

        @wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            with self.of(part):
                return function(*given, **named)

        return timed

    def _pass_on(self) -> None:
        now = self._clock()
        if self._inside:
            self.seconds[self._inside[-1]] += now - self._since
        self._since = now
