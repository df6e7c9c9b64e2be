"""`Rerank-v0`, one environment: a request is shown, an answer is given, the answer is worth something.

May import numpy, gymnasium and the modules below the environment. The rules live in `rerank_env.episodes`; this class
gives them Gymnasium's single form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from rerank_env.data.catalog import Catalog
from rerank_env.data.requests import Requests
from rerank_env.episodes import Columns, Episodes
from rerank_env.prompts import DEFAULT, Budget, IdTable, Template
from rerank_env.rendering import RENDER_HINT, checked_render_mode, render_request
from rerank_env.rewards import Reward
from rerank_env.spaces import action_space, observation_space
from rerank_env.streams import drawn_key, requested_rows
from rerank_env.task import METADATA, Task


class RerankEnv(gym.Env[dict[str, Any], Any]):
    """Put one user's candidates in a better order than the earlier stage left them in.

    ## Description
    A request is a user's history and K candidates in the order an earlier stage left them (the incoming order). The
    agent answers with a permutation. Rewards can be checked against what the user did, and by default pay only what
    the answer adds to the incoming order, so that echoing it earns exactly nothing.

    ## Action space
    | `action`    | space                              | an answer is                                            |
    |-------------|------------------------------------|---------------------------------------------------------|
    | `"ranking"` | `MultiDiscrete([K] * K)`           | candidate indices, best first                           |
    | `"scores"`  | `Box(-1, 1, (K,), float32)`        | one number a candidate, higher first; ties by `ties`;   |
    |             |                                    | numbers outside the box are ranked as they are          |
    | `"pick"`    | `Discrete(K)`                      | one candidate a step, best first, until none is left    |
    | `"text"`    | `Text(4096)`                       | a completion, read strictly in `text_format`; it names  |
    |             |                                    | candidates by 1..size, or by ID where `prompt` says so  |

    Indices are places in `candidates`, 0..size-1. Requests may hold fewer than K candidates: entries beyond the size
    are ignored. No action raises, whatever it holds: an illegal one is worth the reward's declared invalid score and is
    flagged in `info`. Only an action of the wrong shape raises, `InputError`.

    ## Observation space
    `Dict`; K, H and all bounds come from the data, tails are padded with -1 (items, places) or 0 (numbers).

    | key           | space               | holds                                                              |
    |---------------|---------------------|--------------------------------------------------------------------|
    | `candidates`  | `Box` int64 `(K,)`  | item numbers in incoming order, rows of `env.unwrapped.catalog`    |
    | `scores`      | `Box` float32 `(K,)`| the earlier stage's scores                                         |
    | `history`     | `Box` int64 `(H,)`  | item numbers, oldest first                                         |
    | `feedback`    | `Box` float32 `(H,)`| what the user thought of each                                      |
    | `action_mask` | `Box` int8 `(K,)`   | "pick" only: 1 where a candidate may be picked                     |
    | `picked`      | `Box` int64 `(K,)`  | "pick" only: candidates in the order picked                        |
    | `prompt`      | `Text`              | "text" only: the request in words, see `rerank_env.prompts`;       |
    |               |                     | `metadata["prompt_version"]` names the wording, and                |
    |               |                     | `metadata["prompt_hash"]` tells two of one name apart              |

    Item numbers carry no meaning. `rerank_env.wrappers.ItemFeatures` adds the catalogue's features. (Gymnasium's
    `AsyncVectorEnv` cannot carry texts through shared memory; give it `shared_memory=False` for "text".)

    ## Reward
    The score of the answer under `reward`. By default that is NDCG@10 less that of the incoming order: from -1 to 1, 0
    for the incoming order, -1.1 for an invalid answer; any reward declares its `low`, `high` and `invalid`. For "pick",
    step t pays what the pick added to the worth of the picks so far completed in incoming order, the first step also
    the incoming order's own worth, an illegal pick the invalid score less what has been paid; so the rewards of an
    episode always sum to the score of its final answer.

    ## Episode end
    `terminated` after the one step of "ranking", "scores" and "text"; for "pick" after the last candidate or an illegal
    pick. Never `truncated`. The final observation is the same request.

    The vector form resets within the step that ends an episode. One environment of it, seen call by call:

        call       observation   reward   infos["request"]   infos["final_obs"]   infos["final_info"]
        reset()    request 1              1
        step(a1)   request 2     of a1    2                  request 1            of a1, request 1
        step(a2)   request 3     of a2    3                  request 2            of a2, request 2

    so every call answers a request, where next-step autoreset would spend every second one on a reset.

    ## Starting state
    A request drawn from `data` with equal probability, with replacement. The same seed gives the same requests and tie
    breaks, whatever actions are taken; `reset()` without a seed goes on to the next request. `reset(options={"request":
    row})` asks for a row (vector form: one row for all, or one an environment) for this episode only; the episodes
    after it are drawn again, as they would have been. An unknown option raises `UnknownNameError`, a row that does not
    exist `InputError`.

    ## Info
    Always `request` (row of `env.unwrapped.requests`), for "pick" `action_mask`, and for "text" with a `prompt_budget`
    `prompt_dropped` (entries of the history that were left out) and `prompt_shortened` (texts of items that were cut).
    At the end of an episode also

    | key            | holds                                                                                     |
    |----------------|-------------------------------------------------------------------------------------------|
    | `verdict`      | 0, or why the answer is not a ranking: a `rerank_env.rewards.rankings.Verdict`            |
    | `valid`        | whether it is one                                                                         |
    | `failed`       | whether a function of yours failed on it in isolation; it is paid as if it were invalid   |
    | `identity`     | whether it is the incoming order                                                          |
    | `ranking`      | int64 `(K,)`, tail -1; all -1 if not valid                                                |
    | `reward_parts` | the reward's parts by name                                                                |
    | `metrics`      | the metrics by name, each metric's own invalid score (0 for all of ours) if not valid     |

    ## Arguments
    * `data`: name of a data set for `rerank_env.load`, or `Requests`, and then no `split`, `kind`, `data_options`
    * `split`: "train", "validation" or "test"
    * `kind`: "graded" (several graded positives) or "next_item" (one positive); None is what the data set has first
    * `reward`: a name or expression such as "gr2(alpha=0.2)", or a `Reward`
    * `action`: see above
    * `ties`: between equal scores, for "scores": "random" (from the seed), "incoming", "reverse" or "refuse" (invalid)
    * `text_format`: "list" `[3, 1, 2]`, "arrows" `[3] > [1] > [2]`, "json", or after a reasoning block "tagged-list",
      "tagged-arrows", "tagged-json": `<think>...</think><answer>[3, 1, 2]</answer>`
    * `metrics`: reward expressions to report at the end of an episode
    * `data_options`: further arguments of `rerank_env.load`
    * `prompt`: for "text", a `Template` or a name of `rerank_env.prompts.TEMPLATES`; "2" is that of earlier releases
    * `semantic_ids`: for "text", the IDs of the catalogue's items by item number, as texts or as an object with
      `text(item)`; a prompt such as "3-id" has answers cite them, others show them beside the titles
    * `prompt_budget`: for "text", how long a prompt may be: characters, or a `rerank_env.prompts.Budget` of tokens
    * `render_mode`: "ansi" or None

    Plain-data arguments keep `env.spec.to_json()` working.

    ## Version history
    * v0: first release
    """

    metadata: dict[str, Any] = dict(METADATA)  # noqa: RUF012 - Gymnasium's convention

    def __init__(
        self,
        data: str | Requests = "synthetic",
        split: str = "train",
        kind: str | None = None,
        *,
        reward: str | Reward = "gain",
        action: str = "ranking",
        ties: str = "random",
        text_format: str = "list",
        metrics: Sequence[str | Reward] = ("ndcg@10",),
        data_options: Mapping[str, Any] | None = None,
        prompt: str | Template = DEFAULT,
        semantic_ids: IdTable | None = None,
        prompt_budget: int | Budget | None = None,
        render_mode: str | None = None,
    ) -> None:
        """See the class for every argument; raises `UnknownNameError` or `InputError` for one that cannot be used."""
        self.task = Task.of(
            data=data,
            split=split,
            kind=kind,
            reward=reward,
            action=action,
            ties=ties,
            text_format=text_format,
            metrics=metrics,
            data_options=data_options,
            prompt=prompt,
            semantic_ids=semantic_ids,
            prompt_budget=prompt_budget,
        )
        self.metadata = self.metadata | self.task.metadata  # a copy: vector wrappers of older Gymnasium write into it
        self.render_mode = checked_render_mode(render_mode)
        self.observation_space = observation_space(self.task.requests, action, self.task.prompts)
        self.action_space = action_space(self.task.width, action)
        self._episodes = Episodes(self.task, 1)
        self._seeded = False
        self._ended: dict[str, Any] | None = None
        self._earned = 0.0

    @property
    def requests(self) -> Requests:
        """The requests that episodes are drawn from; `info["request"]` is a row of them."""
        return self.task.requests

    @property
    def catalog(self) -> Catalog:
        """The items that observations point into."""
        return self.task.requests.catalog

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the next episode, or the first one of `seed`; `options={"request": row}` chooses its request."""
        row = requested_rows(options, len(self.requests), shapes=((),))
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._episodes.reseed([0], [drawn_key(self.np_random)])
            self._seeded = True
        self._episodes.begin(rows_E=None if row is None else row.reshape(1))
        self._ended, self._earned = None, 0.0
        return squeezed(self._episodes.observe()), squeezed(self._episodes.info())

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Answer (or, for "pick", extend the answer); see the class for what comes back.

        Raises `InputError` for an action of the wrong shape and `EpisodeError` where `reset` is due.
        """
        step = self._episodes.step([action])
        reward, terminated = float(step.reward_B[0]), len(step.ended_E) == 1
        info = squeezed(step.info_E if terminated else self._episodes.info())
        self._earned += reward
        if terminated and self.render_mode is not None:
            self._ended = info
        return squeezed(self._episodes.observe()), reward, terminated, False, info

    def render(self) -> str | None:
        """The request, and after the end of the episode the order before and after it; None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn(RENDER_HINT)
            return None
        picked = self._episodes.picked_BK[0] if self.task.action == "pick" else None
        return render_request(
            self.requests, int(self._episodes.rows_B[0]), picked=picked, ended=self._ended, earned=self._earned
        )


def squeezed(columns: Columns) -> dict[str, Any]:
    """Row 0 of columns with one row: Python scalars, arrays of their own, and nested columns squeezed in turn."""
    row: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column, dict):
            row[name] = squeezed(column)
        elif isinstance(column, tuple):
            row[name] = column[0]
        else:
            row[name] = column.item() if column.ndim == 1 else column[0]
    return row
