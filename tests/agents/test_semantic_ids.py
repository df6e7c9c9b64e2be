"""Whole IDs out of learned codes, and what their report says."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rerank_env.agents.semantic_ids.assignment import assigned, extended
from rerank_env.agents.semantic_ids.quality import nearest_items, relative_error, report, shared
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.semantic_ids import SemanticIds

learned = arrays.arrays(np.int64, st.tuples(st.integers(1, 20), st.just(2)), elements=st.integers(0, 2))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def numbered(count: int) -> list[str]:
    return [f"item {item}" for item in range(count)]


@given(learned, st.integers(0, 10**6))
def test_drawn_levels_make_every_id_unique_and_leave_learned_codes_alone(codes: np.ndarray, seed: int) -> None:
    # 3 * 3 * 4 = 36 IDs for at most 20 items, but only 4 under a prefix, so some may spill.
    ids = assigned(codes, (3, 3, 4), texts=numbered(len(codes)), rng=rng(seed))
    assert ids.uniqueness_L()[-1] == 1.0
    kept = ids.drawn_from_I
    for item, level in enumerate(kept):
        assert (ids.codes_IL[item, :level] == codes[item, :level]).all()
    # As many stay under a prefix as it has room for: the rest spill, and nobody else.
    counts = np.unique(codes, axis=0, return_counts=True)[1]
    assert (kept == 2).sum() == np.minimum(counts, 4).sum()


def test_more_items_than_a_prefix_has_codes_spill_one_level_up_and_say_so() -> None:
    # Six items at (0, 0), where 2 fit; 4 go to the other two second codes under 0, which have 2 places each.
    ids = assigned(np.zeros((6, 2), dtype=np.int64), (2, 3, 2), texts=numbered(6), rng=rng())
    assert sorted(ids.codes_IL[:, 1].tolist()) == [0, 0, 1, 1, 2, 2]
    assert (ids.codes_IL[:, 0] == 0).all()
    assert sorted(ids.drawn_from_I.tolist()) == [1, 1, 1, 1, 2, 2]
    assert (ids.meaning_levels, int(ids.spilled_I.sum())) == (2, 4)
    # Twelve fill everything, the seventh and later ones under the other first code; thirteen do not fit.
    full = assigned(np.zeros((12, 2), dtype=np.int64), (2, 3, 2), texts=numbered(12), rng=rng())
    assert full.uniqueness_L().tolist() == [2 / 12, 6 / 12, 1.0]
    assert np.bincount(full.drawn_from_I).tolist() == [6, 4, 2]
    with pytest.raises(InputError, match=r"13 items need more IDs than the 12 of codebooks of \[2, 3, 2\] codes"):
        assigned(np.zeros((13, 2), dtype=np.int64), (2, 3, 2), texts=numbered(13), rng=rng())


def test_every_free_code_is_drawn_equally_often() -> None:
    codes = np.zeros((2, 1), dtype=np.int64)
    drawn = [assigned(codes, (1, 4), texts="ab", rng=rng(seed)).codes_IL[:, 1] for seed in range(600)]
    counts = np.zeros((4, 4))
    np.add.at(counts, tuple(np.array(drawn).T), 1)
    assert np.diag(counts).sum() == 0
    off = counts[~np.eye(4, dtype=bool)]
    assert ((off - 50) ** 2 / 50).sum() < 31.3  # chi-square of 12 equal cells, 11 degrees of freedom, 99.9 %


def test_the_same_seed_draws_the_same_and_another_draws_others() -> None:
    codes = rng(3).integers(0, 4, size=(40, 2))
    one, same, other = (assigned(codes, (4, 4, 256), texts=numbered(40), rng=rng(seed)).codes_IL for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_without_drawn_levels_twins_share_an_id() -> None:
    ids = assigned([[0, 1], [1, 1], [0, 1]], (2, 2), texts=["a", "b", "a"], rng=rng())
    assert ids.codes_IL.tolist() == [[0, 1], [1, 1], [0, 1]]
    assert (ids.meaning_levels, ids.collisions()) == (2, ((0, 2),))


@given(learned, learned, st.integers(0, 10**6))
@settings(max_examples=50)
def test_a_catalogue_that_grows_keeps_its_ids_and_new_items_take_free_ones(
    old: np.ndarray, new: np.ndarray, seed: int
) -> None:
    texts = numbered(len(old) + len(new))
    ids = assigned(old, (3, 3, 8), texts=texts[: len(old)], rng=rng(seed))
    grown = extended(ids, new, texts=texts, rng=rng(seed + 1))
    assert (grown.codes_IL[: len(old)] == ids.codes_IL).all()
    assert grown.uniqueness_L()[-1] == 1.0
    grown.check_catalogue(texts)


def test_ids_grow_only_with_their_own_catalogue_and_quantiser() -> None:
    ids = assigned([[0], [1]], (2, 4), texts=["a", "b"], rng=rng())
    with pytest.raises(DataError, match="another catalogue"):
        extended(ids, [[0]], texts=["b", "a", "c"], rng=rng())
    with pytest.raises(InputError, match="the new items have 2 learned codes but the IDs have 1"):
        extended(ids, [[0, 0]], texts=["a", "b", "c"], rng=rng())


@pytest.mark.parametrize(
    ("codes", "sizes", "sentence"),
    [
        ([[0.5]], (2, 2), "dtype float64; give whole numbers"),
        ([0, 1], (2, 2), r"shape \(2,\)"),
        ([[0, 0, 0]], (2, 2), "one to 2 levels"),
        ([[2]], (2, 2), r"go from 2 to 2, beyond codebooks of \[2, 2\]"),
        ([[0]], (2, *[256] * 8), "too many codes to draw from"),
    ],
)
def test_codes_that_cannot_be_completed_are_refused(codes: object, sizes: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        assigned(codes, sizes, texts=["x"] * len(codes), rng=rng())  # type: ignore[arg-type]


def test_the_report_of_six_items_is_what_is_counted_by_hand() -> None:
    codes = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 3], [1, 0, 2], [1, 0, 1]]
    texts = ["a", "a", "b", "c", "c", "a"]
    ids = SemanticIds.of(codes, (2, 2, 4), texts=texts, drawn_from=[2] * 6)
    neighbours = np.array([[1], [0], [3], [4], [3], [3]])
    pairs = np.array([[0, 1], [2, 0], [3, 5], [0, 3]])
    found = report(ids, texts=texts, neighbours_IQ=neighbours, pairs_P2=pairs)
    assert found.uniqueness == (2 / 6, 3 / 6, 1.0)
    # Third level: codes 0, 1, 0, 3, 2, 1. Entropy in nats: 2 * (1/3) log 3 + 2 * (1/6) log 6.
    assert found.used == (1.0, 1.0, 1.0)
    assert found.perplexity[0] == pytest.approx(2.0)
    assert found.perplexity[2] == pytest.approx(math.exp(2 / 3 * math.log(3) + 1 / 3 * math.log(6)))
    # Neighbours that share the first code: all but item 2's, 5 of 6. First items 3:3, second ones 2:4, chance 1/2.
    assert (found.neighbours[0].share, found.neighbours[0].chance) == (pytest.approx(5 / 6), pytest.approx(1 / 2))
    # Pairs: 0-1 and 2-0 and 3-5 share the first code; 2-0 differ in the second. First 3:1, second 2:2.
    assert (found.co_purchases[0].share, found.co_purchases[0].chance) == (pytest.approx(3 / 4), pytest.approx(1 / 2))
    assert found.co_purchases[1].share == pytest.approx(2 / 4)
    # Texts a, a, a, c, c are twins; 0 and 1 are alike at (0, 0), 3 and 4 at (1, 0), and 5 is alone at (1, 0).
    assert (found.twins, found.twins_alike, found.twins_shared) == (5, 4, 0)
    assert (found.items, found.meaning_levels, found.spilled) == (6, 2, 0)
    assert "co-purchases that share the first 1: 0.7500 (chance 0.5000)" in str(found)
    with pytest.raises(DataError, match="another catalogue"):
        report(ids, texts=texts[::-1])


def test_what_is_not_given_is_not_measured() -> None:
    ids = SemanticIds.of([[0], [1]], (4,), texts="ab")
    found = report(ids, texts="ab")
    assert (found.neighbours, found.co_purchases, found.used) == ((), (), (0.5,))


@given(
    arrays.arrays(np.int64, (8, 2), elements=st.integers(0, 2)),
    st.lists(st.tuples(*[st.integers(0, 7)] * 2), min_size=1),
)
def test_chance_is_the_share_over_all_first_and_second_items(codes: np.ndarray, pairs: list[tuple[int, int]]) -> None:
    ids = SemanticIds.of(codes, (3, 3), texts=numbered(8))
    first, second = np.array(pairs).T
    found = shared(ids, first, second, 2)
    all_pairs = [tuple(codes[a]) == tuple(codes[b]) for a in first for b in second]
    assert found.chance == pytest.approx(np.mean(all_pairs))
    assert found.share == pytest.approx(np.mean([tuple(codes[a]) == tuple(codes[b]) for a, b in pairs]))


def test_neighbours_are_those_of_highest_cosine_in_blocks_of_any_size() -> None:
    rows = rng().normal(size=(30, 5)).astype(np.float32) * rng(1).uniform(0.1, 9, size=(30, 1)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T - 2 * np.eye(30)
    expected = np.argsort(-cosines, axis=1)[:, :4]
    for block in (1, 7, 100):
        assert (nearest_items(rows, 4, block=block) == expected).all()
    with pytest.raises(InputError, match="30 items have no 30 neighbours"):
        nearest_items(rows, 30)


def test_the_relative_error_is_one_for_the_mean_and_nought_for_the_rows() -> None:
    rows = np.array([[0.0, 2], [4, 0], [2, 4]], dtype=np.float32)
    assert relative_error(rows, rows) == 0.0
    assert relative_error(rows, np.tile(rows.mean(axis=0), (3, 1))) == 1.0
    # Half way to the mean leaves a quarter of the squares.
    assert relative_error(rows, (rows + rows.mean(axis=0)) / 2) == pytest.approx(0.25)
    assert math.isnan(relative_error(rows[:1], rows[:1]))
    with pytest.raises(InputError, match="give like rows"):
        relative_error(rows, rows[:2])


def test_pairs_and_lengths_that_make_no_sense_are_refused() -> None:
    ids = SemanticIds.of([[0], [1]], (4,), texts="ab")
    nobody = np.empty(0, dtype=np.int64)
    with pytest.raises(InputError, match="give pairs, at least one"):
        shared(ids, nobody, nobody, 1)
    with pytest.raises(InputError, match="length is 2, but the IDs have 1 to 1"):
        shared(ids, np.array([0]), np.array([1]), 2)
