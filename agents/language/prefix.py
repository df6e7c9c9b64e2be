"""Prompts read into a cache of keys and values, what they begin with in common once.

May import torch, transformers and `rerank_env.rewards`. Suffixes: `_R` rows, `_S` slots of the cache, `_W` tokens read
at a time, `_V` vocabulary.

Prompts are read in up to three passes: what all of them begin with, what groups of them share after that (the
candidates that are offered to several users), and the rest of each. A pass starts from copies of the cache that the
one before it left. In a pass, rows of unequal length are padded on the left, so the cache has holes between passes;
the mask hides them and positions are counted without them, so that nothing depends on where they are. Keys and values
of a token depend on the tokens before it only, so sharing changes no result beyond the rounding of sums.

A model can be read so if its forward takes positions and a cache, and the cache keeps every token of every layer:
layers with a sliding window, recurrent states and the like would have to know of the holes. `can_share` tells.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rerank_env.agents.language.models import base_of
from rerank_env.rewards.errors import MissingExtraError

try:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'language policies need {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

LEAST_SHARED = 16
"""Fewer tokens in common are not worth a pass of their own."""

LEAST_SAVED = 8
"""A pass for groups is worth it where it saves one token in so many."""

_ROOM = 64
"""Slots by which a full cache grows."""


class RoomyLayer(DynamicLayer):
    """Keys and values of one layer in a buffer with room to grow, so that a new token does not copy the old ones."""

    _buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [R, heads, W, size]; gives all of them, as views of the buffer."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return self.keys, self.values
        assert self.keys is not None, "a layer that was begun has keys"
        assert self.values is not None, "and values"
        start, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < end:
            self._buffers = (_grown(self.keys, end + _ROOM), _grown(self.values, end + _ROOM))
        keys, values = self._buffers
        keys[..., start:end, :] = key_states
        values[..., start:end, :] = value_states
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self.keys, self.values

    def selected(self, rows_R: Tensor) -> RoomyLayer:
        """A copy of these rows; the layer itself stays as it is."""
        layer = RoomyLayer()
        if self.keys is not None and self.values is not None:
            layer.lazy_initialization(self.keys, self.values)
            layer.keys, layer.values = self.keys.index_select(0, rows_R), self.values.index_select(0, rows_R)
        return layer


def _grown(states: Tensor, slots: int) -> Tensor:
    buffer = states.new_empty(*states.shape[:-2], slots, states.shape[-1])
    buffer[..., : states.shape[-2], :] = states
    return buffer


@dataclass(frozen=True, eq=False)
class Prefilled:
    """Prompts that were read: a cache, `mask_RS` bool (False: a hole), `lengths_R` in tokens, logits of the next."""

    cache: DynamicCache
    mask_RS: Tensor
    lengths_R: Tensor
    logits_RV: Tensor

    def selected(self, rows_R: Tensor) -> Prefilled:
        """A copy of these rows, which may repeat."""
        return Prefilled(
            selected_cache(self.cache, rows_R),
            self.mask_RS.index_select(0, rows_R),
            self.lengths_R.index_select(0, rows_R),
            self.logits_RV.index_select(0, rows_R),
        )


def selected_cache(cache: DynamicCache, rows_R: Tensor) -> DynamicCache:
    """A copy of these rows of a cache."""
    copy = DynamicCache()
    layers: list[Any] = cache.layers
    copy.layers = [layer.selected(rows_R) for layer in layers]
    return copy


class Pass(NamedTuple):
    """What is read in one pass: a `segment` a row, and which row of the pass before each goes on from."""

    segments: list[Sequence[int]]
    parents: list[int]


def can_share(model: Any) -> bool:
    """Whether the caches of this model can be copied, expanded and have holes."""
    known = parameters_of(model)
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return False  # virtual tokens come before the prompt, and PEFT puts them into the cache itself
    if not {"position_ids", cache_name(type(base_of(model)))} <= known:
        return False
    layers = DynamicCache(config=base_of(model).config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def parameters_of(model: Any) -> frozenset[str]:
    """What the forward of a model takes by name; of the model inside, where PEFT is around it."""
    kind: Any = type(base_of(model))
    return _parameters(kind)


@lru_cache(maxsize=16)
def _parameters(kind: Any) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)


def cache_name(kind: Any) -> str:
    """What a class of models calls the cache that its forward takes, which releases of transformers differ in."""
    return "cache" if "cache" in _parameters(kind) else "past_key_values"


def common_prefix(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all prompts begin with in common; one token of each is always left over."""
    first, last = min(prompts), max(prompts)  # what these two share in sorted order, all share
    limit = min(map(len, prompts)) - 1
    same = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), limit)
    return min(same, limit)


