"""Answer decoders: worked cases, legal rankings from any scores, and answers filled in behind a text."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from rerank_env.agents import plackett_luce  # noqa: E402
from rerank_env.agents.block_diffusion.answers import (  # noqa: E402
    Assignment,
    Board,
    Constrained,
    PlackettLuce,
    answer_decoder_of,
    max_column_sum,
    open_law,
    plackett_luce_log_prob,
    ranked,
)
from rerank_env.agents.block_diffusion.filling import Filled, Form, fill, filled_log_probs  # noqa: E402
from rerank_env.agents.block_diffusion.masks import Blocks  # noqa: E402
from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits  # noqa: E402
from rerank_env.agents.block_diffusion.rules import Static, Threshold  # noqa: E402
from rerank_env.rewards.errors import InputError, RankingError, UnknownNameError  # noqa: E402

DECODERS = [
    Constrained(Threshold(0.9)), Constrained(Static(2)), Constrained(Static(1)), Assignment(1), Assignment(3),
    PlackettLuce(),
]  # fmt: skip
extremes = st.sampled_from([-math.inf, -3.4e38, -1e9, -1.0, 0.0, 0.0, 1.0, 1e9, 3.4e38, math.inf])
tables = st.integers(1, 6).flatmap(
    lambda slots: st.integers(slots, 7).flatmap(
        lambda size: st.lists(
            st.lists(st.one_of(extremes, st.floats(-20, 20)), min_size=size, max_size=size),
            min_size=slots,
            max_size=slots,
        )
    )
)


def board(p: list[list[float]], *, taken: tuple[int, ...] = (), used: tuple[int, ...] = (), number: int = 0) -> Board:
    p_SK = torch.tensor(p, dtype=torch.float64)
    open_S = torch.tensor([slot not in taken for slot in range(len(p))])
    unused_K = torch.tensor([candidate not in used for candidate in range(len(p[0]))])
    return Board(p_SK.log(), open_S, unused_K, number)


def told(pairs: list[Any]) -> list[tuple[int, int, float, bool]]:
    return [(pair.slot, pair.candidate, round(math.exp(pair.score), 6), pair.forced) for pair in pairs]


P = [[0.6, 0.3, 0.1], [0.7, 0.2, 0.1], [0.5, 0.1, 0.4]]


def test_constrained_slots_that_want_the_same_candidate_wait_for_the_surest() -> None:
    decoder = Constrained(Threshold(0.5))
    assert told(decoder.pairs(board(P))) == [(1, 0, 0.7, False)]  # all want candidate 0
    # without candidate 0: slot 0 has .3 and .1, so .75 for candidate 1; slot 2 has .1 and .4, so .8 for candidate 2
    assert told(decoder.pairs(board(P, taken=(1,), used=(0,), number=1))) == [(2, 2, 0.8, False), (0, 1, 0.75, False)]
    assert told(Constrained(Threshold(0.9)).pairs(board(P))) == [(1, 0, 0.7, True)]
    assert told(ranked(decoder, torch.tensor(P).log())) == [(0, 1, 0.75, False), (1, 0, 0.7, False), (2, 2, 0.8, False)]


def test_an_assignment_is_the_best_matching_its_surest_pairs_first() -> None:
    # products: 0-1-2: .6 .2 .4 = .048; 1-0-2: .3 .7 .4 = .084, the best; 2-0-1: .1 .7 .1; 0-2-1: .6 .1 .1; ...
    assert told(Assignment(1).pairs(board(P))) == [(1, 0, 0.7, False), (2, 2, 0.4, False), (0, 1, 0.3, False)]
    assert told(Assignment(2).pairs(board(P))) == [(1, 0, 0.7, False), (2, 2, 0.4, False)]  # 3 in 2 rounds: 2, then 1
    assert told(Assignment(2).pairs(board(P, taken=(1, 2), used=(0, 2), number=1))) == [(0, 1, 1.0, False)]
    assert [pair.candidate for pair in ranked(Assignment(1), torch.tensor(P).log())] == [1, 0, 2]


def test_plackett_luce_goes_from_the_first_slot_to_the_last() -> None:
    # slot 0: .6 for candidate 0; slot 1 among 1 and 2: .2 / .3; the last is certain
    assert told(ranked(PlackettLuce(), torch.tensor(P).log())) == [
        (0, 0, 0.6, False), (1, 1, 0.666667, False), (2, 2, 1.0, False)
    ]  # fmt: skip


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
@settings(max_examples=40)
@given(tables, st.integers(0, 9))
def test_any_scores_give_a_legal_ranking(decoder: Any, table: list[list[float]], seed: int) -> None:
    logits_SK = torch.tensor(table)
    pairs = ranked(decoder, logits_SK)
    assert [pair.slot for pair in pairs] == list(range(len(table)))
    assert len({pair.candidate for pair in pairs}) == len(table)
    assert all(0 <= pair.candidate < len(table[0]) and pair.score <= 1e-9 for pair in pairs)
    if not isinstance(decoder, Assignment):
        generator = torch.Generator().manual_seed(seed)
        drawn = ranked(decoder, logits_SK, temperature=0.7, generator=generator)
        assert len({pair.candidate for pair in drawn}) == len(table)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_an_assignment_is_the_best_of_all_rankings(seed: int, size: int) -> None:
    logits_KK = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    law_KK = logits_KK.log_softmax(-1)
    best = max(
        itertools.permutations(range(size)),
        key=lambda ranking: sum(float(law_KK[slot, candidate]) for slot, candidate in enumerate(ranking)),
    )
    assert tuple(pair.candidate for pair in ranked(Assignment(1), logits_KK)) == best


def test_static_one_round_still_never_repeats_a_candidate() -> None:
    logits_SK = torch.zeros(4, 4)
    logits_SK[:, 2] = 5  # every slot wants candidate 2
    pairs = ranked(Constrained(Static(1)), logits_SK)
    assert sorted(pair.candidate for pair in pairs) == [0, 1, 2, 3]
    assert pairs[0].candidate == 2  # of equals the one further left


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_the_plackett_luce_law_of_places_sums_to_one_and_is_that_of_the_agents(slots: int) -> None:
    logits_SK = torch.randn(slots, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rankings_GS = torch.tensor(list(itertools.permutations(range(4), slots)))
    log_p_GS = plackett_luce_log_prob(logits_SK, rankings_GS)
    assert float(log_p_GS.sum(1).exp().sum()) == pytest.approx(1, abs=1e-12)
    for ranking, log_p_S in zip(rankings_GS.tolist(), log_p_GS.tolist(), strict=True):
        left = set(range(4))
        for slot, candidate in enumerate(ranking):
            mass = sum(math.exp(logits_SK[slot, other]) for other in left)
            assert log_p_S[slot] == pytest.approx(float(logits_SK[slot, candidate]) - math.log(mass), abs=1e-9)
            left.remove(candidate)
    if slots == 4:
        same = plackett_luce.log_prob(logits_SK[None], rankings_GS[None], torch.tensor([4]))[0]
        assert torch.allclose(log_p_GS, same)


def test_plackett_luce_over_unused_candidates_has_gradients_for_these_only() -> None:
    logits_SK = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    unused_K = torch.tensor([True, False, True, True, False])
    log_p_GS = plackett_luce_log_prob(logits_SK, torch.tensor([[3, 0]]), unused_K=unused_K)
    s = logits_SK.detach()
    assert log_p_GS.tolist()[0] == pytest.approx(
        [float(s[0, 3] - s[0, [0, 2, 3]].logsumexp(0)), float(s[1, 0] - s[1, [0, 2]].logsumexp(0))]
    )
    log_p_GS.sum().backward()
    assert logits_SK.grad is not None
    assert (logits_SK.grad != 0).tolist() == [[True, False, True, True, False], [True, False, True, False, False]]
    with pytest.raises(RankingError):
        plackett_luce_log_prob(logits_SK, torch.tensor([[3, 3]]))
    with pytest.raises(RankingError):
        plackett_luce_log_prob(logits_SK, torch.tensor([[1, 0]]), unused_K=unused_K)


def test_sampled_rankings_have_the_plackett_luce_law() -> None:
    logits_SK = torch.randn(3, 3, generator=torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(0)
    rankings = list(itertools.permutations(range(3)))
    exact = plackett_luce_log_prob(logits_SK / 0.5, torch.tensor(rankings)).sum(1).exp().tolist()
    counts = dict.fromkeys(rankings, 0)
    for _ in range(1500):
        pairs = ranked(PlackettLuce(), logits_SK, temperature=0.5, generator=generator)
        counts[tuple(pair.candidate for pair in pairs)] += 1
    for ranking, p in zip(rankings, exact, strict=True):
        assert abs(counts[ranking] / 1500 - p) < 4.5 * (p * (1 - p) / 1500) ** 0.5


def test_the_largest_column_sum_tells_slots_that_want_the_same_candidate() -> None:
    assert max_column_sum(torch.tensor(P).log()) == pytest.approx(1.8)  # .6 + .7 + .5
    assert max_column_sum(torch.zeros(4, 4)) == pytest.approx(1)
    assert max_column_sum(100 * torch.eye(3)) == pytest.approx(1)


def test_text_forms_give_the_decoders_back() -> None:
    for decoder in DECODERS:
        assert answer_decoder_of(str(decoder)) == decoder
    assert str(Constrained(Threshold(0.9))) == "constrained(threshold(0.9))"
    with pytest.raises(UnknownNameError, match="known: assignment, constrained, plackett-luce"):
        answer_decoder_of("hungarian(1)")
    for text in ("constrained", "assignment(x)", "assignment", "plackett-luce(1)", "constrained(threshold)"):
        with pytest.raises(InputError, match="give"):
            answer_decoder_of(text)


def test_boards_that_cannot_be_filled_are_refused() -> None:
    with pytest.raises(InputError, match="3 slots are open but 2 candidates are left"):
        board(P, used=(0,))
    with pytest.raises(InputError, match="not numbers"):
        Board(torch.full((2, 2), torch.nan), torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
    with pytest.raises(InputError, match="a score for every slot and candidate"):
        Board(torch.zeros(2, 3), torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool))
    with pytest.raises(InputError, match="draws nothing"):
        ranked(Assignment(1), torch.zeros(2, 2), temperature=1.0)
    for decoder in (PlackettLuce(), Constrained(Static(1))):
        with pytest.raises(InputError, match="pass a generator"):
            ranked(decoder, torch.zeros(2, 2), temperature=1.0)


# Answers behind a text. Candidates are named by tokens 3..7, signs are 10 and 11.

MASK, PAD, END = 15, 14, 13
NAMES = [3, 4, 5, 6, 7]
ANSWER = [10, MASK, 11, MASK, 11, MASK, 11, MASK, END]
FORMS = [
    Form([1, 2], [], ANSWER, NAMES),
    Form([1, 2, 0, 9], [8, 9, 3], ANSWER, NAMES),
    Form([2], [3, 3, 8, 9, 1, 2], ANSWER[2:], [7, 6, 5, 3]),
]


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen3Config(vocab_size=16, num_key_value_heads=1, head_dim=8, initializer_range=0.4, **sizes)
    return Qwen3ForCausalLM(config).eval()


def filled(model: Any, forms: list[Form], decoder: Any, blocks: Blocks, **how: Any) -> list[Filled]:
    return fill(model, forms, decoder=decoder, blocks=blocks, mask_id=MASK, pad_id=PAD, **how)


def plain(model: Any, form: Form, decoder: Any, blocks: Blocks) -> tuple[list[int], list[int]]:
    """One form, round by round, in plain loops over all slots: the tokens, and the round of each slot."""
    tokens, behind = [*form.written, *form.answer], len(form.written)
    places = [place for place in range(behind, len(tokens)) if tokens[place] == MASK]
    rounds = dict.fromkeys(places, -1)
    for start in range(0, len(tokens), blocks.size):
        own = [place for place in places if start <= place < start + blocks.size]
        number = 0
        while any(rounds[place] < 0 for place in own):
            canvas = Canvas(start // blocks.size, tokens[start : start + blocks.size], [place - start for place in own])
            row = Row(form.prompt, tokens[:start], [canvas])
            with torch.no_grad():
                logits_SV = canvas_logits(model, [row], blocks=blocks, mask_id=MASK, pad_id=PAD)[0]
            used = {token for place, token in enumerate(tokens) if place in rounds and token != MASK}
            pairs = decoder.pairs(
                Board(
                    logits_SV[:, list(form.names)],
                    torch.tensor([rounds[place] < 0 for place in own]),
                    torch.tensor([name not in used for name in form.names]),
                    number,
                )
            )
            for pair in pairs:
                tokens[own[pair.slot]], rounds[own[pair.slot]] = form.names[pair.candidate], number
            number += 1
    return tokens[behind:], list(rounds.values())


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
@pytest.mark.parametrize("blocks", [Blocks(4), Blocks(32, shift=False), Blocks(5, clean="causal")], ids=str)
def test_answers_are_filled_as_in_a_plain_loop_and_scored_to_the_same_numbers(
    model: Any, decoder: Any, blocks: Blocks
) -> None:
    made = filled(model, FORMS, decoder, blocks, batch_size=2)
    for form, answer in zip(FORMS, made, strict=True):
        tokens, rounds = plain(model, form, decoder, blocks)
        assert list(answer.tokens) == tokens
        assert list(answer.rounds) == rounds
        named = [token for token, slot in zip(answer.tokens, form.answer, strict=True) if slot == MASK]
        assert named == [form.names[candidate] for candidate in answer.candidates]
        assert len(set(named)) == len(named)
        assert all(token == slot for token, slot in zip(answer.tokens, form.answer, strict=True) if slot != MASK)
    with torch.no_grad():
        scores = filled_log_probs(model, FORMS, made, decoder=decoder, blocks=blocks, mask_id=MASK, pad_id=PAD)
    for answer, own in zip(made, scores, strict=True):
        assert own.tolist() == pytest.approx(answer.scores, abs=1e-4)


@pytest.mark.parametrize("decoder", [Constrained(Threshold(0.5)), PlackettLuce()], ids=str)
def test_sampled_answers_do_not_depend_on_batches_and_are_scored_to_the_same_numbers(model: Any, decoder: Any) -> None:
    blocks, forms = Blocks(4), [form for form in FORMS for _ in range(4)]
    both = [
        filled(model, forms, decoder, blocks, temperature=0.8, generator=torch.Generator().manual_seed(1), batch_size=b)
        for b in (64, 3)
    ]
    assert [own.tokens for own in both[0]] == [own.tokens for own in both[1]]
    assert len({own.tokens for own in both[0][:4]}) > 1
    scores = filled_log_probs(
        model, forms, both[0], decoder=decoder, blocks=blocks, mask_id=MASK, pad_id=PAD, temperature=0.8
    )
    for answer, own in zip(both[0], scores, strict=True):
        assert own.tolist() == pytest.approx(answer.scores, abs=1e-4)
    torch.cat(scores).sum().backward()
    assert any(bool(own.grad.abs().sum() > 0) for own in model.parameters())
    model.zero_grad(set_to_none=True)


@pytest.mark.parametrize("blocks", [Blocks(4), Blocks(32)], ids=str)
def test_the_exact_law_of_filled_answers_sums_to_one_across_blocks(model: Any, blocks: Blocks) -> None:
    form = Form([1, 2], [8], [10, MASK, 11, MASK, 11, MASK, END], [3, 4, 5])
    rankings = list(itertools.permutations(range(3)))
    answers = []
    for ranking in rankings:
        left = iter(ranking)
        tokens = tuple(form.names[next(left)] if token == MASK else token for token in form.answer)
        answers.append(Filled(tokens, ranking, (0, 0, 0), (0.0,) * 3, (False,) * 3))
    with torch.no_grad():
        log_p = filled_log_probs(
            model, [form] * 6, answers, decoder=PlackettLuce(), blocks=blocks, mask_id=MASK, pad_id=PAD
        )
    assert sum(float(own.sum().exp()) for own in log_p) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    "form",
    [
        Form([1], [], [10, END], NAMES),  # no slot
        Form([1], [], [MASK, MASK], [3]),  # more slots than candidates
        Form([1], [], [MASK], [3, 3]),
        Form([1], [], [MASK], [3, MASK]),
        Form([1], [MASK], [MASK], NAMES),
    ],
)
def test_forms_that_cannot_be_filled_are_refused(model: Any, form: Form) -> None:
    with pytest.raises(InputError, match="of form 0|in form 0"):
        filled(model, [form], PlackettLuce(), Blocks(4))


def test_filling_by_chance_needs_something_to_draw_from(model: Any) -> None:
    with pytest.raises(InputError, match="pass a generator"):
        filled(model, FORMS, PlackettLuce(), Blocks(4), temperature=1.0)


def test_answers_of_other_forms_are_refused(model: Any) -> None:
    made = filled(model, FORMS, PlackettLuce(), Blocks(4))
    how = {"decoder": PlackettLuce(), "blocks": Blocks(4), "mask_id": MASK, "pad_id": PAD}
    with pytest.raises(InputError, match="give one a form"):
        filled_log_probs(model, FORMS, made[:2], **how)
    with pytest.raises(InputError, match="has 4 candidates but its form 3 slots"):
        filled_log_probs(model, FORMS[2:], made[:1], **how)


def test_the_law_over_unused_candidates_is_renormalised() -> None:
    law_SK = open_law(torch.tensor(P).log(), torch.tensor([True, False, True])).exp()
    assert law_SK.tolist()[0] == pytest.approx([0.6 / 0.7, 0, 0.1 / 0.7])
