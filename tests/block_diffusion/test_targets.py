"""What a student is asked on which canvases, and up to which token: by hand, and against all legal answers."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from rerank_env.agents.block_diffusion.trajectory import NEVER, Trajectory
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.formats import FORMATS, answer_text, has_reasoning
from rerank_env.rewards.parsing import parse
from rerank_env.training.block_diffusion.cuts import begins, learned
from rerank_env.training.block_diffusion.targets import PLACES, targets

pytestmark = pytest.mark.torch

M = 99

SIZE = 3

IDS = ["a1", "a12", "b>"]

EVERY = {
    form: ["".join(answer_text(order, text_format=form).split()) for order in permutations(range(SIZE))]
    for form in FORMATS
}
"""Of each format all answers without blanks and without reasons."""


# How far: texts.


@pytest.mark.parametrize(
    ("text", "form", "fits"),
    [
        ("", "list", True),
        ("  [3 , 1 ", "list", True),
        ("[1 2", "list", False),
        ("[3, 1, 2]\n", "list", True),
        ("[3, 1, 2,", "list", False),
        ("[", "arrows", True),
        ("[3] ", "arrows", True),
        ("[3] > [3", "arrows", False),
        ("[3] > [1] > [2] >", "arrows", False),
        ("[3] > [1]>", "arrows", True),
        ("<answer>[3] > [1] <", "tagged-arrows", False),
        ("<answer>[3] > [1] > [2] </ans", "tagged-arrows", True),
        ("Drama. [3, 3, 3] > <", "tagged-list", True),  # reasons may say anything
        ("Drama. [3, 3]", "list", False),
        ('<think>"ranking": [9]</think><answer>{"ranking": [1', "tagged-json", True),
        ('{"explanation": "ranking", "ranking": [1, ', "json", True),
        ('{"explanation": "ranking", "ranking": [1, 1', "json", False),
        ('{"explanation": "[1, 1]", "ra', "json", True),
        ('{"ranking": [3, 1, 2], "explanation": "[1, 1', "json", True),
        ('{"ranking": [3, 1], "explanation": "', "json", False),
        ("Drama.</answer>", "tagged-list", False),
        ("Drama.</think>Comedy", "tagged-list", False),
    ],
)
def test_a_text_is_a_beginning_where_a_legal_answer_can_come_of_it(text: str, form: str, fits: bool) -> None:
    assert begins(text, form, size=SIZE) == fits


@pytest.mark.parametrize(
    ("text", "form", "fits"),
    [
        ("[a1", "list", True),
        ("[a12, a1", "list", True),
        ("[a1, a1", "list", True),  # of a12
        ("[a1, a1,", "list", False),
        ("[a1, a12, a1", "list", False),
        ("[b>] > [a12] > [a1]", "arrows", True),
        ("[b>]>[b", "arrows", False),
        ('{"ranking": ["b>", "a1"', "json", True),
        ('{"ranking": ["b>", "b', "json", False),
        ('{"ranking": [1', "json", False),
    ],
)
def test_names_that_begin_alike_are_told_apart_when_they_end(text: str, form: str, fits: bool) -> None:
    assert begins(text, form, size=SIZE, ids=IDS) == fits


def test_a_number_may_become_a_longer_one() -> None:
    assert begins("[1, 2, 1", "list", size=10)
    assert not begins("[1, 2, 1, ", "list", size=10)
    assert not begins("[1, 2, 1", "list", size=9)
    assert not begins("[10, 10", "list", size=10)


@settings(max_examples=150)
@given(st.sampled_from(FORMATS), st.data())
def test_beginnings_without_reasons_are_those_of_some_answer(form: str, data: st.DataObject) -> None:
    told = data.draw(st.sampled_from(EVERY[form]))
    at, sign = data.draw(st.integers(0, len(told))), data.draw(st.sampled_from("0123[],>"))
    text = told[:at] + sign + told[at + data.draw(st.integers(0, 1)) :]
    text = text[: data.draw(st.integers(0, len(text)))]
    free = form.startswith("tagged-") and not any(tag in text for tag in ("<answer>", "</answer>"))  # still reasons
    legal = [answer.replace("]}", end) for answer in EVERY[form] for end in ("]}", '],"explanation":""}')]
    assert begins(text, form, size=SIZE) == (free or any(answer.startswith(text) for answer in legal))


@settings(max_examples=100)
@given(st.sampled_from(FORMATS), st.permutations(range(4)), st.booleans(), st.data())
def test_what_the_parser_reads_is_a_beginning_all_the_way(
    form: str, order: list[int], named: bool, data: st.DataObject
) -> None:
    ids = ["x1", "x", "y<", ">z"] if named else None
    why = data.draw(st.sampled_from(["", "Drama > [1, 1].", 'say "ranking": [4]'])) if has_reasoning(form) else ""
    text = answer_text(order, text_format=form, ids=ids, reasoning=why)
    assert parse(text, 4, text_format=form, ids=ids).ranking is not None
    assert all(begins(text[:n], form, size=4, ids=ids) for n in range(len(text) + 1))


@settings(max_examples=150)
@given(st.sampled_from(FORMATS), st.text(alphabet='[]123,> <{"', max_size=14))
def test_what_went_wrong_never_becomes_right(form: str, text: str) -> None:
    fits = [begins(text[:n], form, size=SIZE) for n in range(len(text) + 1)]
    assert fits == sorted(fits, reverse=True)


# How far: tokens.

SIGNS = ["<end>", "[", "]", ",", "1", "2", "3", "4", "Drama", "<answer>", "</answer>"]


def spelt(*signs: str) -> list[int]:
    return [SIGNS.index(sign) for sign in signs]


def cut(*signs: str, form: str = "list") -> int:
    tokens = spelt(*signs)
    return learned(tokens, decode=lambda some: "".join(SIGNS[token] for token in some), text_format=form, size=SIZE)


def test_a_candidate_named_again_is_learned_and_nothing_behind_it() -> None:
    assert cut("[", "2", ",", "2", ",", "1", "]", "<end>") == 4


def test_a_name_of_nobody_is_learned_and_nothing_behind_it() -> None:
    assert cut("[", "2", ",", "4", ",", "1", "]", "<end>") == 4


def test_a_ranking_that_is_too_short_or_too_long_is_cut_where_it_ends_or_goes_on() -> None:
    assert cut("[", "2", ",", "1", "]", "<end>") == 5
    assert cut("[", "2", ",", "1", ",", "3", ",", "1", "]", "<end>") == 7


def test_a_text_that_begins_no_answer_is_cut_behind_its_first_token() -> None:
    assert cut("Drama", "Drama", "[", "1") == 1
    assert cut("Drama", "Drama", "[", "1", form="tagged-list") == 4  # reasons, which may still come to an answer


def test_the_end_is_learned_where_it_should_be_and_where_it_should_not() -> None:
    right = ["[", "2", ",", "1", ",", "3", "]"]
    assert cut(*right, "<end>") == 8
    assert cut(*right) == 7
    assert cut("[", "2", "<end>") == 3
    assert cut("<end>") == 1
    assert cut("<answer>", *right, "</answer>", "<end>", form="tagged-list") == 10
    assert cut("<answer>", *right, "]", "</answer>", "<end>", form="tagged-list") == 9
    assert cut("Drama", "<answer>", *right, "</answer>", "<end>", form="tagged-list") == 2


# On which canvases.

TRAJECTORY = Trajectory(
    written=(11, 12, 13, 14, 21, 22, 0, M),
    committed=(1, 0, 2, 1, 2, 0, 1, NEVER),
    pushed=(False,) * 8,
    scores=(0.0,) * 8,
    length=6,
    finished=True,
    block_size=4,
    mask_id=M,
)
"""Two blocks of four: the text ends with the second token of the second block, behind which one more was written."""


def test_each_token_is_asked_on_the_canvas_on_which_it_was_committed() -> None:
    found = targets(TRAJECTORY, 6, places="committed")
    assert [(canvas.block, list(canvas.tokens), list(canvas.wanted)) for canvas in found.canvases] == [
        (0, [M, M, M, M], [1]),
        (0, [M, 12, M, M], [0, 3]),
        (0, [11, 12, M, 14], [2]),
        (1, [M, M, M, M], [1]),
        (1, [M, 22, 0, M], [0]),
    ]
    assert found.places_N.tolist() == [1, 0, 3, 2, 5, 4]
    assert found.places_N.tolist() == TRAJECTORY.order()


def test_what_is_cut_off_is_asked_on_no_canvas() -> None:
    found = targets(TRAJECTORY, 3, places="committed")
    assert [(list(canvas.tokens), list(canvas.wanted)) for canvas in found.canvases] == [
        ([M, M, M, M], [1]),
        ([M, 12, M, M], [0]),
        ([11, 12, M, 14], [2]),  # the fourth token was there, though it is not learned
    ]
    assert not targets(TRAJECTORY, 0, places="committed").canvases


def test_hidden_places_are_those_of_one_round_a_block() -> None:
    seen = set()
    for seed in range(40):
        found = targets(TRAJECTORY, 6, places="hidden", rng=np.random.default_rng(seed))
        assert [canvas.block for canvas in found.canvases] == [0, 1]
        seen.add(tuple((tuple(canvas.tokens), tuple(canvas.wanted)) for canvas in found.canvases))
    first = {((M, M, M, M), (0, 1, 2, 3)), ((M, 12, M, M), (0, 2, 3)), ((11, 12, M, 14), (2,))}
    second = {((M, M, M, M), (0, 1)), ((M, 22, M, M), (0,)), ((M, 22, 0, M), (0,))}
    assert seen == {(one, other) for one in first for other in second}


def test_rounds_that_hide_nothing_to_learn_are_not_drawn() -> None:
    drawn = [targets(TRAJECTORY, 2, places="hidden", rng=np.random.default_rng(seed)) for seed in range(20)]
    assert {tuple(found.places_N.tolist()) for found in drawn} == {(0, 1), (0,)}


@settings(max_examples=60)
@given(st.data())
def test_committed_places_are_every_learned_token_once_and_hidden_ones_some_of_them(data: st.DataObject) -> None:
    size, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    committed: list[int] = []
    for start in range(0, length, size):
        some = data.draw(st.lists(st.integers(0, 3), min_size=min(size, length - start), max_size=size))
        some = some[: min(size, length - start)]
        order = sorted({*some})
        committed += [order.index(number) for number in some]
    trajectory = Trajectory(
        tuple(range(length)), tuple(committed), (False,) * length, (0.0,) * length, length, False, size, M
    )
    most = data.draw(st.integers(0, length))
    for places in PLACES:
        found = targets(trajectory, most, places=places, rng=np.random.default_rng(0))
        wanted = [canvas.block * size + place for canvas in found.canvases for place in canvas.wanted]
        assert found.places_N.tolist() == wanted
        assert all(canvas.tokens[place] == M for canvas in found.canvases for place in canvas.wanted)
        assert len({*wanted}) == len(wanted)
        assert {*wanted} <= {*range(most)}
        if places == "committed":
            assert {*wanted} == {*range(most)}
        else:
            assert {place // size for place in wanted} == {place // size for place in range(most)}


def test_other_kinds_more_tokens_and_no_chance_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"committed"):
        targets(TRAJECTORY, 6, places="comitted")
    with pytest.raises(InputError, match="7 tokens are to be learned from but the completion has 6"):
        targets(TRAJECTORY, 7, places="committed")
    with pytest.raises(InputError, match="pass rng"):
        targets(TRAJECTORY, 6, places="hidden")