def passes(prompts: Sequence[tuple[int, ...]], start: int) -> tuple[list[Pass], list[int]]:
    """The passes that read distinct prompts from token `start` on, and which row of the last is which prompt's.

    Passes start from one row. There is one pass, or, where sharing saves enough, one of groups before it.
    """
    order = sorted(range(len(prompts)), key=lambda row: prompts[row])
    groups = _groups([prompts[row] for row in order], start)
    shared = [common_prefix([prompts[order[place]] for place in group]) if len(group) > 1 else 0 for group in groups]
    saved = sum((len(group) - 1) * (end - start) for group, end in zip(groups, shared, strict=True) if end)
    total = sum(len(prompt) - start for prompt in prompts)
    if saved * LEAST_SAVED < total:
        return [Pass([prompt[start:] for prompt in prompts], [0] * len(prompts))], list(range(len(prompts)))
    longest = max(shared)
    ends = [end or min(longest, len(prompts[order[group[0]]]) - 1) for group, end in zip(groups, shared, strict=True)]
    heads = Pass(
        [prompts[order[group[0]]][start:end] for group, end in zip(groups, ends, strict=True)], [0] * len(groups)
    )
    parents = [number for number, group in enumerate(groups) for _ in group]
    tails = Pass([prompts[row][ends[parent] :] for row, parent in zip(order, parents, strict=True)], parents)
    rows = [0] * len(prompts)
    for place, row in enumerate(order):
        rows[row] = place
    return [heads, tails], rows


def _groups(prompts: Sequence[tuple[int, ...]], start: int) -> list[list[int]]:
    """Runs of sorted prompts of which neighbours share `LEAST_SHARED` tokens beyond `start`."""
    groups: list[list[int]] = []
    for place, prompt in enumerate(prompts):
        if groups and common_prefix([prompts[place - 1], prompt]) >= start + LEAST_SHARED:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def read(model: Any, before: Prefilled | None, one: Pass, *, pad_id: int) -> Prefilled:
    """One pass: every segment read behind its parent's row of `before`; segments are not empty but where all rows are.

    What is left is float32 logits of the next token. Not to be called with gradients.
    """
    device = model.device
    width = max(map(len, one.segments))
    ids_RW = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in one.segments], device=device)
    counts_R = torch.tensor([len(s) for s in one.segments], device=device)
    mask_RW = torch.arange(width, device=device) >= width - counts_R[:, None]
    if before is None:
        cache, mask_RS, lengths_R = DynamicCache(), mask_RW, torch.zeros_like(counts_R)
        layers = DynamicCache(config=base_of(model).config).layers
        cache.layers = [RoomyLayer() for _ in layers]
    else:
        parents_R = torch.tensor(one.parents, device=device)
        cache = selected_cache(before.cache, parents_R)
        mask_RS = torch.cat([before.mask_RS.index_select(0, parents_R), mask_RW], dim=1)
        lengths_R = before.lengths_R.index_select(0, parents_R)
    positions_RW = (lengths_R[:, None] + mask_RW.cumsum(1) - 1).clamp(min=0)
    logits_RV = forward(model, ids_RW, mask_RS, positions_RW, cache)
    return Prefilled(cache, mask_RS, lengths_R + counts_R, logits_RV)


def forward(model: Any, ids_RW: Tensor, mask_RS: Tensor | None, positions_RW: Tensor, cache: DynamicCache) -> Tensor:
    """The logits [R, V] behind the last of the new tokens, whose keys and values are put into the cache."""
    options: dict[str, Any] = {cache_name(type(base_of(model))): cache, "use_cache": True}
    if "logits_to_keep" in parameters_of(model):
        options["logits_to_keep"] = 1
    out = model(input_ids=ids_RW, attention_mask=mask_RS, position_ids=positions_RW, **options)
    logits_RV: Tensor = out.logits[:, -1]
    return logits_RV
