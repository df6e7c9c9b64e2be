"""Attacks that follow from the parts of a reward, and the edits they are made of."""

from functools import partial

import numpy as np
import pytest

from rerank_env import rewards
from rerank_env.rewards import FunctionCondition, NearIdentity, Slates, ValidFormat, gain, gr2, gr2_industrial, naive
from rerank_env.rewards.auditing.derived import conditions_of
from rerank_env.rewards.auditing.edits import exchanged, placed, reverse, rotated, single_edits, tail_inverted
from rerank_env.rewards.auditing.structure import critical_steps, structural_warnings
from rerank_env.rewards.auditing.writing import PLAIN, dresses
from rerank_env.rewards.errors import SlateError
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.presets import gr2_hardened, gr2_industrial_hardened
from rerank_env.rewards.rankings import inversions_unchecked, verdicts

audit = partial(rewards.audit, search=False)

FIRST = Slates.of([[1, 0, 0, 0, 0, 0, 0, 0]] * 40)
"""The relevant item is first of eight."""


def once(edit, sizes=(5,), width=5):
    return edit.rankings(np.array(sizes), width).tolist()


def test_edits_change_what_they_say():
    assert once(exchanged(0, 3)) == [[3, 1, 2, 0, 4]]
    assert once(rotated()) == [[1, 2, 3, 4, 0]]
    assert once(reverse()) == [[4, 3, 2, 1, 0]]
    assert once(placed(np.array([2, 0, 4, 1, 3]))) == [[2, 0, 4, 1, 3]]
    assert once(tail_inverted(1)) == [[0, 1, 2, 4, 3]]
    assert once(tail_inverted(2)) == [[0, 1, 4, 2, 3]]
    assert once(tail_inverted(3)) == [[0, 1, 4, 3, 2]]
    assert exchanged(0, 3).about == "places 1 and 4 exchanged"
    assert placed(np.array([1, 0])).about == "the places in the order 2 1"


def test_a_request_too_short_for_an_edit_is_left_alone_or_turned_round():
    assert once(exchanged(0, 3), (5, 3)) == [[3, 1, 2, 0, 4], [0, 1, 2, -1, -1]]
    assert once(rotated(), (5, 3)) == [[1, 2, 3, 4, 0], [1, 2, 0, -1, -1]]
    assert once(placed(np.array([2, 0, 4, 1, 3])), (5, 3)) == [[2, 0, 4, 1, 3], [2, 0, 1, -1, -1]]
    assert once(tail_inverted(6), (5, 3)) == [[0, 4, 3, 2, 1], [2, 1, 0, -1, -1]]


