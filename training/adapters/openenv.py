"""Requests as an OpenEnv environment, served over a socket; needs the `openenv` extra.

An episode is one request: `reset` shows it in words, the one `step` reads the answer and ends the episode with the
reward in the observation. An answer that is no ranking is scored and flagged, never refused.

    python -m rerank_env.training.adapters.openenv --data synthetic --reward gain --port 8000

    with RerankClient("http://127.0.0.1:8000").sync() as env:
        prompt = env.reset(seed=0).observation.prompt
        result = env.step(RerankAction(completion="[2, 1, 3]"))
        print(result.reward, result.observation.verdict, result.observation.parts)

Every session has an environment of its own, which holds no more than the episode; requests are shared and never
written to. Over plain HTTP, where OpenEnv keeps no session between calls, nothing can be answered: use the client.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack
from uuid import uuid4

import numpy as np

from rerank_env.rewards.errors import InputError, MissingExtraError

try:
    import uvicorn
    from fastapi import FastAPI
    from openenv.core import Action, EnvClient, Environment, Observation, State, create_app
    from openenv.core.client_types import StepResult
    from openenv.core.env_server.types import EnvironmentMetadata
    from pydantic import Field
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'the OpenEnv adapter needs {error.name}, which is not installed; run: pip install "rerank-env[openenv]"'
    ) from error

from rerank_env.data import DATASETS, KINDS, SPLITS, Requests
from rerank_env.episodes import EpisodeError
from rerank_env.prompts import DEFAULT, TEMPLATES, PromptWriter, Wording
from rerank_env.rewards import Reward
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.rankings import Verdict, is_identity
from rerank_env.task import SPLIT, requests_of
from rerank_env.training.adapters.openenv_rubrics import RewardRubric


class RerankAction(Action):
    """An answer."""

    completion: str = Field(description="What the model wrote, untouched.")
    tokens: int | None = Field(default=None, ge=0, description="Its length in tokens, for rewards that need it.")


class RerankObservation(Observation):
    """A request, and after the step what became of the answer."""

    prompt: str = Field(description="The request in words.")
    messages: list[dict[str, str]] = Field(default_factory=list, description="The same as a chat: role and content.")
    dropped: int = Field(default=0, description="Entries of the history that the prompt's budget left out.")
    shortened: int = Field(default=0, description="Texts of items that the prompt's budget cut.")
    request: int = Field(description="Row of the request in the data.")
    size: int = Field(description="How many candidates there are.")
    step: int | None = Field(default=None, description="The training step that `reset` was told.")
    verdict: str | None = Field(default=None, description="OK, or why the answer is not a ranking.")
    identity: bool | None = Field(default=None, description="Whether the answer is the incoming order.")
    ranking: list[int] | None = Field(default=None, description="0-based, best first; empty if it is no ranking.")
    parts: dict[str, float] | None = Field(default=None, description="The terms of the reward.")
    failures: list[str] = Field(default_factory=list, description="Faults of functions that isolate them.")


class RerankState(State):
    """The episode of a session."""

    request: int | None = None
    data: str = ""
    reward: str = ""


class RerankEnvironment(Environment[RerankAction, RerankObservation, RerankState]):
    """One episode at a time over `data`, the name of a data set or `Requests`; further arguments as in `RerankEnv`,
    with `prompt`, `semantic_ids` and `prompt_budget` as the `wording`.

    `rubric` is the reward as a tree, see `openenv_rubrics`. Raises `UnknownNameError` or `InputError` for an argument
    that cannot be used, and for a reward that compares the answers of a group.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        data: str | Requests = "synthetic",
        split: str = SPLIT,
        kind: str | None = None,
        *,
        reward: str | Reward = "gain",
        text_format: str = "list",
        max_chars: int = MAX_CHARS,
        data_options: Mapping[str, Any] | None = None,
        **wording: Unpack[Wording],
    ) -> None:
        requests = requests_of(data, split, kind, options=data_options)
        prompts = PromptWriter(text_format, **wording)
        prompts.check(requests)  # raises now what would otherwise be raised in the middle of a session
        names = partial(prompts.answer_ids_of, requests) if prompts.cites_ids else None
        super().__init__(
            rubric=RewardRubric(reward, requests.slates, text_format=text_format, max_chars=max_chars, ids=names)
        )
        self.requests = requests
        self.text_format = text_format
        self.prompts = prompts
        self._rng = np.random.default_rng()
        self._state = RerankState(data=requests.name, reward=str(self.rubric.reward))
        self._asked: RerankObservation | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        request: int | None = None,
        step: int | None = None,
        **unknown: Any,
    ) -> RerankObservation:
        """Ask a request: row `request`, or else one drawn with equal probability, the first of `seed` where given.

        `step` is the training step, for rewards that follow it. Raises `InputError` for a row that does not exist or
        an argument that nobody knows.
        """
        if unknown:
            raise InputError(f"reset was given {sorted(unknown)}; it knows seed, episode_id, request and step")
        count = len(self.requests)
        if seed is not None:
            self._rng = np.random.default_rng(whole("seed", seed, least=0))
        row = int(self._rng.integers(count)) if request is None else whole("request", request, least=0)
        if row >= count:
            raise InputError(f"request {row} does not exist; the data has requests 0..{count - 1}")
        self._reset_rubric()
        self._state = self._state.model_copy(
            update={"episode_id": episode_id or str(uuid4()), "step_count": 0, "request": row}
        )
        (prompt,) = self.prompts.write(self.requests, [row])
        self._asked = RerankObservation(
            prompt=prompt.text,
            messages=prompt.chat,
            dropped=prompt.dropped,
            shortened=prompt.shortened,
            request=row,
            size=int(self.requests.sizes_B[row]),
            step=None if step is None else whole("step", step, least=0),
        )
        return self._asked.model_copy()

    def step(
        self,
        action: RerankAction,
        timeout_s: float | None = None,  # noqa: ARG002 - scoring takes no time to speak of
        **unknown: Any,
    ) -> RerankObservation:
        """Read the answer, score it, and end the episode. Raises `EpisodeError` where `reset` is due."""
        if unknown:
            raise InputError(f"step was given {sorted(unknown)}; it knows the action only")
        if self._asked is None:
            raise EpisodeError("no request has been asked in this session, or it has been answered; call reset first")
        asked = self._asked
        scored = self.rubric.reading.scored(action, asked)
        reward = self._apply_rubric(action, asked)
        self._asked = None
        self._state = self._state.model_copy(update={"step_count": 1})
        verdict = Verdict(int(scored.verdicts_B[0]))
        valid = verdict is Verdict.OK
        return asked.model_copy(
            update={
                "done": True,
                "reward": reward,
                "verdict": verdict.name,
                "identity": valid and bool(is_identity(scored.rankings_BK, [asked.size])[0]),
                "ranking": scored.rankings_BK[0, : asked.size].tolist() if valid else [],
                "parts": {name: float(values_B[0]) for name, values_B in scored.parts.items()},
                "failures": [f"{failure.name}: {failure.message}" for failure in scored.failures],
            }
        )

    @property
    def state(self) -> RerankState:
        """The episode, and what is played."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, and the name and hash of the wording."""
        return EnvironmentMetadata(
            name="rerank_env",
            description=f"Put the candidates of one request in a better order ({self.requests.name}).",
            version=f"{self.prompts.template.version}, {self.prompts.template.hash}",
        )


