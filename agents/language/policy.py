"""A causal language model that reads a request as a prompt and answers with a ranking in words. A `Policy`.

May import torch, transformers, peft where a model has an adapter, and the layers below. Suffixes: `_B` requests, `_N`
answers to one request, `_K` candidates.

    policy = LanguagePolicy(model, tokenizer, PromptWriter("tagged-list", prompt="3-index-steps"))
    policy.rank(requests, rng=np.random.default_rng(0))  # a row of -1 where the answer is no ranking
    policy.answers(requests, n=8, rng=np.random.default_rng(0), decoding=Decoding(temperature=1.0)).texts

Answers are read strictly, special tokens inside them included, and nothing is repaired, so that what is measured and
rewarded is what the model wrote; `serving.Repaired` is for serving.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language import saving
from rerank_env.agents.language.answers import Answers
from rerank_env.agents.language.chats import Chat, prompt_ids
from rerank_env.agents.language.constraints import AnswerConstraint
from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.generation import generate
from rerank_env.agents.language.likelihood import token_log_probs
from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, Prompt, PromptWriter, ask
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError


class LanguagePolicy:
    """A causal language model with its tokenizer, and how it is asked.

    `model` is one of transformers, or a PEFT model around one; `writer` puts requests in words; `remarks`, where given,
    are put on requests that have none. `decoding`: how `rank` writes, greedy unless it says otherwise. All are plain
    attributes and may be replaced.

    Raises `InputError` for a tokenizer and a model that know no end of text.
    """

    kind = saving.KIND

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        writer: PromptWriter,
        *,
        remarks: EvidenceRemarks | None = None,
        decoding: Decoding | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.writer = writer
        self.remarks = remarks
        self.decoding = Decoding() if decoding is None else decoding
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

    def prompt_ids(self, prompts: Sequence[Prompt | Chat]) -> list[list[int]]:
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
        decoding: Decoding | None = None,
    ) -> Answers:
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
        decoding: Decoding | None = None,
        chats: Sequence[Chat] | None = None,
    ) -> Answers:
        """`n` answers to each prompt; to the messages `chats` where they are given, one list a prompt.

        Raises `InputError` for sampling without `rng`, for a number of chats that is not that of prompts, and where
        `decoding` is constrained and the tokenizer cannot spell the answers or has no room for them.
        """
        whole("n", n, least=1)
        used = self.decoding if decoding is None else decoding
        if chats is not None and len(chats) != len(asked.prompts):
            raise InputError(f"{len(chats)} chats came with {len(asked.prompts)} prompts; give one a prompt")
        generator = None
        if not used.is_greedy:
            if rng is None:
                raise InputError(f"temperature is {used.temperature} but nothing was given to draw from; pass rng")
            generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        constraint = None
        if used.constrained:
            constraint = AnswerConstraint(
                self.tokenizer,
                asked.text_format,
                asked.shown.sizes_B.tolist(),
                ids=asked.answer_ids,
                max_tokens=used.max_tokens,
                eos_ids=self.eos_ids,
            )
        made = generate(
            self.model,
            self.pad_id,
            self.eos_ids,
            self.prompt_ids(asked.prompts if chats is None else chats),
            decoding=used,
            generator=generator,
            constraint=constraint,
            n=n,
        )
        texts = self.texts(made.ids)
        rows = range(0, len(texts), n)
        return Answers(
            asked,
            [texts[row : row + n] for row in rows],
            [made.ids[row : row + n] for row in rows],
            [made.logprobs[row : row + n] for row in rows],
            [made.finished[row : row + n] for row in rows],
            n,
        )

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

    def log_prob(
        self, requests: Requests, completions: Sequence[str | Sequence[int]], *, temperature: float = 1.0
    ) -> list[Tensor]:
        """The exact log-probability of every token of one completion a request, float32 [T] each.

        Without nucleus and constraint. A text is tokenised and ended, which need not be the tokens that it was sampled
        by: give those where that matters. Gradients are kept unless `torch.no_grad()` is around. Raises as `ask` and
        `token_log_probs` do.
        """
        prompts = self.prompt_ids(self.ask(requests).prompts)
        return token_log_probs(
            self.model,
            prompts,
            [self.completion_ids(completion) for completion in completions],
            pad_id=self.pad_id,
            temperature=temperature,
            batch_size=self.decoding.batch_size,
        )

    def save_pretrained(self, folder: str | os.PathLike[str], *, with_base: bool = True) -> None:
        """Write everything that `from_pretrained` needs; see `rerank_env.agents.language.saving`."""
        saving.save(self, folder, with_base=with_base)

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | os.PathLike[str],
        *,
        writer: PromptWriter | None = None,
        remarks: EvidenceRemarks | None = None,
        decoding: Decoding | None = None,
        dtype: Any = None,
        device: Any = None,
        adapter: str | os.PathLike[str] | None = None,
    ) -> LanguagePolicy:
        """The policy that `save_pretrained` left, or any causal model of transformers by name or folder.

        What is given here comes in place of what was saved; for a plain model `writer` must be given. `dtype` is that
        of the weights, as they were saved where None; `adapter` a folder of PEFT's. Raises `CheckpointError` for a
        folder that is torn, `InputError` for a plain model without a writer.
        """
        model, tokenizer, used, evidence, told = saving.load(
            name_or_folder,
            writer=writer,
            remarks=remarks,
            decoding=decoding,
            dtype=dtype,
            device=device,
            adapter=adapter,
        )
        return cls(model, tokenizer, used, remarks=evidence, decoding=told)