@pytest.mark.parametrize("size", [2, 3, 6])
def test_a_tail_takes_exactly_so_many_exchanges_of_neighbours(size):
    for inversions in range(size * (size - 1) // 2 + 1):
        rankings = tail_inverted(inversions).rankings(np.array([size]), size)
        assert verdicts(rankings, [size]).tolist() == [0]
        assert inversions_unchecked(rankings).tolist() == [inversions]


def test_single_edits_are_rankings_of_ragged_requests():
    sizes = np.array([2, 5, 9, 3])
    edits = single_edits(9)
    assert len({edit.about for edit in edits}) == len(edits) == 1 + 36 + 2
    for edit in edits:
        assert not verdicts(edit.rankings(sizes, 9), sizes).any()
    assert len(single_edits(40)) < 140  # neighbours, and pairs with the first and the last


def test_a_cut_off_is_attacked_below_and_across():
    # any change is paid, and hit@3 does not see what stands below place 3
    report = audit("hit@3.when(not_identity)", FIRST)
    shuffled = report["shuffle_below_3"]
    # one of 5! orders of the rest is the echo
    assert shuffled.mean_reward == pytest.approx(1 - shuffled.identity_rate)
    assert shuffled.identity_rate < 0.1
    assert report["exchange_across_3"].mean_reward == 1.0
    assert report["identity"].mean_reward == 0.0
    # at the end of the list there is nothing below, nor across
    names = [row.name for row in audit("hit@8", FIRST).rows] + [row.name for row in audit("hit@7", FIRST).rows]
    assert [name for name in names if name.startswith(("shuffle_below", "exchange_across"))] == ["exchange_across_7"]


def test_not_identity_is_met_by_one_swap():
    row = audit("valid_format.when(not_identity)", FIRST)["meets not_identity"]
    assert (row.mean_reward, row.identity_rate, row.near_identity_rate) == (1.0, 0.0, 1.0)
    assert "(100% meet it)" in row.about
    assert row.passed is False


@pytest.mark.parametrize("swaps", [2, 4, 27])
def test_more_than_n_swaps_are_met_by_one_more(swaps):
    far = ~NearIdentity(swaps=swaps)
    row = audit(ValidFormat().when(far), FIRST)[f"meets {far}"]
    assert row.mean_reward == 1.0
    # of eight candidates there are 28 exchanges of neighbours at most
    assert row.about == f"{swaps + 1} exchanges of neighbours at the end (100% meet it)"


def test_a_bound_on_tau_is_passed_by_the_fewest_exchanges():
    # 28 pairs: tau = 1 - 2 * inversions / 28 is 0.5 at 7 inversions, so that 8 are too many
    row = audit("valid_format.when(~tau_at_least(tau=0.5))", FIRST)["meets ~tau_at_least(tau=0.5)"]
    assert row.about.startswith("8 exchanges of neighbours at the end (100% meet it)")


def test_what_the_echo_meets_is_not_said_twice_and_what_nobody_meets_not_at_all():
    names = {row.name for row in audit("valid_format.when(kept_first & tau_at_least(tau=0.9)) ", FIRST).rows}
    assert not any(name.startswith("meets") for name in names)
    names = {row.name for row in audit("valid_format.when(improved)", FIRST).rows}
    assert "meets improved" not in names


def test_a_condition_of_yours_is_met_by_what_a_search_over_edits_finds():
    def third_is_seventh(rankings_BK, slates):
        return rankings_BK[:, 2] == 6

    condition = FunctionCondition(third_is_seventh, name="third_is_seventh")
    row = audit(gain() + 0.5 * rewards.ValidFormat().when(condition), FIRST)["meets third_is_seventh"]
    assert row.about == "places 3 and 7 exchanged (100% meet it)"
    assert row.mean_reward == 0.5


def test_conditions_are_those_that_an_answer_can_fail_to_meet():
    assert [str(condition) for condition in conditions_of(gr2())] == [
        "improved | kept_first",
        "improved",
        "kept_first",
    ]
    assert conditions_of(gain()) == []


def test_citing_is_paid_where_nothing_else_is_asked():
    report = audit("gain + 0.1*cites(least=2)", FIRST, text_format="tagged-json")
    assert report["identity"].mean_reward == pytest.approx(0.1)
    assert report["identity"].about == "the incoming order echoed, cites 2"
    assert report["identity"].passed is False
    asked = audit("gain + 0.1*cites(least=2).when(improved)", FIRST, text_format="tagged-json")
    assert asked["identity"].mean_reward == 0.0
    assert asked["identity"].about == "the incoming order echoed"  # nothing is written that is not paid


HALF_SECOND = Slates.of([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]] * 50)
"""The relevant item is first of four on two thirds of the requests, and second on one."""


@pytest.mark.parametrize(
    ("term", "text_format", "says"),
    [
        ("cites(least=2, invalid=-1)", "tagged-list", "cites 2"),
        ("length(least=100, most=400, unit='chars')", "list", "blanks up to 100 characters"),
        ("length(least=100, most=400)", "json", "blanks up to 400 characters"),
    ],
)
def test_a_text_term_that_asks_for_an_order_is_paid_for_both_by_luck(term, text_format, says):
    report = audit(f"gain + 0.9*{term}.when(improved)", HALF_SECOND, text_format=text_format)
    # a third rises from second to first, 1 - 1/log2(3) = 0.369 and the term; two thirds fall as far
    loss = 1 - 1 / np.log2(3)
    assert report["top_swap"].mean_reward == pytest.approx(0.9 / 3 - loss / 3)
    assert report["top_swap"].about == f"places 1 and 2 exchanged, {says}"
    assert report["top_swap"].passed is False
    # the oracle writes it too, so that the share is of all there is to earn
    assert report["oracle"].mean_reward == pytest.approx((0.9 + loss) / 3)
    assert report["top_swap"].share_of_oracle == pytest.approx((0.9 - loss) / (0.9 + loss))
    assert audit(f"gain + 0.001*{term}.when(improved)", HALF_SECOND, text_format=text_format).passed


def test_padding_reaches_the_length_that_is_paid():
    reward = parse_reward("length(least=100, most=200, unit='chars')")
    assert [str(dress) for dress in dresses(reward, "list")] == ["", "blanks up to 100 characters"]
    assert dresses(gain(), "json") == [PLAIN]
    # a token is four characters
    report = audit("gain + 0.3*length(least=50, most=60)", FIRST)
    assert report["identity"].mean_reward == pytest.approx(0.3)
    assert report["identity"].about == "the incoming order echoed, blanks up to 200 characters"
    both = dresses(parse_reward("cites(least=2)*length(least=50, most=60, unit='chars')"), "json")
    assert "cites 2, blanks up to 50 characters" in [str(dress) for dress in both]


@pytest.mark.parametrize(
    ("reward", "text_format", "says"),
    [
        (
            "gain + 0.1*cites",
            "list",
            "cites is never met in the text format 'list', which has no place for reasons; audit it in json, "
            "tagged-arrows, tagged-json or tagged-list",
        ),
        ("gain + 0.1*length(most=5)", "json", "length(most=5) is never met in the text format 'json'"),
        # a longer text than any parser reads
        ("gain + 0.1*length(least=30000, most=40000)", "list", "is never met in the text format 'list'"),
    ],
)
def test_a_text_term_that_nothing_meets_leaves_the_audit_undecided(reward, text_format, says):
    report = audit(reward, HALF_SECOND, text_format=text_format)
    assert report.passed is None
    assert report.verdict.startswith("UNDECIDED: ")
    assert says in report.verdict
    assert report.failures == ()
    assert audit("gain + 0.001*cites.when(improved)", HALF_SECOND, text_format="json").passed is True


