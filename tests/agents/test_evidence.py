"""Evidence counts what it says, never counts the asking user, and does not care how things are numbered or ordered."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.agents.evidence import Evidence, features
from rerank_env.agents.evidence.pairs import GAPS, Takers
from rerank_env.agents.evidence.similarity import ItemVectors
from rerank_env.data import Catalog, Requests
from rerank_env.data.interactions import Interactions
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import random_rankings
from rerank_env.semantic_ids import catalogue_hash

TEXTS = ("red lip balm", "red lip gloss", "green tea soap", "soap", "black tea", "")
LABELS = (("lips",), ("lips", "acme"), ("bath",), ("bath", "acme"), ("food",), ())


def log_of(
    users: list[int], items: list[int], texts: tuple[str, ...] = TEXTS, *, labelled: bool = True
) -> Interactions:
    count = len(users)
    return Interactions(
        np.array(users, dtype=np.int64), np.array(items, dtype=np.int64), np.ones(count), np.arange(count) + 0.0,
        texts, np.zeros((len(texts), 0), dtype=np.float32), (), LABELS[: len(texts)] if labelled else (),
    )  # fmt: skip


def requests_of(
    candidates: list[list[int]], history: list[list[int]], users: list[int], scores: list[list[float]] | None = None
) -> Requests:
    gains = [[1.0] + [0.0] * (len(items) - 1) for items in candidates]
    return Requests.of(
        candidates, gains, scores, history=history, users=users, catalog=Catalog.of(TEXTS), name="written by hand"
    )


def everything(log: Interactions) -> np.ndarray:
    return np.ones(len(log), dtype=bool)


@st.composite
def logs(draw: st.DrawFn) -> Interactions:
    """Any small log over six items: up to five users, some with repeats, rows of a user together."""
    rows = draw(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=7), min_size=1, max_size=5))
    numbers = draw(st.permutations(range(10, 10 + len(rows))))
    users = [number for number, items in zip(numbers, rows, strict=True) for _ in items]
    return log_of(users, [item for items in rows for item in items], labelled=draw(st.booleans()))


@st.composite
def asked(draw: st.DrawFn) -> tuple[Interactions, np.ndarray, Requests]:
    """A log, the rows that may be counted, and requests of users that the log has or has not."""
    log = draw(logs())
    seen_N = np.array(draw(st.lists(st.booleans(), min_size=len(log), max_size=len(log))), dtype=bool)
    count = draw(st.integers(1, 4))
    items = st.permutations(range(6)).flatmap(lambda order: st.integers(2, 5).map(lambda size: list(order[:size])))
    candidates = draw(st.lists(items, min_size=count, max_size=count))
    history = draw(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=count, max_size=count))
    users = draw(st.lists(st.sampled_from([*set(log.users_N.tolist()), 99]), min_size=count, max_size=count))
    scores = [draw(st.lists(st.floats(-9, 9, width=32), min_size=len(c), max_size=len(c))) for c in candidates]
    return log, seen_N, requests_of(candidates, history, users, scores)


def without(log: Interactions, user: int) -> tuple[Interactions, np.ndarray]:
    """The log from which a user's rows are deleted, and which rows are left."""
    kept = log.users_N != user
    fields = {name: getattr(log, name)[kept] for name in ("users_N", "items_N", "ratings_N", "times_N")}
    return replace(log, **fields), kept


@settings(max_examples=60, deadline=None)
@given(asked())
def test_a_feature_is_what_it_would_be_had_the_asking_user_never_been_in_the_log(
    case: tuple[Interactions, np.ndarray, Requests],
) -> None:
    log, seen_N, requests = case
    whole_BKF = Evidence.fit(log, seen_N).features(requests)
    for row, user in enumerate(requests.users_B):
        rest, kept = without(log, int(user))
        alone_BKF = Evidence.fit(rest, seen_N[kept]).features(requests.take([row]))
        np.testing.assert_array_equal(whole_BKF[row], alone_BKF[0])


@settings(max_examples=40, deadline=None)
@given(asked(), st.integers(0, 5))
def test_rows_that_are_not_seen_change_nothing(case: tuple[Interactions, np.ndarray, Requests], other: int) -> None:
    log, seen_N, requests = case
    changed = replace(log, items_N=np.where(seen_N, log.items_N, other))
    found = [Evidence.fit(any_log, seen_N).features(requests) for any_log in (log, changed)]
    np.testing.assert_array_equal(*found)


