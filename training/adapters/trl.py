"""Rewards for TRL 1.16: a reward function for `reward_funcs`, and an environment for `environment_factory`.

Nothing here imports TRL; `dataset_and_reward` needs `datasets`. TRL keeps rewards in float32, so that is what it
reports of ours.

    dataset, reward = dataset_and_reward("movielens-100k", "gain")
    trainer = GRPOTrainer(model, reward_funcs=reward, train_dataset=dataset, args=GRPOConfig(...))
    trainer.train()
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from rerank_env.data import Requests
from rerank_env.episodes import EpisodeError
from rerank_env.prompts import Wording
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.context import check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.scoring import Scorer
from rerank_env.rewards.slates import Slates
from rerank_env.task import SPLIT, requests_of
from rerank_env.training.adapters.records import (
    ANSWER_IDS,
    LOGS,
    REMEDIES,
    check_columns,
    groups_of,
    ids_of,
    legal_name,
    signals,
    slate_of,
    slates_of,
)

if TYPE_CHECKING:
    from datasets import Dataset

OnFailure = Literal["score", "abstain"]

_TOOL_FORMAT = "list"
"""What the argument of the tool is read as."""

_REMEDIES = {**REMEDIES, "step": "pass trainer_state, as TRL does", "tokens": "pass completion_ids, as TRL does"}


@dataclass(frozen=True)
class TrlReward:
    """A reward as TRL calls it: a picklable object with a name, called by keyword with the columns of the data set.

    `reward`: a reward or its text. `text_format`: how completions are read; the data set's prompts must ask for it.
    `on_failure`: what an answer earns on which a user's function failed in isolation: "score", the declared invalid
    score, or "abstain", None, which TRL leaves out of the group. An answer that is no ranking is no failure: it earns
    the declared invalid score. No answer earns NaN.

    Through `log_metric`, under `NAME/`: the shares of `valid`, `identity`, `near_identity` and `failed` answers, the
    share of each verdict, and the mean of each part of the reward under `part/`.

    Group rewards see the answers to one request, told apart by the columns `data` and `request`. On several processes,
    keep a group on one: make per_device_train_batch_size * steps_per_generation a multiple of num_generations.
    """

    reward: Reward | str
    text_format: str = "list"
    _: KW_ONLY
    on_failure: OnFailure = "score"
    max_chars: int = MAX_CHARS

    def __post_init__(self) -> None:
        """Check the arguments."""
        one_of("rule for failures", self.on_failure, get_args(OnFailure))
        self.scorer  # noqa: B018 - checks the rest now rather than at first use

    @cached_property
    def scorer(self) -> Scorer:
        """The path from text to numbers that every adapter takes."""
        return Scorer(self.reward, self.text_format, max_chars=self.max_chars)

    @property
    def __name__(self) -> str:
        """What TRL logs the reward under: its text, in letters, digits and underscores."""
        return legal_name(str(self.reward))

    def __call__(
        self,
        *,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """One number a completion, None where it abstains.

        `completions` are texts or lists of messages, the last of the assistant's being the answer; `completion_ids`
        give the length in tokens; `trainer_state.global_step` the step. Everything else is read by name from the
        columns of the data set, all of the same length.

        Raises `InputError` naming the column that is missing or the one whose length is wrong, and where the reward
        needs a step or tokens that this trainer did not pass.
        """
        count = len(completions)
        needs = self.scorer.needs
        slates = slates_of(columns, count, text_format=self.text_format, needs=needs)
        if completion_ids is not None and len(completion_ids) != count:
            raise InputError(f"completion_ids has {len(completion_ids)} entries for {count} completions; give one each")
        told = {"step": trainer_state, "tokens": completion_ids}
        known = (need for need, value in told.items() if value is not None)
        self.scorer.check_needs("groups", *slates.provides, *known, where="TRL", remedies=_REMEDIES)
        scored = self.scorer(
            completions,
            slates,
            ids=ids_of(columns, count),
            step=None if trainer_state is None else trainer_state.global_step,
            groups_B=groups_of(columns, count) if "groups" in needs else None,
            tokens_B=None if completion_ids is None else [len(ids) for ids in completion_ids],
        )
        if log_metric is not None:
            for name, values_B in signals(scored, slates).items():
                log_metric(f"{self.__name__}/{name}", float(values_B.mean()))
        totals: list[float | None] = scored.total_B.tolist()
        if self.on_failure == "abstain":
            for failure in scored.failures:
                totals[failure.row] = None
        return totals


def dataset_and_reward(
    data: str | Requests,
    reward: Reward | str = "gain",
    *,
    split: str = SPLIT,
    kind: str | None = None,
    text_format: str = "list",
    conversational: bool = True,
    on_failure: OnFailure = "score",
    max_chars: int = MAX_CHARS,
    data_options: Mapping[str, Any] | None = None,
    **wording: Unpack[Wording],
) -> tuple[Dataset, TrlReward]:
    """A data set and the reward that reads it, built together so that every column is where the reward looks for it.

    `data`: the name of a data set, with `split`, `kind` and the further `data_options` of `rerank_env.load`, or
    requests without them. `wording`: `prompt`, `semantic_ids` and `prompt_budget`, as in `RerankEnv`. Raises what
    `rerank_env.task.requests_of` and `request_rows` do, and `InputError` where the reward needs a column that these
    requests do not have.
    """
    from rerank_env.training.adapters.huggingface import to_dataset

    requests = requests_of(data, split, kind, options=data_options)
    worth = TrlReward(reward, text_format, on_failure=on_failure, max_chars=max_chars)
    dataset = to_dataset(requests, text_format=text_format, conversational=conversational, **wording)
    check_columns(dataset.column_names, worth.scorer.needs)
    return dataset, worth


class RerankTool:
    """One request as a TRL environment: the model hands its ranking in through a tool, and is scored on that.

    Text outside the call is not read. Rewards that need more than the request, such as the step, the group or the
    length of the text, cannot be had here: TRL tells an environment none of it. Use `environment_factory`.
    """

    def __init__(self, reward: Reward | str = "gain") -> None:
        self._scorer = Scorer(reward, _TOOL_FORMAT)
        check_met(self._scorer.needs, frozenset(LOGS), f"in a TRL environment, {self._scorer.reward}", REMEDIES)
        self._slate: Slates | None = None
        self._answer = ""

    def reset(self, **row: Any) -> str:
        """Take on a row of the data set; returns what is added to its prompt.

        Raises `InputError` for a row that cannot be scored, before anything is generated: one whose prompt asks for IDs
        too, because the tool takes candidate numbers.
        """
        if row.get(ANSWER_IDS) is not None:
            raise InputError(
                "the prompt asks for IDs but the tool takes candidate numbers; build the data with another"
            )
        self._slate, self._answer = slate_of(row, text_format=_TOOL_FORMAT, needs=self._scorer.needs), ""
        return (
            "\n\nHand this answer in by calling the tool submit_ranking, once; what is written outside the call is not "
            "read."
        )

    def submit_ranking(self, ranking: list[int]) -> str:
        """Hand in the final order of the candidates. Only the first call counts.

        Args:
            ranking: The numbers of all candidates, best first, each exactly once.

        Returns:
            That the answer was received.
        """
        if self._answer:
            raise InputError("an answer was handed in already; only the first one counts")
        self._answer = json.dumps(ranking)
        return "Received."

    def get_reward(self) -> float:
        """The score of the ranking that was handed in; that of an empty answer where none was."""
        if self._slate is None:
            raise EpisodeError("no request has been asked; call reset with a row of the data set first")
        return float(self._scorer([self._answer], self._slate).total_B[0])


def environment_factory(reward: Reward | str = "gain") -> Callable[[], RerankTool]:
    """What `GRPOTrainer(environment_factory=...)` takes: a picklable maker of environments that score by `reward`.

    The data set is that of `huggingface.to_dataset`, conversational and in the format "list". TRL logs the reward as
    `RerankTool`. Raises `InputError` for a reward that needs more than the request.

        trainer = GRPOTrainer(model, train_dataset=dataset, environment_factory=environment_factory("gain"), args=...)
    """
    RerankTool(reward)
    return partial(RerankTool, reward)
