"""How often slots that are decoded side by side make a ranking, with a model that is perfect.

Two tables of a simulation made when these decoders were designed, again on reduced counts: a target is a Plackett-Luce
law with utilities scale * N(0, 1), and the model gives the exact probability of each candidate at each slot. Table 1
decodes once, table 2 round by round. A cell passes within three standard errors, those of the table's own counts in
them, and half of its last printed digit.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rerank_env.agents.block_diffusion.answers import max_column_sum  # noqa: E402
from rerank_env.agents.block_diffusion.rules import Look, Static, Threshold, commits, rule_of  # noqa: E402

VECTORS = {10: 150, 20: 24}
IN_TABLE = {10: 300, 20: 60}
DRAWS = 4000
TARGETS = 200


def within(values: Any, expected: float, count: int, digit: float) -> None:
    """The mean of the values is `expected`, which is that of `count` others, printed to `digit`."""
    mean, deviation = float(np.mean(values)), float(np.std(values))
    if np.asarray(values).dtype == bool:  # a share, whose values may be all the same by chance
        deviation = max(deviation, (expected * (1 - expected)) ** 0.5)
    assert abs(mean - expected) <= 3 * deviation * (1 / len(values) + 1 / count) ** 0.5 + digit / 2, mean


def marginals(utility_NK: Any) -> Any:
    """The probability [N, slot, candidate] of Plackett-Luce laws.

    Candidates arrive at exponential times of rate exp(utility), and the ranking is the order of arrival. So candidate j
    is at slot i when i of the others are there before it: a sum of independent indicators given the time of j, over
    which is integrated on a grid in log-time, where the trapezoidal rule is exact to all digits.
    """
    low_N, high_N = -utility_NK.max(1) - 28, -utility_NK.min(1) + 6
    points = int((high_N - low_N).max() / 0.25)
    grid_NX = np.linspace(low_N, high_N, points, axis=1)
    rate_NXK = np.exp(utility_NK[:, None] + grid_NX[:, :, None])
    there_NXK = -np.expm1(-rate_NXK)
    step_N = (high_N - low_N) / (points - 1)
    size = utility_NK.shape[1]
    found = np.zeros((len(utility_NK), size, size))
    for own in range(size):
        count_NXI = np.zeros((*grid_NX.shape, size))
        count_NXI[..., 0] = 1
        for other in range(size):
            if other != own:
                p_NX1 = there_NXK[:, :, other, None]
                count_NXI[..., 1:] = count_NXI[..., 1:] * (1 - p_NX1) + count_NXI[..., :-1] * p_NX1
                count_NXI[..., :1] *= 1 - p_NX1
        density_NX = rate_NXK[:, :, own] * np.exp(-rate_NXK[:, :, own])
        found[:, :, own] = np.einsum("nx,nxi,n->ni", density_NX, count_NXI, step_N)
    return found


@lru_cache
def orders(size: int) -> Any:
    """All permutations: the candidate at each slot, [P, K]."""
    return np.array(list(itertools.permutations(range(size))))


def plackett_luce(utility_NK: Any) -> Any:
    """The log-probability [N, P] of every permutation."""
    along_NPK = utility_NK[:, orders(utility_NK.shape[1])]
    left_NPK = np.logaddexp.accumulate(along_NPK[:, :, ::-1], axis=2)[:, :, ::-1]
    return (along_NPK - left_NPK).sum(2)


def of_orders(weight_NP: Any) -> Any:
    """The probability [N, slot, candidate] under weights [N, P] of permutations."""
    size = orders_size(weight_NP.shape[1])
    at_PKK = np.eye(size)[orders(size)]
    found = (weight_NP @ at_PKK.reshape(len(at_PKK), -1)).reshape(-1, size, size)
    return found / weight_NP.sum(1)[:, None, None]


def orders_size(count: int) -> int:
    return next(size for size in range(1, 9) if len(orders(size)) == count)


def permanent(matrix_NKK: Any) -> Any:
    """The probability that slots drawn by themselves name every candidate once, by Ryser's formula (1963)."""
    size = matrix_NKK.shape[1]
    holds_CK = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    sums_NKC = matrix_NKK @ holds_CK.T
    return (sums_NKC.prod(1) * (-1.0) ** (size - holds_CK.sum(1))).sum(1)


