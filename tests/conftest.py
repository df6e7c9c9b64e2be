"""Shared by all tests: how hypothesis runs, and processes that can be interrupted and never outlive their test."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")

Start = Callable[[list[str | Path]], subprocess.Popen[str]]


def _obey_interrupts() -> None:
    """A shell that runs the tests in the background makes its children ignore SIGINT; undo that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a command with its output captured as text; SIGINT reaches it, and it is killed at the end of the test."""
    running: list[subprocess.Popen[str]] = []

    def started(command: list[str | Path]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_obey_interrupts
        )
        running.append(process)
        return process

    yield started
    for process in running:
        process.kill()
        process.communicate()
