"""The best response: the search finds what was planted, and nothing where there is nothing."""

import numpy as np

from rerank_env.rewards import FunctionReward, Slates, audit, gain
from rerank_env.rewards.auditing.best_response import _score_gradient, best_response, edited
from rerank_env.rewards.auditing.scene import Scene
from rerank_env.rewards.auditing.writing import PLAIN

SLATES = Slates.of(np.eye(10)[np.minimum(np.random.default_rng(0).geometric(0.35, 400) - 1, 9)].tolist())
"""One relevant item, the more often the higher a place is."""


def with_bonus(bonus):
    """`gain` and 0.5 for an order of places that nobody would think of."""

    def function(rankings_BK, slates):
        return gain()(rankings_BK, slates) + 0.5 * bonus(rankings_BK)

    return FunctionReward(function, name="planted", low=-1, high=1.5, invalid=-1.1)


def swapped(rankings_BK):
    return (rankings_BK[:, 2] == 6) & (rankings_BK[:, 6] == 2)


def by_order(rankings_BK):
    """Places 4, 5, 6 anywhere, but in the opposite order, and place 10 above place 2."""
    ranks_BK = np.argsort(rankings_BK, axis=1)
    return (ranks_BK[:, 5] < ranks_BK[:, 4]) & (ranks_BK[:, 4] < ranks_BK[:, 3]) & (ranks_BK[:, 9] < ranks_BK[:, 1])


def test_it_finds_a_bonus_for_exchanging_places_3_and_7():
    report = audit(with_bonus(swapped), SLATES)
    row = report["best_response"]
    assert row.mean_reward > 0.4  # the bonus less what the exchange costs
    assert row.passed is False
    assert "the places in the order 1 2 7 4 5 6 3" in row.about
    # no attack on the list comes upon it but by chance: a random order does once in 90
    assert {row.name for row in report.failures} == {"best_response"}


def test_it_finds_a_bonus_that_no_single_edit_reaches():
    report = audit(with_bonus(by_order), SLATES)
    assert report["best_response"].mean_reward > 0.3
    assert report["best_response"].passed is False


def test_it_finds_nothing_in_gain_where_the_incoming_order_is_good():
    row = audit("gain", SLATES)["best_response"]
    assert row.passed is True
    assert row.mean_reward <= 0.0


def test_it_chooses_what_to_write_too():
    report = audit(
        "gain + 0.1*cites(least=3) + 0.1*length(least=100, most=400, unit='chars')",
        SLATES.take(np.arange(100)),
        text_format="json",
    )
    # 0.1 for citing and 0.1 for length, less what an order that was chosen on so few requests costs on others
    assert 0.1 < report["best_response"].mean_reward <= 0.2
    assert report["best_response"].passed is False
    assert report["best_response"].about.endswith(", cites every candidate")


def test_the_same_seed_finds_the_same_order():
    scene = Scene(gain(), SLATES, "list", 0, np.arange(400), np.arange(400))
    first, again = (best_response(scene, PLAIN, np.random.default_rng(3)).about for _ in range(2))
    assert first == again


def test_lists_of_unequal_length_are_searched_too():
    rows = [[0] * place + [1] + [0] * rest for place, rest in [(0, 1), (1, 3), (0, 4), (2, 5)] * 10]
    report = audit("valid_format.when(not_identity)", Slates.of(rows))
    assert report["best_response"].mean_reward == 1.0


def test_the_gradient_is_that_of_the_likelihood():
    rng = np.random.default_rng(0)
    scores, orders = rng.normal(size=5), np.array([rng.permutation(5) for _ in range(3)])

    def log_likelihood(scores):
        total = 0.0
        for order in orders:
            for place in range(5):  # the next is chosen among those that are left, by a softmax of the scores
                total += scores[order[place]] - np.log(np.exp(scores[order[place:]]).sum())
        return total / len(orders)

    step = 1e-6
    slopes = [
        (log_likelihood(scores + step * unit) - log_likelihood(scores - step * unit)) / (2 * step) for unit in np.eye(5)
    ]
    np.testing.assert_allclose(_score_gradient(scores, orders), slopes, atol=1e-8)


def test_edits_of_orders_are_orders():
    order = np.array([3, 0, 2, 1])
    assert edited(order, "exchange", 0, 2).tolist() == [2, 0, 3, 1]
    assert edited(order, "move", 0, 2).tolist() == [0, 2, 3, 1]
    assert edited(order, "move", 3, 0).tolist() == [1, 3, 0, 2]
    assert order.tolist() == [3, 0, 2, 1]