def test_the_marginals_are_those_of_all_permutations() -> None:
    utility_NK = np.random.default_rng(0).normal(size=(4, 6)) * np.array([1, 4, 8, 0])[:, None]
    exact = of_orders(np.exp(plackett_luce(utility_NK)))
    assert np.abs(marginals(utility_NK) - exact).max() < 1e-9
    assert np.allclose(permanent(np.array([[[0.5, 0.5], [0.25, 0.75]]])), 0.5 * 0.75 + 0.5 * 0.25)


@pytest.mark.parametrize(
    ("size", "scale", "drawn", "argmax", "dropped"),
    [
        (10, 1, 0.0006, 0.0, 2.4),
        (10, 4, 0.009, 0.45, 0.6),
        (10, 8, 0.06, 0.82, 0.2),
        (20, 1, 0.0, 0.0, 6.1),
        (20, 4, 0.0, 0.0, 3.2),
        (20, 8, 0.0001, 0.08, 1.5),
    ],
)
def test_slots_decoded_by_themselves_are_as_often_a_ranking_as_table_1_says(
    size: int, scale: int, drawn: float, argmax: float, dropped: float
) -> None:
    rng = np.random.default_rng(size + scale)
    law_NKK = marginals(scale * rng.normal(size=(VECTORS[size], size)))
    assert np.abs(law_NKK.sum(1) - 1).max() < 1e-6  # each candidate stands somewhere
    if size == 10:
        within(permanent(law_NKK), drawn, IN_TABLE[size], 1e-4 if scale == 1 else 1e-3 if scale == 4 else 1e-2)
    else:
        edges_NKK = law_NKK.cumsum(2)
        valid = []
        for edges_KK in edges_NKK:
            uniform_DK = rng.random((DRAWS, size))
            chosen_DK = np.stack(
                [np.searchsorted(edges_KK[slot] / edges_KK[slot, -1], uniform_DK[:, slot]) for slot in range(size)], 1
            )
            valid.append((np.sort(chosen_DK, 1) == np.arange(size)).all(1).mean())
        within(valid, drawn, IN_TABLE[size], 1e-4)
    best_NK = law_NKK.argmax(2)
    named = np.array([len(set(row)) for row in best_NK.tolist()])
    within(named == size, argmax, IN_TABLE[size], 0.01)
    within(size - named, dropped, IN_TABLE[size], 0.1)


def decoded(rule: Any, log_p_NP: Any, *, noise: np.random.Generator | None) -> tuple[Any, Any]:
    """Whether each target was decoded to a ranking, and in how many rounds; a run ends at its first duplicate.

    Slots take the likeliest candidate under the exact law given what is committed; `noise` N(0, 1) is put on
    log(law + 0.001) in every round.
    """
    size = orders_size(log_p_NP.shape[1])
    every_PK = orders(size)
    placed_NK = np.full((len(log_p_NP), size), -1)
    valid_N, rounds_N = np.ones(len(log_p_NP), dtype=bool), np.zeros(len(log_p_NP), dtype=int)
    while len(going := np.flatnonzero(valid_N & (placed_NK < 0).any(1))):
        own_NK = placed_NK[going]
        agrees_NP = ((own_NK[:, None] == every_PK) | (own_NK[:, None] < 0)).all(2)
        log_w_NP = np.where(agrees_NP, log_p_NP[going], -np.inf)
        law_NKK = of_orders(np.exp(log_w_NP - log_w_NP.max(1, keepdims=True)))
        if noise is not None:
            scores_NKK = np.log(law_NKK + 0.001) + noise.normal(size=law_NKK.shape)
            law_NKK = np.exp(scores_NKK) / np.exp(scores_NKK).sum(2, keepdims=True)
        p_NKK = torch.from_numpy(law_NKK)
        best_NK = p_NKK.argmax(2)
        open_NK = torch.from_numpy(own_NK < 0)
        look = Look(
            open_NK,
            p_NKK.gather(2, best_NK[:, :, None]).squeeze(2).log(),
            p_NKK.log()[open_NK],
            torch.from_numpy(rounds_N[going]),
            torch.full((len(going),), size),
        )
        placed_NK[going] = np.where(commits(rule, look).now_RS.numpy(), best_NK.numpy(), own_NK)
        rounds_N[going] += 1
        valid_N[going] = [len(set(row) - {-1}) == sum(x >= 0 for x in row) for row in placed_NK[going].tolist()]
    return valid_N, rounds_N


