"""Asking a teacher for the traces of requests until every request is settled; safe to kill, and to run again.

May import numpy and the modules below. The directory holds a manifest, parts with the requests that are settled, and a
journal of what was paid since the last of them. Running the same call again asks only for what is in neither.

    traces = collect(requests, teacher, writer, mode="rejection", directory="runs/traces", seed=0)
    traces.accepted().asked(requests, writer).prompts
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.training.language.traces import manifest, store
from rerank_env.training.language.traces.journal import Journal
from rerank_env.training.language.traces.leaks import check_remarks, judged_rows
from rerank_env.training.language.traces.proposals import Teacher
from rerank_env.training.language.traces.settling import Asking
from rerank_env.training.language.traces.store import Trace, Traces
from rerank_env.training.versions import versions

ENGINES = ("local", "ray")
PACKAGES = ("rerank-env", "numpy", "openai", "pyarrow", "ray", "torch", "transformers")
"""Those whose versions a manifest names, where they are installed."""

SECONDS_BETWEEN = 5.0
"""From one part to the next at least, so that a teacher that is fast does not wait for the disk.

What was settled since survives a kill in the journal; only a machine that goes down can lose it.
"""


def collect(
    requests: Requests,
    teacher: Teacher,
    writer: PromptWriter,
    *,
    mode: str = "targeted",
    tries: int = 8,
    directory: str | Path,
    seed: int = 0,
    batch: int = 256,
    shuffle: bool = True,
    prepare: Callable[[Requests], Requests] | None = None,
    engine: str = "local",
    on_progress: Callable[[int], None] | None = None,
) -> Traces:
    """Ask `teacher` for a trace of every request, and leave them in `directory`; goes on where an earlier call stopped.

    In "rejection" mode the teacher is told nothing and asked up to `tries` times, until it names a best candidate
    first; in "targeted" mode it is told one and asked again only where it names another; in "imitation" mode it is told
    nothing, and whatever ranking with reasons it gives is accepted, also of a request without a best candidate. What is
    not accepted has a row too. With `shuffle` candidates are shown in an order drawn for each request. `prepare` is
    applied to requests before they are put in words, such as `remarks.on`; where the teacher is told nothing the leak
    check then covers it, see `leaks`.
    `on_progress` is told how many requests are settled. What comes out depends on requests, teacher, writer, mode,
    tries, seed and shuffle, not on `batch` (requests in a call of the teacher), `engine` or kills, as far as the
    teacher's answers depend on its seeds only.

    Raises `InputError` for arguments that do not fit and where `directory` holds traces of other ones, `DataError`
    where a prompt leaks the target, `CheckpointError` where the disk refuses or another process works there, and what
    the teacher raises, such as `ServerError`: what it said before is kept.
    """
    asking = Asking(teacher, writer, mode, tries, seed, shuffle, prepare)
    whole("batch", batch, least=1)
    one_of("engine", engine, ENGINES)
    folder = Path(directory)
    if mode != "targeted" and len(judged_B := judged_rows(requests)):
        check_remarks(asking.prepared(requests.take(judged_B)))
    with durable.held(folder):
        manifest.agree(folder, _made_of(requests, asking))
        done_B = store.settled_rows(folder)
        open_B = np.setdiff1d(np.arange(len(requests)), done_B)
        batches = [open_B[start : start + batch] for start in range(0, len(open_B), batch)]
        settled = len(done_B)
        if on_progress is not None:
            on_progress(settled)
        for count in _run(requests, asking, batches, folder, engine):
            settled += count
            if on_progress is not None:
                on_progress(settled)
        return Traces.load(folder)


def _run(requests: Requests, asking: Asking, batches: list[IntArray], folder: Path, engine: str) -> Iterator[int]:
    """How many requests have been settled, batch by batch, and are in a part or can be had from the journal."""
    with Journal(folder) as journal:
        seconds = SECONDS_BETWEEN
        if engine == "ray":
            from rerank_env.training.language.traces.cluster import settle

            settled = settle(requests, asking, batches, known=journal.known, keep=journal.add)
            seconds = 0.0  # what workers settle has not been in the journal
        else:
            settled = (asking.settle(requests, rows_B, known=journal.known, keep=journal.add) for rows_B in batches)
        waiting: list[Trace] = []
        written = time.monotonic()
        for number, traces in enumerate(settled, start=1):
            waiting += traces
            if number == len(batches) or time.monotonic() - written >= seconds:
                store.write_part(folder, waiting)
                journal.settle(trace.request for trace in waiting)
                waiting, written = [], time.monotonic()
            yield len(traces)


def _made_of(requests: Requests, asking: Asking) -> dict[str, Any]:
    """Everything that traces depend on, and with what they were made."""
    template = asking.writer.template
    return {
        "format": manifest.FORMAT,
        "mode": asking.mode,
        "teacher": asking.teacher.name,
        "teacher_fingerprint": getattr(asking.teacher, "fingerprint", ""),
        "template": template.version,
        "template_hash": template.hash,
        "text_format": asking.writer.text_format,
        "tries": asking.tries,
        "seed": asking.seed,
        "shuffle": asking.shuffle,
        "data": requests.name,
        "requests": manifest.fingerprint(requests),
        "rows": len(requests),
        "prompts": asking.sample(requests),
        manifest.VERSIONS: versions(PACKAGES),
    }
