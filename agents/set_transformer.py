"""A transformer over a set of tokens: attention without positions, so that permuting tokens permutes the output.

May import torch only. Suffixes: `_B` requests, `_T` tokens, `_D` width. The layers are pre-norm (Xiong et al.,
2002.04745). They are written out rather than taken from `torch.nn.TransformerEncoder` because that one switches to
other kernels when gradients are off: a sampled log-probability and the same one in training would then differ in the
last bits, and a policy ratio that should be exactly 1 would not be.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x))."""

    def __init__(self, dim: int, heads: int, feedforward: int, dropout: float) -> None:
        """`dim` must be a multiple of `heads`."""
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.queries_keys_values = nn.Linear(dim, 3 * dim)
        self.mixed = nn.Linear(dim, dim)
        self.feedforward_norm = nn.LayerNorm(dim)
        self.wide = nn.Linear(dim, feedforward)
        self.narrow = nn.Linear(feedforward, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens_BTD: Tensor, attended_BT: Tensor) -> Tensor:
        """New tokens [B, T, D]; every token attends to the tokens where `attended_BT` is true, at least one a row."""
        rows, count, dim = tokens_BTD.shape
        projected = self.queries_keys_values(self.attention_norm(tokens_BTD))
        queries, keys, values = projected.view(rows, count, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=attended_BT[:, None, None])
        tokens_BTD = tokens_BTD + self.dropout(self.mixed(attended.transpose(1, 2).reshape(rows, count, dim)))
        widened = functional.gelu(self.wide(self.feedforward_norm(tokens_BTD)))
        out_BTD: Tensor = tokens_BTD + self.dropout(self.narrow(widened))
        return out_BTD


class SetTransformer(nn.Module):
    """Layers on top of one another and a last norm."""

    def __init__(self, *, dim: int, layers: int, heads: int, feedforward: int, dropout: float) -> None:
        """Build `layers` layers; 0 leaves the norm."""
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim, heads, feedforward, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens_BTD: Tensor, attended_BT: Tensor) -> Tensor:
        """New tokens [B, T, D]. What stands at a token that is not attended to reaches no other token."""
        for layer in self.layers:
            tokens_BTD = layer(tokens_BTD, attended_BT)
        normed: Tensor = self.norm(tokens_BTD)
        return normed
