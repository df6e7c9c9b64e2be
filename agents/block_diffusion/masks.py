"""Who sees whom in block diffusion, as named predicates on places, and the masks that are made of them.

May import torch and `rerank_env.rewards`. Suffixes: `_R` rows, `_W` tokens of a row, `_Q` those that look, `_K` those
that are looked at.

A completion is cut into blocks of equal size. A row has it once clean, behind its prompt, and any number of noisy
copies of single blocks, in which some tokens are hidden. Who is allowed to look at whom:

- `own_canvas`: a token of a noisy copy at all of the same copy, hidden or not, before or after it;
- `earlier_blocks`: a token of a noisy copy at the prompt and at the clean tokens of blocks before its own;
- `clean_past`: a clean token at the prompt and at clean tokens up to itself or, with `clean` "block", to the end of its
  block. The prompt is read causally in either case, as the model read it before it was converted.

One row with a noisy copy of every block is the doubled sequence that block diffusion is trained on (BD3-LM, 2503.09573,
section 3); a copy for every round of a decoding is its replay (TraceRL, 2509.06949). With blocks of one token and none
hidden in the copies, the clean part is a causal model's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.errors import InputError

CLEAN = ("block", "causal")
PROMPT, CLEAN_COPY = -1, -1
"""The block of a token of the prompt, and the copy of a token that is in none."""


@dataclass(frozen=True)
class Blocks:
    """How completions are cut and seen; a part of what a policy is, and saved with it.

    `size` of a block in tokens. `shift`: token i is predicted where token i - 1 stands, as a causal model does, and the
    first of a block where the last clean token before it does; else where it stands itself. `clean`: whether finished
    blocks are read in both directions ("block") or as a causal model reads ("causal"). Raises `InputError`.
    """

    size: int = 32
    shift: bool = True
    clean: str = "block"

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "size", whole("the size of a block", self.size, least=1))
        one_of("reading of finished blocks", self.clean, CLEAN)
        if not isinstance(self.shift, bool):
            raise InputError(f"shift is {self.shift!r}; give True or False")

    def count(self, tokens: int) -> int:
        """How many blocks so many tokens of a completion are cut into."""
        return -(-tokens // self.size)


@dataclass(frozen=True, eq=False)
class Places:
    """Where the tokens of rows stand, int64 [R, W] each, and which are `real` (not padding), bool [R, W].

    `position` as the model counts it, from 0 at the start of the prompt; a noisy token has that of the clean one that
    it stands for. `block`: counted from 0, `PROMPT` in the prompt. `copy`: which noisy copy, `CLEAN_COPY` where clean.
    """

    position_RW: Tensor
    block_RW: Tensor
    copy_RW: Tensor
    real_RW: Tensor

    def looking(self) -> Places:
        """The same as [R, W, 1], to be compared with `looked_at`."""
        return Places(*(getattr(self, name)[:, :, None] for name in _FIELDS))

    def looked_at(self) -> Places:
        """The same as [R, 1, W]."""
        return Places(*(getattr(self, name)[:, None, :] for name in _FIELDS))


_FIELDS = ("position_RW", "block_RW", "copy_RW", "real_RW")
Predicate = Callable[[Places, Places], Tensor]


def own_canvas(q: Places, k: Places) -> Tensor:
    """Both in the same noisy copy."""
    return (q.copy_RW == k.copy_RW) & (q.copy_RW != CLEAN_COPY)


def earlier_blocks(q: Places, k: Places) -> Tensor:
    """From a noisy copy to the prompt and the clean tokens of earlier blocks."""
    return (q.copy_RW != CLEAN_COPY) & (k.copy_RW == CLEAN_COPY) & (k.block_RW < q.block_RW)


def clean_causal(q: Places, k: Places) -> Tensor:
    """From a clean token to those up to itself."""
    return (q.copy_RW == CLEAN_COPY) & (k.copy_RW == CLEAN_COPY) & (k.position_RW <= q.position_RW)


def clean_block(q: Places, k: Places) -> Tensor:
    """From a clean token to all of its own block."""
    both = (q.copy_RW == CLEAN_COPY) & (k.copy_RW == CLEAN_COPY)
    return both & (q.block_RW == k.block_RW) & (q.block_RW != PROMPT)


def predicates(blocks: Blocks) -> tuple[Predicate, ...]:
    """Those whose union says who is seen."""
    clean = (clean_causal, clean_block) if blocks.clean == "block" else (clean_causal,)
    return (own_canvas, earlier_blocks, *clean)


def allowed(places: Places, blocks: Blocks) -> Tensor:
    """Who sees whom, bool [R, W, W], the one that looks first.

    Padding is seen by nobody but itself, so that no softmax is over nothing.
    """
    q, k = places.looking(), places.looked_at()
    seen_RQK = torch.zeros((), dtype=torch.bool, device=places.position_RW.device)
    for predicate in predicates(blocks):
        seen_RQK = seen_RQK | predicate(q, k)
    itself_QK = torch.eye(places.position_RW.shape[1], dtype=torch.bool, device=places.position_RW.device)
    return (seen_RQK & q.real_RW & k.real_RW) | itself_QK


def flex_mask(places: Places, blocks: Blocks) -> Any:
    """The same as a `BlockMask` of flex attention, which never holds [R, W, W]; for models loaded with it."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(row: Tensor, _head: Tensor, at: Tensor, to: Tensor) -> Tensor:
        q, k = (Places(*(getattr(places, name)[row, where] for name in _FIELDS)) for where in (at, to))
        found = at != at
        for predicate in predicates(blocks):
            found = found | predicate(q, k)
        return (found & q.real_RW & k.real_RW) | (at == to)

    rows, width = places.position_RW.shape
    return create_block_mask(seen, rows, None, width, width, device=str(places.position_RW.device))