def test_a_schedule_is_audited_at_both_ends():
    reward = parse_reward("gain + 0.2*valid_format*linear(start=1, end=0, steps=100, begin=10)")
    assert critical_steps(reward) == [0, 110]  # at step 10 it is what it was at 0
    report = audit(reward, HALF_SECOND)
    assert report.steps == (0, 110)
    assert report["identity at step 0"].mean_reward == pytest.approx(0.2)
    assert report["identity at step 110"].mean_reward == pytest.approx(0.0)
    assert {row.step for row in report.failures} == {0}
    names = {row.name.removesuffix(f" at step {row.step}") for row in report.rows}
    assert {name for name in names if "step" in name} == set()
    assert len(report.rows) == 2 * len(names)
    assert "at step 110" in str(report).splitlines()
    late = audit(reward, HALF_SECOND, step=110)
    assert late.steps == (110,)
    assert late["identity"].mean_reward == pytest.approx(0.0)
    assert late.passed


def test_what_a_switch_brings_is_found_where_it_brings_it():
    reward = "auc.over_incoming().clip(0, 1).when(since(step=1000)).otherwise(auc.over_incoming())"
    reward += ".gate(valid, otherwise=-1.1)"
    assert critical_steps(parse_reward(reward)) == [0, 1000]
    report = rewards.audit(reward, HALF_SECOND)
    assert report.passed is False
    assert {row.step for row in report.failures} == {1000}
    # a loss costs nothing any more: a third rises by one of three places
    assert report["top_swap at step 1000"].mean_reward == pytest.approx(1 / 9)
    assert report["best_response at step 1000"].passed is False
    assert report["best_response at step 0"].passed is True


def test_two_schedules_are_audited_between_their_ends_too():
    # the product is 0 at either end, and a quarter half way
    product = "linear(start=0, end=1, steps=100)*linear(start=1, end=0, steps=100)"
    reward = parse_reward(f"gain + valid_format*{product}")
    assert critical_steps(reward) == [0, 50, 100]
    report = audit(reward, HALF_SECOND)
    assert report["identity at step 50"].mean_reward == pytest.approx(0.25)
    assert {row.step for row in report.failures} == {50}
    assert critical_steps(parse_reward("valid_format.when(since(step=50))")) == [0, 50]
    assert critical_steps(gain()) == [0]


def test_agreement_in_a_group_is_paid_for_one_order_of_the_items():
    slates = Slates.of(np.eye(6)[np.random.default_rng(0).integers(0, 3, 50)].tolist())
    report = audit("consistency", slates, popularity_BK=np.tile(np.arange(6), (50, 1)), prompts=["prompt"] * 50)
    assert report.n_requests == 50
    # the same order of the items under every shuffle agrees with itself; the echo by chance only
    assert report["fixed_item_order"].mean_reward == 1.0
    assert report["identity"].mean_reward == pytest.approx(0.5, abs=0.05)
    assert report["popularity"].mean_reward == 1.0
    with pytest.raises(SlateError, match="shuffled copies already"):
        audit("consistency", Slates(np.eye(3), np.full(3, 3), canonical_BK=np.tile([1, 0, 2], (3, 1))))


def test_a_penalty_under_when_shelters_invalid_answers():
    report = audit("ndcg.over_incoming().when(valid)", Slates.of([[0, 1, 0], [1, 0, 0]] * 10))
    # 0 for an invalid answer, above a valid one that spoils the order
    assert report["empty"].passed is False
    assert report.warnings[-1] == (
        "ndcg.over_incoming().when(valid) gives an invalid answer 0, but a valid one as little as -1; "
        "write .gate(valid, otherwise=-1.1) around the whole"
    )


def test_a_difference_by_itself_gives_an_invalid_answer_what_the_worst_valid_one_may_earn():
    report = audit("auc.over_incoming()", FIRST)
    assert (
        "auc.over_incoming() gives an invalid answer -1, which the worst valid one may earn too; "
        "write .gate(valid, otherwise=-1.1) around it"
    ) in report.warnings
    # the relevant item from first to last loses all of it
    assert report["anti_oracle"].mean_reward == -1.0
    assert report["empty"].reason == "is paid no less than the worst valid answer on 100% of requests"


@pytest.mark.parametrize(
    "reward",
    [naive(), gr2(), gr2_industrial(), gr2_hardened(), gr2_industrial_hardened(), gain(), gain(scale="headroom")],
)
def test_no_preset_shelters_invalid_answers(reward):
    assert structural_warnings(reward) == []
