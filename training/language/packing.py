"""Documents in blocks of one length, several to a block, none of which sees another.

May import numpy, torch and the modules below. A block says where its documents begin by positions that start again at
0. Models of transformers read that as a mask, whatever attention they use, where they get no attention mask and no
cache; `check_apart` asks a given model whether it does. TRL's own packing (`padding_free`) makes one long row a batch
and is meant for flash attention; blocks of a fixed shape are no slower on a CPU, where a mask over the long row would
cost the square of it. Suffixes: `_B` blocks, `_T` tokens.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.language.models import evaluated
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.training.language.batches import IGNORED
from rerank_env.training.language.mixture import Documents

OPEN = 64
"""Blocks that are filled at once: each document goes where it leaves the least room."""

CLOSE = 1e-3
"""By how much logits of a packed and a lone document may differ, in parts of their largest."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Packed documents, all int64 [B, T].

    `ids_BT` the tokens, `labels_BT` the same where a token is learned and -100 elsewhere (the first of a document is
    never learned, because nothing of its own stands before it), `positions_BT` from 0 in each document; the room that
    is left at the end is one more document of padding. `split` is how many documents did not fit in one block.
    """

    ids_BT: IntArray
    labels_BT: IntArray
    positions_BT: IntArray
    split: int = 0

    def __len__(self) -> int:
        """How many blocks."""
        return len(self.ids_BT)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """One block, as trainers of transformers ask for it."""
        return {
            "input_ids": torch.from_numpy(self.ids_BT[row]),
            "labels": torch.from_numpy(self.labels_BT[row]),
            "position_ids": torch.from_numpy(self.positions_BT[row]),
        }


def collated(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    """Blocks as one batch; without a cache, so that models keep the documents apart."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} | {"use_cache": False}


def pack(documents: Documents, *, length: int, pad_id: int) -> Blocks:
    """Put documents into blocks of `length` tokens; each stays whole unless it is longer than a block.

    A longer one is cut into pieces that do not see one another. The order of documents decides alone. Documents of
    which nothing would be learned are left out. Raises `InputError` where no document is left.
    """
    whole("length", length, least=2)
    blocks: list[list[tuple[int, int]]] = []
    rooms: list[tuple[int, int]] = []  # what is left in the open blocks, and which they are, sorted
    split = 0
    for start, end in zip(documents.starts_D[:-1].tolist(), documents.starts_D[1:].tolist(), strict=True):
        split += end - start > length
        for piece in range(start, end, length):
            stop = min(piece + length, end)
            if not documents.told_N[piece + 1 : stop].any():
                continue
            place = bisect.bisect_left(rooms, (stop - piece, -1))
            if place == len(rooms):
                blocks.append([])
                room, block = length, len(blocks) - 1
            else:
                room, block = rooms.pop(place)
            blocks[block].append((piece, stop))
            bisect.insort(rooms, (room - (stop - piece), block))
            if len(rooms) > OPEN:
                rooms.pop(0)
    if not blocks:
        raise InputError("no document has a token to be learned after its first one; give texts to learn from")
    shape = (len(blocks), length)
    packed = Blocks(
        np.full(shape, pad_id, dtype=np.int64),
        np.full(shape, IGNORED, dtype=np.int64),
        np.zeros(shape, dtype=np.int64),
        split,
    )
    for row, pieces in enumerate(blocks):
        at = 0
        for start, end in pieces:
            here = slice(at, at + end - start)
            ids_T, told_T = documents.ids_N[start:end], documents.told_N[start:end].copy()
            told_T[0] = False
            packed.ids_BT[row, here] = ids_T
            packed.labels_BT[row, here] = np.where(told_T, ids_T, IGNORED)
            packed.positions_BT[row, here] = np.arange(end - start)
            at = here.stop
        packed.positions_BT[row, at:] = np.arange(length - at)
    return packed


@torch.no_grad()
def check_apart(model: Any, blocks: Blocks) -> None:
    """Raise `InputError` unless `model` reads the second document of a block as if it stood alone.

    Asks about one block; where all have a single document there is nothing to ask.
    """
    starts_BT = blocks.positions_BT == 0
    rows = np.flatnonzero(starts_BT.sum(axis=1) > 1)
    if not len(rows):
        return
    row = int(rows[0])
    first, *others = np.flatnonzero(starts_BT[row]).tolist()[1:]
    last = others[0] if others else blocks.ids_BT.shape[1]
    device = model.get_input_embeddings().weight.device
    packed = {name: values.to(device) for name, values in blocks[row].items() if name != "labels"}
    with evaluated(model):
        told = {name: values[None] for name, values in packed.items()}
        together_TV = model(**told, use_cache=False).logits[0].float()
        alone_TV = model(input_ids=packed["input_ids"][None, first:last], use_cache=False).logits[0].float()
    difference = (together_TV[first:last] - alone_TV).abs().max().item()
    if not difference <= CLOSE * max(1.0, alone_TV.abs().max().item()):
        raise InputError(
            f"{type(model).__name__} does not keep packed documents apart (logits differ by {difference:.3g}); give a "
            "model whose attention reads position_ids, as those of transformers do"
        )
