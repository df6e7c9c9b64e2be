"""Exact likelihoods, given the order of decoding: that which was recorded, or from left to right.

May import `rerank_env.rewards` and the modules below.

    replay      log p(token i | the canvas on which it was committed)   (TraceRL 2509.06949; Diffusion-GR2 2607.01170)
    ar_order    log p(token i | clean blocks before it, tokens before it in its block, all others hidden)
                                                                                         (JustGRPO, 2601.15165)

The sum of `replay` is the log-probability of what was committed, given when. A rule that commits what is surest looks
at what was drawn for places that it did not commit, so a decoding has a second factor, the probability of its order;
that and its gradient are left out (2607.15200 models it). It is 1 where the order is fixed beforehand: one place a
round from left to right, or all in one. `ar_order` is the exact law of decoding in the first of these ways, however
the completion was written; with blocks of one token and shift it is that of the causal model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rerank_env.agents.block_diffusion.likelihood.plans import Look, Plan, Setting, Written, blocks_of
from rerank_env.agents.block_diffusion.model import Canvas
from rerank_env.agents.block_diffusion.trajectory import Trajectory
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import Expression


@dataclass(frozen=True, repr=False)
class Replay(Expression):
    """Each token on the canvas on which it was committed, all rounds of all blocks in one pass.

    `merge`: so many rounds in a row share the canvas of the first of them, which saves canvases and is exact for 1
    only; `most`: more are merged where a block would have more canvases than this. `tail`: what was committed behind
    the end of the text is scored too, as it stood on the canvases of text that was committed later; there is then a
    value for every place of `Trajectory.written`, 0.0 where nothing was committed. Raises `InputError`.
    """

    merge: int = 1
    most: int | None = None
    tail: bool = False
    name: ClassVar[str] = "replay"
    level: ClassVar[str] = "token"

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "merge", whole("the rounds that a replay merges", self.merge, least=1))
        if self.most is not None:
            object.__setattr__(self, "most", whole("the most canvases of a block in a replay", self.most, least=1))
        if not isinstance(self.tail, bool):
            raise InputError(f"tail is {self.tail!r}; give True or False")

    def plan(self, written: Sequence[Written], setting: Setting) -> list[Plan]:
        """See `plans.Likelihood`; draws nothing, and trajectories know where they were cut."""
        plans = []
        for number, one in enumerate(written):
            trajectory = _recorded(one, number, setting)
            looks = [
                Look(canvas, [1.0] * len(canvas.wanted))
                for block in range(trajectory.blocks)
                for canvas in self._canvases(trajectory, block)
                if canvas.wanted
            ]
            plans.append(Plan(one.prompt, trajectory.written if self.tail else trajectory.tokens, looks))
        return plans

    def _canvases(self, trajectory: Trajectory, block: int) -> list[Canvas]:
        """The canvases of a block, rounds merged."""
        rounds = trajectory.block_rounds[block]
        step = self.merge if self.most is None else max(self.merge, -(-rounds // self.most))
        found = []
        for first in range(0, rounds, step):
            wanted = [
                place
                for number in range(first, min(first + step, rounds))
                for place in trajectory.canvas(block, number, tail=self.tail).wanted
            ]
            found.append(Canvas(block, trajectory.canvas(block, first).tokens, wanted))
        return found


def _recorded(written: Written, number: int, setting: Setting) -> Trajectory:
    """The trajectory of a completion, where it has one and they fit."""
    found = written.trajectory
    if found is None:
        raise InputError(f"completion {number} has no trajectory, so it cannot be replayed; give the one it came with")
    size, mask_id = setting.blocks.size, setting.mask_id
    if found.tokens != list(written.completion) or (found.block_size, found.mask_id) != (size, mask_id):
        raise InputError(
            f"the trajectory of completion {number} has other tokens, or blocks of {found.block_size} hidden by token "
            f"{found.mask_id} where they are to be of {size} hidden by {mask_id}; give the one it came with"
        )
    return found


@dataclass(frozen=True, repr=False)
class ArOrder(Expression):
    """From left to right, one token a round: as many canvases as tokens."""

    name: ClassVar[str] = "ar_order"
    level: ClassVar[str] = "token"

    def plan(self, written: Sequence[Written], setting: Setting) -> list[Plan]:
        """See `plans.Likelihood`; draws nothing."""
        return [
            Plan(
                one.prompt,
                one.completion,
                [
                    Look(block.canvas(range(place, len(block.text)), [place]), [1.0])
                    for block in blocks_of(one, setting)
                    for place in range(len(block.text))
                ],
            )
            for one in written
        ]