@settings(max_examples=40, deadline=None)
@given(asked(), st.integers(0, 2**32))
def test_features_move_with_the_candidates_and_know_no_item_numbers_and_no_relevance(
    case: tuple[Interactions, np.ndarray, Requests], seed: int
) -> None:
    log, seen_N, requests = case
    rng = np.random.default_rng(seed)
    found_BKF = Evidence.fit(log, seen_N).features(requests)
    order_BK = random_rankings(requests.sizes_B, requests.candidates_BK.shape[1], rng)
    moved_BKF = Evidence.fit(log, seen_N).features(requests.reordered(order_BK))
    for row, size in enumerate(requests.sizes_B):
        np.testing.assert_allclose(moved_BKF[row, :size], found_BKF[row, order_BK[row, :size]], rtol=1e-5, atol=1e-6)

    new_I = rng.permutation(6)
    back = np.argsort(new_I)
    texts, labels = tuple(TEXTS[old] for old in back), tuple(LABELS[old] for old in back) if log.labels else ()
    renumbered = replace(log, items_N=new_I[log.items_N], texts=texts, labels=labels)
    there = replace(
        requests,
        catalog=Catalog.of(texts),
        candidates_BK=np.where(requests.candidates_BK < 0, -1, new_I[requests.candidates_BK]),
        history_BH=np.where(requests.history_BH < 0, -1, new_I[requests.history_BH]),
        relevance_BK=np.where(requests.slates.mask_BK, 1.0 - requests.relevance_BK, 0.0),
    )
    np.testing.assert_allclose(Evidence.fit(renumbered, seen_N).features(there), found_BKF, rtol=1e-5, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(logs(), st.data())
def test_pairs_are_counted_as_a_plain_loop_counts_them(log: Interactions, data: st.DataObject) -> None:
    seen_N = np.array(data.draw(st.lists(st.booleans(), min_size=len(log), max_size=len(log))), dtype=bool)
    takers, pairs = Takers.fit(log, seen_N)
    counts = np.zeros((6, 6, len(GAPS)), dtype=int)
    holders = np.zeros(6, dtype=int)
    for user in set(log.users_N.tolist()):
        mine = list(dict.fromkeys(log.items_N[(log.users_N == user) & seen_N].tolist()))
        for place, item in enumerate(mine):
            holders[item] += 1
            owner = takers.owners(np.array([user]))
            assert takers.places(owner, np.array([item])).tolist() == [place]
            for later in range(place + 1, len(mine)):
                counts[item, mine[later], 0 if later - place == 1 else 1 if later - place <= 3 else 2] += 1
    earlier, later = (grid.ravel() for grid in np.meshgrid(np.arange(6), np.arange(6), indexing="ij"))
    assert pairs.between(earlier, later, np.zeros(36, dtype=int)).tolist() == counts.reshape(36, -1).tolist()
    assert takers.counts_I.tolist() == holders.tolist()
    assert takers.owners(np.array([-7, 99])).tolist() == [-1, -1]


def test_pairs_beyond_fifty_places_are_not_counted_and_merging_in_parts_counts_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = tuple(f"item {number}" for number in range(60))
    log = log_of([0] * 60 + [1] * 60, [*range(60), *range(60)], texts, labelled=False)
    _, pairs = Takers.fit(log, everything(log))
    asked_M = np.array([0, 0, 0, 0, 0])
    later_M = np.array([1, 3, 50, 51, 0])
    none = np.zeros(5, dtype=int)
    assert pairs.between(asked_M, later_M, none).tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 2], [0, 0, 0], [0, 0, 0]]
    assert pairs.between(asked_M, later_M, later_M).sum(axis=1).tolist() == [1, 1, 1, 0, 0]  # 51 never was counted
    monkeypatch.setattr("rerank_env.agents.evidence.pairs.PENDING", 100)
    _, parts = Takers.fit(log, everything(log))
    assert np.array_equal(parts.keys_P, pairs.keys_P)
    assert np.array_equal(parts.counts_PG, pairs.counts_PG)


