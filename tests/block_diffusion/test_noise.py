"""Masks for masked-diffusion training: who is hidden, how often, at what weight, and from which key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

if find_spec("torch") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.rewards.errors import InputError
from rerank_env.training.block_diffusion.noise import Completion, Noise, Noised, keyed, noised, rates

MASK, END = 99, 98
PLAIN = Noise(names_share=0.0)


def completion(tokens: int, *, named: tuple[int, ...] = (), ends: bool = False, unlearned: tuple[int, ...] = ()) -> Any:
    """Tokens 0, 1, ..., the last of them the end where it `ends`."""
    tokens_T = np.arange(tokens)
    if ends:
        tokens_T[-1] = END
    places_T = np.arange(tokens)
    return Completion(tokens_T, ~np.isin(places_T, unlearned), np.isin(places_T, named), ends)


def drawn(told: Completion, noise: Noise, *, size: int = 4, seed: int = 0) -> Noised:
    return noised(told, blocks=Blocks(size), noise=noise, mask_id=MASK, rng=keyed(seed, 0, 0))


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    tokens = draw(st.integers(1, 30))
    ends = draw(st.booleans())
    some = st.sets(st.integers(0, tokens - 1))
    named = draw(some) - ({tokens - 1} if ends else set())
    return completion(tokens, named=tuple(named), ends=ends, unlearned=tuple(draw(some)))


noises = st.builds(
    Noise,
    low=st.sampled_from([0.0, 0.05, 0.3]),
    high=st.sampled_from([0.3, 0.8, 1.0]),
    draw=st.sampled_from(["bernoulli", "without_replacement"]),
    weights=st.sampled_from(["bound", "even"]),
    complementary=st.booleans(),
    names_share=st.sampled_from([0.0, 0.5, 1.0]),
    end=st.sampled_from(["with_names", "after_names"]),
)


@given(told=completions(), noise=noises, size=st.integers(1, 9), seed=st.integers(0, 99))
@examples(max_examples=40)
def test_copies_show_the_completion_but_for_what_is_hidden_and_ask_for_nothing_else(
    told: Completion, noise: Noise, size: int, seed: int
) -> None:
    found = drawn(told, noise, size=size, seed=seed)
    last, at = len(told.tokens_T) - 1, 0
    filled = told.ends and told.learned_T[-1]
    for canvas in found.canvases:
        assert canvas.wanted, "a copy that hides nothing that counts is left out"
        start = canvas.block * size
        assert len(canvas.tokens) == (size if filled else min(size, last + 1 - start))
        for place, token in enumerate(canvas.tokens):
            stands_for = min(start + place, last)
            assert token == MASK or token == told.tokens_T[stands_for]
            assert told.learned_T[stands_for] or token != MASK
        for place in canvas.wanted:
            assert canvas.tokens[place] == MASK
            assert found.places_N[at] == min(start + place, last)
            assert found.targets_N[at] == told.tokens_T[found.places_N[at]]
            at += 1
    assert at == len(found.places_N) == len(found.weights_N) and (found.weights_N > 0).all()


@given(told=completions(), noise=noises, size=st.integers(1, 9), seed=st.integers(0, 99))
@examples(max_examples=40)
def test_complementary_masks_supervise_every_token_exactly_once(
    told: Completion, noise: Noise, size: int, seed: int
) -> None:
    noise = replace(noise, complementary=True, names_share=0.0)
    found = drawn(told, noise, size=size, seed=seed)
    counts = Counter(found.places_N.tolist())
    last = len(told.tokens_T) - 1
    expected = dict.fromkeys(np.flatnonzero(told.learned_T).tolist(), 1)
    if told.ends and last in expected:
        expected[last] = size - last % size  # the end and what the block is filled up with
    assert counts == expected


@given(told=completions(), noise=noises, size=st.integers(1, 9), seed=st.integers(0, 99))
@examples(max_examples=40)
def test_masks_of_names_hide_names_only_each_once_in_a_pair(
    told: Completion, noise: Noise, size: int, seed: int
) -> None:
    noise = replace(noise, complementary=True, names_share=1.0)
    found = drawn(told, noise, size=size, seed=seed)
    learned_names = set(np.flatnonzero(told.named_T & told.learned_T).tolist())
    naming = {place // size for place in learned_names}
    end = {len(told.tokens_T) - 1} if told.ends else set()
    for canvas in found.canvases:
        hidden = [
            min(canvas.block * size + place, len(told.tokens_T) - 1)
            for place, token in enumerate(canvas.tokens)
            if token == MASK
        ]
        if canvas.block in naming:
            assert set(hidden) <= learned_names or set(hidden) == end
    counts = Counter(found.places_N.tolist())
    for place in np.flatnonzero(told.learned_T).tolist():
        if place not in end:
            assert counts[place] == (place in learned_names or place // size not in naming)


@given(told=completions(), noise=noises, size=st.integers(1, 9), seed=st.integers(0, 99))
@examples(max_examples=40)
def test_an_end_after_names_is_no_target_while_a_name_in_its_block_is_hidden(
    told: Completion, noise: Noise, size: int, seed: int
) -> None:
    found = drawn(told, replace(noise, end="after_names"), size=size, seed=seed)
    last = len(told.tokens_T) - 1
    asked = 0
    for canvas in found.canvases:
        wanted = {min(canvas.block * size + place, last) for place in canvas.wanted}
        if told.ends and last in wanted:
            asked += 1
            hidden = {
                min(canvas.block * size + place, last) for place, token in enumerate(canvas.tokens) if token == MASK
            }
            assert not told.named_T[sorted(hidden)].any()
    waits = told.ends and told.learned_T[-1] and (told.named_T & told.learned_T)[last // size * size :].any()
    assert not waits or asked == 1  # it is a target all the same, and once


def test_a_block_of_names_and_the_end_is_three_copies_worked_out_by_hand() -> None:
    told = completion(3, named=(0, 1), ends=True)
    seen = set()
    for seed in range(60):
        found = drawn(told, replace(PLAIN, low=0.5, high=0.5, end="after_names"), seed=seed)
        *pair, finish = found.canvases
        assert [canvas.block for canvas in found.canvases] == [0, 0, 0]
        assert (finish.tokens, finish.wanted) == ([0, 1, MASK, MASK], [2, 3])
        assert sorted(tuple(canvas.wanted) for canvas in pair) == [(0,), (1,)]
        assert found.weights_N.tolist() == [1.0, 1.0, 0.5, 0.5]  # 1/2 * 2/1 a name, and half the end twice
        assert found.places_N.tolist()[2:] == [2, 2] and found.targets_N.tolist()[2:] == [END, END]
        for place in (2, 3):  # what is hidden of the end in one copy is seen in the other
            assert {pair[0].tokens[place], pair[1].tokens[place]} == {MASK, END}
        seen.add(tuple(pair[0].tokens[2:]))
    assert len(seen) == 4


def test_an_end_with_names_is_hidden_and_learned_as_they_are() -> None:
    told = completion(3, named=(0, 1), ends=True)
    found = drawn(told, replace(PLAIN, low=1.0, high=1.0))
    assert [(canvas.tokens, canvas.wanted) for canvas in found.canvases] == [([MASK] * 4, [0, 1, 2, 3])]
    assert found.places_N.tolist() == [0, 1, 2, 2] and found.weights_N.tolist() == [1.0, 1.0, 0.5, 0.5]


def test_in_a_later_block_the_end_is_a_token_like_others() -> None:
    told = completion(6, named=(0, 1, 2), ends=True)
    found = drawn(told, replace(PLAIN, low=1.0, high=1.0))
    assert [(canvas.block, canvas.tokens) for canvas in found.canvases] == [(0, [MASK] * 4), (1, [MASK] * 4)]
    assert found.places_N.tolist() == [0, 1, 2, 3, 4, 5, 5, 5]
    np.testing.assert_allclose(found.weights_N, [1, 1, 1, 1, 1, 1 / 3, 1 / 3, 1 / 3])


@pytest.mark.parametrize("draw", ["bernoulli", "without_replacement"])
def test_at_rate_one_all_is_hidden_and_counts_one_without_a_partner(draw: str) -> None:
    found = drawn(completion(7), replace(PLAIN, low=1.0, high=1.0, draw=draw), size=1)
    assert [(canvas.tokens, canvas.wanted) for canvas in found.canvases] == [([MASK], [0])] * 7
    assert found.weights_N.tolist() == [1.0] * 7


def test_the_loss_of_a_block_of_which_all_is_visible_is_nothing() -> None:
    told = completion(8, unlearned=(0, 1, 2, 3))
    found = drawn(told, PLAIN)
    assert {canvas.block for canvas in found.canvases} == {1}
    nothing = drawn(completion(8, unlearned=tuple(range(8))), PLAIN)
    assert not nothing.canvases and nothing.weights_N.sum() == 0.0
    rare = Noise(low=0.001, high=0.001, draw="bernoulli", complementary=False)
    assert not drawn(completion(8), rare).canvases


@given(tokens=st.integers(1, 30), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_pair_without_replacement_counts_its_tokens_exactly(tokens: int, size: int, seed: int) -> None:
    found = drawn(completion(tokens), replace(PLAIN, low=0.0), size=size, seed=seed)
    assert found.weights_N.sum() == pytest.approx(tokens)
    even = drawn(completion(tokens), replace(PLAIN, low=0.0, weights="even"), size=size, seed=seed)
    assert (even.weights_N == 1.0).all() and len(even.weights_N) == tokens


def test_a_partner_at_a_rate_below_the_lowest_is_cut_off() -> None:
    found = drawn(completion(40), Noise(low=0.1, high=1.0, names_share=0.0), size=40, seed=0)
    smallest = replace(PLAIN, low=0.975, high=0.975)
    assert found.weights_N.max() <= 0.5 / 0.1
    pair = drawn(completion(40), smallest, size=40)
    np.testing.assert_allclose(pair.weights_N, [0.5 / 0.975] * 40)  # 39 at 1/.975, and 1 at no more than that


def toy(tokens: int) -> Callable[[int, frozenset[int]], float]:
    """Some minus log-probability of token `place` for every set of tokens that are hidden."""
    rng = np.random.default_rng(3)
    table = {
        (place, frozenset(hidden)): float(rng.uniform(0.1, 3.0)) + len(hidden)
        for count in range(1, tokens + 1)
        for hidden in combinations(range(tokens), count)
        for place in hidden
    }
    return lambda place, hidden: table[place, hidden]


def loss(found: Noised, nll: Callable[[int, frozenset[int]], float]) -> float:
    total, at = 0.0, 0
    for canvas in found.canvases:
        hidden = frozenset(place for place, token in enumerate(canvas.tokens) if token == MASK)
        for place in canvas.wanted:
            total += float(found.weights_N[at]) * nll(place, hidden)
            at += 1
    return total


@pytest.mark.parametrize("complementary", [False, True])
def test_bernoulli_and_without_replacement_have_the_same_expected_loss_and_unequal_variance(
    complementary: bool,
) -> None:
    tokens, nll, draws = 3, toy(3), 4_000
    exact = sum(  # E_l T/l of all sets of l tokens, l uniform: sum over sets of 1/l / (T choose l) of their losses
        sum(nll(place, frozenset(hidden)) for place in hidden) / count / len([*combinations(range(tokens), count)])
        for count in range(1, tokens + 1)
        for hidden in combinations(range(tokens), count)
    )
    spread = {}
    for draw in ("bernoulli", "without_replacement"):
        noise = Noise(low=1e-4, high=1.0, draw=draw, complementary=complementary, names_share=0.0)
        rng, told = np.random.default_rng(7), completion(tokens)
        losses = [loss(noised(told, blocks=Blocks(3), noise=noise, mask_id=MASK, rng=rng), nll) for _ in range(draws)]
        error = np.std(losses) / draws**0.5
        assert abs(np.mean(losses) - exact) < 4 * error and error < 0.06 * exact
        spread[draw] = np.std(losses)
    assert spread["without_replacement"] < 0.5 * spread["bernoulli"]


@given(count=st.integers(1, 12), seed=st.integers(0, 99), low=st.sampled_from([0.0, 0.05, 0.5]))
def test_rates_are_antithetic_and_every_part_of_the_range_has_one(count: int, seed: int, low: float) -> None:
    found = np.sort(rates(count, Noise(low=low, high=0.9), keyed(seed, 0, 0)))
    width = (0.9 - low) / count
    assert (found > low).all() and (found <= 0.9 + 1e-12).all()
    for part, rate in enumerate(found):
        assert low + part * width - 1e-12 <= rate <= low + (part + 1) * width + 1e-12
    mirrored = found + found[::-1]
    middle = [count // 2] if count % 2 else []
    np.testing.assert_allclose(np.delete(mirrored, middle), low + 0.9)


def test_each_rate_is_uniform_by_itself() -> None:
    found = np.array([rates(3, Noise(low=0.2, high=0.8), keyed(0, 0, example)) for example in range(1500)])
    for block in range(3):
        assert found[:, block].mean() == pytest.approx(0.5, abs=4 * 0.6 / 12**0.5 / 1500**0.5)
        shares = np.histogram(found[:, block], bins=6, range=(0.2, 0.8))[0] / 1500
        np.testing.assert_allclose(shares, 1 / 6, atol=0.04)


def test_noise_depends_on_seed_epoch_and_example_and_on_nothing_else() -> None:
    told = completion(20, named=(3, 9, 15), ends=True)

    def found(*key: int) -> list[list[int]]:
        made = noised(told, blocks=Blocks(8), noise=Noise(), mask_id=MASK, rng=keyed(*key))
        return [list(canvas.tokens) for canvas in made.canvases]

    first = found(1, 2, 3)
    np.random.default_rng().random(5)
    assert found(1, 2, 3) == first
    assert all(found(*key) != first for key in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (3, 2, 1)))


def test_settings_without_sense_are_refused() -> None:
    for wrong in (
        {"low": -0.1},
        {"low": 0.5, "high": 0.4},
        {"high": 1.5},
        {"low": 0.0, "high": 0.0},
        {"low": float("nan")},
        {"names_share": 1.1},
        {"complementary": 1},
        {"draw": "bernouli"},
        {"weights": "boundless"},
        {"end": "never"},
    ):
        with pytest.raises(InputError):
            Noise(**wrong)
