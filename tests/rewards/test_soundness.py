"""Proofs for users: which shipped rewards keep every promise, which break one and how, and that each fault is found."""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerank_env.rewards import FunctionReward, gain, parse_reward
from rerank_env.rewards.answers import Answers
from rerank_env.rewards.clicks import ClickCredit, click_credit
from rerank_env.rewards.errors import InputError, RerankError, UnknownNameError, UnsoundRewardError
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.proofs.promises import PROMISES
from rerank_env.rewards.registry import CONTEXTUAL, LEAVES, PRESETS
from rerank_env.rewards.reward import Bounds, Reward
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.rewards.testing import (
    assert_reward_sound,
    assert_scorer_sound,
    contexts_of,
    groups,
    rankings_of,
    rewards,
    slates,
    unsound_properties,
)
from rerank_env.rewards.verifiable import RankPromotion

METRICS = (
    "ap",
    "ap@2",
    "auc",
    "err(max_grade=4)",
    "exact_set",
    "hit@1",
    "mrr",
    "ndcg",
    "ndcg@2",
    "ndcg(gains='exp2')",
    "pairwise_accuracy",
    "rbp(p=0.8)",
    "rbp(p=0.8, max_grade=4)",
    "recall@2",
    "valid_format",
)
QUICK = 15
"""Batches to draw where many rewards are tried."""


def facts(counterexample: str) -> list[str]:
    """The lines between the promise and the remedy."""
    return [line.strip() for line in counterexample.splitlines()[1:-1]]


# Shipped rewards


@pytest.mark.parametrize(
    "reward",
    [
        "gain",
        "gain(scale='headroom')",
        "gain(rank_promotion)",
        "gr2_hardened",
        "gr2_industrial_hardened",
        "gr2_industrial_hardened(ndcg(gains='exp2'))",
    ],
)
def test_our_presets_keep_every_promise_and_pay_nothing_for_echoing(reward):
    assert_reward_sound(reward, identity_at_most=0)


@pytest.mark.parametrize("metric", METRICS)
def test_the_gain_of_any_metric_keeps_every_promise(metric):
    assert_reward_sound(f"gain({metric})", identity_at_most=0, max_examples=QUICK)


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_knows_gains_only_and_pays_the_worst_ranking_what_an_invalid_answer_gets(metric):
    broken = unsound_properties(metric, looks_at="gains", max_examples=QUICK)
    assert set(broken) == ({"invalid_below_valid"} if metric != "valid_format" else set())
    assert_reward_sound(replace(parse_reward(metric), invalid=-0.1), looks_at="gains", max_examples=QUICK)


def test_every_leaf_and_preset_is_looked_at_here():
    assert {type(parse_reward(metric)) for metric in METRICS} | {RankPromotion} == set(LEAVES)
    named = "gain gr2 gr2_hardened gr2_industrial gr2_industrial_hardened naive"
    assert {preset.__name__ for preset in PRESETS} == set(named.split())


def test_rank_promotion_keeps_every_promise_and_compares_with_the_incoming_order():
    assert_reward_sound("rank_promotion", identity_at_most=0)
    # candidate 1 of gains 0, 1 promoted by one of two places: 0.5; the same list where it was first already: 0
    assert facts(unsound_properties("rank_promotion", looks_at="gains")["relabelling"]) == [
        "gains [0, 1], candidates numbered from 0 in the incoming order",
        "answer [0, 1] earns 0",
        "answer [1, 0] earns -0.5 where the gains are [1, 0], "
        "though candidates 0 and 1 have only exchanged their numbers",
    ]


def test_ndcg_pays_no_ranking_as_much_as_a_ranking_of_nothing():
    assert unsound_properties("ndcg") == {
        "invalid_below_valid": "an answer that is no ranking earns less than any ranking\n"
        "  gains [0, 0], candidates numbered from 0 in the incoming order\n"
        "  answer [0, 1] earns 0\n"
        "  answer [0, 0], which is no ranking, earns 0\n"
        "  remedy: declare a lower score for it, with `invalid` or .gate(valid, otherwise=...)"
    }


def test_what_naive_pays_for_echoing():
    assert_reward_sound("naive", identity_at_most=0.2)  # it declares that itself
    assert facts(unsound_properties("naive", identity_at_most=0)["identity"]) == [
        "gains [0, 0], candidates numbered from 0 in the incoming order",
        "answer [0, 1] earns 0.2; declared is at most 0 for echoing the incoming order",
    ]