def test_every_feature_of_a_small_case_is_as_worked_out_by_hand() -> None:
    # Users 1 and 2 took 0 then 1; user 3 took 1, then 4, then 0; user 4 took 2. User 5 asks, who is new, with history
    # 2, 0 (0 is the latest). Candidates: 1 (score 3), 4 (score 1). Counts: n(0) = 3, n(1) = 3, n(2) = 1, n(4) = 1.
    log = log_of([1, 1, 2, 2, 3, 3, 3, 4], [0, 1, 0, 1, 1, 4, 0, 2])
    requests = requests_of([[1, 4]], [[2, 0]], [5], [[3.0, 1.0]])
    evidence = Evidence.fit(log, everything(log))
    found = dict(zip(evidence.names, evidence.features(requests)[0].T.tolist(), strict=True))
    three = 1.0 / math.sqrt(3.0)
    lips = (1 + math.log(7 / 3), 1 + math.log(7 / 3))  # idf of "lips" and "acme": two of six items have each
    label = lips[0] / math.hypot(*lips)
    expected = {
        "score": [3.0, 1.0], "score_below_top": [0.0, -2.0], "score_z": [1.0, -1.0], "score_place": [0, 1],
        "popularity": [math.log(4), math.log(2)], "popularity_place": [0, 1],
        "next_last": [math.log(3), 0], "near_last": [math.log(3), 0], "near_last_3": [math.log(3), 0],
        "after_last": [math.log(3), 0], "after_all": [math.log(3), 0],
        "together_last": [math.log(4), math.log(2)], "together_all": [math.log(4), math.log(2)],
        "near_rate": [2 / 8, 0], "after_rate": [2 / 8, 0],
        "near_cosine_last": [2 / 3, 0], "near_cosine_recent": [2 / 3, 0],
        "together_cosine_last": [1.0, three], "together_cosine_recent": [1.0, three],
        "together_cosine_all": [1.0, three], "together_cosine_max": [1.0, three],
        "lift_last": [math.log(3.1 * 4 / 10), math.log(1.1 * 4 / 4)],
        "lift_mean": [(math.log(3.1 * 4 / 10) + math.log(0.1 * 4 / 4)) / 2,
                      (math.log(1.1 * 4 / 4) + math.log(0.1 * 4 / 2)) / 2],
        "lift_max": [math.log(3.1 * 4 / 10), math.log(1.1 * 4 / 4)],
        "covered": [0.5, 0.5], "together_peers": [three, three],
        "label_last": [label, 0], "label_recent": [label / 1.5, 0], "label_mean": [label / 2, 0],
        "label_max": [label, 0], "label_peers": [0, 0],
    }  # fmt: skip
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-6), name
    assert set(found) - set(expected) == {"text_last", "text_recent", "text_mean", "text_max", "text_peers"}
    # Words of items 0, 1, 2, 4: red and lip are in two of six texts, tea in two; balm, gloss, green and black in one.
    two, one, soap = 1 + math.log(7 / 3), 1 + math.log(7 / 2), 1 + math.log(7 / 3)
    with_last = 2 * two**2 / (2 * two**2 + one**2)
    tea = two**2 / math.hypot(one, two, soap) / math.hypot(one, two)
    assert found["text_last"] == pytest.approx([with_last, 0], abs=1e-6)
    assert found["text_recent"] == pytest.approx([with_last / 1.5, tea / 2 / 1.5], abs=1e-6)
    assert found["text_mean"] == pytest.approx([with_last / 2, tea / 2], abs=1e-6)
    assert found["text_max"] == pytest.approx([with_last, tea], abs=1e-6)
    assert found["text_peers"] == [0, 0]
    assert list(evidence.meanings) == list(evidence.names)


def test_an_empty_history_says_nothing_and_padding_is_zero() -> None:
    log = log_of([1, 1, 2, 2], [0, 1, 0, 1])
    evidence = Evidence.fit(log, everything(log))
    found_BKF = evidence.features(requests_of([[1, 4], [0, 1, 2]], [[], [0]], [5, 6]))
    assert found_BKF.dtype == np.float32
    assert (found_BKF[0, 2] == 0).all()
    of = {name: found_BKF[0, :2, f].tolist() for f, name in enumerate(evidence.names)}
    speaking = {name for name, values in of.items() if any(values)}
    assert speaking <= {"score_below_top", "score", "score_z", "score_place", "popularity",
                        "popularity_place", "text_peers", "label_peers"}  # fmt: skip
    no_column = replace(
        requests_of([[1, 4]], [[]], [5]),
        history_BH=np.zeros((1, 0), np.int64),
        feedback_BH=np.zeros((1, 0), np.float32),
    )
    np.testing.assert_array_equal(evidence.features(no_column), found_BKF[:1, :2])


def test_only_the_latest_fifty_entries_are_read() -> None:
    texts = tuple(f"thing {number}" for number in range(80))
    log = log_of([1] * 80, list(range(80)), texts, labelled=False)
    evidence = Evidence.fit(log, everything(log))
    catalog = Catalog.of(texts)
    longest, latest = [*range(10), *range(25, 75)], list(range(25, 75))
    found = [
        evidence.features(Requests.of([[75, 76]], [[1, 0]], history=[items], users=[9], catalog=catalog))
        for items in (longest, latest, latest[1:])
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[1], found[2])


