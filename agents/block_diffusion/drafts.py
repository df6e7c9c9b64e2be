"""Completions that are being written, as arrays: what stands in each place, and the block and round each row is in.

May import numpy and the modules `masks` and `trajectory`. Suffixes: `_R` rows, `_C` blocks of a completion, `_S`
places of a block, `_N` places that are committed together, `_E` ends of text.

All rows of a call are kept here, those of a batch are named by their numbers. Bookkeeping is by arrays, as a round of a
small model is over in the time that a loop over the places of some hundred rows takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.trajectory import NEVER, Trajectory
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray


class Drafts:
    """So many completions of at most `max_tokens`, all hidden at first.

    `ends`: the tokens that end texts. `stops_early`: what stands behind one in its block is not decoded any further.
    Per row: `block_R`, `round_R` in that block, and `length_R`, 0 until the row is done. The places of a last block
    that `max_tokens` cut stay hidden and are no part of it.
    """

    def __init__(
        self, rows: int, blocks: Blocks, *, max_tokens: int, ends: Sequence[int], stops_early: bool, mask_id: int
    ) -> None:
        shape = (rows, blocks.count(max_tokens), blocks.size)
        self.block_R, self.round_R, self.length_R = (np.zeros(rows, dtype=np.int64) for _ in range(3))
        self._blocks, self._max_tokens, self._stops_early, self._mask_id = blocks, max_tokens, stops_early, mask_id
        self._ends_E = np.array(ends, dtype=np.int64)
        self._place_S = np.arange(blocks.size)
        self._tokens_RCS = np.full(shape, mask_id, dtype=np.int64)
        self._committed_RCS = np.full(shape, NEVER, dtype=np.int64)
        self._pushed_RCS = np.zeros(shape, dtype=np.bool_)
        self._scores_RCS = np.zeros(shape)

    def starts(self, rows_R: IntArray) -> IntArray:
        """The place of the completion at which the block of each of these rows begins."""
        return self.block_R[rows_R] * self._blocks.size

    def sizes(self, rows_R: IntArray) -> IntArray:
        """How many places the block of each of these rows has."""
        return np.minimum(self._blocks.size, self._max_tokens - self.starts(rows_R))

    def canvases(self, rows_R: IntArray) -> IntArray:
        """The blocks of these rows as they stand, [R, S]."""
        return self._tokens_RCS[rows_R, self.block_R[rows_R]]

    def before(self, rows_R: IntArray) -> IntArray:
        """The blocks before those, [R, S]; anything where there is none."""
        return self._tokens_RCS[rows_R, self.block_R[rows_R] - 1]

    def open(self, rows_R: IntArray) -> BoolArray:
        """The hidden places of these rows that are decoded in their round, [R, S]."""
        hidden_RS = self._committed_RCS[rows_R, self.block_R[rows_R]] == NEVER
        open_RS: BoolArray = hidden_RS & (self._place_S < self.sizes(rows_R)[:, None])
        if self._stops_early:
            open_RS &= ~np.logical_or.accumulate(self._ended(rows_R), axis=1)
        return open_RS

    def _ended(self, rows_R: IntArray) -> BoolArray:
        """Where an end of text stands in the blocks of these rows, [R, S]."""
        ended_RS: BoolArray = (self.canvases(rows_R)[:, :, None] == self._ends_E).any(axis=2)
        return ended_RS

    def commit(
        self, rows_N: IntArray, places_N: IntArray, *, tokens_N: IntArray, scores_N: FloatArray, pushed_N: BoolArray
    ) -> None:
        """Write tokens at places of the blocks of rows, in the round that each row is in."""
        at = rows_N, self.block_R[rows_N], places_N
        self._tokens_RCS[at], self._scores_RCS[at], self._pushed_RCS[at] = tokens_N, scores_N, pushed_N
        self._committed_RCS[at] = self.round_R[rows_N]

    def advance(self, rows_R: IntArray) -> None:
        """Take rows to their next round, to the next block where this one is finished, or to the end."""
        goes_on_R = self.open(rows_R).any(axis=1)
        self.round_R[rows_R[goes_on_R]] += 1
        if goes_on_R.all():
            return
        over_R = rows_R[~goes_on_R]
        ended_RS, starts_R = self._ended(over_R), self.starts(over_R)
        is_last_R = starts_R + self._blocks.size >= self._max_tokens
        cut_R = np.where(is_last_R, self._max_tokens, 0)
        self.length_R[over_R] = np.where(ended_RS.any(axis=1), starts_R + ended_RS.argmax(axis=1) + 1, cut_R)
        begun_R = over_R[self.length_R[over_R] == 0]
        self.block_R[begun_R] += 1
        self.round_R[begun_R] = 0

    def trajectory(self, row: int) -> Trajectory:
        """How a row that is done was written."""
        length, block = int(self.length_R[row]), int(self.block_R[row])
        assert length, "the row is done"
        places = min((block + 1) * self._blocks.size, self._max_tokens)
        fields = (self._tokens_RCS, self._committed_RCS, self._pushed_RCS, self._scores_RCS)
        written, committed, pushed, scores = (tuple(field[row].ravel()[:places].tolist()) for field in fields)
        finished = bool((self._ends_E == written[length - 1]).any())
        return Trajectory(written, committed, pushed, scores, length, finished, self._blocks.size, self._mask_id)
