"""Decoding rules: worked cases, what holds for any probabilities, and their text forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rerank_env.agents.block_diffusion.rules import (  # noqa: E402
    Entropy,
    Factor,
    Look,
    Static,
    Threshold,
    commits,
    rule_of,
)
from rerank_env.rewards.errors import InputError, UnknownNameError  # noqa: E402


def look(confidences: list[float], *, closed: tuple[int, ...] = (), number: int = 0, size: int | None = None) -> Look:
    """One row whose places have two-token laws, of which the drawn token has that probability."""
    p_S = torch.tensor(confidences, dtype=torch.float64)
    open_S = torch.tensor([place not in closed for place in range(len(p_S))])
    law_SV = torch.stack([p_S, 1 - p_S], dim=1).log()
    return Look(
        open_S[None],
        p_S.log()[None],
        law_SV[open_S],
        torch.tensor([number]),
        torch.tensor([len(p_S) if size is None else size]),
    )


def made(rule: Any, seen: Look) -> tuple[list[int], list[int]]:
    """The places that are committed, and those that are forced."""
    now_RS, forced_RS = commits(rule, seen)
    return now_RS[0].nonzero().squeeze(1).tolist(), forced_RS[0].nonzero().squeeze(1).tolist()


def test_a_threshold_commits_all_that_reach_it_or_else_the_best_alone() -> None:
    seen = look([0.6, 0.95, 0.3, 0.9])
    assert made(Threshold(0.9), seen) == ([1, 3], [])  # equal is enough
    assert made(Threshold(0.5), seen) == ([0, 1, 3], [])
    assert made(Threshold(0.96), seen) == ([1], [1])
    assert made(Threshold(0.96), look([0.6, 0.95, 0.3, 0.9], closed=(1,))) == ([3], [3])
    assert made(Threshold(0.9), look([0.7, 0.7, 0.7])) == ([0], [0])  # of equals the one further left


def test_a_static_rule_shares_a_block_out_over_its_rounds() -> None:
    p = [0.1, 0.5, 0.3, 0.9, 0.7, 0.2, 0.4]
    # 7 places in 3 rounds: 7 // 3 = 2, and 7 mod 3 = 1 of the rounds has one more
    assert made(Static(3), look(p, number=0)) == ([1, 3, 4], [])
    assert made(Static(3), look(p, closed=(1, 3, 4), number=1)) == ([2, 6], [])
    assert made(Static(3), look(p, closed=(1, 2, 3, 4, 6), number=2)) == ([0, 5], [])
    assert made(Static(1), look(p)) == (list(range(7)), [])
    assert made(Static(20), look(p)) == ([3], [])  # more rounds than places: one each


def test_a_static_rule_whose_rounds_are_over_forces_one() -> None:
    assert made(Static(4), look([0.4, 0.6], number=2)) == ([1], [1])  # 2 // 4 = 0, and 2 is not below 2 mod 4


def test_a_factor_commits_the_largest_number_that_is_sure_together() -> None:
    # bounds for factor 1: n = 1: 1 - 1/2 = .5; n = 2: 1 - 1/3 = .667; n = 3: 1 - 1/4 = .75; n = 4: 1 - 1/5 = .8
    assert made(Factor(1.0), look([0.9, 0.76, 0.79, 0.81])) == ([0, 2, 3], [])  # fourth .76 < .8, third .79 >= .75
    assert made(Factor(1.0), look([0.55, 0.6, 0.52, 0.5])) == ([1], [])  # second .55 < .667
    assert made(Factor(1.0), look([0.3, 0.45, 0.2, 0.1])) == ([1], [1])
    assert made(Factor(3.0), look([0.3, 0.45, 0.2, 0.1])) == ([0, 1], [])  # second .3 >= 1 - 3/3, third .2 < 1 - 3/4


def test_an_entropy_rule_commits_the_lowest_that_fit_under_the_bound() -> None:
    def h(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    p = [0.9, 0.99, 0.6, 0.95]  # entropies .325, .056, .673, .199
    assert h(0.99) + h(0.95) < 0.35 < h(0.99) + h(0.95) + h(0.9)
    assert made(Entropy(0.35), look(p)) == ([1, 3], [])
    assert made(Entropy(0.6), look(p)) == ([0, 1, 3], [])
    assert made(Entropy(0.05), look(p)) == ([1], [1])
    assert made(Entropy(0.25), look(p, closed=(1,))) == ([3], [])


def test_an_entropy_rule_goes_by_the_law_and_not_by_the_token_drawn() -> None:
    seen = look([0.02, 0.6])  # the unlikely token of a sure law was drawn
    assert made(Entropy(0.35), seen) == ([0], [])
    assert made(Threshold(0.5), seen) == ([1], [])


def test_a_first_place_that_may_not_wait_is_committed_alone_where_the_rule_does_not_vouch_for_it() -> None:
    p = [0.2, 0.95, 0.3, 0.9]
    cases = {
        Threshold(0.9): ([0], [0]),  # places 1 and 3 wait for it
        Threshold(0.2): ([0, 1, 2, 3], []),
        Threshold(0.99): ([0], [0]),
        Static(2): ([0, 1], []),  # 4 // 2 of them, it among them
        Static(9): ([0], []),  # 4 // 9 is 0, but the first 4 rounds have one of the remainder
        Factor(0.2): ([0], [0]),
        Entropy(0.25): ([0], [0]),
    }
    for rule, expected in cases.items():
        now_RS, forced_RS = commits(rule, look(p), first=True)
        found = tuple(made_RS[0].nonzero().squeeze(1).tolist() for made_RS in (now_RS, forced_RS))
        assert found == expected, rule
        later = look(p, closed=(0,), number=1)
        assert commits(rule, later, first=True).now_RS.equal(commits(rule, later).now_RS)
    sure = look([0.95, 0.95, 0.3, 0.9])
    assert commits(Threshold(0.9), sure, first=True).now_RS.equal(commits(Threshold(0.9), sure).now_RS)


rules = st.one_of(
    st.builds(Static, st.integers(1, 9)),
    st.builds(Threshold, st.floats(0.01, 1)),
    st.builds(Factor, st.floats(0.01, 5)),
    st.builds(Entropy, st.floats(0, 5)),
)
grids = st.integers(1, 4).flatmap(
    lambda rows: st.integers(1, 6).flatmap(
        lambda places: st.tuples(
            st.lists(st.lists(st.floats(0.001, 0.999), min_size=places, max_size=places), min_size=rows, max_size=rows),
            st.lists(st.lists(st.booleans(), min_size=places, max_size=places), min_size=rows, max_size=rows),
            st.lists(st.integers(0, 8), min_size=rows, max_size=rows),
        )
    )
)


@given(rules, grids)
def test_any_rule_commits_one_or_more_open_places_of_each_row_that_has_any(rule: Any, grid: Any) -> None:
    p_RS, open_RS = torch.tensor(grid[0], dtype=torch.float64), torch.tensor(grid[1])
    law_NV = torch.stack([p_RS, 1 - p_RS], dim=-1).log()[open_RS]
    seen = Look(open_RS, p_RS.log(), law_NV, torch.tensor(grid[2]), torch.full((len(p_RS),), p_RS.shape[1]))
    now_RS, forced_RS = commits(rule, seen)
    assert not (now_RS & ~open_RS).any()
    assert (now_RS.any(1) == open_RS.any(1)).all()
    assert not (forced_RS & ~now_RS).any()
    assert all(row.sum() == 1 for row, forced in zip(now_RS, forced_RS, strict=True) if forced.any())
    for row in range(len(p_RS)):  # each row as if it were alone
        own = Look(
            open_RS[row : row + 1],
            p_RS[row : row + 1].log(),
            torch.stack([p_RS[row], 1 - p_RS[row]], dim=-1).log()[open_RS[row]],
            seen.round_R[row : row + 1],
            seen.size_R[row : row + 1],
        )
        assert commits(rule, own).now_RS[0].tolist() == now_RS[row].tolist()


@given(st.floats(0.01, 1), st.lists(st.floats(0.001, 0.999), min_size=1, max_size=8))
def test_a_threshold_is_what_a_plain_loop_says(least: float, p: list[float]) -> None:
    probabilities = torch.tensor(p, dtype=torch.float64).log().exp().tolist()  # rounded as they are in the rule
    passing = [place for place, own in enumerate(probabilities) if own >= least]
    best = max(range(len(p)), key=lambda place: (math.log(p[place]), -place))
    expected = (passing, []) if passing else ([best], [best])
    assert made(Threshold(least), look(p)) == expected


@given(st.floats(0.05, 4), st.lists(st.floats(0.001, 0.999), min_size=1, max_size=8))
def test_a_factor_is_what_trying_every_number_says(factor: float, p: list[float]) -> None:
    confidences = sorted(torch.tensor(p, dtype=torch.float64).log().exp().tolist(), reverse=True)
    holds = [n for n in range(1, len(p) + 1) if confidences[n - 1] >= 1 - factor / (n + 1)]
    now, forced = made(Factor(factor), look(p))
    assert len(now) == max(holds, default=1)
    assert bool(forced) == (not holds)


@given(rules)
def test_the_text_of_a_rule_gives_the_rule(rule: Any) -> None:
    assert rule_of(str(rule)) == rule


def test_texts_of_rules_read_as_they_are_written() -> None:
    assert rule_of("threshold(0.9)") == Threshold(0.9)
    assert rule_of(" static( 4 ) ") == Static(4)
    assert str(Factor(1)) == "factor(1.0)"
    assert str(Entropy(0.35)) == "entropy(0.35)"


@pytest.mark.parametrize("text", ["threshold", "threshold()", "static(4", "static(1.5)", "entropy(x)", "", None, 4])
def test_a_text_of_another_form_is_refused(text: Any) -> None:
    with pytest.raises(InputError, match="give"):
        rule_of(text)


def test_an_unknown_rule_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'threshold'"):
        rule_of("treshold(0.9)")


@pytest.mark.parametrize(
    "text", ["threshold(0)", "threshold(1.1)", "threshold(nan)", "static(0)", "factor(0)", "factor(inf)", "entropy(-1)"]
)
def test_numbers_that_a_rule_cannot_have_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected|give"):
        rule_of(text)
