"""A numbering that knows the answers is found, and one that does not is not accused."""

import os

import numpy as np
import pytest

from rerank_env.data import Requests, load
from rerank_env.data.describe import describe
from rerank_env.data.guards import numbering_leaks
from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import leave_one_out
from rerank_env.data.readers import amazon_sequences

READINGS = ("the number itself", "nearness to the number of the last item", "being the number after the last item's")


def asked(candidates: np.ndarray, relevant: np.ndarray, last: np.ndarray) -> Requests:
    return Requests.of(candidates.tolist(), relevant.tolist(), history=[[int(item)] for item in last])


def test_areas_are_those_counted_by_hand() -> None:
    # Candidates 5, 1, 3 after item 2, the relevant one is 3. By number 3 is above 1 and below 5: 1 of 2 pairs. By
    # nearness 3 and 1 are as near, 5 is farther: (0.5 + 1) / 2. As successor 3 is the only one: 2 of 2.
    found = numbering_leaks(asked(np.array([[5, 1, 3]]), np.array([[0, 0, 1]]), np.array([2])))
    assert [leak.reading for leak in found] == list(READINGS)
    assert [leak.auc for leak in found] == [0.5, 0.75, 1.0]


def test_the_deviation_is_that_of_random_numberings() -> None:
    # Of four items three are offered: the relevant one is above 0, 1 or 2 of the two others with equal probability.
    requests = asked(np.array([[0, 1, 2]]), np.array([[0, 1, 0]]), np.array([3]))
    errors = [numbering_leaks(requests, seed=seed)[0].error for seed in range(20)]
    assert np.mean(errors) == pytest.approx(np.sqrt(1 / 6), rel=0.05)


def test_copies_of_requests_and_items_that_are_relevant_again_and_again_are_no_evidence() -> None:
    # Twenty items, of which three are liked by all: whatever their numbers, these say something by chance.
    rng = np.random.default_rng(0)
    for seed in range(10):
        number = np.random.default_rng(seed).permutation(20)
        offered = np.stack([rng.choice(20, size=5, replace=False) for _ in range(400)])
        offered = offered[(offered < 3).any(axis=1) & (offered >= 3).any(axis=1)]
        requests = asked(number[offered], (offered < 3).astype(float), number[offered[:, 0]])
        copies = requests.take(np.repeat(np.arange(len(requests)), 10))
        assert not [leak for leak in [*numbering_leaks(requests), *numbering_leaks(copies)] if leak.leaks]


def test_numbers_in_order_of_first_appearance_are_found_and_a_permutation_hides_them() -> None:
    # A quarter of the users go on with the next number, as where items are numbered user by user.
    rng = np.random.default_rng(0)
    last = rng.integers(0, 900, size=800)
    other = np.stack([rng.choice(99, size=4, replace=False) for _ in last]) + 901
    target = np.where(rng.random(800) < 0.25, last + 1, rng.integers(901, 999, size=800))
    other[other == target[:, None]] = 1000
    candidates = np.concatenate([target[:, None], other], axis=1)
    relevant = np.tile([1, 0, 0, 0, 0], (800, 1))
    leaks = [leak for leak in numbering_leaks(asked(candidates, relevant, last)) if leak.leaks]
    assert READINGS[2] in [leak.reading for leak in leaks]
    assert any(
        "the number after the last item's" in warning
        for warning in describe(asked(candidates, relevant, last)).warnings
    )
    mixed = np.random.default_rng(1).permutation(1001)
    assert not [leak for leak in numbering_leaks(asked(mixed[candidates], relevant, mixed[last])) if leak.leaks]


def test_requests_without_anything_to_tell_apart_say_nothing() -> None:
    assert numbering_leaks(asked(np.array([[0, 1]]), np.array([[1, 1]]), np.array([3]))) == []


@pytest.mark.parametrize("kind", ["graded", "next_item"])
def test_no_numbering_of_the_made_up_data_leaks(kind: str) -> None:
    for split in ("train", "test"):
        assert not [leak for leak in numbering_leaks(load("synthetic", split=split, kind=kind)) if leak.leaks]


def beside_strangers(log: Interactions, rows: np.ndarray, first_N: np.ndarray) -> Requests:
    """Each target among nine items drawn at random from those the user does not have."""
    rng = np.random.default_rng(0)
    offered = []
    for row in rows:
        own = log.items_N[first_N[row] : row + 1]
        strangers = rng.permutation(np.setdiff1d(rng.choice(log.item_count, size=60, replace=False), own))[:9]
        offered.append(rng.permutation([*strangers, log.items_N[row]]))
    return asked(
        np.array(offered), (np.array(offered) == log.items_N[rows][:, None]).astype(float), log.items_N[rows - 1]
    )


@pytest.mark.skipif(
    "RERANK_DATA" not in os.environ, reason="RERANK_DATA does not name the folder of the Amazon reviews"
)
@pytest.mark.parametrize("domain", amazon_sequences.DOMAINS)
def test_amazon_ids_leak_as_stored_and_the_numbers_of_the_reader_do_not(domain: str) -> None:
    log = amazon_sequences.read(amazon_sequences.folder_of(domain))
    targets = leave_one_out(log)
    rows = targets.rows["test"][:6000]
    assert not [leak for leak in numbering_leaks(beside_strangers(log, rows, targets.first_N)) if leak.leaks]
    stored_N = np.empty(len(log), dtype=np.int64)  # by first appearance, as in the files
    stored_N[:] = np.unique(log.items_N, return_inverse=True)[1]
    first_seen = np.full(log.item_count, len(log))
    np.minimum.at(first_seen, log.items_N, np.arange(len(log)))
    by_appearance = np.argsort(np.argsort(first_seen))
    raw = Interactions(
        log.users_N,
        by_appearance[log.items_N],
        log.ratings_N,
        log.times_N,
        log.texts,
        log.content_IC,
        log.content_names,
    )
    leaks = numbering_leaks(beside_strangers(raw, rows, targets.first_N))
    assert READINGS[2] in [leak.reading for leak in leaks if leak.leaks]
