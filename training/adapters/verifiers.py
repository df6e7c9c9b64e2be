"""Requests as a taskset of verifiers (0.4, its `v1` interface); needs the `verifiers` extra.

One task a request: its prompt is the request in words, its one reward `total`, and its metrics are the parts of the
reward and whether the answer was a ranking (`valid`) and the incoming order (`identity`). The prompt's system message,
where it has one, is the task's system prompt. The last reply of the model
is read as it was written; reasoning that a provider returns beside it is not read. What cannot be scored is an error
of the task and stays unscored; it is never a 0.

    vf-eval rerank-env --env.agent.harness.id null --env.agent.runtime.type subprocess \\
        --env.taskset.split validation --env.taskset.task.reward "gr2(alpha=0.2)"

    taskset = RerankTaskset(RerankConfig(split="validation", task=RerankTaskConfig(reward="gain")))
    task = next(iter(taskset))
    await task.score(trace)  # trace.rewards["total"].score, trace.metrics["valid"], ...

For requests or semantic IDs of your own, subclass `RerankTaskset`, override `requests` or `semantic_ids`, and export
the subclass through the `__all__` of a module of your own, whose name is then the id of the taskset.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Self

from rerank_env.rewards.errors import MissingExtraError, RewardError

try:
    import verifiers.v1 as vf
    from pydantic import Field, model_validator
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'the verifiers adapter needs {error.name}, which is not installed; run: pip install "rerank-env[verifiers]"'
    ) from error

from rerank_env.data import Requests
from rerank_env.prompts import DEFAULT, IdTable, template_of
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.rewards.slates import Slates
from rerank_env.task import SPLIT, requests_of
from rerank_env.training.adapters.records import LOGS, REMEDIES, check_columns, ids_of, request_rows, signals, slate_of

__all__ = ["RerankTaskset"]


@lru_cache(maxsize=64)
def _scorer(reward: str, text_format: str, max_chars: int) -> Scorer:
    """The path from a text to its numbers."""
    scorer = Scorer(reward, text_format, max_chars=max_chars)
    scorer.check_needs("tokens", *LOGS, where="verifiers", remedies=REMEDIES)
    return scorer


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
        _ = self.scorer
        return self

    @property
    def scorer(self) -> Scorer:
        """The path from a text to its numbers, the same object for the same settings."""
        return _scorer(self.reward, self.text_format, self.max_chars)


class RerankConfig(vf.TasksetConfig):
    """Which requests, by the arguments of `rerank_env.load`, and how answers to them are scored."""

    data: str = "synthetic"
    split: str = SPLIT
    kind: str | None = None
    data_options: dict[str, int | None] = Field(default_factory=dict)
    prompt: str = DEFAULT
    """A name of `rerank_env.prompts.TEMPLATES`."""
    prompt_budget: int | None = Field(default=None, ge=1)
    """How many characters a prompt may have; see `rerank_env.prompts.budget` for what is left out of a longer one."""
    task: RerankTaskConfig = RerankTaskConfig()

    @model_validator(mode="after")
    def _check_prompt(self) -> Self:
        """An unknown prompt is refused before anything runs."""
        template_of(self.prompt)
        return self


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
        scorer = self.config.scorer
        slate = slate_of(self.data.row, text_format=scorer.text_format, needs=scorer.needs)
        tokens_B = None if trace.usage is None else [trace.num_output_tokens]
        ids = ids_of({name: [value] for name, value in self.data.row.items()}, 1)
        scored = scorer([_answer(trace)], slate, ids=ids, tokens_B=tokens_B)
        for failure in scored.failures:
            raise RewardError(f"reward {failure.name!r} failed: {failure.message}", name=failure.name)
        return scored, slate


class RerankTaskset(vf.Taskset[RerankTask, RerankConfig]):
    """The requests of one split as tasks, in order."""

    def requests(self) -> Requests:
        """What the tasks are made of; override it to bring requests of your own."""
        config = self.config
        return requests_of(config.data, config.split, config.kind, options=config.data_options)

    def semantic_ids(self) -> IdTable | None:
        """The IDs of the items, for prompts that show or ask for them; override it to bring yours."""
        return None

    def load(self) -> Iterator[RerankTask]:
        """One task a request; raises what `requests` and `request_rows` do, and `InputError` where the reward needs a
        log that the requests do not have.
        """
        config, settings = self.config, self.config.task
        rows = request_rows(
            self.requests(),
            text_format=settings.text_format,
            prompt=config.prompt,
            semantic_ids=self.semantic_ids(),
            prompt_budget=config.prompt_budget,
        )
        for row in rows:
            check_columns(row, settings.scorer.needs)
            said = {message["role"]: message["content"] for message in row.pop("prompt")}
            name = f"{row['data']}, request {row['request']}"
            data = RerankData(name=name, prompt=said["user"], system_prompt=said.get("system"), row=row)
            yield RerankTask(data, settings)


def _answer(trace: vf.Trace) -> str:
    """The reply as it was written; `trace.last_reply` has lost the blanks around it, some of which are not allowed."""
    if trace.root_reply is not None:
        return trace.root_reply
    if not trace.assistant_messages:
        raise RewardError(
            "the trace has no reply of the model, so there is nothing to score; look at its stop condition"
        )
    return trace.assistant_messages[-1].content or ""
