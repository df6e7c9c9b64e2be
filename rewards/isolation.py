"""Calls of a user's function that cannot take the rest of the batch, or the program, down with them.

`values_or_failures` calls a batch, and where that fails, row by row, so that a fault is told of the rows that have it.
With a time limit the function runs in a process of its own, which is killed when the time is up: a plain Python that
reads calls from a pipe. It does not import the caller's main module, and the function travels by value. May import
numpy, and cloudpickle (a dependency of gymnasium) once there is a time limit.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.slates import Slates

RewardFunction = Callable[[IntArray, Slates], npt.ArrayLike]

START_SECONDS = 60.0
"""How long a process may take to start, before the time limit of a call begins to count."""

GIVE_UP_AFTER = 8
"""After so many rows in a row have hung, the rest of the batch is not tried: it would cost a time limit each."""

PROCESSES = 16
"""How many functions keep a process of their own at once."""


class FaultError(Exception):
    """What went wrong with a call, in words that follow the reward's name; never leaves the rewards."""

    def __init__(self, complaint: str, *, hung: bool = False) -> None:
        super().__init__(complaint)
        self.hung = hung


def checked_values(
    function: RewardFunction, rankings_BK: IntArray, slates: Slates, *, seconds: float | None
) -> FloatArray:
    """What `function` returns for a batch, float64 [B], finite or not; raises `FaultError` for anything else."""
    call = function if seconds is None else _limited(function, seconds)
    try:
        given = np.asarray(call(rankings_BK, slates))
    except FaultError:
        raise
    except Exception as cause:
        raise FaultError(f"raised {type(cause).__name__}: {cause}; see the cause") from cause
    if given.shape != (len(slates),):
        raise FaultError(f"returned shape {given.shape} for {len(slates)} requests; return one number each")
    if given.dtype.kind not in "fiub":
        raise FaultError(f"returned dtype {given.dtype}; return one number a request")
    return given.astype(np.float64)


def values_or_failures(
    function: RewardFunction, rankings_BK: IntArray, slates: Slates, *, seconds: float | None
) -> tuple[FloatArray, dict[int, str]]:
    """The values [B], NaN where a row failed, and what happened to each row that did."""
    try:
        return checked_values(function, rankings_BK, slates, seconds=seconds), {}
    except FaultError as fault:
        if len(slates) == 1:
            return np.array([np.nan]), {0: str(fault)}
    values_B = np.full(len(slates), np.nan)
    failures: dict[int, str] = {}
    hung = 0
    for row in range(len(slates)):
        if hung == GIVE_UP_AFTER:
            failures[row] = f"was not asked for this row after {hung} rows in a row had hung"
            continue
        try:
            one = rankings_BK[row : row + 1], slates.take([row])
            [values_B[row]] = checked_values(function, *one, seconds=seconds)
            hung = 0
        except FaultError as fault:
            failures[row] = str(fault)
            hung = hung + 1 if fault.hung else 0
    return values_B, failures


def _limited(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """`function`, computed in a process of its own, which is killed after `seconds`.

    A call raises `FaultError` if the function raises, hangs, dies, or returns what cannot be sent back.
    """
    process = _process_of(function)
    return lambda *arguments: process.call(seconds, arguments)


class _Process:
    """A Python that evaluates one function, started at the first call and again after it was killed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            self.function = _dumped(function)
        except Exception as cause:
            raise InputError(
                f"{function!r} cannot be sent to a process of its own ({cause}); use a plain function, or no time limit"
            ) from cause
        self.lock = threading.Lock()
        self.child: subprocess.Popen[bytes] | None = None
        self.pipe: Connection | None = None
        atexit.register(self.kill)

    def call(self, seconds: float, arguments: tuple[Any, ...]) -> Any:
        with self.lock:
            try:
                pipe = self._started()
                pipe.send_bytes(_dumped(arguments))
                if not pipe.poll(seconds):
                    self.kill()
                    raise FaultError(f"took longer than {seconds:g} seconds and was stopped", hung=True)
                done, value = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError) as cause:
                self.kill()
                raise FaultError("ended its process, as a crash or exit() does") from cause
            except BaseException:
                self.kill()
                raise
        if not done:
            raise FaultError(value)
        return value

    def _started(self) -> Connection:
        if self.pipe is not None:
            return self.pipe
        from multiprocessing import Pipe

        ours, theirs = Pipe()
        with theirs:
            code = f"from rerank_env.rewards.isolation import serve; serve({theirs.fileno()})"
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self.child = subprocess.Popen(
                [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
            )
        self.pipe = ours
        ours.send_bytes(self.function)
        if not ours.poll(START_SECONDS):
            raise FaultError(f"could not be started in a process of its own within {START_SECONDS:g} seconds")
        started, why = pickle.loads(ours.recv_bytes())
        if not started:
            raise FaultError(why)
        return ours

    def kill(self) -> None:
        """End the process, if there is one; the next call starts another."""
        if self.pipe is not None:
            self.pipe.close()
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        self.pipe = self.child = None


@lru_cache(maxsize=PROCESSES)
def _process_of(function: Callable[..., Any]) -> _Process:
    return _Process(function)


def serve(descriptor: int) -> None:
    """What the process runs: read the function, then calls, until the pipe closes. Its output goes to stderr."""
    os.dup2(2, 1)
    with Connection(descriptor) as pipe:
        received = pipe.recv_bytes()
        try:
            function = pickle.loads(received)
        except BaseException as cause:
            pipe.send_bytes(_dumped((False, _raised(cause))))
            return
        pipe.send_bytes(_dumped((True, None)))
        while True:
            try:
                received = pipe.recv_bytes()
            except EOFError:
                return
            try:
                message = _dumped((True, function(*pickle.loads(received))))
            except BaseException as cause:
                message = _dumped((False, _raised(cause)))
            pipe.send_bytes(message)


def _dumped(value: object) -> bytes:
    """`value` as bytes for another process, functions without a module of their own included."""
    import cloudpickle  # only here: most programs set no time limit

    dumped: bytes = cloudpickle.dumps(value)
    return dumped


def _raised(cause: BaseException) -> str:
    return f"raised {type(cause).__name__}: {cause}"