@pytest.mark.parametrize("reward", ["gr2", "gr2(exemption='literal')"])
def test_gr2_pays_for_echoing_an_order_that_begins_with_the_best(reward):
    # The literal exemption pays for demoting too, but as much as for keeping: within a request it stays monotone, and
    # what a demotion earns, -1/6 + 0.2 from first to second of six, is no more than the 0.2 of echoing.
    assert_reward_sound(reward)
    broken = unsound_properties(reward, identity_at_most=0)
    assert set(broken) == {"identity"}
    assert facts(broken["identity"]) == [
        "gains [1, 0], candidates numbered from 0 in the incoming order",
        "answer [0, 1] earns 0.2; declared is at most 0 for echoing the incoming order",
    ]


def test_one_swap_escapes_the_identity_check_of_gr2_industrial():
    broken = unsound_properties("gr2_industrial")
    assert set(broken) == {"relabelling", "monotone"}
    # one relevant candidate in the middle of three: AUC 1/2, which is withheld from the copy alone
    assert facts(broken["relabelling"]) == [
        "gains [0, 1, 0], candidates numbered from 0 in the incoming order",
        "answer [0, 1, 2] earns 0.2",
        "answer [2, 1, 0] earns 0.7, though candidates 0 and 2 are equal and have only changed places",
    ]
    # AUC 1/2 either way, and the better of both orders is the copy
    assert facts(broken["monotone"]) == [
        "gains [2, 0, 1], candidates numbered from 0 in the incoming order",
        "answer [2, 1, 0] earns 0.7",
        "answer [0, 1, 2] earns 0.2, though candidate 0, worth 2, took the higher place from candidate 2, worth 1",
    ]
    assert set(unsound_properties("gr2_industrial", looks_at="places")) == {"monotone"}


def test_a_bonus_that_punishes_the_first_place_is_found():
    # candidate 1, half of what is relevant, promoted by one of three places: 1 / (3 * 2) - 0.3 = -0.1333...
    broken = unsound_properties("gr2_hardened(alpha=-0.3)")
    assert set(broken) == {"monotone"}
    assert facts(broken["monotone"])[:2] == [
        "gains [0, 1, 1], candidates numbered from 0 in the incoming order",
        "answer [0, 1, 2] earns 0",
    ]
    assert facts(broken["monotone"])[2].startswith("answer [1, 0, 2] earns -0.1333333")


@pytest.mark.parametrize("reward", ["linear(1, 0, 10)", "cites", "length(most=30)", "overlong(40, 20)", "consistency"])
def test_what_needs_a_context_is_tried_with_one(reward):
    broken = unsound_properties(reward, max_examples=QUICK)
    assert set(broken) - {"monotone"} == {"invalid_below_valid"}
    assert ("monotone" in broken) == (reward == "consistency")


def test_every_reward_that_needs_more_is_looked_at_here():
    names = {kind.name for kind in CONTEXTUAL}
    assert names == {"linear", "cites", "length", "overlong", "consistency", "click_credit"}


@pytest.mark.parametrize("estimator", ["ips", "snips", "dr"])
def test_click_credit_is_monotone_in_the_credit_and_not_in_relevance(estimator):
    reward = gain(ClickCredit(estimator))
    assert_reward_sound(reward, identity_at_most=0, worth=lambda batch: click_credit(batch, estimator))
    broken = unsound_properties(reward, max_examples=QUICK)
    assert set(broken) == {"monotone"}
    assert facts(broken["monotone"])[1].startswith("clicks [")


def test_agreement_with_the_group_can_be_better_where_the_order_is_worse():
    # one other answer, the worse order: to agree with it earns 1
    told = facts(unsound_properties("consistency")["monotone"])
    assert [re.search(r"earns (\d)", line)[1] for line in told[1:3]] == ["1", "0"]
    worse = re.search(r"answer (\[.*?\]) earns 1", told[1])[1]
    assert told[3] == f"the others in its group answer {worse} to the order [0, 1]"


@settings(max_examples=25, suppress_health_check=[HealthCheck.nested_given])
@given(rewards(contextual=True))
def test_every_expression_declares_its_range_and_what_echoing_earns(reward):
    structural = ("invalid_below_valid", "relabelling", "monotone")
    assert unsound_properties(reward, waive=structural, max_examples=15) == {}


