"""Every fault that is put into a reward on purpose is found, and told on a small request; what callers can declare."""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from rerank_env.rewards import FunctionReward, gain
from rerank_env.rewards.answers import Answers
from rerank_env.rewards.errors import InputError, RerankError, UnknownNameError, UnsoundRewardError
from rerank_env.rewards.proofs.promises import PROMISES
from rerank_env.rewards.reward import Bounds, Reward
from rerank_env.rewards.testing import assert_reward_sound, slates, unsound_properties

QUICK = 15
"""Batches to draw where many rewards are tried."""


def facts(counterexample):
    """The lines between the promise and the remedy."""
    return [line.strip() for line in counterexample.splitlines()[1:-1]]


def shown_first(rankings_BK, batch):
    """The gain in the first place."""
    return batch.relevance_BK[np.arange(len(batch)), rankings_BK[:, 0]]


def hits_first(rankings_BK, batch):
    return (shown_first(rankings_BK, batch) > 0).astype(float)


def place_of_the_first_best(rankings_BK, batch):
    """1/K to 1, and one too many."""
    ranks_BK = np.argsort(np.where(rankings_BK < 0, batch.width, rankings_BK), axis=1, kind="stable")
    best_B = batch.relevance_BK.argmax(axis=1)
    return 1.0 - (ranks_BK[np.arange(len(batch)), best_B] + 1) / batch.sizes_B


def sorts_the_rankings(rankings_BK, batch):
    hits_B = hits_first(rankings_BK, batch)
    rankings_BK.sort(axis=1)
    return hits_B


def sorts_the_relevance(rankings_BK, batch):
    hits_B = hits_first(rankings_BK, batch)
    batch.relevance_BK.sort(axis=1)
    return hits_B


def draws_numbers(rankings_BK, batch):
    return np.random.default_rng().random(len(batch))


def less_the_mean_of_the_batch(rankings_BK, batch):
    hits_B = hits_first(rankings_BK, batch)
    return hits_B - hits_B.mean()


def counts_rows(rankings_BK, batch):
    return hits_first(rankings_BK, batch) / (1 + np.arange(len(batch)))


def looks_at_the_padding(rankings_BK, batch):
    return (rankings_BK[:, -1] >= 0).astype(float)


def candidate_0_first(rankings_BK, batch):
    return (rankings_BK[:, 0] == 0).astype(float)


def whatever_was_first(rankings_BK, batch):
    return (batch.relevance_BK[:, 0] > 0).astype(float)


def misses_first(rankings_BK, batch):
    return 1.0 - hits_first(rankings_BK, batch)


def share_of_the_best(rankings_BK, batch):
    with np.errstate(invalid="ignore"):
        return shown_first(rankings_BK, batch) / batch.relevance_BK.max(axis=1)


def one_number_for_all(rankings_BK, batch):
    return [hits_first(rankings_BK, batch).mean()]


def in_words(rankings_BK, batch):
    return ["good"] * len(batch)


def divides_by_zero(rankings_BK, batch):
    return [1.0 / sum(gain > 0 for gain in gains) for gains in batch.relevance_BK.tolist()]


def a_gift_for_all(rankings_BK, batch):
    return hits_first(rankings_BK, batch) - (batch.relevance_BK[:, 0] > 0) + 0.1


FAULTS = [
    (place_of_the_first_best, {"low": 0.1}, "bounded"),
    (sorts_the_rankings, {}, "pure"),
    (sorts_the_relevance, {}, "pure"),
    (draws_numbers, {}, "pure"),
    (less_the_mean_of_the_batch, {"low": -1}, "batch"),
    (counts_rows, {}, "batch"),
    (looks_at_the_padding, {}, "batch"),
    (candidate_0_first, {}, "relabelling"),
    (whatever_was_first, {"looks_at": "gains"}, "relabelling"),
    (hits_first, {"invalid": 2}, "invalid_below_valid"),
    (misses_first, {}, "monotone"),
    (share_of_the_best, {}, "finite"),
    (one_number_for_all, {}, "finite"),
    (in_words, {}, "finite"),
    (divides_by_zero, {}, "finite"),
    (a_gift_for_all, {"low": -1, "high": 1.1, "invalid": -2, "identity_at_most": 0}, "identity"),
]


