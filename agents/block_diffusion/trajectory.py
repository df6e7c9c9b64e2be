"""How a completion was decoded: which token was committed where, in which round, and on what canvas.

May import the modules `masks` and `model` and `rerank_env.rewards`.

Every decoder of this package records one of these, so that each token can be scored again on the canvas on which it was
committed (trajectory replay: TraceRL 2509.06949; Diffusion-GR2 2607.01170, section on RL). Nothing that was committed
is ever hidden again, so the canvas before round r of a block is the tokens of earlier rounds, all others hidden.

The last block may hold tokens behind the end of the text, its tail. They are no part of the completion, but were part
of the canvases that the text was written on, and are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from rerank_env.agents.block_diffusion.model import Canvas
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError

NEVER = -1
"""The round of a place that was hidden to the end."""


@dataclass(frozen=True)
class Trajectory:
    """One completion and its decoding, in the places of all blocks that were begun, whole blocks but for a last one
    that the limit of tokens cut.

    `written`: the token of each place, `mask_id` where it was never committed. `committed`: the round, counted from 0
    in each block, or `NEVER`. `pushed`: whether it was committed without the rule vouching for it. `scores`: the
    log-probability of each token under the law that it was drawn from, 0.0 where there is none. `length`: how many
    places are text, the end-of-text token included; `finished`: whether it ends with one. `block_size`: of `Blocks`.

    Raises `InputError` where these do not fit together: other lengths, a hole in the text or in a finished block, a
    round in which nothing was committed, a mask token that was.
    """

    written: tuple[int, ...]
    committed: tuple[int, ...]
    pushed: tuple[bool, ...]
    scores: tuple[float, ...]
    length: int
    finished: bool
    block_size: int
    mask_id: int

    def __post_init__(self) -> None:
        """Check that the fields fit together."""
        whole("block_size", self.block_size, least=1)
        places = len(self.written)
        if {len(self.committed), len(self.pushed), len(self.scores)} != {places} or not 0 < self.length <= places:
            raise InputError(
                f"a trajectory has {places} tokens, {len(self.committed)} rounds, {len(self.pushed)} flags, "
                f"{len(self.scores)} scores and a text of {self.length}; give as many of each, and a text of 1 or more"
            )
        last = (places - 1) // self.block_size * self.block_size
        for place, (token, number) in enumerate(zip(self.written, self.committed, strict=True)):
            if number < NEVER or (number == NEVER) != (token == self.mask_id):
                raise InputError(
                    f"place {place} of a trajectory has token {token} and round {number}; give a round from 0, or the "
                    f"mask token {self.mask_id} and {NEVER} where nothing was committed"
                )
            if number == NEVER and place < max(self.length, last):
                raise InputError(
                    f"place {place} of a trajectory was never committed, but {self.length} tokens are text and only "
                    "the last block may have holes; give every token before them"
                )
        for block in range(self.blocks):
            told = set(self.committed[self._span(block)]) - {NEVER}
            if told != set(range(len(told))):
                raise InputError(
                    f"block {block} of a trajectory has commits in rounds {sorted(told)}; every round commits "
                    "something, so give all rounds from 0 on"
                )

    def _span(self, block: int) -> slice:
        return slice(block * self.block_size, min((block + 1) * self.block_size, len(self.written)))

    @property
    def tokens(self) -> list[int]:
        """The completion, up to and with its end of text where it has one."""
        return list(self.written[: self.length])

    @property
    def rounds(self) -> list[int]:
        """The round in which each token of the completion was committed, from 0 in each block."""
        return list(self.committed[: self.length])

    @property
    def forced(self) -> list[bool]:
        """Which tokens of the completion were committed without the rule vouching for them."""
        return list(self.pushed[: self.length])

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each token of the completion under the law that it was drawn from."""
        return list(self.scores[: self.length])

    @property
    def blocks(self) -> int:
        """How many blocks were begun."""
        return -(-len(self.written) // self.block_size)

    @property
    def block_rounds(self) -> list[int]:
        """How many rounds each block took; their sum is the evaluations of the model that the completion needed."""
        return [max(self.committed[self._span(block)]) + 1 for block in range(self.blocks)]

    def _wanted(self, block: int, number: int, *, tail: bool) -> list[int]:
        """The places in a block that a round committed, behind the end of the text only with `tail`."""
        span = self._span(block)
        end = span.stop if tail else min(span.stop, self.length)
        return [place - span.start for place in range(span.start, end) if self.committed[place] == number]

    def canvas(self, block: int, number: int, *, tail: bool = False) -> Canvas:
        """A block as it stood before round `number`, what that round committed wanted; see `canvases` for `tail`.

        `number` may be that of rounds the block has: then all of it stands, and nothing is wanted. Raises `InputError`
        for a block and a round that were not.
        """
        if not 0 <= block < self.blocks or not 0 <= number <= self.block_rounds[block]:
            raise InputError(
                f"there is no canvas before round {number} of block {block}; the trajectory has {self.blocks} blocks "
                f"of {self.block_rounds} rounds, give one of these, counted from 0"
            )
        span = self._span(block)
        tokens = [
            token if when < number else self.mask_id
            for token, when in zip(self.written[span], self.committed[span], strict=True)
        ]
        return Canvas(block, tokens, self._wanted(block, number, tail=tail))

    def canvases(self, *, tail: bool = False) -> list[Canvas]:
        """The canvas before every round of every block, in order, what that round committed wanted.

        Tokens behind the end of the text stand on the canvases that were there after them, but are wanted only with
        `tail`: a round that committed nothing else is left out without it. Behind `Row.completion` must stand `tokens`.
        """
        return [
            canvas
            for block, rounds in enumerate(self.block_rounds)
            for number in range(rounds)
            if (canvas := self.canvas(block, number, tail=tail)).wanted
        ]

    def order(self, *, tail: bool = False) -> list[int]:
        """The places of the completion that `canvases` wants, in the order in which `canvas_logits` gives their laws:
        each place once, so that `written[order[n]]` is the token whose probability is in row n.
        """
        return [
            canvas.block * self.block_size + place for canvas in self.canvases(tail=tail) for place in canvas.wanted
        ]