def test_blocks_and_neighbours_move_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.permutation(6)[:size].tolist() for size in rng.integers(3, 6, 40)]
    log = log_of([user for user, items in enumerate(rows) for _ in items], [item for items in rows for item in items])
    evidence = Evidence.fit(log, everything(log), embeddings=rng.normal(size=(6, 4)))
    requests = requests_of(
        [rng.permutation(6)[:size].tolist() for size in rng.integers(2, 6, 40)], [items[:-1] for items in rows],
        list(range(40)),
    )  # fmt: skip
    found_BKF = evidence.features(requests)
    assert evidence.names[-5:] == tuple(f"embedding_{name}" for name in ("last", "recent", "mean", "max", "peers"))
    assert np.isfinite(found_BKF).all()
    np.testing.assert_array_equal(evidence.features(requests.take([7, 3])), found_BKF[[7, 3]])
    monkeypatch.setattr(features, "NUMBERS_AT_A_TIME", 1)
    monkeypatch.setattr("rerank_env.agents.evidence.similarity.PAIRS_AT_A_TIME", 3)
    np.testing.assert_array_equal(evidence.features(requests), found_BKF)


def test_tf_idf_agrees_with_scikit_learn() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    texts = ["Tea, tea and TEA", "Öl für Haare", "tea for hair", "x x y", "tea", ""]
    theirs = text.TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts).toarray()
    left, right = (grid.ravel() for grid in np.meshgrid(np.arange(6), np.arange(6)))
    ours = ItemVectors.of_texts(texts).cosines(left, right)
    np.testing.assert_allclose(ours, (theirs @ theirs.T)[left, right], atol=1e-6)


def test_embeddings_are_compared_by_cosine_and_zeros_are_like_nothing() -> None:
    vectors = ItemVectors.of_embeddings([[3.0, 0.0], [1.0, 1.0], [0.0, 0.0], [-2.0, 0.0]])
    found = vectors.cosines(np.array([0, 0, 0, 2]), np.array([1, 3, 2, 2]))
    assert found == pytest.approx([math.sqrt(0.5), -1.0, 0.0, 0.0], abs=1e-6)


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    log = log_of([1, 1], [0, 1])
    with pytest.raises(InputError, match=r"seen_N has shape \(1,\) .* give one truth value an interaction"):
        Evidence.fit(log, np.ones(1, dtype=bool))
    with pytest.raises(InputError, match="seen_N has shape .* dtype int64"):
        Evidence.fit(log, np.ones(2, dtype=np.int64))
    with pytest.raises(InputError, match="the log has 6 items but 5 embedding rows"):
        Evidence.fit(log, everything(log), embeddings=np.ones((5, 2)))
    with pytest.raises(InputError, match="give one row of finite numbers an item"):
        Evidence.fit(log, everything(log), embeddings=np.full((6, 2), np.nan))
    other = Requests.of([[0, 1]], [[1, 0]], catalog=Catalog.of(["a", "b"]))
    with pytest.raises(InputError, match="a catalogue of 2 items but the evidence was fitted on 6"):
        Evidence.fit(log, everything(log)).features(other)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 5), st.sampled_from(["", "pen", "red lip balm"]))
def test_only_the_texts_of_the_log_in_their_order_are_its_catalogue(order: list[int], item: int, text: str) -> None:
    log = log_of([1, 1, 2, 2], [0, 1, 0, 1])
    evidence = Evidence.fit(log, everything(log))
    requests = requests_of([[1, 4]], [[0]], [5])
    texts = [TEXTS[old] for old in order]
    texts[item] = text
    found = replace(requests, catalog=Catalog.of([f" {line.replace(' ', '  ')}" for line in texts], popularity=[2] * 6))
    if tuple(texts) == TEXTS:
        np.testing.assert_array_equal(evidence.features(found), evidence.features(requests))
    else:
        with pytest.raises(InputError, match="the 6 items of the requests' catalogue are not those .* fit it on the"):
            evidence.features(found)


def test_a_catalogue_is_hashed_once_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of([1, 1, 2, 2], [0, 1, 0, 1])
    evidence = Evidence.fit(log, everything(log))
    hashed: list[int] = []
    monkeypatch.setattr(features, "catalogue_hash", lambda texts: hashed.append(1) or catalogue_hash(texts))
    requests = requests_of([[1, 4], [0, 2]], [[0], [1]], [5, 6])
    for rows in ([0], [1], [0, 1]):
        evidence.features(requests.take(rows))
    evidence.features(requests_of([[1, 4]], [[0]], [5]))
    assert len(hashed) == 2
    known = weakref.ref(requests.catalog)
    del requests
    gc.collect()
    assert known() is None


def test_a_log_of_which_nothing_is_seen_still_gives_features() -> None:
    log = log_of([1, 1], [0, 1])
    evidence = Evidence.fit(log, np.zeros(2, dtype=bool))
    found_BKF = evidence.features(requests_of([[1, 4]], [[0]], [1]))
    assert np.isfinite(found_BKF).all()
    assert (found_BKF[:, :, evidence.names.index("popularity")] == 0).all()
