"""The same collecting on a cluster: batches of requests go to workers of Ray Data, what they settle comes back here.

May import ray, pyarrow and the modules below. Every worker holds the requests and a teacher of its own, such as one
that asks a server or has a model on its GPU. Traces are those of the local engine, because they depend on seed and row
only; they come in the order in which workers finish. What a worker had asked for when it was lost is asked for again:
only whole batches come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import MissingExtraError, RerankError
from rerank_env.training.language.traces.settling import Asking
from rerank_env.training.language.traces.store import SCHEMA, Trace, traces_of

try:
    import pyarrow
    import ray
    import ray.data
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'collecting on a cluster needs {error.name}, which is not installed; run: pip install "ray[data]"'
    ) from error


class _Worker:
    """Settles the batches that come to one process."""

    def __init__(self, requests: Requests, asking: Asking) -> None:
        self.requests, self.asking = requests, asking

    def __call__(self, batch: dict[str, Any]) -> Any:
        rows_B = np.concatenate([np.asarray(rows, dtype=np.int64) for rows in batch["rows"]])
        traces = self.asking.settle(self.requests, rows_B)
        return pyarrow.Table.from_pylist([vars(trace) for trace in traces], schema=SCHEMA)


def settle(
    requests: Requests, asking: Asking, batches: Sequence[IntArray], *, workers: int | None = None
) -> Iterator[list[Trace]]:
    """The traces of each batch, as batches are done; on as many `workers` as the cluster has processors where None.

    A running cluster is joined, otherwise one is started on this machine. Raises what the teacher raises on a worker,
    as it is where it is an error of this library.
    """
    if not batches:
        return
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
    most = max(1, min(len(batches), cores - 1 if workers is None else workers))
    held = [ray.put(requests), ray.put(asking)]
    todo = ray.data.from_items([{"rows": rows_B.tolist()} for rows_B in batches], override_num_blocks=len(batches))
    done = todo.map_batches(
        _Fetching,
        batch_size=1,
        batch_format="numpy",
        fn_constructor_args=(held,),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most),
    )
    try:
        for table in done.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield traces_of(table)
    except Exception as cause:  # Ray wraps what a worker raises, more than once
        raise _own(cause) or cause from None


class _Fetching(_Worker):
    """A worker that fetches what it holds from the store of objects, once."""

    def __init__(self, held: Sequence[Any]) -> None:
        super().__init__(*ray.get(list(held)))


def _own(error: BaseException | None) -> RerankError | None:
    """The error of this library that another one was raised for, None where there is none."""
    while error is not None:
        if isinstance(error, RerankError):
            return error
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__
    return None
