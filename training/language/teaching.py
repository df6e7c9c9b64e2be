"""A teacher that is frozen and reads what a student wrote: the same tokens, and its logits at the same places.

May import torch, and `rerank_env`. Divergences compare numbers token by token, so student and teacher must agree in
every token and its number, and their heads in size: two tokenizers of one size can number their tokens differently, and
then a divergence is computed without complaint and means nothing. Both are checked before anything is trained. One
token may be the student's alone, or mean something else to the teacher: that which a block-diffusion student hides
others by. Suffixes: `_N` answers, `_P` tokens of a prompt, `_T` of an answer, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rerank_env.rewards.errors import InputError
from rerank_env.training.language.sharing import completion_logits
from rerank_env.training.language.weights import weights_hash


class FrozenTeacher:
    """The logits of `policy.model`, which is never trained and stays on its own device.

    Raises `InputError` where the student is the teacher itself, and as `check_same_tokens` does.
    """

    def __init__(self, policy: Any, student: Any, *, mask_id: int | None = None) -> None:
        """Both are policies: a `model` and its `tokenizer`; `mask_id` as `check_same_tokens` takes it."""
        if {*map(id, policy.model.parameters())} & {*map(id, student.model.parameters())}:
            raise InputError(
                "the teacher is the student itself or shares weights with it, so that it would learn along; give a "
                "copy, or another"
            )
        if hasattr(policy, "blocks"):
            raise InputError(
                "the teacher writes in blocks, but is to be read left to right; give an autoregressive one"
            )
        sizes = _outputs(student.model), _outputs(policy.model)
        check_same_tokens(student.tokenizer, policy.tokenizer, sizes=sizes, mask_id=mask_id)
        self.size = sizes[1]
        self.model = policy.model

    @torch.no_grad()
    def logits(self, rollouts: Mapping[str, Tensor]) -> Tensor:
        """What the teacher says each token of the answers will be, before it is read: [N, T, V], without a graph.

        `rollouts` have `prompt_ids` and `prompt_mask` [N, P], padded on the left, and `completion_ids` and
        `completion_mask` [N, T], padded on the right, as TRL has them. Places that are padding mean nothing.
        """
        device = next(self.model.parameters()).device
        self.model.eval()
        names = "prompt_ids", "prompt_mask", "completion_ids", "completion_mask"
        return completion_logits(self.model, *(rollouts[name].to(device) for name in names)).detach()

    def fingerprint(self) -> str:
        """A short hash of the weights, which tells one teacher from another when a run is resumed."""
        return weights_hash(self.model)


def check_same_tokens(
    student: Any, teacher: Any, *, sizes: tuple[int, int] | None = None, mask_id: int | None = None
) -> None:
    """Raise `InputError`, naming the first token that differs, where two tokenizers do not number the same tokens.

    `sizes`: how many logits the student's model has, and the teacher's, which must be equal as well. Special tokens
    that are added are tokens like others. Which of them ends an answer may differ: the student's is what counts.
    `mask_id`: a token that is not compared; the student may have one logit more for it, behind all others.
    """
    ours, theirs = (
        {token: number for token, number in of.get_vocab().items() if number != mask_id} for of in (student, teacher)
    )
    by_number = {number: token for token, number in (theirs | ours).items()}
    for token in [by_number[number] for number in sorted(by_number)] + sorted({*theirs} - {*ours}):
        if ours.get(token) != theirs.get(token):
            numbers = [of.get(token, "missing") for of in (ours, theirs)]
            raise InputError(
                f"the number of token {token!r} is {numbers[0]} for the student but {numbers[1]} for the teacher; take "
                "two models with the same tokens, or give the teacher's new ones to the student first"
            )
    if sizes is not None and sizes[0] != sizes[1] + (mask_id == sizes[1]):
        raise InputError(
            f"the student has {sizes[0]} logits but the teacher {sizes[1]}, though their tokens are the same; resize "
            "one of them to the other with resize_token_embeddings"
        )


def _outputs(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])