@pytest.mark.parametrize(("function", "declared", "name"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
def test_a_fault_is_found_under_its_name_with_at_most_three_candidates(function, declared, name):
    with pytest.raises(UnsoundRewardError) as caught:
        assert_reward_sound(function, **{"low": 0, "high": 1, "invalid": -3} | declared)
    assert next(iter(caught.value.counterexamples)) == name
    assert f"{function.__name__} is unsound, it breaks {name}" in str(caught.value)
    assert PROMISES[name].rule in str(caught.value)
    assert PROMISES[name].remedy in str(caught.value)
    gains = re.findall(r"gains (\[.*?\])", str(caught.value))
    assert len(gains) >= 1
    assert all(len(ast.literal_eval(listed)) <= 3 for listed in gains)


def test_the_same_without_the_fault_is_sound():
    assert_reward_sound(hits_first, low=0, high=1, invalid=-1, looks_at="gains")


def test_the_rest_of_the_batch_is_told_in_words():
    told = unsound_properties(less_the_mean_of_the_batch, low=-1, high=1, invalid=-2)["batch"]
    assert facts(told)[1:] == [
        "answer [0, 1] earns 0 by itself",
        "answer [0, 1] earns -0.5 in a batch of 2, padded to 3 places, beside [0, 1, 2] to gains [1, 0, 0]",
    ]


def test_all_that_is_broken_is_named_and_the_first_told_in_full():
    with pytest.raises(UnsoundRewardError, match="breaks relabelling, and also monotone\n") as caught:
        assert_reward_sound(candidate_0_first, low=0, high=1, invalid=-1)
    assert str(caught.value).endswith(caught.value.counterexamples["relabelling"])
    assert facts(caught.value.counterexamples["relabelling"]) == [
        "gains [0, 0], candidates numbered from 0 in the incoming order",
        "answer [0, 1] earns 1",
        "answer [1, 0] earns 0, though candidates 0 and 1 are equal and have only changed places",
    ]
    assert facts(caught.value.counterexamples["monotone"]) == [
        "gains [0, 1], candidates numbered from 0 in the incoming order",
        "answer [0, 1] earns 1",
        "answer [1, 0] earns 0, though candidate 1, worth 1, took the higher place from candidate 0, worth 0",
    ]
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, RerankError)


def test_the_same_counterexample_is_found_again():
    first, again = (unsound_properties("gr2_industrial", max_examples=QUICK) for _ in range(2))
    assert first == again


@dataclass(frozen=True, repr=False)
class Compared(Reward):
    """Pays by `way` of comparing with the group; all but "share" are faulty."""

    way: str
    name = "compared"
    own_needs = frozenset({"groups"})

    def bounds(self) -> Bounds:
        return Bounds(0.0, 1.0, -1.0)

    def evaluate(self, answers: Answers):
        groups_B, rows = answers.context.groups_B, np.arange(len(answers.slates))
        if self.way == "leader":  # the answer that stands first in its group
            return np.array([float(row == np.flatnonzero(groups_B == groups_B[row])[0]) for row in rows])
        if self.way == "number":  # groups by their number
            return (groups_B > 0).astype(float)
        if self.way == "original":  # the candidate with the original number 0 first
            shown_B = answers.slates.canonical_BK[rows, answers.orders_BK[:, 0]]
            return (shown_B == 0).astype(float)
        hits_B = hits_first(answers.orders_BK, answers.slates)
        return np.array([hits_B[row] - hits_B[groups_B == groups_B[row]].mean() for row in rows]) / 2 + 0.5


def test_a_reward_of_the_group_may_compare_answers():
    # own hit less the mean of the group: of two, 1 - 1/2 or 0 - 0; a rise of the own hit by 1 moves the mean by 1/G
    assert_reward_sound(Compared("share"))


@pytest.mark.parametrize(("way", "name"), [("leader", "group_order"), ("number", "batch"), ("original", "relabelling")])
def test_a_reward_of_the_group_that_goes_by_places_or_numbers_is_found(way, name):
    broken = unsound_properties(Compared(way))
    assert name in broken
    assert len(ast.literal_eval(re.search(r"gains (\[.*?\])", broken[name])[1])) <= 3


def test_the_leader_of_a_group_is_told_in_words():
    assert facts(unsound_properties(Compared("leader"))["group_order"])[1:] == [
        "the group [0, 1] to the order [0, 1], [0, 1] to the order [0, 1]: member 1 earns 0",
        "the group [0, 1] to the order [0, 1], [0, 1] to the order [0, 1]: the same answer, now member 0, earns 1",
    ]


@dataclass(frozen=True, repr=False)
class Kept(Reward):
    """A class with a fault: what it gives is no float64, or echoing earns more than it says."""

    fault: str
    name = "kept"

    def bounds(self) -> Bounds:
        return Bounds(0.0, 1.0, -1.0, identity=0.5)

    def evaluate(self, answers: Answers):
        kept_B = (answers.orders_BK == np.arange(answers.slates.width)).all(axis=1)
        return kept_B.astype(np.float32) if self.fault == "dtype" else kept_B.astype(float)


def test_a_class_is_held_to_its_own_declaration():
    assert facts(unsound_properties(Kept("dtype"))["finite"])[1] == "answer [0, 1]: the reward gives dtype float32"
    assert facts(unsound_properties(Kept("identity"))["identity"])[1].startswith(
        "answer [0, 1] earns 1; declared is at"
    )


def test_a_fault_that_was_isolated_is_no_less_a_fault():
    mine = FunctionReward(share_of_the_best, "mine", 0, 1, -1, on_error="isolate")
    assert "returned nan for row 0" in unsound_properties(0.5 * mine + gain())["finite"]


def test_requests_of_your_own_can_be_drawn():
    # a reward of binary labels only, which would be out of range elsewhere
    binary = slates(relevance=st.sampled_from([0.0, 1.0]), max_requests=2)
    assert_reward_sound(shown_first, low=0, high=1, invalid=-1, slates=binary)
    assert "bounded" in unsound_properties(shown_first, low=0, high=1, invalid=-1)


def test_long_lists_can_be_tried():
    long = slates(relevance=st.sampled_from([0.0, 1.0]), max_requests=1, max_candidates=60)
    assert_reward_sound("gain", slates=long, max_examples=QUICK)
    assert "monotone" in unsound_properties("gr2_industrial", slates=long)


def test_what_better_means_can_be_said():
    assert_reward_sound(misses_first, low=0, high=1, invalid=-1, worth=lambda batch: -batch.relevance_BK)
    with pytest.raises(InputError, match=r"worth returned shape \(\d\,\) .* return one number a candidate"):
        unsound_properties("gain", worth=lambda batch: batch.relevance_BK[:, 0])


def test_useless_declarations_are_refused():
    with pytest.raises(InputError, match="a plain function declares nothing; give high, invalid as well"):
        assert_reward_sound(hits_first, low=0)
    with pytest.raises(InputError, match="low came with a reward, which declares that itself"):
        assert_reward_sound("gain", low=0)
    with pytest.raises(UnknownNameError, match="did you mean 'monotone'"):
        unsound_properties("gain", waive=["monoton"])
    with pytest.raises(UnknownNameError, match="did you mean 'places'"):
        unsound_properties("gain", looks_at="place")
    with pytest.raises(InputError, match="max_examples is 0"):
        unsound_properties("gain", max_examples=0)


def test_a_plain_function_can_only_declare_what_it_could_earn_for_echoing():
    declared = {"low": 0, "high": 1, "invalid": -1}
    with pytest.raises(InputError, match="identity of hits_first is 2.0, .* give a number from low 0.0 to high 1.0"):
        assert_reward_sound(hits_first, **declared, identity_at_most=2)


def test_sound_is_not_ungameable():
    assert_reward_sound(lambda r, s: np.full(len(s), 0.5), low=0, high=1, invalid=-1, identity_at_most=0.5)


def test_nothing_is_left_in_the_working_directory(tmp_path):
    code = "from rerank_env.rewards.testing import *; assert_reward_sound('gain', max_examples=5)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