# Faults that are put in on purpose


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


def test_nothing_is_left_in_the_working_directory(tmp_path):
    code = "from rerank_env.rewards.testing import *; assert_reward_sound('gain', max_examples=5)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


# Scorers of text


@pytest.mark.parametrize("text_format", FORMATS)
def test_our_scorer_is_strict(text_format):
    assert_scorer_sound(Scorer("gain + 0.1*cites - 0.1*length(most=50)", text_format=text_format))


class Repairing(Scorer):
    """Takes whatever numbers there are, first mention first, and puts what is missing behind."""

    def __call__(self, completions, slates, **known):
        rows = []
        for text, size in zip(completions, slates.sizes_B.tolist(), strict=True):
            numbers = [int(number) - 1 for number in re.findall(r"[0-9]{1,3}", str(text))]
            named = list(dict.fromkeys(number for number in numbers if 0 <= number < size))
            rows.append([*named, *(j for j in range(size) if j not in named), *[-1] * (slates.width - size)])
        rankings_BK = np.array(rows)
        score = self.reward.score(rankings_BK, slates)
        return Scored(score.total_B, score.parts, (), rankings_BK, np.zeros(len(rows), np.int8), ("",) * len(rows))


class Charitable(Scorer):
    """Pays a tenth for a bracket."""

    def __call__(self, completions, slates, **known):
        scored = super().__call__(completions, slates, **known)
        brackets_B = np.array([0.1 * str(text).startswith("[") for text in completions])
        return replace(scored, total_B=np.where(scored.valid_B, scored.total_B, scored.total_B + brackets_B))


class Fragile(Scorer):
    """Reads text only."""

    def __call__(self, completions, slates, **known):
        return super().__call__([text.strip() + "" for text in completions], slates, **known)


class Curved(Scorer):
    """Marks on a curve."""

    def __call__(self, completions, slates, **known):
        scored = super().__call__(completions, slates, **known)
        best = scored.total_B.max()
        return replace(scored, total_B=np.where(scored.valid_B, scored.total_B - best, scored.total_B))


@pytest.mark.parametrize(
    ("scorer", "told"),
    [
        (Repairing("gain"), r"' for 2 candidates earns \S+, called a ranking: \[[01], [01]\] from 0"),
        (Charitable("gain"), r"'\[.*' for 2 candidates earns -1, called [A-Z]+; declared is -1.1"),
        (Fragile("gain"), r"b'.*' for 2 candidates raises TypeError: "),
    ],
    ids=["repairing", "charitable", "fragile"],
)
def test_a_scorer_that_is_not_strict_is_found(scorer, told):
    with pytest.raises(UnsoundRewardError, match=told):
        assert_scorer_sound(scorer)


def test_a_scorer_that_marks_on_a_curve_is_found():
    answers = st.sampled_from(["[1, 2]", "[2, 1]"])
    with pytest.raises(UnsoundRewardError, match="earns 0 in this batch and .* by itself|earns .* and 0 by itself"):
        assert_scorer_sound(Curved("ndcg"), texts=answers)


# Strategies


@given(groups(), st.data())
def test_groups_are_copies_of_requests_under_orders_of_their_own(drawn, data):
    batch = drawn.slates
    answers = drawn.to_canonical(data.draw(rankings_of(batch)))
    for group in np.unique(drawn.groups_B):
        rows = np.flatnonzero(drawn.groups_B == group)
        first, size = rows[0], batch.sizes_B[rows[0]]
        assert (batch.canonical_BK[first, :size] == np.arange(size)).all()
        for row in rows:
            originals = batch.relevance_BK[first, batch.canonical_BK[row, :size]]
            assert (batch.relevance_BK[row, :size] == originals).all()
            assert sorted(answers[row, :size]) == list(range(size))


@given(slates(logged=True), st.data())
def test_a_context_has_what_is_asked_for(batch, data):
    assert batch.provides == {"clicks", "predictions"}
    assert data.draw(contexts_of(batch, needs={"step", "tokens"})).provides == {"step", "tokens"}
    assert data.draw(contexts_of(batch)).provides == {"step", "groups", "reasonings", "chars", "tokens"}
