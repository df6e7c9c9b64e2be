"""Calls of a user's function that cannot take the rest of the batch, or the program, down with them.

`values_or_failures` calls a batch, and where that fails, row by row, so that a fault is told of the rows that have it.
With a time limit the function runs in a process of its own, which is killed with all it started when the time is up: a
plain Python that reads calls from a pipe. It does not import the caller's main module, and the function travels to it
by value (cloudpickle, a dependency of gymnasium). What comes back is numbers, checked over there: nothing that the
function returns is unpickled here. May import numpy; cloudpickle where a function is sent.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.slates import Slates

RewardFunction = Callable[[IntArray, Slates], npt.ArrayLike]

START_SECONDS = 60.0
"""How long a process may take to start, before the time limit of a call begins to count."""

LONGEST_SECONDS = 86_400.0
"""A day: the most that a call may be allowed to take."""

GIVE_UP_AFTER = 8
"""After so many rows of a batch have hung or crashed the rest is not tried: each would cost a limit or a start."""

PROCESSES = 16
"""How many functions keep a process of their own at once; the one that was not asked for longest makes room."""

COMPLAINT_CHARS = 500
"""More of what a function raised is cut off."""


class FaultError(Exception):
    """What went wrong with a call, in words that follow the reward's name; never leaves the rewards.

    `costly`: finding out took a time limit, or ended the function's process.
    """

    def __init__(self, complaint: str, *, costly: bool = False) -> None:
        super().__init__(complaint)
        self.costly = costly


def checked_values(
    function: RewardFunction, rankings_BK: IntArray, slates: Slates, *, seconds: float | None
) -> FloatArray:
    """What `function` returns for a batch, float64 [B], finite or not; raises `FaultError` for anything else."""
    if seconds is not None:
        return _process_of(function).call(rankings_BK, slates, seconds=seconds)
    try:
        return _numbers(function(rankings_BK, slates), len(slates))
    except FaultError:
        raise
    except (Exception, SystemExit) as cause:
        raise FaultError(f"{_raised(cause)}; see the cause") from cause


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
    costly = 0
    for row in range(len(slates)):
        if costly == GIVE_UP_AFTER:
            failures[row] = f"was not asked for this row, after {costly} rows of the batch had hung or crashed"
            continue
        try:
            one = slates.take([row])
            [values_B[row]] = checked_values(function, rankings_BK[row : row + 1], one, seconds=seconds)
        except FaultError as fault:
            failures[row] = str(fault)
            costly += fault.costly
    return values_B, failures


def _numbers(returned: npt.ArrayLike, rows: int) -> FloatArray:
    given = np.asarray(returned)
    if given.shape != (rows,):
        raise FaultError(f"returned shape {given.shape} for {rows} requests; return one number each")
    if given.dtype.kind not in "fiub":
        raise FaultError(f"returned dtype {given.dtype}; return one number a request")
    return given.astype(np.float64)


def _raised(cause: BaseException) -> str:
    try:
        words = str(cause)
    except Exception:
        words = "(it cannot say what)"
    return f"raised {type(cause).__name__}: {words}"[:COMPLAINT_CHARS]


class _Process:
    """A Python that evaluates one function, started at the first call and again after it was killed."""

    def __init__(self, function: RewardFunction) -> None:
        import cloudpickle

        self.function = function  # held, so that its identity stays its own
        try:
            self.sent = cloudpickle.dumps(function)
        except Exception as cause:
            raise InputError(
                f"{function!r} cannot be sent to a process of its own ({cause}); use a plain function, or no time limit"
            ) from cause
        self.lock = threading.Lock()
        self.child: subprocess.Popen[bytes] | None = None
        self.pipe: Connection | None = None

    def call(self, rankings_BK: IntArray, slates: Slates, *, seconds: float) -> FloatArray:
        """What the function returns, float64 [B]; raises `FaultError` if it fails, hangs or dies."""
        import cloudpickle

        with self.lock:
            try:
                pipe = self._started()
                pipe.send_bytes(cloudpickle.dumps((rankings_BK, slates)))
                complaint = self._answer(pipe, seconds, f"took longer than {seconds:g} seconds and was stopped")
                if complaint is None:
                    return np.frombuffer(pipe.recv_bytes(8 * len(slates)), dtype=np.float64).copy()
            except (EOFError, OSError) as cause:
                self.kill()
                raise FaultError("ended its process, as a crash or exit() does", costly=True) from cause
            except BaseException:
                self.kill()
                raise
        raise FaultError(complaint)

    def _answer(self, pipe: Connection, seconds: float, late: str) -> str | None:
        """What the process says of the last call: a complaint, or None if numbers follow."""
        if not pipe.poll(seconds):
            raise FaultError(late, costly=True)
        said = json.loads(pipe.recv_bytes(16 * COMPLAINT_CHARS))
        return None if said is None else str(said)

    def _started(self) -> Connection:
        if self.pipe is not None:
            return self.pipe
        self.pipe, theirs = Pipe()
        with theirs:
            code = f"from rerank_env.rewards.isolation import serve; serve({theirs.fileno()})"
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self.child = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # so that it can be killed with whatever it starts
            )
        self.pipe.send_bytes(self.sent)
        complaint = self._answer(self.pipe, START_SECONDS, f"did not start a process within {START_SECONDS:g} seconds")
        if complaint is not None:
            raise FaultError(complaint, costly=True)
        return self.pipe

    def kill(self) -> None:
        """End the process, if there is one, and what it started; the next call starts another."""
        if self.pipe is not None:
            self.pipe.close()
        if self.child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        self.pipe = self.child = None


_processes: OrderedDict[int, _Process] = OrderedDict()
"""The processes of this program by the identity of their function, the one asked last at the end."""

_registry_lock = threading.Lock()
_inherited: list[_Process] = []
"""In a fork: the parent's processes, which are the parent's to use and to end."""


def _process_of(function: RewardFunction) -> _Process:
    with _registry_lock:
        process = _processes.get(id(function))
        if process is None:
            process = _processes[id(function)] = _Process(function)
        _processes.move_to_end(id(function))
        spare = list(_processes.values())[:-PROCESSES]
        for other in spare:
            if other.lock.acquire(blocking=False):  # one that is being asked stays for now
                other.kill()
                other.lock.release()
                del _processes[id(other.function)]
        return process


def _kill_all() -> None:
    for process in _processes.values():
        process.kill()


def _leave_to_the_parent() -> None:
    global _registry_lock
    _inherited.extend(_processes.values())
    _processes.clear()
    _registry_lock = threading.Lock()


atexit.register(_kill_all)
os.register_at_fork(after_in_child=_leave_to_the_parent)


def serve(descriptor: int) -> None:
    """What the process runs: read the function, then calls, until the pipe closes. Its output goes to stderr."""
    import cloudpickle

    os.dup2(2, 1)
    with Connection(descriptor) as pipe:
        function: RewardFunction | None = None
        while True:
            try:
                received = pipe.recv_bytes()
            except EOFError:
                return
            numbers: FloatArray | None = None
            complaint = None
            try:
                if function is None:
                    function = cloudpickle.loads(received)
                else:
                    rankings_BK, slates = cloudpickle.loads(received)
                    numbers = _numbers(function(rankings_BK, slates), len(slates))
            except FaultError as fault:
                complaint = str(fault)
            except BaseException as cause:
                complaint = _raised(cause)
            pipe.send_bytes(json.dumps(complaint).encode())
            if numbers is not None:
                pipe.send_bytes(numbers.tobytes())
