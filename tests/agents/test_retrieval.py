"""Lists of candidates and the first stages that need no training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.agents.retrieval import PopularityRetriever, top
from rerank_env.rewards.errors import InputError


class Fixed:
    """Scores every item by a given row, whatever the history."""

    def __init__(self, scores_I: list[float]) -> None:
        self.scores_I = np.array(scores_I, dtype=np.float32)

    def scores(self, history_BH: np.ndarray) -> np.ndarray:
        return np.tile(self.scores_I, (len(history_BH), 1))


def test_the_best_items_that_the_user_does_not_have_are_listed_best_first() -> None:
    # Scores 5 4 3 2 1; the first user has item 0, the second items 1 and 3, the third none.
    history = np.array([[0, -1], [1, 3], [-1, -1]])
    items, scores = top(Fixed([5, 4, 3, 2, 1]), history, 2, rng=np.random.default_rng(0))
    assert items.tolist() == [[1, 2], [0, 2], [0, 1]]
    assert scores.tolist() == [[4, 3], [5, 3], [5, 4]]


def test_equal_scores_are_put_in_random_order_so_that_no_number_decides() -> None:
    firsts = [
        top(Fixed([1, 1, 1, 1]), np.array([[-1]]), 2, rng=np.random.default_rng(seed))[0][0, 0] for seed in range(200)
    ]
    counts = np.bincount(firsts, minlength=4)
    assert counts.min() > 25  # 50 expected each; 25 is four standard deviations away


def test_a_list_longer_than_what_a_user_has_left_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"size is 3 but a user has left 2 of the 4 items"):
        top(Fixed([1, 2, 3, 4]), np.array([[0, 1]]), 3, rng=np.random.default_rng(0))
    items, _ = top(Fixed([1, 2, 3, 4]), np.array([[0, 1]]), 2, rng=np.random.default_rng(0))
    assert items.tolist() == [[3, 2]]


def test_nobody_asked_gives_no_list() -> None:
    items, scores = top(Fixed([1, 2, 3]), np.empty((0, 4), dtype=np.int64), 2, rng=np.random.default_rng(0))
    assert items.shape == scores.shape == (0, 2)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 700))
def test_lists_equal_those_of_a_full_sort_and_hold_nothing_of_the_history(seed: int, size: int, users: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.permutation(12 * users).reshape(users, 12).astype(np.float32)  # no two scores are equal
    history = np.stack([rng.permutation(12)[:4] for _ in range(users)])

    class Table:
        start = 0

        def scores(self, history_BH: np.ndarray) -> np.ndarray:
            rows = table[self.start : self.start + len(history_BH)]
            self.start += len(history_BH)
            return rows

    items, scores = top(Table(), history, size, rng=rng)
    for user in range(0, users, 97):
        left = [item for item in np.argsort(-table[user]) if item not in history[user]]
        assert items[user].tolist() == left[:size]
        assert scores[user].tolist() == table[user, left[:size]].tolist()


def test_popularity_scores_by_the_logarithm_of_the_count() -> None:
    scores = PopularityRetriever(np.array([0.0, 1.0, 7.0])).scores(np.array([[2], [-1]]))
    assert scores.tolist() == np.log1p(np.array([[0, 1, 7], [0, 1, 7]], dtype=np.float64)).astype(np.float32).tolist()
