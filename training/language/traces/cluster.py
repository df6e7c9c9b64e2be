"""The same collecting on a cluster: batches of requests go to workers of Ray Data, what they settle comes back here.

May import ray and the modules below. Every worker holds the requests and a teacher of its own, such as one that asks a
server or has a model on its GPU. Traces are those of the local engine, because they depend on seed and row only; they
come in the order in which workers finish. A worker whose teacher fails sends what it was told before together with the
error; what a worker was told that is lost itself is asked for again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import MissingExtraError, RerankError
from rerank_env.training.language.traces.proposals import Proposal
from rerank_env.training.language.traces.settling import Asking, Keep, Known
from rerank_env.training.language.traces.store import Trace

try:
    import ray
    import ray.data
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'collecting on a cluster needs {error.name}, which is not installed; run: pip install "ray[data]"'
    ) from error


class _Worker:
    """Settles the batches that come to one process; requests and how to ask are fetched once."""

    def __init__(self, held: Sequence[Any]) -> None:
        self.requests, self.asking = ray.get(list(held))
        self.failed: RerankError | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"said": [pickle.dumps(self._settled(*pickle.loads(todo))) for todo in batch["todo"]]}

    def _settled(self, rows_B: IntArray, known: Known) -> tuple[list[Trace], list[tuple[int, int, Proposal]], Any]:
        """The traces, or what was said before an error, and the error."""
        told: list[tuple[int, int, Proposal]] = []
        if self.failed is not None:  # the run has ended, other workers' last batches only are waited for
            return [], told, self.failed
        try:
            traces = self.asking.settle(
                self.requests, rows_B, known=known, keep=lambda row, tries, said: told.append((row, tries, said))
            )
        except RerankError as error:  # Ray hands on its text only
            self.failed = error
            return [], told, error
        return traces, [], None


def settle(
    requests: Requests,
    asking: Asking,
    batches: Sequence[IntArray],
    *,
    known: Known,
    keep: Keep,
    workers: int | None = None,
) -> Iterator[list[Trace]]:
    """The traces of each batch, as batches are done; on as many `workers` as the cluster has processors where None.

    A running cluster is joined, otherwise one is started on this machine. `known` proposals are not asked for again.
    Raises the first error that a teacher raises on a worker, once all workers have stopped and `keep` was told what
    they had paid for.
    """
    if not batches:
        return
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    cores = int(ray.cluster_resources().get("CPU", 1))
    most = max(1, min(len(batches), cores - 1 if workers is None else workers))
    held = [ray.put(requests), ray.put(asking)]
    batch_of = {int(row): number for number, rows_B in enumerate(batches) for row in rows_B}
    paid: list[dict[tuple[int, int], Proposal]] = [{} for _ in batches]
    for (row, tries), proposal in known.items():
        if row in batch_of:
            paid[batch_of[row]][row, tries] = proposal
    todo = [{"todo": pickle.dumps((np.asarray(rows_B), paid[number]))} for number, rows_B in enumerate(batches)]
    done = ray.data.from_items(todo, override_num_blocks=len(todo)).map_batches(
        _Worker,
        batch_size=1,
        batch_format="numpy",
        fn_constructor_args=(held,),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most),
    )
    failure: RerankError | None = None
    for row in done.iter_rows():
        traces, told, error = pickle.loads(row["said"])
        for one in told:
            keep(*one)
        if error is None:
            yield traces
        failure = failure or error
    if failure is not None:
        raise failure
