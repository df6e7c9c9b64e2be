"""What a model is asked while it is mid-trained: which item comes next, and how likely it finds the one that did.

May import torch and `rerank_env`. The answers are purchases that training never sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rerank_env.agents.language.next_items import next_items
from rerank_env.semantic_ids import SemanticIds
from rerank_env.training.language.batches import IGNORED
from rerank_env.training.language.corpus import Question, Text, bought
from rerank_env.training.language.mixture import encoded
from rerank_env.training.language.packing import Blocks, collated, pack

RECALL_AT = 10

RECALL = f"recall@{RECALL_AT}"
"""The share of questions whose answer is among the ten likeliest items."""


@dataclass(frozen=True, eq=False)
class Exam:
    """What a model is asked while it trains: the next item of users, by their purchases before.

    `blocks` hold every question with its answer, of which the answer's tokens alone are labels.
    """

    questions: Sequence[Question]
    blocks: Blocks
    tokenizer: Any
    semantic_ids: SemanticIds
    beams: int

    @classmethod
    def of(
        cls, questions: Sequence[Question], tokenizer: Any, semantic_ids: SemanticIds, *, beams: int, length: int
    ) -> Exam:
        """Pack the questions into blocks of `length`. Raises `InputError` where there is none."""
        texts = [Text(bought(asked.history, semantic_ids), semantic_ids.text(asked.target)) for asked in questions]
        documents = encoded(texts, tokenizer)
        documents.told_N[documents.starts_D[1:] - 1] = False  # whether a text ends after the answer is not asked
        blocks = pack(documents, length=length, pad_id=tokenizer.eos_token_id)
        return cls(tuple(questions), blocks, tokenizer, semantic_ids, beams)

    @torch.no_grad()
    def loss(self, model: Any, batch_size: int, *, part: slice = slice(None)) -> Tensor:
        """The sum of the negative log-likelihoods of the answers' tokens in these blocks, and their number, [2]."""
        sums = torch.zeros(2, dtype=torch.float64)
        numbers = range(len(self.blocks))[part]
        for start in range(0, len(numbers), batch_size):
            batch = collated([self.blocks[row] for row in numbers[start : start + batch_size]])
            labels_BT = batch.pop("labels").to(model.device)[:, 1:]
            inputs = {
                name: value.to(model.device) if torch.is_tensor(value) else value for name, value in batch.items()
            }
            logits_BTV = model(**inputs).logits[:, :-1]
            asked_BT = labels_BT != IGNORED
            nll = functional.cross_entropy(logits_BTV[asked_BT].float(), labels_BT[asked_BT], reduction="sum")
            sums += torch.tensor([nll.item(), asked_BT.sum().item()])
        return sums

    def found(self, model: Any, *, part: slice = slice(None)) -> Tensor:
        """How many of these questions have their answer among the ten likeliest items, and how many there are, [2]."""
        some = self.questions[part]
        texts = [bought(asked.history, self.semantic_ids) for asked in some]
        items_BN = next_items(model, self.tokenizer, self.semantic_ids, texts, beams=self.beams).items_BN
        hits = sum(asked.target in row[:RECALL_AT].tolist() for asked, row in zip(some, items_BN, strict=True))
        return torch.tensor([hits, len(some)], dtype=torch.float64)
