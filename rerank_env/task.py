"""The arguments of the environment, resolved and checked: what is asked, how it is answered and what it is worth.

May import numpy and `rerank_env.data`, `rerank_env.rewards`. Both forms of the environment hold one `Task`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from rerank_env.data import Requests, load
from rerank_env.prompts import PROMPT, Budget, IdTable, PromptWriter, Template
from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.context import check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import Ties
from rerank_env.rewards.scoring import Scorer
from rerank_env.spaces import ACTIONS

TIES: tuple[str, ...] = get_args(Ties)
"""The rules for equal scores: see `rerank_env.rewards.rankings.from_scores`."""

METADATA: Mapping[str, Any] = {
    "render_modes": ["ansi"],
    "render_fps": 1,
    "prompt_version": PROMPT.version,
    "prompt_hash": PROMPT.hash,
}
"""What both forms of the environment say of themselves, `autoreset_mode` aside, unless another prompt is asked for."""

REMEDIES: Mapping[str, str] = {
    **dict.fromkeys(("chars", "reasonings"), "use action='text'"),
    "clicks": "give Requests with clicks and propensities",
    "predictions": "give Requests with predictions",
    **dict.fromkeys(("groups", "step", "tokens"), "score completions with a Scorer in a loop of your own, which knows"),
}
"""What a user of the environment can do where a reward needs what is not known."""

SPLIT = "train"
"""What is asked unless somebody says otherwise."""


@dataclass(frozen=True, eq=False)
class Task:
    """What an environment needs to know and never changes.

    `scorer` reads texts and scores answers of every kind; `prompts` puts requests in words; `metrics` maps the name
    under which a quality is reported to the reward that measures it.
    """

    requests: Requests
    scorer: Scorer
    prompts: PromptWriter
    action: str
    ties: Ties
    metrics: Mapping[str, Reward]

    @classmethod
    def of(
        cls,
        *,
        data: str | Requests,
        split: str,
        kind: str | None,
        reward: str | Reward,
        action: str,
        ties: str,
        text_format: str,
        metrics: Sequence[str | Reward],
        data_options: Mapping[str, Any] | None,
        prompt: str | Template,
        semantic_ids: IdTable | None,
        prompt_budget: int | Budget | None,
    ) -> Task:
        """Resolve the arguments of the environment.

        Raises `UnknownNameError` for an unknown name, suggesting the nearest, and `InputError` for data without a
        request, metrics that are not a list, a reward that needs what this environment does not know, and IDs that do
        not fit the prompt. With action="text" also, naming the request, where two candidates have the same ID and are
        to be cited by it, or the budget cannot hold the prompt; and `DataError` for the IDs of another catalogue.
        """
        one_of("action kind", action, ACTIONS)
        one_of("tie rule", ties, TIES)
        if isinstance(metrics, str | Reward) or not isinstance(metrics, Sequence):
            raise InputError(
                f"metrics is {metrics!r} but a list of names was expected; write metrics=[{str(metrics)!r}]"
            )
        qualities = [parse_reward(metric) for metric in metrics]
        scorer = Scorer(reward, text_format)
        prompts = PromptWriter(text_format, prompt=prompt, semantic_ids=semantic_ids, prompt_budget=prompt_budget)
        requests = requests_of(data, split, kind, options=data_options)
        provided = requests.slates.provides | ({"chars", "reasonings"} if action == "text" else set())
        for quality in (scorer.reward, *qualities):
            check_met(quality.needs, provided, f"in an environment with action={action!r}, {quality}", REMEDIES)
        if action == "text":
            prompts.check(requests)  # raises now what would otherwise be raised in the middle of a run
        return cls(
            requests=requests,
            scorer=scorer,
            prompts=prompts,
            action=action,
            ties=cast("Ties", ties),
            metrics={str(quality): quality for quality in qualities},
        )

    @property
    def reward(self) -> Reward:
        """What answers are worth."""
        return self.scorer.reward

    @property
    def metadata(self) -> dict[str, Any]:
        """The name and the hash of the prompt's wording, under the keys of `METADATA`."""
        template = self.prompts.template
        return {"prompt_version": template.version, "prompt_hash": template.hash}

    @property
    def width(self) -> int:
        """K, the number of candidate places of every observation and action."""
        return int(self.requests.candidates_BK.shape[1])


def requests_of(
    data: str | Requests, split: str = SPLIT, kind: str | None = None, *, options: Mapping[str, Any] | None = None
) -> Requests:
    """The requests themselves, or those a name stands for, which `load` shares within a process.

    `options`: further arguments of `load`. Raises what `load` does, and `InputError` for data without a request, for
    options that are none, and for requests that come with a split, a kind or options, which they cannot follow.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"data_options is {options!r}; give a dictionary of further arguments for load")
    if isinstance(data, Requests):
        given = {"split": split != SPLIT, "kind": kind is not None, "data_options": bool(options)}
        for name in (name for name, is_given in given.items() if is_given):
            raise InputError(f"{name} came with Requests, which are used as they are; leave it out, or name the data")
        requests = data
    elif not isinstance(data, str):
        raise InputError(f"data is of type {type(data).__name__}; give the name of a data set or Requests")
    elif taken := [
        option for option in options or {} if option in ("name", "split", "kind") or type(option) is not str
    ]:
        raise InputError(f"data_options holds {taken[0]!r}; give the data set's own options there, by their names")
    else:
        requests = load(data, split=split, kind=kind, **(options or {}))
    if not len(requests):
        why = f" ({requests.notes[0]})" if requests.notes else ""
        raise InputError(f"the data {requests.name!r} holds no requests{why}; choose another split or data set")
    return requests
