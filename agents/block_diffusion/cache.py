"""Keys and values of prompts and finished blocks, with a place for every token of a completion. Exact.

May import torch, numpy, transformers and the layers below. Suffixes: `_R` rows, `_S` slots, `_W` tokens read at a
time, `_N` tokens whose logits are asked for, `_V` vocabulary.

    slots of a row:  [ the prompt, with holes | place 0 of the completion, place 1, ... ]

The tokens of a canvas are put where the clean tokens of the same block will stand, which overwrite them later, so
nothing is copied when a block is finished. A token sees a beginning of its row's slots and nothing else: a canvas all
up to its own end, a clean token all up to the end of its block, or up to itself. So what stands behind is never read.
Rows may be in different blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rerank_env.agents.language.models import base_of
from rerank_env.agents.language.prefix import Prefilled, cache_name, parameters_of
from rerank_env.rewards.arrays import IntArray

_ROOM = 128
"""Slots by which a full cache grows."""


@dataclass(frozen=True, eq=False)
class _Target:
    """Where the tokens of a pass are put, [R, W], and the first slot that no row uses."""

    rows_R1: Tensor
    slots_RW: Tensor
    end: int
    start: int | None
    """The first slot, where it is the same in all rows."""


@dataclass(frozen=True, eq=False)
class _Layout:
    """What passes over the same places have in common: `first_R` and `reach_RW` as they were asked for, where the
    tokens are put, the mask [R, 1, W, slots] that is added to scores, and positions.
    """

    first_R: IntArray
    reach_RW: IntArray
    target: _Target
    mask: Tensor
    positions_RW: Tensor

    def is_of(self, first_R: IntArray, reach_RW: IntArray) -> bool:
        """Whether these are the places that it was made for."""
        return np.array_equal(self.first_R, first_R) and np.array_equal(self.reach_RW, reach_RW)


class PlacedLayer(DynamicLayer):
    """Keys and values [R, heads, slots, size] of one layer, written at slots that the cache names before each pass."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self.target: _Target | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values [R, heads, W, size] at the slots of the pass; gives all up to the last of them."""
        target, keys, values = self.target, self.keys, self.values
        assert target is not None, "the cache names the slots before a pass"
        assert keys is not None, "a placed layer has keys from the beginning"
        assert values is not None, "and values"
        for into, states in ((keys, key_states), (values, value_states)):
            if target.start is not None:
                into[:, :, target.start : target.start + states.shape[2]] = states
            else:
                into[target.rows_R1, :, target.slots_RW] = states.transpose(1, 2)
        return keys[:, :, : target.end], values[:, :, : target.end]

    def get_seq_length(self) -> int:
        """The slots that are looked at."""
        return 0 if self.target is None else self.target.end


@dataclass(eq=False)
class PlacedCache:
    """Rows that completions are written to: a cache of `PlacedLayer`s, which prompt slots `real_RS` are no holes, and
    the tokens of each prompt.
    """

    cache: DynamicCache
    real_RS: Tensor
    lengths_R: Tensor
    _layout: _Layout | None = None

    @classmethod
    def of(cls, prompts: Prefilled, rows_R: Tensor) -> PlacedCache:
        """Copies of these rows of prompts that were read; rows may repeat."""
        cache = DynamicCache()
        read: list[Any] = prompts.cache.layers
        placed = [
            PlacedLayer(*(_selected(states, rows_R, states.shape[2] + _ROOM) for states in (layer.keys, layer.values)))
            for layer in read
        ]
        cache.layers = list(placed)
        return cls(cache, prompts.mask_RS.index_select(0, rows_R), prompts.lengths_R.index_select(0, rows_R))

    def selected(self, rows_R: Tensor) -> PlacedCache:
        """A copy of these rows."""
        cache = DynamicCache()
        layers: list[Any] = self.cache.layers
        cache.layers = [
            PlacedLayer(*(_selected(states, rows_R, states.shape[2]) for states in (layer.keys, layer.values)))
            for layer in layers
        ]
        return PlacedCache(cache, self.real_RS.index_select(0, rows_R), self.lengths_R.index_select(0, rows_R))

    def forward(
        self, model: Any, ids_RW: Tensor, first_R: IntArray, reach_RW: IntArray, *, limit: int, kept_N: Tensor
    ) -> Tensor:
        """The logits [R, N, V] behind the tokens `kept_N` of every row, whose keys and values are put in their places.

        `first_R`: the place in the completion at which the tokens of a row begin; they stand side by side. `reach_RW`:
        each sees the prompt and the completion's places before this one. Places from `limit` on, which is the same in
        all passes, are padding: they are given the last position before it, so that positions stay those that
        completions have.
        """
        if self._layout is None or not self._layout.is_of(first_R, reach_RW):
            self._lay_out(first_R, reach_RW, limit, model.dtype)
        layout = self._layout
        assert layout is not None, "it was just made"
        options: dict[str, Any] = {cache_name(type(base_of(model))): self.cache, "use_cache": True}
        keeps = "logits_to_keep" in parameters_of(model)
        if keeps:
            options["logits_to_keep"] = kept_N
        out = model(input_ids=ids_RW, attention_mask=layout.mask, position_ids=layout.positions_RW, **options)
        logits_RNV: Tensor = out.logits if keeps else out.logits[:, kept_N]
        return logits_RNV

    def _lay_out(self, first_R: IntArray, reach_RW: IntArray, limit: int, dtype: torch.dtype) -> None:
        """Make the layout of the next pass, and room for it. Rounds of the same blocks have the same."""
        device = self.real_RS.device
        prompt, width = self.real_RS.shape[1], reach_RW.shape[1]
        places_RW = torch.from_numpy(first_R[:, None] + np.arange(width)).to(device)
        end = prompt + int(first_R.max()) + width
        same = prompt + int(first_R[0]) if (first_R == first_R[0]).all() else None
        target = _Target(torch.arange(len(first_R), device=device)[:, None], prompt + places_RW, end, same)
        layers: list[Any] = self.cache.layers
        for layer in layers:
            if layer.keys.shape[2] < end:
                layer.keys, layer.values = (_grown(states, end + _ROOM) for states in (layer.keys, layer.values))
            layer.target = target
        seen_RWS = torch.arange(end, device=device) < torch.from_numpy(prompt + reach_RW).to(device)[:, :, None]
        seen_RWS[:, :, :prompt] &= self.real_RS[:, None]
        mask = torch.zeros(seen_RWS.shape, dtype=dtype, device=device)
        mask = mask.masked_fill(~seen_RWS, torch.finfo(dtype).min)[:, None]
        positions_RW = self.lengths_R[:, None] + places_RW.clamp(max=limit - 1)
        self._layout = _Layout(first_R, reach_RW, target, mask, positions_RW)


def _selected(states: Tensor, rows_R: Tensor, slots: int) -> Tensor:
    """These rows of keys or values, with so many slots; new ones are zeros, as what is masked must still be finite."""
    chosen = states.index_select(0, rows_R)
    more = slots - states.shape[2]
    return torch.nn.functional.pad(chosen, (0, 0, 0, more)) if more else chosen


def _grown(states: Tensor, slots: int) -> Tensor:
    return torch.nn.functional.pad(states, (0, 0, 0, slots - states.shape[2]))
