"""What policies that answer in words share, however they write: prompts, tokens, texts, and rankings read from them.

May import torch, transformers (through the model and the tokenizer that are given) and the layers below. Suffixes: `_B`
requests, `_N` answers to one request, `_K` candidates.

Answers are read strictly, special tokens inside them included, and nothing is repaired, so that what is measured and
rewarded is what the model wrote; `serving.Repaired` is for serving.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch

from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language.answers import Answers
from rerank_env.agents.language.chats import prompt_ids
from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, Prompt, PromptWriter, ask
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError


class Drawing(Protocol):
    """Settings of decoding, as far as every policy needs to know them."""

    @property
    def temperature(self) -> float:
        """What logits are divided by; 0 where nothing is drawn."""

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""


Settings = TypeVar("Settings", bound=Drawing)
Told = TypeVar("Told", bound=Answers)


class TextPolicy(ABC, Generic[Settings, Told]):
    """A model with its tokenizer, how it is asked and how it writes. A `Policy`.

    `model` is one of transformers, or a PEFT model around one; `writer` puts requests in words; `remarks`, where given,
    are put on requests that have none; `decoding` says how `rank` writes. All are plain attributes and may be replaced.

    Raises `InputError` for a tokenizer and a model that know no end of text.
    """

    kind: ClassVar[str]
    """What its folders say that they hold."""

    def __init__(
        self, model: Any, tokenizer: Any, writer: PromptWriter, remarks: EvidenceRemarks | None, decoding: Settings
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.writer = writer
        self.remarks = remarks
        self.decoding = decoding
        self.eos_ids  # noqa: B018 - raises now rather than at the first answer

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text: the tokenizer's, and those that the model's generation settings name."""
        settings = getattr(self.model, "generation_config", None)
        told = getattr(settings, "eos_token_id", None)
        ends = [self.tokenizer.eos_token_id, *([told] if isinstance(told, int) else told or [])]
        found = tuple(dict.fromkeys(int(end) for end in ends if end is not None))
        if not found:
            raise InputError("neither tokenizer nor model has an end-of-text token; set tokenizer.eos_token")
        return found

    @property
    def pad_id(self) -> int:
        """What fills batches up, and is never looked at: the padding token, or where there is none an end of text."""
        return self.eos_ids[0] if self.tokenizer.pad_token_id is None else int(self.tokenizer.pad_token_id)

    def ask(self, requests: Requests, *, rng: np.random.Generator | None = None) -> Asked:
        """The prompts of the requests, remarks put on where they are missing; shuffled by `rng` where one is given.

        Raises as `rerank_env.prompts.ask` and `EvidenceRemarks.on` do.
        """
        return ask(self.remarked(requests), self.writer, rng=rng)

    def remarked(self, requests: Requests) -> Requests:
        """The requests with the policy's remarks where they have none; themselves where the policy has none either.

        Raises as `EvidenceRemarks.on` does.
        """
        if self.remarks is None or requests.remarks_BK is not None:
            return requests
        return self.remarks.on(requests)

    def prompt_ids(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The tokens of prompts up to where the assistant begins; see `chats.prompt_ids`."""
        return prompt_ids(self.tokenizer, prompts)

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """What the model answers, int64 [B, K]; a row of -1 where that is no ranking. `rng` is for sampling only."""
        rankings_BNK, _ = self.answers(requests, rng=rng).read()
        return rankings_BNK[:, 0]

    def answers(
        self,
        requests: Requests,
        *,
        n: int = 1,
        rng: np.random.Generator | None = None,
        decoding: Settings | None = None,
    ) -> Told:
        """`n` answers to each request, shown in its incoming order; `decoding` in place of the policy's own.

        Raises as `ask` does, and as `respond`.
        """
        return self.respond(self.ask(requests), n=n, rng=rng, decoding=decoding)

    def respond(
        self,
        asked: Asked,
        *,
        n: int = 1,
        rng: np.random.Generator | None = None,
        decoding: Settings | None = None,
    ) -> Told:
        """`n` answers to each prompt; `decoding` in place of the policy's own.

        Raises `InputError` for sampling without `rng`, and where answers are to be legal and the tokenizer cannot spell
        them or there is no room for them.
        """
        whole("n", n, least=1)
        used = self.decoding if decoding is None else decoding
        generator = None
        if not used.is_greedy:
            if rng is None:
                raise InputError(f"temperature is {used.temperature} but nothing was given to draw from; pass rng")
            generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        return self._written(asked, self.prompt_ids(asked.prompts), n=n, decoding=used, generator=generator)

    @abstractmethod
    def _written(
        self,
        asked: Asked,
        prompts: list[list[int]],
        *,
        n: int,
        decoding: Settings,
        generator: torch.Generator | None,
    ) -> Told:
        """`n` answers to each of the tokenised `prompts`, which were `asked`; drawn from `generator` unless greedy."""

    def texts(self, completions: Sequence[Sequence[int]]) -> list[str]:
        """Completions as they are read: without the end of text; other special tokens stay, and spoil an answer."""
        ends = self.eos_ids
        told = [list(tokens) for tokens in completions]
        for tokens in told:
            while tokens and tokens[-1] in ends:
                tokens.pop()
        return list(self.tokenizer.batch_decode(told, skip_special_tokens=False)) if told else []

    def completion_ids(self, completion: str | Sequence[int]) -> list[int]:
        """The tokens of a completion: those of its text and the end of text, or the tokens that are given."""
        if isinstance(completion, str):
            return [*self.tokenizer(completion, add_special_tokens=False)["input_ids"], self.eos_ids[0]]
        return [int(token) for token in completion]
