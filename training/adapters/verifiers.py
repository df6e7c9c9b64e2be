"""Requests as a taskset of verifiers (0.4, its `v1` interface); needs the `verifiers` extra.

One task a request: its prompt is the request in words, its one reward `total`, and its metrics are the parts of the
reward and whether the answer was a ranking (`valid`) and the incoming order (`identity`). The last reply of the model
is read as it was written; reasoning that a provider returns beside it is not read. What cannot be scored is an error
of the task and stays unscored; it is never a 0.

    vf-eval rerank-env --env.agent.harness.id null --env.agent.runtime.type subprocess \\
        --env.taskset.split validation --env.taskset.task.reward "gr2(alpha=0.2)"

    taskset = RerankTaskset(RerankConfig(split="validation", task=RerankTaskConfig(reward="gain")))
    task = next(iter(taskset))
    await task.score(trace)  # trace.rewards["total"].score, trace.metrics["valid"], ...

For requests of your own, subclass `RerankTaskset`, override `requests`, and export the subclass through the `__all__`
of a module of your own, whose name is then the id of the taskset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Self

from rerank_env.rewards.errors import InputError, MissingExtraError, RewardError

try:
    import verifiers.v1 as vf
    from pydantic import Field, model_validator
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'the verifiers adapter needs {error.name}, which is not installed; run: pip install "rerank-env[verifiers]"'
    ) from error

from rerank_env.data import Requests, load
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.rewards.slates import Slates
from rerank_env.training.adapters.records import check_columns, check_format, request_rows, signals, slate_of

__all__ = ["RerankTaskset"]

REFUSED: Mapping[str, str] = {
    "groups": "compares the rollouts of one group, and verifiers scores every rollout by itself; "
    "leave that term to the trainer, or train with the trl or verl adapter",
    "step": "follows the training step, which verifiers does not tell a task; write the number that is meant",
}
"""What a reward may not need here, and why."""


@lru_cache(maxsize=64)
def _scoring(reward: str, text_format: str, max_chars: int) -> tuple[Scorer, frozenset[str]]:
    """The path from a text to its numbers, and what else the reward needs to know."""
    needs = parse_reward(reward).needs
    for need, why in REFUSED.items():
        if need in needs:
            raise InputError(f"the reward {reward!r} {why}")
    return Scorer(reward, text_format, max_chars), needs


class RerankData(vf.TaskData):
    """One request; `row` is that of `rerank_env.training.adapters.records`, the prompt aside."""

    row: dict[str, Any]


class RerankTaskConfig(vf.TaskConfig):
    """How answers are scored; a saved run may be scored again under another reward."""

    reward: str = "gain"
    """A name or expression of `rerank_env.rewards`."""
    text_format: str = "list"
    """How the prompt asks to be answered, and the answer is read."""
    max_chars: int = MAX_CHARS
    """Longer answers are not looked at."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """An unknown name or format, or a reward that has no place here, is refused before anything runs."""
        _scoring(self.reward, self.text_format, self.max_chars)
        return self


class RerankConfig(vf.TasksetConfig):
    """Which requests, by the arguments of `rerank_env.load`, and how answers to them are scored."""

    data: str = "synthetic"
    split: str = "train"
    kind: str = "graded"
    data_options: dict[str, int | None] = Field(default_factory=dict)
    task: RerankTaskConfig = RerankTaskConfig()


class RerankTask(vf.Task[RerankData, vf.State, RerankTaskConfig]):
    """A request to put in order, and what an order is worth."""

    @vf.reward(weight=1.0)
    async def total(self, trace: vf.Trace) -> float:
        """The reward; an answer that is no ranking earns its declared invalid score."""
        scored, _ = self._scored(trace)
        return float(scored.total_B[0])

    @vf.metric
    async def signals(self, trace: vf.Trace) -> dict[str, float]:
        """What `records.signals` names: `valid`, `identity`, `verdict/...`, 0 or 1 each, and `part/...` in numbers."""
        return {name: float(values_B[0]) for name, values_B in signals(*self._scored(trace)).items()}

    def _scored(self, trace: vf.Trace) -> tuple[Scored, Slates]:
        scorer, needs = _scoring(self.config.reward, self.config.text_format, self.config.max_chars)
        check_format({"text_format": [self.data.row["text_format"]]}, 1, self.config.text_format)
        slate = slate_of(self.data.row, needs=needs)
        tokens_B = None if trace.usage is None else [trace.num_output_tokens]
        scored = scorer([_answer(trace)], slate, tokens_B=tokens_B)
        for failure in scored.failures:
            raise RewardError(f"reward {failure.name!r} failed: {failure.message}", name=failure.name)
        return scored, slate


class RerankTaskset(vf.Taskset[RerankTask, RerankConfig]):
    """The requests of one split as tasks, in order."""

    def requests(self) -> Requests:
        """What the tasks are made of; override it to bring requests of your own."""
        config = self.config
        return load(config.data, split=config.split, kind=config.kind, **config.data_options)

    def load(self) -> Iterator[RerankTask]:
        """One task a request; raises what `rerank_env.load` does, and `InputError` where the reward needs a log that
        the requests do not have.
        """
        settings = self.config.task
        _, needs = _scoring(settings.reward, settings.text_format, settings.max_chars)
        for row in request_rows(self.requests(), text_format=settings.text_format, conversational=False):
            check_columns(row, needs)
            prompt, name = row.pop("prompt"), f"{row['data']}, request {row['request']}"
            yield RerankTask(RerankData(name=name, prompt=prompt, row=row), settings)


def _answer(trace: vf.Trace) -> str:
    """The reply as it was written; `trace.last_reply` has lost the blanks around it, some of which are not allowed."""
    if trace.root_reply is not None:
        return trace.root_reply
    if not trace.assistant_messages:
        raise RewardError(
            "the trace has no reply of the model, so there is nothing to score; look at its stop condition"
        )
    return trace.assistant_messages[-1].content or ""
