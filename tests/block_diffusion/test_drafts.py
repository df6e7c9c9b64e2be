"""Rows that are being written: rounds, blocks and ends by hand, and numbers that repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from rerank_env.agents.block_diffusion.drafts import Drafts  # noqa: E402
from rerank_env.agents.block_diffusion.draws import drawn_first  # noqa: E402
from rerank_env.agents.block_diffusion.masks import Blocks  # noqa: E402
from rerank_env.agents.block_diffusion.trajectory import NEVER, Trajectory  # noqa: E402

END, MASK = 9, 15


def drafts(rows: int = 1, *, stops_early: bool = False) -> Drafts:
    """Blocks of two, five places at most, so that the third block has one."""
    return Drafts(rows, Blocks(2), max_tokens=5, ends=[END], stops_early=stops_early, mask_id=MASK)


def committed(made: Drafts, row: int, places: list[int], tokens: list[int], *, pushed: bool = False) -> None:
    """Commit tokens of a row and go on to its next round."""
    count: dict[str, Any] = {"tokens_N": np.array(tokens), "scores_N": -np.arange(1.0, len(tokens) + 1)}
    made.commit(np.full(len(places), row), np.array(places), **count, pushed_N=np.full(len(places), pushed))
    made.advance(np.array([row]))


def test_a_row_goes_through_rounds_and_blocks_to_the_limit_of_tokens() -> None:
    made, rows = drafts(2), np.array([1])
    committed(made, 1, [1], [3])
    assert (made.block_R.tolist(), made.round_R.tolist(), made.length_R.tolist()) == ([0, 0], [0, 1], [0, 0])
    assert made.open(rows).tolist() == [[True, False]]
    assert made.canvases(rows).tolist() == [[MASK, 3]]
    committed(made, 1, [0], [4], pushed=True)
    assert (made.starts(rows).tolist(), made.round_R[1], made.before(rows).tolist()) == ([2], 0, [[4, 3]])
    committed(made, 1, [0, 1], [5, 6])
    assert (made.sizes(rows).tolist(), made.open(rows).tolist()) == ([1], [[True, False]])  # one place is left
    committed(made, 1, [0], [7])
    assert made.length_R.tolist() == [0, 5]  # the other row has not begun
    assert made.trajectory(1) == Trajectory(
        written=(4, 3, 5, 6, 7),
        committed=(1, 0, 0, 0, 0),
        pushed=(True, False, False, False, False),
        scores=(-1.0, -1.0, -1.0, -2.0, -1.0),
        length=5,
        finished=False,
        block_size=2,
        mask_id=MASK,
    )


@pytest.mark.parametrize("stops_early", [False, True])
def test_what_stands_behind_an_end_of_text_is_decoded_only_if_blocks_are_finished(stops_early: bool) -> None:
    made, rows = drafts(stops_early=stops_early), np.array([0])
    committed(made, 0, [0], [END])
    if not stops_early:
        assert made.open(rows).tolist() == [[False, True]]
        committed(made, 0, [1], [8])
    assert made.length_R.tolist() == [1]
    told = made.trajectory(0)
    assert told.finished and told.tokens == [END]
    assert told.committed == ((0, NEVER) if stops_early else (0, 1))
    assert told.written == ((END, MASK) if stops_early else (END, 8))


def test_numbers_of_first_rounds_are_row_by_row_those_of_the_generator() -> None:
    drawn = drawn_first(3, 4, torch.Generator().manual_seed(5))
    expected = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    np.testing.assert_array_equal(drawn.ravel(), expected.numpy())
