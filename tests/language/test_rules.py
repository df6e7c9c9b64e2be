"""A teacher by rule ranks by what it is told, cites only what is there, and draws by the law it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, PromptWriter, ask
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import Verdict
from rerank_env.training.language.traces.prompting import shown, some
from rerank_env.training.language.traces.proposals import Teacher
from rerank_env.training.language.traces.rules import RuleTeacher

WRITER = PromptWriter("tagged-list")


@dataclass
class Levels:
    """Levels by item, whatever the request."""

    names: tuple[str, ...]
    levels_IF: Any

    def levels_of(self, requests: Requests) -> Any:
        table_IF = np.asarray(self.levels_IF)
        return np.where((requests.candidates_BK >= 0)[:, :, None], table_IF[requests.candidates_BK], 0)


def reasons(teacher: RuleTeacher, asked: Asked, *, target: int | None = None) -> str:
    targets_B = None if target is None else np.full(len(asked.prompts), target)
    (proposal, *_) = teacher.propose(asked, targets_B=targets_B, seeds_B=np.arange(len(asked.prompts)))
    return proposal.text


# Items 0, 1, 2 with levels near 1, 9, 4; text 0, 0, 3; stage 5, 2, 2. Weights 1, 1, 1: sums 6, 11, 9.
THREE = Levels(("near", "text", "stage"), [[1, 0, 5], [9, 0, 2], [4, 3, 2]])
ONE_REQUEST = Requests.of([[0, 1, 2]], [[0.0, 1.0, 0.0]])


def test_without_noise_the_ranking_is_by_the_weighted_sum_and_the_reasons_name_the_best_two_of_each_kind() -> None:
    teacher = RuleTeacher(THREE, weights=[1, 1, 1], temperature=0)
    assert isinstance(teacher, Teacher)
    # Equal levels of "stage" (2 and 2): the one that is listed first, item 1. Nothing is known of two in "text".
    assert reasons(teacher, ask(ONE_REQUEST, WRITER)) == (
        "<think>near [2] [3], text [3], stage [1] [2]. [2] leads in near.</think><answer>[2, 3, 1]</answer>"
    )


def test_weights_decide_and_negative_ones_turn_the_order_round() -> None:
    # 2 * text + 0.1 * stage: 0.5, 0.2, 6.2. Minus near: -1, -9, -4.
    by_text = RuleTeacher(THREE, weights=[0, 2, 0.1], temperature=0)
    assert reasons(by_text, ask(ONE_REQUEST, WRITER)).endswith("[3] leads in text.</think><answer>[3, 1, 2]</answer>")
    against = RuleTeacher(THREE, weights=[-1, 0, 0], temperature=0)
    assert reasons(against, ask(ONE_REQUEST, WRITER)).endswith("[1] leads in stage.</think><answer>[1, 3, 2]</answer>")


def test_a_table_of_weights_has_one_for_each_level_and_its_last_stands_for_all_above() -> None:
    # near: level 0 is worth 3, level 1 nothing, levels 2 and up 1: items 0, 1, 2 get 0, 1, 1; text adds 3 to level 0.
    table = RuleTeacher(THREE, weights=[[3, 0, 1], [3, 0, 0], [0, 0, 0]], temperature=0)
    assert table.scores(THREE.levels_of(ONE_REQUEST)).tolist() == [[3.0, 4.0, 1.0]]


def test_a_target_comes_first_whatever_the_evidence_and_the_reasons_say_where_it_leads() -> None:
    teacher = RuleTeacher(THREE, weights=[1, 1, 1], temperature=0)
    asked = ask(ONE_REQUEST, WRITER)
    assert reasons(teacher, asked, target=0) == (
        "<think>near [2] [3], text [3], stage [1] [2]. [1] leads in stage.</think><answer>[1, 2, 3]</answer>"
    )
    # Of equal levels the target leads, too, and the one listed first is named first: 2 and 2 in "stage" without item 0.
    two = ask(Requests.of([[1, 2]], [[0.0, 1.0]]), WRITER)
    assert reasons(teacher, two, target=1) == (
        "<think>near [1] [2], text [2], stage [1] [2]. [2] leads in text, stage.</think><answer>[2, 1]</answer>"
    )


def test_a_target_without_evidence_leads_in_nothing_and_none_is_invented() -> None:
    teacher = RuleTeacher(Levels(("near",), [[0], [4], [0]]), temperature=0)
    assert "<think>near [2]. [3] leads in nothing.</think>" in reasons(teacher, ask(ONE_REQUEST, WRITER), target=2)
    nothing = RuleTeacher(Levels(("near",), np.zeros((3, 1), dtype=int)), temperature=0)
    text = reasons(nothing, ask(ONE_REQUEST, WRITER), target=2)
    assert text.startswith("<think>Nothing is known. [3] leads in nothing.</think>")


def test_answers_that_cite_ids_have_reasons_that_cite_ids_and_padding_is_never_named() -> None:
    requests = Requests.of([[2, 0, 1], [1, 0]], [[0, 0, 1], [0, 1]])
    asked = ask(requests, PromptWriter("tagged-json", prompt="3-id-steps", semantic_ids=["<a_0>", "<a_1>", "<a_2>"]))
    teacher = RuleTeacher(THREE, weights=[1, 1, 1], temperature=0)
    first, second = teacher.propose(asked, targets_B=None, seeds_B=np.arange(2))
    assert first.text == (
        "<think>near <a_1> <a_2>, text <a_2>, stage <a_0> <a_2>. <a_1> leads in near.</think>"
        '<answer>{"ranking": ["<a_1>", "<a_2>", "<a_0>"]}</answer>'
    )
    assert second.reasoning == "near <a_1> <a_0>, stage <a_0> <a_1>. <a_1> leads in near."
    assert second.ranking == (0, 1)


@pytest.mark.parametrize("text_format", ["tagged-list", "tagged-arrows", "tagged-json", "json"])
def test_what_it_writes_is_read_back_in_every_format_with_reasons(text_format: str) -> None:
    asked = ask(ONE_REQUEST, PromptWriter(text_format))
    (proposal,) = RuleTeacher(THREE).propose(asked, targets_B=None, seeds_B=np.array([5]))
    read = asked.read([proposal.text])
    assert read.rankings_BK[0].tolist() == list(proposal.ranking)
    assert read.reasonings[0] == proposal.reasoning != ""
    assert proposal.verdict is Verdict.OK
    assert proposal.pick == proposal.ranking[0]


@pytest.mark.parametrize("text_format", ["list", "arrows"])
def test_a_format_without_room_for_reasons_is_refused(text_format: str) -> None:
    with pytest.raises(InputError, match="has no room for reasons"):
        RuleTeacher(THREE).propose(ask(ONE_REQUEST, PromptWriter(text_format)), targets_B=None, seeds_B=np.array([0]))


@given(st.data())
def test_every_citation_is_true_of_the_request_however_it_is_shuffled(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    kinds = data.draw(st.integers(1, 4))
    table_IF = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=kinds, max_size=kinds), min_size=6, max_size=6))
    levels = Levels(tuple(f"kind{kind}" for kind in range(kinds)), table_IF)
    requests = Requests.of([list(range(size)) for size in sizes], [[1.0] + [0.0] * (size - 1) for size in sizes])
    asked = ask(requests, WRITER, rng=np.random.default_rng(data.draw(st.integers(0, 99))))
    targets_B = None
    if data.draw(st.booleans()):
        targets_B = np.array([data.draw(st.integers(0, size - 1)) for size in sizes])
    seeds_B = np.array(data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(sizes), max_size=len(sizes))))
    said = RuleTeacher(levels).propose(asked, targets_B=targets_B, seeds_B=seeds_B)
    for row, (proposal, size) in enumerate(zip(said, sizes, strict=True)):
        if targets_B is not None:
            assert proposal.pick == targets_B[row]
        assert sorted(proposal.ranking) == list(range(size))
        cited, _, led = proposal.reasoning.rpartition(". [")
        items = asked.shown.candidates_BK[row]
        for name, kind in zip(levels.names, range(kinds), strict=True):
            have = sorted((table_IF[item][kind] for item in items[:size]), reverse=True)
            found = re.search(rf"{name}((?: \[\d+\])+)", cited)
            places = [int(number) - 1 for number in re.findall(r"\d+", found[1])] if found else []
            assert [table_IF[items[place]][kind] for place in places] == [level for level in have[:2] if level]
            assert (name in led) == (have[0] > 0 and table_IF[items[proposal.pick]][kind] == have[0])


def test_picks_follow_the_softmax_of_the_scores_over_the_temperature() -> None:
    count, temperature = 20_000, 2.0
    asked = ask(ONE_REQUEST.take(np.zeros(count, dtype=int)), WRITER)
    teacher = RuleTeacher(THREE, weights=[0.25, 0.5, 0], temperature=temperature)
    picks = [proposal.pick for proposal in teacher.propose(asked, targets_B=None, seeds_B=np.arange(count))]
    scores = np.array([0.25, 2.25, 2.5]) / temperature  # 0.25 * near + 0.5 * text
    expected = np.exp(scores) / np.exp(scores).sum()
    found = np.bincount(picks, minlength=3) / count
    assert (np.abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / count)).all()


def test_what_is_drawn_depends_on_the_seed_of_the_row_only() -> None:
    requests = ONE_REQUEST.take(np.zeros(6, dtype=int))
    asked, seeds_B = ask(requests, WRITER), np.array([3, 1, 4, 1, 5, 9])
    teacher = RuleTeacher(THREE)
    whole = teacher.propose(asked, targets_B=None, seeds_B=seeds_B)
    assert whole[1] == whole[3]
    assert len({proposal.ranking for proposal in whole}) > 1
    for row in range(6):
        assert teacher.propose(some(asked, [row]), targets_B=None, seeds_B=seeds_B[[row]]) == [whole[row]]


def test_a_shuffled_request_gets_the_same_answer_about_the_same_candidates() -> None:
    teacher = RuleTeacher(THREE, weights=[1, 1, 1], temperature=0)
    asked = shown(ONE_REQUEST, np.array([[2, 0, 1]]), WRITER)
    (proposal,) = teacher.propose(asked, targets_B=None, seeds_B=np.array([0]))
    assert asked.read([proposal.text]).rankings_BK.tolist() == [[1, 2, 0]]
    assert proposal.reasoning == "near [3] [1], text [1], stage [2] [1]. [3] leads in near."


def test_fitted_weights_are_the_log_odds_of_the_levels() -> None:
    # Two candidates, one of level 0 and one of level 1, which is the target in 3 of 4 lists: the log odds are ln 3.
    requests = Requests.of([[0, 1]] * 4, [[0, 1], [0, 1], [0, 1], [1, 0]])
    teacher = RuleTeacher.fit(Levels(("near",), [[0], [1]]), requests, penalty=1e-9)
    assert teacher.weights.shape == (1, 2)
    assert teacher.weights[0, 1] - teacher.weights[0, 0] == pytest.approx(np.log(3), abs=1e-3)


def test_fitting_leaves_out_lists_that_say_nothing_and_shares_a_list_by_its_gains() -> None:
    # Gains 3 and 1 share one list as 3/4 and 1/4; lists of equal gains and the padding of short ones change nothing.
    requests = Requests.of([[1, 0], [0, 1], [1, 0, 2]], [[3, 1], [2, 2], [0, 0, 0]])
    teacher = RuleTeacher.fit(Levels(("near",), [[0], [1], [1]]), requests, penalty=1e-9)
    assert teacher.weights[0, 1] - teacher.weights[0, 0] == pytest.approx(np.log(3), abs=1e-3)
    with pytest.raises(InputError, match="no request has a candidate that is better"):
        RuleTeacher.fit(THREE, Requests.of([[0, 1]], [[1, 1]]))


def test_the_fingerprint_is_that_of_weights_temperature_and_kinds() -> None:
    made = [
        RuleTeacher(THREE),
        RuleTeacher(THREE, weights=[1, 1, 1]),
        RuleTeacher(THREE, temperature=2),
        RuleTeacher(Levels(("near", "text", "lift"), THREE.levels_IF)),
    ]
    assert len({teacher.fingerprint for teacher in made}) == 4
    assert RuleTeacher(THREE).fingerprint == made[0].fingerprint


@pytest.mark.parametrize("weights", [[1, 1], [[1, 1]], [1, np.nan, 1], 3.0, np.zeros((3, 2, 2)), np.zeros((3, 0))])
def test_weights_that_do_not_fit_the_kinds_are_refused(weights: Any) -> None:
    with pytest.raises(InputError, match=r"weights have shape \(.*for 3 kinds of evidence"):
        RuleTeacher(THREE, weights=weights)


@pytest.mark.parametrize("temperature", [-1, np.inf, "warm"])
def test_a_temperature_below_0_or_no_number_is_refused(temperature: Any) -> None:
    with pytest.raises(InputError, match="temperature"):
        RuleTeacher(THREE, temperature=temperature)