TABLE = {
    # rule: scale 1 exact, scale 1 noisy, scale 4 exact, scale 4 noisy; each the share of valid runs, and their rounds
    "threshold(0.9)": ((1.00, 7.0), (1.00, 7.0), (1.00, 6.7), (0.99, 6.1)),
    "threshold(0.7)": ((1.00, 7.0), (0.80, 5.8), (1.00, 5.7), (0.82, 3.4)),
    "threshold(0.5)": ((1.00, 5.9), (0.35, 2.7), (1.00, 2.9), (0.39, 1.6)),
    "threshold(0.3)": ((0.51, 3.5), (0.04, 1.1), (0.87, 1.2), (0.10, 1.0)),
    "static(1)": ((0.00, 1.0), (0.02, 1.0), (0.75, 1.0), (0.10, 1.0)),
    "static(2)": ((0.06, 1.1), (0.18, 1.5), (0.90, 2.0), (0.44, 1.8)),
    "static(3)": ((0.47, 1.9), (0.34, 2.3), (1.00, 3.0), (0.54, 2.7)),
    "static(7)": ((1.00, 7.0), (1.00, 7.0), (1.00, 7.0), (1.00, 7.0)),
}


@lru_cache
def targets(scale: int) -> Any:
    return plackett_luce(scale * np.random.default_rng(scale).normal(size=(TARGETS, 7)))


@pytest.mark.parametrize("rule", list(TABLE))
def test_iterated_decoding_is_as_often_a_ranking_in_as_many_rounds_as_table_2_says(rule: str) -> None:
    cells = zip(itertools.product((1, 4), (False, True)), TABLE[rule], strict=True)
    for (scale, is_noisy), (share, forwards) in cells:
        noise = np.random.default_rng(7) if is_noisy else None
        valid_N, rounds_N = decoded(rule_of(rule), targets(scale), noise=noise)
        within(valid_N, share, 300, 0.01)
        within(rounds_N, forwards, 300, 0.1)


laws = st.tuples(st.integers(0, 100_000), st.sampled_from([0.05, 0.3, 1.0, 5.0]), st.integers(2, 5))


@settings(max_examples=60)
@given(laws, st.floats(0.5, 1, exclude_min=True), st.booleans(), st.booleans())
def test_a_threshold_above_one_half_never_repeats_a_candidate_with_exact_marginals(
    law: tuple[int, float, int], least: float, is_greedy: bool, first: bool
) -> None:
    """At most one slot gives a candidate more than one half, under any law; whether it is drawn or the likeliest, and
    whether the first slot may wait or not.
    """
    seed, concentration, size = law
    rng = np.random.default_rng(seed)
    weight_P = rng.gamma(concentration, size=len(orders(size))) + 1e-12
    placed = [-1] * size
    while -1 in placed:
        agrees_P = np.all([(orders(size)[:, k] == own) | (own < 0) for k, own in enumerate(placed)], axis=0)
        law_KK = of_orders((weight_P * agrees_P)[None])[0]
        chosen = [int(row.argmax() if is_greedy else rng.choice(size, p=row / row.sum())) for row in law_KK]
        open_K = torch.tensor([own < 0 for own in placed])
        p_KK = torch.from_numpy(law_KK)
        own_p_K = p_KK[range(size), chosen]
        look = Look(open_K[None], own_p_K.log()[None], p_KK.log()[open_K], torch.tensor([0]), torch.tensor([size]))
        for slot in commits(Threshold(least), look, first=first).now_RS[0].nonzero().squeeze(1).tolist():
            placed[slot] = chosen[slot]
        told = [own for own in placed if own >= 0]
        assert len(set(told)) == len(told)
    assert max_column_sum(torch.from_numpy(of_orders(weight_P[None])[0]).log()) == pytest.approx(1)


def test_rules_that_must_commit_weaker_slots_do_repeat_candidates_with_exact_marginals() -> None:
    # two rankings, 0-1-2 with .6 and 1-0-2 with .4: slots 0 and 1 agree; 0-1-2 and 0-2-1 and 1-0-2 with thirds do not
    weight_1P = np.array([[float(tuple(row) in {(0, 1, 2), (0, 2, 1), (1, 0, 2)}) for row in orders(3).tolist()]])
    with np.errstate(divide="ignore"):
        log_p_1P = np.log(weight_1P / 3)
    # slot 0: 2/3 for 0; slot 1: a third each, so the likeliest is 0 again
    assert decoded(Static(1), log_p_1P, noise=None) == (False, 1)
    assert decoded(Threshold(0.51), log_p_1P, noise=None)[0]
