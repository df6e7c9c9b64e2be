"""A model behind a server that speaks the OpenAI protocol, such as vLLM: chats in, replies out, in order.

May import the layers below; needs the package openai. Requests go out `concurrency` at a time. What fails for a reason
that may pass (no connection, too many requests, an error of the server) is tried again by the client, a bounded number
of times with growing pauses; what does not pass is one `ServerError`, after everything that was already on its way, and
may be paid for, has come in.

    server = ServerModel("http://127.0.0.1:8000/v1", "Qwen/Qwen3-32B", concurrency=64)
    ServerPolicy(server, PromptWriter("tagged-list")).rank(requests, rng=np.random.default_rng(0))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter, ask
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError, MissingExtraError, ServerError
from rerank_env.rewards.formats import short

try:
    import openai
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'servers need {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

NO_KEY = "none"
"""What is sent as a key where none is given: the client would send whatever the environment holds to any server."""

SEEDS = 2**31
"""Seeds are below this, which every server takes."""

Chat = Sequence[Mapping[str, str]]
"""Messages with a role and a content."""


@dataclass(frozen=True)
class Reply:
    """What a server said to one chat.

    `reasoning` is what the server took out of the text as such, "" where it leaves it in; `finished` whether the model
    stopped by itself; `tokens_in` and `tokens_out` as the server counts them, 0 where it does not.
    """

    text: str
    reasoning: str
    finished: bool
    tokens_in: int
    tokens_out: int

    def completion(self, text_format: str) -> str:
        """What is to be read as an answer in that format: a tagged one has the reasoning in it, others do not."""
        tagged = self.reasoning and text_format.startswith("tagged-")
        return f"<think>{self.reasoning}</think>{self.text}" if tagged else self.text


@dataclass(frozen=True)
class ServerModel:
    """How to reach a model, and how it decodes.

    `base_url` ends where the protocol begins, mostly in "/v1". `api_key`: none is sent where it is None, and none is
    looked for. `timeout` seconds for one try of one reply, `retries` tries after the first. `extra` goes into every
    request as it is, for what a server adds to the protocol: `{"chat_template_kwargs": {"enable_thinking": False}}`.

    Raises `InputError` naming the field.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 8
    timeout: float = 600.0
    retries: int = 4
    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("base_url", "model"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise InputError(f"{name} of a server is {getattr(self, name)!r}; give a text")
        if not self.base_url.startswith(("http://", "https://")):
            raise InputError(f"base_url is {self.base_url!r}; give an address that begins with http:// or https://")
        whole("concurrency", self.concurrency, least=1)
        whole("retries", self.retries, least=0)
        whole("max_tokens", self.max_tokens, least=1)
        if finite("timeout", self.timeout) <= 0 or finite("temperature", self.temperature) < 0:
            raise InputError(
                f"timeout is {self.timeout} and temperature {self.temperature}; give a time above 0 and 0 or more"
            )
        if not 0 < finite("top_p", self.top_p) <= 1:
            raise InputError(f"top_p is {self.top_p}; give a number above 0 and at most 1")

    def complete(self, chats: Sequence[Chat], *, seeds: Sequence[int] | None = None) -> list[Reply]:
        """A reply to each chat, in order; `seeds` one a chat, none where None. Raises as `stream` does."""
        replies: dict[int, Reply] = dict(self.stream(chats, seeds=seeds))
        return [replies[row] for row in range(len(chats))]

    def stream(self, chats: Sequence[Chat], *, seeds: Sequence[int] | None = None) -> Iterator[tuple[int, Reply]]:
        """The number of each chat and its reply, as they come.

        Raises `InputError` where there is not one seed a chat, and `ServerError` for the first chat that gets no reply;
        before that the replies to all chats that were under way are given.
        """
        if seeds is not None and len(seeds) != len(chats):
            raise InputError(f"{len(chats)} chats came with {len(seeds)} seeds; give one a chat")
        client = openai.OpenAI(
            base_url=self.base_url,
            api_key=NO_KEY if self.api_key is None else self.api_key,
            organization="",
            project="",
            timeout=self.timeout,
            max_retries=self.retries,
        )
        with client, ThreadPoolExecutor(min(self.concurrency, max(1, len(chats)))) as pool:
            rows = {
                pool.submit(self._one, client, chat, None if seeds is None else int(seeds[row]) % SEEDS): row
                for row, chat in enumerate(chats)
            }
            try:
                yield from _as_they_come(rows)
            finally:
                for future in rows:
                    future.cancel()

    def check(self) -> None:
        """Raise `ServerError` now, where the server does not answer or does not have the model."""
        self.complete([[{"role": "user", "content": "Say yes."}]])

    def _one(self, client: openai.OpenAI, chat: Chat, seed: int | None) -> Reply:
        try:
            said = client.chat.completions.create(
                model=self.model,
                messages=[dict(message) for message in chat],
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=seed,
                extra_body=dict(self.extra),
            )
        except openai.APIStatusError as cause:
            raise ServerError(
                f"the server at {self.base_url} refuses with status {cause.status_code} ({short(cause.message, 200)}); "
                f"see that it serves the model {self.model!r}, then run it again"
            ) from cause
        except (openai.OpenAIError, ValueError) as cause:
            raise ServerError(
                f"the server at {self.base_url} did not answer in {self.retries + 1} tries ({short(str(cause), 200)}); "
                "see that it runs and can be reached, then run it again"
            ) from cause
        return self._reply(said)

    def _reply(self, said: Any) -> Reply:
        choice = (getattr(said, "choices", None) or [None])[0]
        message = getattr(choice, "message", None)
        if choice is None or message is None:
            raise ServerError(
                f"the server at {self.base_url} said {short(str(said), 200)}, which is no reply to a chat; see that "
                "its address is that of the OpenAI protocol"
            )
        if not isinstance(message.content, str | None):
            raise ServerError(
                f"the server at {self.base_url} said {short(str(message.content), 200)}, of type "
                f"{type(message.content).__name__}, where a text was expected; have it send the content of a message "
                "as one text"
            )
        usage = getattr(said, "usage", None)
        reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
        return Reply(
            text=message.content or "",
            reasoning=reasoning if isinstance(reasoning, str) else "",
            finished=choice.finish_reason == "stop",
            tokens_in=int(getattr(usage, "prompt_tokens", 0) or 0),
            tokens_out=int(getattr(usage, "completion_tokens", 0) or 0),
        )


@dataclass(frozen=True, eq=False)
class ServerPolicy:
    """A policy that asks a server; an answer that is no ranking is a row of -1, nothing is repaired.

    Answers are drawn at the server model's own `temperature`, 1.0 unless it says otherwise: `ServerModel(...,
    temperature=0.0)` is greedy, as a `LanguagePolicy` is by default.
    """

    server: ServerModel
    writer: PromptWriter

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """One ranking a request, int64 [B, K]; a seed for each is drawn from `rng`. Raises as `ServerModel` does."""
        asked = ask(requests, self.writer)
        seeds = rng.integers(0, SEEDS, size=len(requests)).tolist()
        replies = self.server.complete([prompt.chat for prompt in asked.prompts], seeds=seeds)
        return asked.read([reply.completion(self.writer.text_format) for reply in replies]).rankings_BK


def _as_they_come(rows: Mapping[Future[Reply], int]) -> Iterator[tuple[int, Reply]]:
    """Rows and replies; at the first failure what has not begun is cancelled, and it is raised behind the rest."""
    failure: BaseException | None = None
    for future in as_completed(rows):
        if future.cancelled():
            continue
        error = future.exception()
        if error is None:
            yield rows[future], future.result()
        elif failure is None:
            failure = error
            for other in rows:
                other.cancel()
    if failure is not None:
        raise failure
