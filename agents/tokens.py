"""Tokens of a request: what a set transformer is told about the request, its history and its candidates.

May import torch, numpy and the layers below. Suffixes: `_B` requests, `_K` candidates, `_H` history entries, `_T` =
1 + H + K tokens, `_I` items, `_F` item features, `_E` width of an item's vector, `_D` width of a token.

A history entry is its item, the feedback, the item times the feedback (so that a mean over the history is a taste: a
linear model can read it), and its age in entries: history order is information. A candidate is its item and the first
stage's score, never a position. Feedback and scores enter twice: standardised over all training requests, and as
deviation from the request's own mean, which cancels how generous a user is and how good a whole list is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rerank_env.agents.observations import Observation
from rerank_env.rewards.arrays import Float32Array
from rerank_env.rewards.errors import InputError

TABLE_TOLERANCE = 1e-2
"""What a table may differ by and still be the same one: half precision moves entries up to `OUTLIER` by that much."""

OUTLIER = 10.0
"""Standardised inputs are cut here, so that one wild value cannot drown a token."""

ROUNDING = 1e-6
"""A deviation below this share of the largest value is the float32 rounding of a constant."""


class Tokens(nn.Module):
    """Embeds observations. The item table is kept with the weights, so a loaded policy needs no catalogue.

    `features_IF` [I, F] is standardised column by column. The scales of scores and feedback are (mean, deviation,
    deviation inside a request), 0, 1, 1 until `fit` has seen training requests.
    """

    features_IF: Tensor
    score_scale: Tensor
    feedback_scale: Tensor

    def __init__(self, features_IF: Float32Array | Tensor, *, dim: int, history: int, item_embedding: int) -> None:
        """`history` ages are told apart; `InputError` where items could not be."""
        super().__init__()
        given_IF = features_IF if isinstance(features_IF, Tensor) else torch.from_numpy(np.array(features_IF))
        table_IF = given_IF.detach().float()
        if table_IF.ndim != 2 or len(table_IF) == 0 or table_IF.shape[1] + item_embedding == 0:
            raise InputError(
                f"features have shape {tuple(table_IF.shape)}; give (items, features) with at least one item, and "
                "where there are no features an item_embedding"
            )
        width_E = table_IF.shape[1] + item_embedding
        self.embedding = nn.Embedding(len(table_IF), item_embedding) if item_embedding else None
        self.item = nn.Linear(width_E, dim)
        self.liked = nn.Linear(width_E, dim, bias=False)
        self.feedback = nn.Linear(2, dim)
        self.first_stage = nn.Linear(2, dim)
        self.recency = nn.Embedding(history, dim)
        self.request = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_buffer("features_IF", _standardised(table_IF))
        self.register_buffer("score_scale", torch.tensor([0.0, 1.0, 1.0]))
        self.register_buffer("feedback_scale", torch.tensor([0.0, 1.0, 1.0]))

    def were_built_for(self, features_IF: Float32Array) -> bool:
        """Whether these are the features the table was made from, up to another machine's rounding or precision."""
        table_IF = _standardised(torch.from_numpy(np.array(features_IF, dtype=np.float32)))
        return table_IF.shape == self.features_IF.shape and torch.allclose(
            table_IF, self.features_IF.cpu().float(), rtol=TABLE_TOLERANCE, atol=TABLE_TOLERANCE
        )

    @torch.no_grad()
    def fit(self, seen: Observation) -> None:
        """Learn the scale of scores and feedback from training requests; a constant keeps the scale 1."""
        self.score_scale.copy_(_scale(seen.scores_BK, seen.candidates_BK >= 0))
        self.feedback_scale.copy_(_scale(seen.feedback_BH, seen.history_BH >= 0))

    def forward(self, seen: Observation) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [B, 1 + H + K, D] (request, history, candidates), which of them are real, and scores [B, K].

        The scores are the first stage's, as deviation from the request's mean in units of the usual deviation.
        Raises `InputError` where an item number is not in the table.
        """
        self._check_items(seen)
        past_BH, real_BK = seen.history_BH >= 0, seen.candidates_BK >= 0
        items_BHE = self._items(seen.history_BH)
        feedback_BH2 = _standardised_twice(seen.feedback_BH, past_BH, self.feedback_scale)
        age_BH = (past_BH.sum(-1, keepdim=True) - past_BH.cumsum(-1)).clamp(max=self.recency.num_embeddings - 1)
        history_BHD = (
            self.item(items_BHE)
            + self.liked(items_BHE * feedback_BH2[..., 1:])
            + self.feedback(feedback_BH2)
            + self.recency(age_BH)
        )
        scores_BK2 = _standardised_twice(seen.scores_BK, real_BK, self.score_scale)
        candidates_BKD = self.item(self._items(seen.candidates_BK)) + self.first_stage(scores_BK2)
        rows = len(seen)
        tokens_BTD = torch.cat([self.request.expand(rows, 1, -1), history_BHD, candidates_BKD], dim=1)
        real_BT = torch.cat([real_BK.new_ones(rows, 1), past_BH, real_BK], dim=1)
        return tokens_BTD, real_BT, scores_BK2[..., 1]

    def _items(self, items: Tensor) -> Tensor:
        index = items.clamp(min=0)
        vectors = self.features_IF[index]
        return vectors if self.embedding is None else torch.cat([vectors, self.embedding(index)], dim=-1)

    def _check_items(self, seen: Observation) -> None:
        count = len(self.features_IF)
        for name, items in (("candidate", seen.candidates_BK), ("history", seen.history_BH)):
            if items.numel() and int(items.max()) >= count:
                raise InputError(
                    f"{name} item {int(items.max())} is not among the policy's {count} items; rank requests over the "
                    "catalogue that the policy was built for"
                )


def _standardised(table_IF: Tensor) -> Tensor:
    """Columns with mean 0 and deviation 1, cut at `OUTLIER`; a constant column becomes 0."""
    centred_IF = table_IF.double() - table_IF.double().mean(0)
    deviation_F = _unless_constant(centred_IF.square().mean(0).sqrt(), table_IF.abs().amax(0))
    return (centred_IF / deviation_F).clamp(-OUTLIER, OUTLIER).to(table_IF.dtype)


def _unless_constant(deviation: Tensor, largest: Tensor) -> Tensor:
    """The deviation, or 1 where it is nothing but rounding beside the largest absolute value."""
    return torch.where(deviation > ROUNDING * largest, deviation, 1.0)


def _own_mean(values: Tensor, real: Tensor) -> Tensor:
    """The mean over the real entries of each row, [B, 1]; 0 for a row without any."""
    return values.masked_fill(~real, 0.0).sum(-1, keepdim=True) / real.sum(-1, keepdim=True).clamp(min=1)


def _scale(values: Tensor, real: Tensor) -> Tensor:
    """(mean, deviation, deviation from the own row's mean) over the real entries."""
    if not real.any():
        return torch.tensor([0.0, 1.0, 1.0])
    values = values.double()
    mean, largest = values[real].mean(), values[real].abs().max()
    deviation = (values[real] - mean).square().mean().sqrt()
    inside = (values - _own_mean(values, real))[real].square().mean().sqrt()
    return torch.stack([mean, _unless_constant(deviation, largest), _unless_constant(inside, largest)])


def _standardised_twice(values: Tensor, real: Tensor, scale: Tensor) -> Tensor:
    """Values [B, X] as [B, X, 2]: standardised over all requests, and inside their own; 0 where padded."""
    mean, deviation, inside = scale.unbind()
    both = torch.stack([(values - mean) / deviation, (values - _own_mean(values, real)) / inside], dim=-1)
    return both.masked_fill(~real.unsqueeze(-1), 0.0).clamp(-OUTLIER, OUTLIER)
