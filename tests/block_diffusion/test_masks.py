"""Who sees whom: against a table written place by place, and as flex attention reads it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rerank_env.agents.block_diffusion.masks import Blocks, Places, allowed, flex_mask  # noqa: E402
from rerank_env.rewards.errors import InputError, UnknownNameError  # noqa: E402

pytestmark = pytest.mark.torch

Token = tuple[str, int, int, int]
"""Part ("prompt", "clean", "noisy" or "pad"), position, block and copy; -1 where a token has none."""


def row(prompt: int, clean: int, copies: list[int], size: int, *, pads: int = 0) -> list[Token]:
    """The tokens of a row, left to right: padding, prompt, clean completion, noisy copies of these blocks."""
    tokens: list[Token] = [("pad", 0, -1, -1)] * pads
    tokens += [("prompt", place, -1, -1) for place in range(prompt)]
    tokens += [("clean", prompt + place, place // size, -1) for place in range(clean)]
    for copy, block in enumerate(copies):
        tokens += [("noisy", prompt + block * size + place, block, copy) for place in range(size)]
    return tokens


def sees(one: Token, other: Token, clean: str) -> bool:
    """The rule in words of its own: what `one` may look at."""
    part, position, block, copy = one
    part_, position_, block_, copy_ = other
    if "pad" in (part, part_):
        return one is other
    if part == "prompt":
        return part_ == "prompt" and position_ <= position
    if part == "clean":
        if part_ == "prompt":
            return True
        if part_ == "noisy":
            return False
        return block_ <= block if clean == "block" else position_ <= position
    if part_ == "noisy":
        return copy == copy_
    return part_ == "prompt" or block_ < block


def places_of(rows: list[list[Token]]) -> Places:
    def column(number: int) -> torch.Tensor:
        return torch.tensor([[token[number] for token in tokens] for tokens in rows])

    real = torch.tensor([[token[0] != "pad" for token in tokens] for tokens in rows])
    return Places(column(1), column(2), column(3), real)


def table(tokens: list[Token], clean: str) -> list[list[bool]]:
    return [
        [at == to if "pad" in (one[0], other[0]) else sees(one, other, clean) for to, other in enumerate(tokens)]
        for at, one in enumerate(tokens)
    ]


shapes = st.tuples(
    st.integers(1, 3), st.integers(0, 7), st.lists(st.integers(0, 3), max_size=4), st.integers(1, 3), st.integers(0, 2)
)


@given(shape=shapes, clean=st.sampled_from(["block", "causal"]))
def test_the_mask_is_the_table(shape: tuple[int, int, list[int], int, int], clean: str) -> None:
    prompt, length, copies, size, pads = shape
    tokens = row(prompt, length, copies, size, pads=pads)
    seen = allowed(places_of([tokens]), Blocks(size, clean=clean))
    assert seen[0].tolist() == table(tokens, clean)


def test_a_doubled_sequence_worked_by_hand() -> None:
    # prompt p, clean a b | c with blocks of two, a noisy copy of each block: A B and C D (the last is behind the text)
    tokens = row(1, 3, [0, 1], 2)
    expected = {  # who is seen, in the order p a b c A B C D
        "block": ["10000000", "11100000", "11100000", "11110000", "10001100", "10001100", "11100011", "11100011"],
        "causal": ["10000000", "11000000", "11100000", "11110000", "10001100", "10001100", "11100011", "11100011"],
    }
    for clean, lines in expected.items():
        seen = allowed(places_of([tokens]), Blocks(2, clean=clean))[0]
        assert ["".join("01"[value] for value in line) for line in seen.tolist()] == lines


def test_two_copies_of_one_block_do_not_see_each_other() -> None:
    seen = allowed(places_of([row(1, 0, [0, 0], 2)]), Blocks(2))[0]
    assert seen[1:3, 3:].sum() == seen[3:, 1:3].sum() == 0


def test_with_blocks_of_one_token_the_clean_part_is_causal_in_either_reading() -> None:
    tokens = places_of([row(2, 4, [], 1)])
    for clean in ("block", "causal"):
        assert torch.equal(allowed(tokens, Blocks(1, clean=clean))[0], torch.ones(6, 6).tril().bool())


@settings(max_examples=20)
@given(
    few=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.lists(st.integers(0, 2), max_size=2)), min_size=1,
                 max_size=3),
    size=st.integers(1, 3), clean=st.sampled_from(["block", "causal"]),
)  # fmt: skip
def test_flex_attention_reads_the_same_mask(few: list[tuple[int, int, list[int]]], size: int, clean: str) -> None:
    from torch.nn.attention.flex_attention import create_mask

    rows = [row(prompt, length, copies, size) for prompt, length, copies in few]
    width = max(map(len, rows))
    rows = [[*[("pad", 0, -1, -1)] * (width - len(tokens)), *tokens] for tokens in rows]
    places, blocks = places_of(rows), Blocks(size, clean=clean)
    made = flex_mask(places, blocks)
    assert made.shape == (len(rows), 1, width, width)
    dense = create_mask(made.mask_mod, len(rows), 1, width, width, device="cpu")
    assert torch.equal(dense[:, 0], allowed(places, blocks))


def test_flex_attention_attends_as_dense_attention_does() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    places, blocks = places_of([row(3, 5, [0, 1, 1], 3), row(2, 5, [1, 0, 1], 3, pads=1)]), Blocks(3)
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn((3, 2, 2, places.position_RW.shape[1], 16), generator=generator)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed(places, blocks)[:, None])
    with pytest.warns(UserWarning, match="flex_attention"):  # it would rather be compiled
        flexed = flex_attention(q, k, v, block_mask=flex_mask(places, blocks))
    torch.testing.assert_close(flexed, dense, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "4"])
def test_sizes_that_are_none_are_refused(size: object) -> None:
    with pytest.raises(InputError, match="the size of a block"):
        Blocks(size)  # type: ignore[arg-type]


def test_other_fields_are_checked_too() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'causal'"):
        Blocks(4, clean="casual")
    with pytest.raises(InputError, match="shift is 1; give True or False"):
        Blocks(4, shift=1)  # type: ignore[arg-type]
    assert [Blocks(4).count(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]
