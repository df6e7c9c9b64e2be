"""The record of a decoding: canvases that are rebuilt from it, and records that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from rerank_env.agents.block_diffusion.trajectory import NEVER, Trajectory  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402

MASK = 99


def record(**changes: Any) -> Trajectory:
    """Blocks of 3: [7 8 9] in rounds [1 0 1], and [4 5 _] in rounds [0 0 -], of which 4 ends the text."""
    told: dict[str, Any] = {
        "written": (7, 8, 9, 4, 5, MASK),
        "committed": (1, 0, 1, 0, 0, NEVER),
        "pushed": (False, True, False, False, False, False),
        "scores": (-0.1, -0.2, -0.3, -0.4, -0.5, 0.0),
        "length": 4,
        "finished": True,
        "block_size": 3,
        "mask_id": MASK,
    }
    return Trajectory(**(told | changes))


def test_the_text_ends_where_it_ends() -> None:
    made = record()
    assert made.tokens == [7, 8, 9, 4]
    assert made.rounds == [1, 0, 1, 0]
    assert made.forced == [False, True, False, False]
    assert made.logprobs == [-0.1, -0.2, -0.3, -0.4]
    assert (made.blocks, made.block_rounds) == (2, [2, 1])


def test_canvases_are_the_blocks_as_they_stood_before_each_round() -> None:
    told = [(canvas.block, list(canvas.tokens), list(canvas.wanted)) for canvas in record().canvases()]
    assert told == [(0, [MASK, MASK, MASK], [1]), (0, [MASK, 8, MASK], [0, 2]), (1, [MASK, MASK, MASK], [0])]
    assert record().order() == [1, 0, 2, 3]
    assert list(record().canvases(tail=True)[2].wanted) == [0, 1]
    assert record().order(tail=True) == [1, 0, 2, 3, 4]


def test_a_canvas_behind_the_last_round_has_all_that_was_committed() -> None:
    canvas = record().canvas(1, 1, tail=True)
    assert (list(canvas.tokens), list(canvas.wanted)) == ([4, 5, MASK], [])


def test_a_round_that_committed_only_tail_is_wanted_only_with_it() -> None:
    made = record(committed=(0, 0, 0, 1, 0, NEVER))
    assert [(list(c.tokens), list(c.wanted)) for c in made.canvases()][1:] == [([MASK, 5, MASK], [0])]
    assert [(list(c.tokens), list(c.wanted)) for c in made.canvases(tail=True)][1:] == [
        ([MASK, MASK, MASK], [1]),
        ([MASK, 5, MASK], [0]),
    ]


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    size = draw(st.integers(1, 5))
    places = draw(st.integers(1, 14))
    length = draw(st.integers((places - 1) // size * size + 1, places))
    committed: list[int] = []
    for start in range(0, places, size):
        own = draw(st.lists(st.integers(0, 4), min_size=min(size, places - start), max_size=min(size, places - start)))
        holes = [place for place in range(start, start + len(own)) if place >= length and draw(st.booleans())]
        told = sorted({number for place, number in enumerate(own, start) if place not in holes})
        committed += [NEVER if place in holes else told.index(number) for place, number in enumerate(own, start)]
    written = [MASK if number == NEVER else draw(st.integers(0, 9)) for number in committed]
    return Trajectory(
        tuple(written), tuple(committed), (False,) * places, (0.0,) * places, length, draw(st.booleans()), size, MASK
    )


@given(trajectories(), st.booleans())
def test_each_canvas_is_the_one_before_with_what_it_wanted_filled_in(made: Trajectory, tail: bool) -> None:
    for block, rounds in enumerate(made.block_rounds):
        canvas = [MASK] * len(made.canvas(block, 0).tokens)
        for number in range(rounds):
            told = made.canvas(block, number, tail=True)
            assert list(told.tokens) == canvas
            assert told.wanted
            for place in told.wanted:
                canvas[place] = made.written[block * made.block_size + place]
        assert canvas == list(made.canvas(block, rounds).tokens)
    order = made.order(tail=tail)
    expected = [
        place for place, number in enumerate(made.committed) if number != NEVER and (tail or place < made.length)
    ]
    assert sorted(order) == expected
    key = [(place // made.block_size, made.committed[place], place) for place in order]
    assert key == sorted(key)


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": (0.0,) * 5},
        {"length": 0},
        {"length": 7},
        {"committed": (1, 0, 1, 0, NEVER, NEVER)},  # a token that was never committed
        {"written": (7, 8, MASK, 4, 5, MASK)},  # a mask token that was
        {"written": (7, 8, MASK, 4, 5, MASK), "committed": (1, 0, NEVER, 0, 0, NEVER)},  # a hole in a finished block
        {"length": 6},  # a hole in the text
        {"committed": (2, 0, 2, 0, 0, NEVER)},  # a round without commits
        {"committed": (-2, 0, 1, 0, 0, NEVER)},
        {"block_size": 0},
    ],
)
def test_a_record_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="give"):
        record(**changes)


@pytest.mark.parametrize(("block", "number"), [(2, 0), (-1, 0), (0, 3), (1, -1)])
def test_a_canvas_that_was_not_is_refused(block: int, number: int) -> None:
    with pytest.raises(InputError, match="there is no canvas"):
        record().canvas(block, number)
