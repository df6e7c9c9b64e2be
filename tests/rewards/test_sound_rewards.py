"""Every shipped reward is held to the promises: which keep them all, and which break one and how."""

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from rerank_env.rewards import gain, parse_reward
from rerank_env.rewards.clicks import ClickCredit, click_credit
from rerank_env.rewards.registry import CONTEXTUAL, LEAVES, PRESETS
from rerank_env.rewards.testing import assert_reward_sound, rewards, unsound_properties
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


def facts(counterexample):
    """The lines between the promise and the remedy."""
    return [line.strip() for line in counterexample.splitlines()[1:-1]]


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


def test_a_lower_score_for_no_ranking_mends_that():
    assert_reward_sound("ndcg.gate(valid, otherwise=-0.1)", max_examples=QUICK)
    assert_reward_sound("ndcg(invalid=-0.1)", max_examples=QUICK)


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
    plain = unsound_properties(
        ClickCredit(estimator), worth=lambda batch: click_credit(batch, estimator), max_examples=QUICK
    )
    assert set(plain) == {"invalid_below_valid"}


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
