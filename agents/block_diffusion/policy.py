"""A block-diffusion language model that reads a request as a prompt and answers with a ranking in words. A `Policy`.

May import torch, transformers, peft where a model has an adapter, and the layers below. Suffixes: `_B` requests, `_N`
answers to one request.

    policy = convert(LanguagePolicy.from_pretrained("autoregressive"), blocks=Blocks(32))
    policy.rank(requests, rng=np.random.default_rng(0))  # a row of -1 where the answer is no ranking
    answers = policy.answers(requests, decoding=BlockDecoding("static(8)"))
    answers.texts, answers.trajectories_BN, answers.forwards

Answers are read strictly and nothing is repaired, as those of `LanguagePolicy` are; a decoder that fills in legal ones
is used where the decoding names it, and is then part of what the policy is. With blocks of one token, shifted,
it writes what the autoregressive model of the same weights does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rerank_env.agents.block_diffusion import saving
from rerank_env.agents.block_diffusion.answering import AnswerForms
from rerank_env.agents.block_diffusion.decoding import BlockDecoding
from rerank_env.agents.block_diffusion.filling import Form, fill
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.sampling import sample
from rerank_env.agents.block_diffusion.trajectory import Trajectory
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language.answers import Answers, grouped
from rerank_env.agents.language.text_policy import TextPolicy
from rerank_env.prompts import Asked, PromptWriter
from rerank_env.rewards.errors import InputError


@dataclass(frozen=True, eq=False)
class BlockAnswers(Answers):
    """What was written to requests, and how: the decoding of each, and `forwards`, the model's passes to write them.

    Passes that read prompts, and those that fill answers in, are not counted; one that several rows share is once.

    `forms_BN`: where answers were filled in by a decoder, the form of each, and None where what was written did not
    come to an answer, which is then as it was written. The texts, tokens and log-probabilities are those with the
    answers filled in, a log-probability of 0.0 for signs that were not drawn. `trajectories_BN` are those of what was
    written freely, whole; with `length` set to that of a form's `written` they are those of what was kept of it.
    """

    trajectories_BN: list[list[Trajectory]]
    forms_BN: list[list[Form | None]]
    forwards: int


class BlockDiffusionPolicy(TextPolicy[BlockDecoding, BlockAnswers]):
    """A model that was converted, how its completions are cut into `blocks`, and how it writes; see `TextPolicy`.

    The tokenizer's mask token is what hides tokens. `decoding` is part of what the policy is and saved with it, as the
    same weights answer differently by another rule. The model may have any attention of transformers that takes masks:
    "sdpa", "eager", or "flex_attention".

    Raises `InputError` for a tokenizer and a model that know no end of text, and for a tokenizer without a mask token
    of its own that the model has a row for.
    """

    kind = saving.KIND

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        writer: PromptWriter,
        *,
        blocks: Blocks,
        remarks: EvidenceRemarks | None = None,
        decoding: BlockDecoding | None = None,
    ) -> None:
        super().__init__(model, tokenizer, writer, remarks, BlockDecoding() if decoding is None else decoding)
        self.blocks = blocks
        self.mask_id  # noqa: B018 - raises now rather than at the first answer

    @property
    def mask_id(self) -> int:
        """The token that hidden ones read as, and that is never written."""
        found = self.tokenizer.mask_token_id
        rows = self.model.get_input_embeddings().weight.shape[0]
        if found is None or not found < rows or found in {*self.eos_ids, self.pad_id}:
            raise InputError(
                f"the mask token of the tokenizer is {self.tokenizer.mask_token!r}, number {found}, but one is needed "
                f"that neither ends nor pads texts and is among the {rows} of the model; use conversion.convert, which "
                "adds one"
            )
        return int(found)

    def _written(
        self,
        asked: Asked,
        prompts: list[list[int]],
        *,
        n: int,
        decoding: BlockDecoding,
        generator: torch.Generator | None,
    ) -> BlockAnswers:
        return self.written(asked, prompts, n=n, decoding=decoding, generator=generator)

    def written(
        self,
        asked: Asked,
        prompts: list[list[int]],
        *,
        n: int,
        decoding: BlockDecoding,
        generator: torch.Generator | None,
        seeds: Sequence[int] | None = None,
    ) -> BlockAnswers:
        """`n` answers to each of the tokenised `prompts`, which were `asked`; drawn from `generator` unless greedy.

        `seeds`: of every answer, that by which it is filled in; where there are none, `generator` gives those, too.
        """
        made = sample(
            self.model,
            self.pad_id,
            self.eos_ids,
            self.mask_id,
            prompts,
            blocks=self.blocks,
            rule=decoding.decoding_rule,
            max_tokens=decoding.max_tokens,
            temperature=decoding.temperature,
            end=decoding.end,
            max_rounds=decoding.max_rounds,
            batch_size=decoding.batch_size,
            generator=generator,
            n=n,
        )
        ids = [trajectory.tokens for trajectory in made.trajectories]
        logprobs = [trajectory.logprobs for trajectory in made.trajectories]
        finished = [trajectory.finished for trajectory in made.trajectories]
        forms: list[Form | None] = [None] * len(ids)
        decoder = decoding.answer_decoder
        if decoder is not None:
            laid = AnswerForms(self.tokenizer, asked, mask_id=self.mask_id, end_id=self.eos_ids[0])
            forms = [laid.of(row // n, prompts[row // n], tokens) for row, tokens in enumerate(ids)]
            chosen = [(row, form) for row, form in enumerate(forms) if form is not None]
            answers = fill(
                self.model,
                [form for _, form in chosen],
                decoder=decoder,
                blocks=self.blocks,
                mask_id=self.mask_id,
                pad_id=self.pad_id,
                temperature=decoding.temperature,
                generator=generator,
                seeds=None if seeds is None else [seeds[row] for row, _ in chosen],
                batch_size=decoding.batch_size,
            )
            for (row, form), answer in zip(chosen, answers, strict=True):
                scores = iter(answer.scores)
                told = [next(scores) if token == self.mask_id else 0.0 for token in form.answer]
                ids[row] = [*form.written, *answer.tokens]
                logprobs[row] = [*logprobs[row][: len(form.written)], *told]
                finished[row] = True
        return BlockAnswers(
            asked,
            grouped(self.texts(ids), n),
            grouped(ids, n),
            grouped(logprobs, n),
            grouped(finished, n),
            n,
            grouped(made.trajectories, n),
            grouped(forms, n),
            made.forwards,
        )

    def save_pretrained(self, folder: str | os.PathLike[str], *, with_base: bool = True) -> None:
        """Write everything that `from_pretrained` needs; see `rerank_env.agents.block_diffusion.saving`."""
        saving.save(self, folder, with_base=with_base)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        writer: PromptWriter | None = None,
        remarks: EvidenceRemarks | None = None,
        decoding: BlockDecoding | None = None,
        dtype: Any = None,
        device: Any = None,
        adapter: str | os.PathLike[str] | None = None,
    ) -> BlockDiffusionPolicy:
        """The policy that `save_pretrained` left; what is given here comes in place of what was saved.

        `dtype` is that of the weights, as they were saved where None; `adapter` a folder of PEFT's. Raises
        `CheckpointError` for a folder that is torn or holds no block-diffusion policy.
        """
        loaded, blocks = saving.load(
            folder, writer=writer, remarks=remarks, decoding=decoding, dtype=dtype, device=device, adapter=adapter
        )
        return cls(
            loaded.model,
            loaded.tokenizer,
            loaded.writer,
            blocks=blocks,
            remarks=loaded.remarks,
            decoding=loaded.decoding,
        )