class RerankClient(EnvClient[RerankAction, RerankObservation, RerankState]):
    """A session on a server of `RerankEnvironment`; `.sync()` for code that does not await."""

    def _step_payload(self, action: RerankAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[RerankObservation]:
        outcome = {"reward": payload["reward"], "done": payload["done"]}
        return StepResult(RerankObservation(**payload["observation"], **outcome), **outcome)

    def _parse_state(self, payload: dict[str, Any]) -> RerankState:
        return RerankState(**payload)


def application(data: str | Requests = "synthetic", *, sessions: int = 64, **arguments: Any) -> FastAPI:
    """The application that serves up to `sessions` environments at once; arguments as those of `RerankEnvironment`.

    Raises what the environment does now, rather than in the first session.
    """
    requests = RerankEnvironment(data, **arguments).requests
    kept = {name: value for name, value in arguments.items() if name not in ("split", "kind", "data_options")}
    return create_app(
        partial(RerankEnvironment, requests, **kept),
        RerankAction,
        RerankObservation,
        env_name="rerank_env",
        max_concurrent_envs=sessions,
        state_cls=RerankState,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m rerank_env.training.adapters.openenv",
        description="Serve re-ranking requests as an OpenEnv environment.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", default="synthetic", help=f"data set: {', '.join(sorted(DATASETS))}")
    parser.add_argument("--split", default="train", help=", ".join(SPLITS))
    parser.add_argument("--kind", help=f"{' or '.join(KINDS)} (default: what the data set has first)")
    parser.add_argument("--reward", default="gain", help="name or expression of a reward")
    parser.add_argument("--text-format", default="list", help=", ".join(FORMATS))
    parser.add_argument("--prompt", default=DEFAULT, help=", ".join(TEMPLATES))
    parser.add_argument("--max-chars", type=int, default=MAX_CHARS, help="longer answers are not looked at")
    parser.add_argument("--sessions", type=int, default=64, help="how many at once")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen")
    parser.add_argument("--port", type=int, default=8000, help="where to listen")
    given = vars(parser.parse_args(argv))
    host, port = given.pop("host"), given.pop("port")
    uvicorn.run(application(**given), host=host, port=port)


if __name__ == "__main__":
    main()
