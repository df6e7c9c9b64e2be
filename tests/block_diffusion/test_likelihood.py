"""Estimators of the likelihood: what they look at, what they make of it, and their names."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from estimator_toy import Toy, expected  # noqa: E402

from rerank_env.agents.block_diffusion.answers import PlackettLuce  # noqa: E402
from rerank_env.agents.block_diffusion.filling import Form, fill  # noqa: E402
from rerank_env.agents.block_diffusion.likelihood import (  # noqa: E402
    ArOrder,
    Coupled,
    Elbo,
    Gpl,
    MeanField,
    Plan,
    Replay,
    Setting,
    Written,
    likelihood_of,
    log_probs,
    log_ratios,
    score,
)
from rerank_env.agents.block_diffusion.masks import Blocks  # noqa: E402
from rerank_env.agents.block_diffusion.rules import rule_of  # noqa: E402
from rerank_env.agents.block_diffusion.sampling import sample  # noqa: E402
from rerank_env.agents.block_diffusion.trajectory import NEVER, Trajectory  # noqa: E402
from rerank_env.rewards.errors import InputError, RankingError, UnknownNameError  # noqa: E402

PROMPT = [1, 0, 2]
M = 9
"""The mask token where no model is asked."""


@pytest.fixture(scope="module")
def toy() -> Toy:
    return Toy(0, size=3, length=7)


def valued(toy: Toy, estimator: Any, *written: Written, **options: Any) -> list[list[float]]:
    with torch.no_grad():
        found = log_probs(estimator, toy.model, written, toy.setting, pad_id=0, **options)
    return [values.tolist() for values in found.log_probs]


def trajectory(
    tokens: list[int], rounds: list[int], *, size: int, mask_id: int, length: int | None = None
) -> Trajectory:
    zeros, pushed = (0.0,) * len(tokens), (False,) * len(tokens)
    return Trajectory(tuple(tokens), tuple(rounds), pushed, zeros, length or len(tokens), False, size, mask_id)


def looks_of(plan: Plan) -> list[tuple[int, list[int], list[int], list[float]]]:
    return [
        (look.canvas.block, list(look.canvas.tokens), list(look.canvas.wanted), list(look.weights))
        for look in plan.looks
    ]


# ---- replay


def test_replay_looks_at_each_token_on_the_canvas_on_which_it_was_committed() -> None:
    one = Written(PROMPT, [4, 5, 6, 7], trajectory([4, 5, 6, 7], [1, 0, 0, 1], size=2, mask_id=M))
    (plan,) = Replay().plan([one], Setting(Blocks(2), M))
    assert looks_of(plan) == [
        (0, [M, M], [1], [1.0]),
        (0, [M, 5], [0], [1.0]),
        (1, [M, M], [0], [1.0]),
        (1, [6, M], [1], [1.0]),
    ]


def test_merged_rounds_share_the_canvas_of_the_first_of_them() -> None:
    one = Written(PROMPT, [4, 5, 6, 7, 8], trajectory([4, 5, 6, 7, 8], [2, 0, 1, 0, 0], size=3, mask_id=M))
    (plan,) = Replay(merge=2).plan([one], Setting(Blocks(3), M))
    assert looks_of(plan) == [
        (0, [M, M, M], [1, 2], [1.0, 1.0]),
        (0, [M, 5, 6], [0], [1.0]),
        (1, [M, M], [0, 1], [1.0, 1.0]),
    ]
    (most,) = Replay(most=1).plan([one], Setting(Blocks(3), M))
    assert looks_of(most)[0] == (0, [M, M, M], [1, 2, 0], [1.0] * 3)
    (enough,) = Replay(most=3).plan([one], Setting(Blocks(3), M))
    assert looks_of(enough) == looks_of(Replay().plan([one], Setting(Blocks(3), M))[0])


def test_the_tail_of_a_text_stands_on_canvases_and_is_scored_on_demand_only() -> None:
    tail = trajectory([4, 5, 6, M], [1, 2, 0, NEVER], size=4, mask_id=M, length=2)
    one = Written(PROMPT, [4, 5], tail)
    (plan,) = Replay().plan([one], Setting(Blocks(4), M))
    assert looks_of(plan) == [(0, [M, M, 6, M], [0], [1.0]), (0, [4, M, 6, M], [1], [1.0])]
    assert list(plan.tokens) == [4, 5]
    (with_tail,) = Replay(tail=True).plan([one], Setting(Blocks(4), M))
    assert looks_of(with_tail)[0] == (0, [M, M, M, M], [2], [1.0])
    assert list(with_tail.tokens) == [4, 5, 6, M]


@pytest.mark.parametrize("rule", ["threshold(0.6)", "static(2)", "entropy(0.9)"])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_replay_gives_the_log_probabilities_that_the_sampler_drew_with(toy: Toy, rule: str, temperature: float) -> None:
    found = sample(
        toy.model, 0, 1, toy.mask_id, [PROMPT, [0]], blocks=toy.blocks, rule=rule_of(rule), max_tokens=toy.length,
        temperature=temperature, generator=torch.Generator().manual_seed(0), n=6,
    ).trajectories  # fmt: skip
    written = [Written([PROMPT, [0]][row // 6], one.tokens, one) for row, one in enumerate(found)]
    assert any(len(one.written) > one.length for one in found)  # there is a tail
    for one, values in zip(found, valued(toy, Replay(), *written, temperature=temperature), strict=True):
        assert values == pytest.approx(one.logprobs, abs=1e-5)
    for one, values in zip(found, valued(toy, Replay(tail=True), *written, temperature=temperature), strict=True):
        assert values == pytest.approx(one.scores, abs=1e-5)


# ---- from masks


def test_mean_field_hides_all_of_every_block_and_what_is_behind_the_text() -> None:
    (plan,) = MeanField().plan([Written(PROMPT, [4, 5, 6])], Setting(Blocks(2), M))
    assert looks_of(plan) == [(0, [M, M], [0, 1], [1.0, 1.0]), (1, [M, M], [0], [1.0])]
    (cut,) = MeanField().plan([Written(PROMPT, [4, 5, 6])], Setting(Blocks(2), M, max_tokens=3))
    assert looks_of(cut)[1] == (1, [M], [0], [1.0])
    assert cut.prompt == PROMPT


def test_a_share_of_the_prompt_is_hidden_on_demand() -> None:
    written = [Written(list(range(8)), [4])] * 500
    setting = Setting(Blocks(2), M, generator=torch.Generator().manual_seed(0))
    plans = MeanField(prompt_masking=0.15).plan(written, setting)
    assert all(new in (old, M) for plan in plans for new, old in zip(plan.prompt, range(8), strict=True))
    hidden = sum(token == M for plan in plans for token in plan.prompt) / 4000
    assert hidden == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / 4000) ** 0.5)


def test_ar_order_hides_a_token_and_all_behind_it_in_its_block() -> None:
    (plan,) = ArOrder().plan([Written(PROMPT, [4, 5, 6])], Setting(Blocks(2), M))
    assert looks_of(plan) == [(0, [M, M], [0], [1.0]), (0, [4, M], [1], [1.0]), (1, [M, M], [0], [1.0])]


@pytest.mark.parametrize("estimator", [Elbo(), Elbo(draws=3), Coupled(), Coupled(low=0.5, high=0.5)], ids=str)
def test_masks_that_are_drawn_have_the_expectation_that_is_worked_out(estimator: Elbo | Coupled) -> None:
    """Weights by canvas and place, averaged over draws, against every mask times its probability."""
    one, many = Written(PROMPT, [4, 5, 6, 7]), 2000
    setting = Setting(Blocks(3), M, generator=torch.Generator().manual_seed(1))
    drawn, exact = defaultdict(list), defaultdict(float)
    for plan in estimator.plan([one] * many, setting):
        told: dict[Any, float] = defaultdict(float)
        for block, tokens, wanted, weights in looks_of(plan):
            for place, weight in zip(wanted, weights, strict=True):
                told[block, tuple(tokens), place] += weight
        for key, weight in told.items():
            drawn[key].append(weight)
    for block, tokens, wanted, weights in looks_of(expected(estimator, one, setting)):
        for place, weight in zip(wanted, weights, strict=True):
            exact[block, tuple(tokens), place] += weight
    assert set(drawn) == set(exact)
    for key, weights in drawn.items():
        whole = torch.tensor(weights + [0.0] * (many - len(weights)), dtype=torch.float64)
        assert float(whole.mean()) == pytest.approx(exact[key], abs=5 * float(whole.std()) / many**0.5 + 1e-9)


def test_the_weights_of_a_lower_bound_are_worked_out_by_hand_for_two_tokens() -> None:
    """l is 1 or 2, each with 1/2; one of two places with 1/2 at weight 2/1, both at weight 2/2."""
    plan = expected(Elbo(), Written(PROMPT, [4, 5]), Setting(Blocks(2), M))
    assert looks_of(plan) == [
        (0, [M, 5], [0], [0.5]),
        (0, [4, M], [1], [0.5]),
        (0, [M, M], [0, 1], [0.5, 0.5]),
    ]


def test_the_parts_of_a_coupled_pair_have_every_token_between_them_once() -> None:
    setting = Setting(Blocks(4), M, generator=torch.Generator().manual_seed(0))
    for plan in Coupled().plan([Written(PROMPT, [4, 5, 6, 7, 8])] * 50, setting):
        for block, length in ((0, 4), (1, 1)):
            whole, *parts = [look for look in looks_of(plan) if look[0] == block]
            assert whole[2:] == (list(range(length)), [0.5] * length)
            assert sorted(place for part in parts for place in part[2]) == list(range(length))
            shares = [0.5 / part[3][0] for part in parts]
            assert all(0.2 <= share <= 0.8 for share in shares)
            assert len(shares) == 1 or sum(shares) == pytest.approx(1)


# ---- all of them


@st.composite
def decodings(draw: st.DrawFn) -> tuple[Written, Setting]:
    size, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    tokens = draw(st.lists(st.integers(0, 8), min_size=length, max_size=length))
    rounds: list[int] = []
    for start in range(0, length, size):
        own = draw(st.lists(st.integers(0, 3), min_size=len(tokens[start : start + size]), max_size=size))
        own = own[: len(tokens[start : start + size])]
        rounds += [sorted(set(own)).index(one) for one in own]
    recorded = trajectory(tokens, rounds, size=size, mask_id=M)
    setting = Setting(Blocks(size), M, length, torch.Generator().manual_seed(draw(st.integers(0, 9))))
    return Written(PROMPT, tokens, recorded), setting


@hypothesis_settings(max_examples=60)
@given(
    decodings(), st.sampled_from([Replay(), Replay(merge=2), Replay(most=1), MeanField(), ArOrder(), Elbo(), Coupled()])
)
def test_whatever_is_scored_is_hidden_and_what_is_not_hidden_is_the_text(
    drawn: tuple[Written, Setting], estimator: Any
) -> None:
    one, setting = drawn
    (plan,) = estimator.plan([one], setting)
    size = setting.blocks.size
    seen: list[int] = []
    for block, tokens, wanted, weights in looks_of(plan):
        text = one.completion[block * size : (block + 1) * size]
        assert len(tokens) == len(text)
        assert len(weights) == len(wanted) > 0
        assert all(tokens[place] == M for place in wanted)
        assert all(token in (M, true) for token, true in zip(tokens, text, strict=True))
        seen += [block * size + place for place in wanted]
    times = {"replay": 1, "mean_field": 1, "ar_order": 1, "coupled": 2}.get(estimator.name)
    if times is not None:
        assert sorted(seen) == sorted(list(range(len(one.completion))) * times)


def test_neither_batches_nor_the_cut_of_a_row_change_a_value(toy: Toy) -> None:
    written = [Written(PROMPT[:width], [0, 1, 2, 1, 0, 2, 2][: 7 - width]) for width in (1, 2, 3)]
    plans = ArOrder().plan([*written, Written(PROMPT, [])], toy.setting)
    options: dict[str, Any] = {"blocks": toy.blocks, "mask_id": toy.mask_id, "pad_id": 0}
    with torch.no_grad():
        whole = score(toy.model, plans, **options)
        assert [len(values) for values in whole.log_probs] == [6, 5, 4, 0]
        assert whole.forwards == 3
        # 6, 5 and 4 canvases of 3 places (the seventh place is not reached), behind 3 clean tokens and the prompt
        assert whole.tokens == (1 + 3 + 18) + (2 + 3 + 15) + (3 + 3 + 12)
        for batch_size, most in ((1, None), (2, 1), (64, 2)):
            cut = score(toy.model, plans, batch_size=batch_size, most_canvases=most, **options)
            assert cut.forwards == {None: 3, 1: 15, 2: 8}[most]
            for one, other in zip(cut.log_probs, whole.log_probs, strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_the_ratio_is_one_where_the_model_has_not_moved_and_the_masks_are_kept(toy: Toy) -> None:
    written = [Written(PROMPT, [0, 1, 2, 1]), Written(PROMPT, [2])]
    setting = replace(toy.setting, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"blocks": toy.blocks, "mask_id": toy.mask_id, "pad_id": 0}
    for estimator in (Elbo(), Coupled(), MeanField(prompt_masking=0.15), ArOrder()):
        plans = estimator.plan(written, setting)
        new, old = score(toy.model, plans, **options), score(toy.model, plans, **options)
        ratios = log_ratios(new.log_probs, old.log_probs, level=estimator.level)
        assert [ratio.tolist() for ratio in ratios] == [[0.0] * 4, [0.0]]
        assert all(ratio.requires_grad for ratio in ratios)


def test_ratios_are_worked_out_by_hand() -> None:
    new, old = [torch.tensor([-1.0, -2.0, -6.0]), torch.zeros(0)], [torch.tensor([-2.0, -2.0, -4.0]), torch.zeros(0)]
    assert [one.tolist() for one in log_ratios(new, old, level="token")] == [[1.0, 0.0, -2.0], []]
    found = log_ratios(new, old, level="sequence")
    assert found[0].tolist() == pytest.approx([-1 / 3] * 3)
    assert found[1].tolist() == []


# ---- answers


FORM = [0, M, 1, M, M]


def answered(toy: Toy, written: list[int], ranking: tuple[int, ...]) -> Written:
    blank = [toy.mask_id if token == M else token for token in FORM]
    form = Form(PROMPT, written, blank, [2, 0, 1])
    told = iter(ranking)
    return Written(PROMPT, [*written, *(next(told) if token == toy.mask_id else token for token in blank)], form=form)


def test_an_answer_has_the_scores_that_it_was_filled_with_and_what_led_to_it_those_of_the_rest(toy: Toy) -> None:
    led = trajectory([2, 1], [1, 0], size=3, mask_id=toy.mask_id)
    form = answered(toy, [2, 1], (0, 1, 2)).form
    options: dict[str, Any] = {"blocks": toy.blocks, "mask_id": toy.mask_id, "pad_id": 0, "temperature": 0.8}
    (filled,) = fill(
        toy.model, [form], decoder=PlackettLuce(), generator=torch.Generator().manual_seed(3), **options
    )  # fmt: skip
    one = Written(PROMPT, [2, 1, *filled.tokens], led, form)
    alone = valued(toy, Gpl(), one, temperature=0.8)[0]
    assert [alone[place] for place in (0, 1, 2, 4)] == [0.0] * 4
    assert [alone[place] for place in (3, 5, 6)] == pytest.approx(list(filled.scores), abs=1e-5)
    both = valued(toy, Gpl(rest=Replay()), one, temperature=0.8)[0]
    assert both[:2] == pytest.approx(valued(toy, Replay(), Written(PROMPT, [2, 1], led), temperature=0.8)[0], abs=1e-5)
    assert both[2:] == pytest.approx(alone[2:], abs=1e-6)


@pytest.mark.parametrize("written", [[], [1, 2]])
def test_the_probabilities_of_all_rankings_sum_to_one(toy: Toy, written: list[int]) -> None:
    rankings = [answered(toy, written, ranking) for ranking in itertools.permutations(range(3))]
    found = torch.tensor(valued(toy, Gpl(), *rankings), dtype=torch.float64)
    assert float(found.sum(1).exp().sum()) == pytest.approx(1, abs=1e-6)
    assert found[:, -1].tolist() == [0.0] * 6  # the last slot has one candidate left


def test_an_answer_that_names_one_twice_or_is_not_its_form_has_no_likelihood(toy: Toy) -> None:
    one = answered(toy, [], (0, 1, 2))
    for completion, told in (([0, 2, 1, 2, 1], "twice"), ([0, 2, 1, 0], "its form"), ([1, 2, 1, 0, 1], "its form")):
        with pytest.raises(InputError, match=told):
            Gpl().plan([replace(one, completion=completion)], toy.setting)
    with pytest.raises(InputError, match="has no form"):
        Gpl().plan([Written(PROMPT, [0])], toy.setting)
    with pytest.raises(InputError, match="a ratio for every token"):
        Gpl(rest=Elbo())
    with pytest.raises(InputError, match="hides a part of the prompt"):
        setting = replace(toy.setting, generator=torch.Generator().manual_seed(0))
        Gpl(rest=MeanField(prompt_masking=1.0)).plan([answered(toy, [1], (0, 1, 2))], setting)


# ---- names and refusals


@given(
    st.recursive(
        st.builds(Replay, merge=st.integers(1, 9), most=st.none() | st.integers(1, 9), tail=st.booleans())
        | st.builds(MeanField, prompt_masking=st.floats(0, 1))
        | st.builds(Coupled, low=st.floats(0.01, 0.5), high=st.floats(0.5, 0.99))
        | st.just(ArOrder()),
        lambda some: st.builds(Gpl, rest=some),
        max_leaves=2,
    )
    | st.builds(Elbo, draws=st.integers(1, 99))
    | st.just(Gpl())
)
def test_the_text_of_an_estimator_reads_back(estimator: Any) -> None:
    assert likelihood_of(str(estimator)) == estimator
    assert likelihood_of(estimator) is estimator


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'replay'"):
        likelihood_of("reply")
    with pytest.raises(UnknownNameError, match="did you mean 'merge'"):
        likelihood_of("replay(merges=2)")
    for text in ("", "replay(2)", "1", "replay.merge", "replay(", "replay(**x)"):
        with pytest.raises(InputError):
            likelihood_of(text)


def test_what_an_estimator_lacks_is_named(toy: Toy) -> None:
    one = Written(PROMPT, [0, 1])
    with pytest.raises(InputError, match="completion 0 has no trajectory"):
        Replay().plan([one], toy.setting)
    for other in (trajectory([0, 2], [0, 0], size=3, mask_id=3), trajectory([0, 1], [0, 0], size=2, mask_id=3)):
        with pytest.raises(InputError, match="trajectory of completion 0 has other tokens"):
            Replay().plan([replace(one, trajectory=other)], toy.setting)
    for estimator in (Elbo(), Coupled(), MeanField(prompt_masking=0.5)):
        with pytest.raises(InputError, match="pass a generator"):
            estimator.plan([one], toy.setting)
    with pytest.raises(InputError, match="max_tokens is 1"):
        MeanField().plan([one], replace(toy.setting, max_tokens=1))
    with pytest.raises(InputError, match="temperature is -1"):
        valued(toy, MeanField(), one, temperature=-1)
    with pytest.raises(InputError, match="score the same plans"):
        log_ratios([torch.zeros(2)], [torch.zeros(3)], level="token")
    with pytest.raises(UnknownNameError):
        log_ratios([], [], level="words")
    for wrong in (
        lambda: Elbo(draws=0),
        lambda: Coupled(low=0.9),
        lambda: MeanField(prompt_masking=2),
        lambda: Replay(merge=0),
    ):
        with pytest.raises(InputError):
            wrong()


def test_a_ranking_that_repeats_a_candidate_cannot_be_planned_by_hand_either(toy: Toy) -> None:
    (plan,) = Gpl().plan([answered(toy, [], (0, 1, 2))], toy.setting)
    wrong = replace(plan, tokens=[0, 0, 1, 2, 2])
    with pytest.raises(RankingError):
        score(toy.model, [wrong], blocks=toy.blocks, mask_id=toy.mask_id, pad_id=0)
