"""A causal language model that reads a request as a prompt and answers with a ranking in words. A `Policy`.

May import torch, transformers, peft where a model has an adapter, and the layers below.

    policy = LanguagePolicy(model, tokenizer, PromptWriter("tagged-list", prompt="3-index-steps"))
    policy.rank(requests, rng=np.random.default_rng(0))  # a row of -1 where the answer is no ranking
    policy.answers(requests, n=8, rng=np.random.default_rng(0), decoding=Decoding(temperature=1.0)).texts
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language import saving
from rerank_env.agents.language.answers import Answers, grouped
from rerank_env.agents.language.constraints import AnswerConstraint
from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.generation import generate
from rerank_env.agents.language.likelihood import token_log_probs
from rerank_env.agents.language.text_policy import TextPolicy
from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, PromptWriter
from rerank_env.rewards.errors import InputError


class LanguagePolicy(TextPolicy[Decoding, Answers]):
    """A causal language model with its tokenizer, and how it is asked; see `TextPolicy`.

    `decoding`: how `rank` writes, greedy unless it says otherwise. `respond` raises `InputError`, too, where `decoding`
    is constrained and the tokenizer cannot spell the answers or has no room for them.
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
        super().__init__(model, tokenizer, writer, remarks, Decoding() if decoding is None else decoding)

    def _written(
        self,
        asked: Asked,
        prompts: list[list[int]],
        *,
        n: int,
        decoding: Decoding,
        generator: torch.Generator | None,
    ) -> Answers:
        constraint = None
        if decoding.constrained:
            constraint = AnswerConstraint(
                self.tokenizer,
                asked.text_format,
                asked.shown.sizes_B.tolist(),
                ids=asked.answer_ids,
                max_tokens=decoding.max_tokens,
                eos_ids=self.eos_ids,
            )
        made = generate(
            self.model,
            self.pad_id,
            self.eos_ids,
            prompts,
            decoding=decoding,
            generator=generator,
            constraint=constraint,
            n=n,
        )
        return Answers(
            asked,
            grouped(self.texts(made.ids), n),
            grouped(made.ids, n),
            grouped(made.logprobs, n),
            grouped(made.finished, n),
            n,
        )

    def log_prob(
        self, requests: Requests, completions: Sequence[str | Sequence[int]], *, temperature: float = 1.0
    ) -> list[Tensor]:
        """The exact log-probability of every token of one completion a request, float32 [T] each.

        Without nucleus and constraint. A text is tokenised and ended, which need not be the tokens that it was sampled
        by: give those where that matters. Gradients are kept unless `torch.no_grad()` is around. Raises as `ask` and
        `token_log_probs` do.
        """
        for row, completion in enumerate(completions):
            if not isinstance(completion, str) and any(isinstance(token, str | list | tuple) for token in completion):
                raise InputError(
                    f"completion {row} is a list of {len(completion)} completions; give one a request, [B] and not "
                    "[B, N], as in [texts[0] for texts in answers.texts]"
                )
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
        found = saving.load(
            name_or_folder,
            writer=writer,
            remarks=remarks,
            decoding=decoding,
            dtype=dtype,
            device=device,
            adapter=adapter,
        )
        return cls(found.model, found.tokenizer, found.writer, remarks=found.remarks, decoding=found.decoding)
