"""SASRec with a full softmax: a causal transformer over the items of a history, which predicts the next.

Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018 (1808.09781). Departs from it in the loss, which
is over the whole catalogue and not one negative (Klenitskiy and Vasilev, RecSys 2023, found that to be what held it
back), in the block, which is pre-norm with GELU, in an item bias, and in the item vectors, which are an embedding plus
a projection of what is written about the item: half of the items of a 5-core log are bought fewer than ten times, too
seldom to place a vector of their own. May import torch and the layers below. Suffixes: `_B` histories, `_T` places of a
history, `_I` items, `_D` width, `_W` numbers that describe a text.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rerank_env.agents import pretrained
from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.arrays import PAD, Float32Array, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError

KIND = "sasrec"
PRECISIONS = ("bfloat16", "float32")
INITIAL_SCALE = 0.02
TEXT_JITTER = 0.1


@dataclass(frozen=True, kw_only=True)
class SasRecConfig:
    """The shape of the network.

    `items` in the catalogue; `history` the last items that are read; `width`, `layers`, `heads` of the transformer;
    `text` how many numbers describe an item's text, 0 for a model that reads none; `dropout`; `precision` of the matrix
    products, whose sums and whose softmax are float32 in either case. The defaults were chosen on the validation split
    of Amazon Beauty.
    """

    items: int
    history: int = 50
    width: int = 128
    layers: int = 1
    heads: int = 2
    text: int = 256
    dropout: float = 0.5
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        """Check every field; raises `InputError` naming it."""
        for name in ("items", "history", "width", "layers", "heads"):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=1))
        object.__setattr__(self, "text", whole("text", self.text, least=0))
        if self.width % self.heads:
            raise InputError(f"width is {self.width}, which {self.heads} heads cannot share; give a multiple")
        if not 0 <= finite("dropout", self.dropout) < 1:
            raise InputError(f"dropout is {self.dropout}; give a number of at least 0 and below 1")
        one_of("precision", self.precision, PRECISIONS)


class SasRec(nn.Module):
    """The network; a `Retriever`. Item -1, the padding, is embedded as nothing and attended to by no item before it."""

    text_IW: Tensor

    def __init__(self, config: SasRecConfig, text_IW: Tensor | None = None) -> None:
        """Random weights from torch's default generator; `text_IW` [items, text], zeros where left out, is not learned.

        With texts, item vectors begin at them, the first `width` numbers of each, and differ by a tenth of their scale.
        """
        super().__init__()
        self.config = config
        self.item_embedding = nn.Parameter(torch.empty(config.items, config.width))
        if config.text:
            self.register_buffer("text_IW", torch.zeros(config.items, config.text) if text_IW is None else text_IW)
            self.text_projection = nn.Parameter(
                torch.eye(config.text, config.width) * (INITIAL_SCALE * math.sqrt(config.width))
            )
        self.place_embedding = nn.Embedding(config.history, config.width)
        self.item_bias = nn.Parameter(torch.zeros(config.items))
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, 4 * config.width, config.dropout, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, config.layers, norm=nn.LayerNorm(config.width), enable_nested_tensor=False
        )
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.item_embedding, std=INITIAL_SCALE * (TEXT_JITTER if config.text else 1.0))
        nn.init.normal_(self.place_embedding.weight, std=INITIAL_SCALE)

    def item_vectors(self) -> Tensor:
        """A vector an item, [I, D]: what is read of a history, and what the state after it is compared with."""
        if not self.config.text:
            return self.item_embedding
        vectors_ID: Tensor = self.item_embedding + self.text_IW @ self.text_projection
        return vectors_ID

    def states(self, items_BT: Tensor, vectors_ID: Tensor) -> Tensor:
        """What is known after each place, float32 [B, T, D]; `items_BT` int64, oldest first, tail padded with -1.

        `vectors_ID` are the `item_vectors`.

        A state depends on the items up to its place only. At most `history` places.
        """
        places = items_BT.shape[1]
        states = vectors_ID[items_BT.clamp(min=0)] * (items_BT != PAD)[..., None] * math.sqrt(self.config.width)
        states = self.dropout(states + self.place_embedding.weight[:places])
        later_TT = torch.ones(places, places, dtype=torch.bool, device=items_BT.device).triu(1)
        with torch.autocast(items_BT.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            encoded: Tensor = self.encoder(states, mask=later_TT, is_causal=True)
        return encoded.float()

    @torch.no_grad()
    def scores(self, history_BH: IntArray) -> Float32Array:
        """Log-probability of every item being next, float32 [B, I]; the network must be in evaluation mode.

        Only the last `config.history` items of a row are read. An empty history is taken for one of padding alone.
        """
        history_BH = np.asarray(history_BH, dtype=np.int64)
        lengths_B = (history_BH != PAD).sum(axis=1)
        width = min(self.config.history, max(1, int(lengths_B.max(initial=1))))
        first_B = np.maximum(lengths_B - width, 0)
        columns_BT = first_B[:, None] + np.arange(width)
        real_BT = columns_BT < lengths_B[:, None]
        last_BT = np.take_along_axis(history_BH, np.where(real_BT, columns_BT, 0), axis=1) if history_BH.size else None
        items_BT = np.full(real_BT.shape, PAD) if last_BT is None else np.where(real_BT, last_BT, PAD)
        device = self.item_bias.device
        vectors_ID = self.item_vectors()
        states_BTD = self.states(torch.from_numpy(items_BT).to(device), vectors_ID)
        last_B = torch.from_numpy(np.clip(lengths_B - first_B - 1, 0, None)).to(device)
        state_BD = states_BTD[torch.arange(len(last_B), device=device), last_B]
        logits_BI = state_BD @ vectors_ID.T + self.item_bias
        found: Float32Array = torch.log_softmax(logits_BI, dim=-1).cpu().numpy()
        return found

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors`; `CheckpointError` where the disk refuses."""
        pretrained.write(directory, KIND, asdict(self.config), self.state_dict())

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> SasRec:
        """What `save_pretrained` left, on the CPU, in evaluation mode; `CheckpointError` where it is not whole."""
        fields, weights = pretrained.read(directory, KIND)
        try:
            model = cls(SasRecConfig(**fields))
        except (TypeError, InputError) as error:
            raise CheckpointError(f"the configuration in {directory} is not one of SasRec ({error})") from error
        pretrained.check_weights(model, weights, directory)
        model.load_state_dict(weights)
        return model.eval()
