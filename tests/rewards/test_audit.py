"""The audit says what each way of answering earns and whether it may, on slates small enough to work out by hand."""

import json
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings

from rerank_env import rewards
from rerank_env.rewards import (
    ClickCredit,
    Constant,
    FunctionReward,
    Slates,
    Verdict,
    click_credit,
    gain,
    gr2,
    naive,
    testing,
)
from rerank_env.rewards.auditing.judging import Outcome, judged
from rerank_env.rewards.auditing.layout import percent
from rerank_env.rewards.auditing.orders import BLIND
from rerank_env.rewards.auditing.scene import Scene
from rerank_env.rewards.auditing.texts import TEXT_ATTACKS

audit = partial(rewards.audit, search=False)  # the search has tests of its own

SLATES = Slates.of([[0, 1, 0, 0], [1, 0, 0]])
"""One relevant item each: at place 2 of 4, and at place 1 of 3."""

MANY = SLATES.repeat(15)
"""The same, of as many users as it takes to be judged."""


def test_what_every_answer_earns_under_gr2():
    report = audit(gr2(), SLATES)
    earned = {row.name: row.mean_reward for row in report.rows}
    # oracle: promoted by 1 of 4 with the bonus, 0.25 + 0.2; kept first, 0.2.  mean 0.325
    assert earned["oracle"] == pytest.approx(0.325)
    # anti-oracle: place 2 -> 4 of 4, -0.5; place 1 -> 3 of 3, -2/3
    assert earned["anti_oracle"] == pytest.approx((-0.5 - 2 / 3) / 2)
    # identity: unchanged below rank 1, 0; kept first, 0.2
    assert earned["identity"] == pytest.approx(0.1)
    # one swap of the last two changes neither item
    assert earned["one_swap"] == pytest.approx(0.1)
    # two swaps move the last above the two before it: place 2 -> 3 of 4, -0.25; place 1 -> 2 of 3, -1/3
    assert earned["two_swaps"] == pytest.approx((-0.25 - 1 / 3) / 2)
    # first two exchanged: place 2 -> 1 of 4, 0.25 + 0.2; place 1 -> 2 of 3, -1/3
    assert earned["top_swap"] == pytest.approx((0.45 - 1 / 3) / 2)
    # first to the end: place 2 -> 1 of 4, 0.25 + 0.2; place 1 -> 3 of 3, -2/3
    assert earned["rotated"] == pytest.approx((0.45 - 2 / 3) / 2)
    # reverse: place 2 -> 3 of 4, -0.25; place 1 -> 3 of 3, -2/3
    assert earned["reverse"] == pytest.approx((-0.25 - 2 / 3) / 2)
    # the first two of either stay, so that no shuffle of the rest moves a relevant item
    assert earned["tail_shuffle"] == pytest.approx(0.1)
    malformed = {row.mean_reward for row in report.rows if row.kind == "malformed"}
    assert malformed == {-1.0}


def test_rows_say_what_kind_of_answer_they_are():
    rows = {row.name: row for row in audit(naive(), SLATES).rows}
    kinds = {name: (rows[name].kind, rows[name].valid_share, rows[name].verdict) for name in rows}
    assert kinds["oracle"] == kinds["anti_oracle"] == ("yardstick", 1.0, Verdict.OK)
    assert kinds["random"] == kinds["identity"] == kinds["reverse"] == ("blind", 1.0, Verdict.OK)
    assert kinds["truncated"] == ("malformed", 0.0, Verdict.MISSING)
    assert kinds["duplicate_top"] == ("malformed", 0.0, Verdict.DUPLICATE)
    assert kinds["empty"] == ("malformed", 0.0, Verdict.EMPTY)
    assert kinds["blanks"] == ("dressed", 1.0, Verdict.OK)


def test_every_attack_has_a_row_and_texts_are_written_over_both_orders():
    names = [row.name for row in audit(naive(), SLATES, popularity_BK=np.zeros((2, 4))).rows]
    texts = [attack.name for attack in TEXT_ATTACKS]
    blind = [attack.name for attack in BLIND]
    assert names == ["oracle", "anti_oracle", *blind, *texts, *(f"oracle_{name}" for name in texts)]
    assert len(set(names)) == len(names)


def test_what_is_taken_is_a_share_of_the_oracle():
    report = audit("naive", SLATES)
    # naive oracle: (0.25 + 0.2 + 0.2) / 2 = 0.325; identity 0.2
    assert report["identity"].share_of_oracle == pytest.approx(0.2 / 0.325)
    assert report["oracle"].share_of_oracle == 1.0
    assert report["empty"].share_of_oracle == 0.0
    assert audit(Constant(0), SLATES)["identity"].share_of_oracle is None


def test_copying_is_counted():
    rows = audit("gain", Slates.of([[0, 1, 0, 0, 0]] * 3))
    assert [rows["identity"].identity_rate, rows["identity"].near_identity_rate] == [1.0, 1.0]
    assert [rows["two_swaps"].identity_rate, rows["two_swaps"].near_identity_rate] == [0.0, 1.0]
    # the first item moved behind four others is four exchanges of neighbours
    assert rows["rotated"].near_identity_rate == 0.0
    assert rows["empty"].identity_rate == 0.0


def test_no_hack_earns_anything_under_gain_where_the_incoming_order_is_ideal():
    report = audit(gain(), Slates.of([[3, 2, 1, 0]] * 30))
    assert report["identity"].mean_reward == 0.0
    assert max(row.mean_reward for row in report.rows if row.name != "random_on_shuffled") == 0.0
    assert report["empty"].mean_reward == -1.1
    assert report["identity"].passed is None
    assert report["identity"].reason == "not judged: the oracle is paid nothing"
    assert report.passed is None
    assert report.verdict == (
        "UNDECIDED: the oracle is paid nothing on these requests, so that there is nothing to learn or to steal"
    )


def outcome(pay, oracle, kind="blind", base=0.0, valid_share=1.0):
    pay_B, oracle_B, base_B = (np.broadcast_to(np.asarray(x, dtype=float), (100,)) for x in (pay, oracle, base))
    return Outcome("it", kind, "", pay_B, oracle_B, base_B, valid_share, 0.0, 0.0, Verdict.OK)


def judge(one, worst=-1.0):
    (row,) = judged([one], np.full(100, worst), np.arange(100), seed=0)
    return row.passed, row.reason


def test_a_blind_answer_may_take_one_percent_of_the_oracle():
    assert judge(outcome(0.01, 1.0)) == (True, "takes 1% of the oracle's pay")
    assert judge(outcome(0.011, 1.0)) == (False, "takes 1.1% of the oracle's pay")
    assert judge(outcome(-0.3, 1.0)) == (True, "takes nothing")
    # where the oracle earns nothing, nothing may be earned; rounding is nothing
    assert judge(outcome(0.01, -1.0)) == (False, "is paid where the oracle is paid nothing")
    assert judge(outcome(1e-12, 0.0)) == (None, "not judged: the oracle is paid nothing")
    assert judge(outcome(0.0, 0.0, kind="dressed")) == (True, "adds nothing")


def test_noise_fails_nobody():
    # mean 0.02 with standard error 0.1: an interval from -0.18 to 0.22
    noise = np.where(np.arange(100) % 2, 1.02, -0.98)
    assert judge(outcome(noise, 1.0)) == (True, "takes 2% of the oracle's pay, not distinguishably more than 1%")
    assert judge(outcome(noise, 0.0)) == (None, "not judged: the oracle is paid nothing")
    assert judge(outcome(noise, 0.0, kind="dressed")) == (
        True,
        "is paid where the oracle is paid nothing, but not distinguishably",
    )


def test_a_share_of_next_to_nothing_is_so_many_times_it():
    assert judge(outcome(0.011, 0.0003)) == (False, "takes 37 times the oracle's pay")
    assert percent(3.3e6) == "3,300,000 times"
    assert percent(9.99) == "999%"


FEW = [
    (Slates.of([[0, 1, 0, 1, 0, 0, 0, 0]]), None, "1 user is too few to tell pay from luck; give at least 30"),
    (Slates.of([[0, 1, 0, 0]] * 29), None, "29 users are too few to tell pay from luck; give at least 30"),
    (Slates.of([[0, 1, 0, 0]] * 90), np.arange(90) // 4, "23 users are too few"),
]


@pytest.mark.parametrize(("slates", "users_B", "says"), FEW)
def test_few_users_decide_nothing(slates, users_B, says):
    report = audit("gain", slates, users_B=users_B)
    assert report.passed is None
    assert says in report.verdict
    assert {row.passed for row in report.rows if row.kind == "blind"} == {None}
    assert {row.passed for row in report.rows if row.kind == "malformed"} == {True}
    # what no noise can explain is said all the same
    sheltered = audit("ndcg.over_incoming().when(valid)", slates, users_B=users_B)
    assert sheltered.passed is False
    assert {row.kind for row in sheltered.failures} == {"malformed"}
    assert any(says in reason for reason in sheltered.undecided)


@pytest.mark.parametrize("reward", ["gain", "gr2", "gain(scale='headroom')"])
def test_no_relevance_decides_nothing(reward):
    report = audit(reward, Slates.of([[0, 0]] * 40))
    assert report.passed is None
    assert "no request has candidates of different relevance" in report.verdict


def test_clicks_without_relevance_decide_nothing_and_with_their_credit_as_relevance_something():
    rng = np.random.default_rng(0)
    clicks = rng.random((200, 5)) < 0.5 ** np.arange(1, 6)
    logged = Slates.of(np.zeros((200, 5)), clicks=clicks, propensities=np.full((200, 5), 1.0))
    report = audit(gain(ClickCredit()), logged)
    assert report["oracle"].mean_reward == 0.0
    assert report.passed is None
    credited = Slates.of(click_credit(logged), clicks=clicks, propensities=np.full((200, 5), 1.0))
    assert audit(gain(ClickCredit()), credited)["oracle"].mean_reward > 0.02
    assert audit(gain(ClickCredit()), credited).passed is True


def test_what_pays_backwards_fails_though_the_oracle_is_paid_nothing():
    report = audit("-1*auc + 1*valid_format.when(valid)", Slates.of([[1, 0, 0, 0]] * 40))
    # AUC of the relevant item last is 0, first 1
    assert report["oracle"].mean_reward == 0.0
    assert (report["reverse"].mean_reward, report["reverse"].passed) == (1.0, False)
    assert report.passed is False


def test_what_is_added_to_an_answer_counts_by_itself():
    assert judge(outcome(0.5, 1.0, kind="dressed", base=0.5)) == (True, "adds nothing")
    assert judge(outcome(0.55, 1.0, kind="dressed", base=0.5))[0] is False
    assert judge(outcome(-1.1, 1.0, kind="dressed", base=0.5))[0] is True


def test_a_malformed_answer_must_earn_less_than_the_worst_valid_one_on_every_request():
    worst = np.where(np.arange(100) < 3, -1.0, 0.0)
    assert judge(outcome(-1.1, 1.0, kind="malformed"), worst) == (True, "is paid less than the worst valid answer")
    assert judge(outcome(-1.0, 1.0, kind="malformed", valid_share=0.0), worst) == (
        False,
        "is paid no less than the worst valid answer on 3% of requests",
    )


def test_a_yardstick_is_not_judged():
    assert judge(outcome(5.0, 1.0, kind="yardstick")) == (None, "")


def interval_of(pay_B, users_B):
    zeros_B = np.zeros(len(pay_B))
    one = Outcome("it", "blind", "", pay_B, zeros_B + 1, zeros_B, 1.0, 0.0, 0.0, Verdict.OK)
    (row,) = judged([one], zeros_B, users_B, seed=0)
    return row.low, row.high


def test_intervals_are_those_of_the_mean():
    pay_B = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    # 1.96 standard errors either way, to the accuracy of 1,000 resamples
    error = 1.96 * pay_B.std() / 20
    assert interval_of(pay_B, np.arange(400)) == pytest.approx(
        [pay_B.mean() - error, pay_B.mean() + error], abs=0.15 * error
    )


def test_requests_of_one_user_are_drawn_together():
    pay_B = np.random.default_rng(0).normal(size=50)
    # four times the same request of each user says no more than one does
    together = interval_of(np.repeat(pay_B, 4), np.repeat(np.arange(50), 4))
    assert together == pytest.approx(interval_of(pay_B, np.arange(50)))


def test_the_seed_decides_all_that_is_random():
    slates = Slates.of(np.random.default_rng(0).integers(0, 3, (50, 6)).tolist())
    assert rewards.audit("ndcg", slates, seed=1) == rewards.audit("ndcg", slates, seed=1)
    assert audit("ndcg", slates, seed=1)["random"] != audit("ndcg", slates, seed=2)["random"]


def test_the_position_prior_is_tried_on_other_requests_than_it_was_found_on():
    # the relevant item is always at place 3: whoever looks at half of the requests knows it for the other half
    always = audit("gain", Slates.of([[0, 0, 1, 0]] * 40))
    assert always["position_prior"].mean_reward == always["oracle"].mean_reward > 0
    assert always["position_prior"].passed is False
    # two users with their items elsewhere: what is found on one is wrong on the other
    slates = Slates.of([[0, 0, 1, 0]] * 10 + [[0, 1, 0, 0]] * 10)
    other = audit("gain", slates, users_B=[0] * 10 + [1] * 10)
    assert other["position_prior"].mean_reward < 0


def test_one_user_leaves_nothing_to_try_a_choice_on():
    names = [row.name for row in rewards.audit("gain", SLATES, users_B=[7, 7]).rows]
    assert "identity" in names
    assert not {"position_prior", "best_response"} & set(names)


def test_a_popularity_copy_ranks_by_popularity():
    slates = Slates.of([[0, 1, 0], [0, 0, 1]])
    report = audit("gain", slates, popularity_BK=[[1, 9, 1], [0, 1, 5]])
    assert report["popularity"].mean_reward == report["oracle"].mean_reward > 0


def test_a_report_warns_where_the_incoming_order_is_not_better_than_random():
    rng = np.random.default_rng(0)
    rows = np.eye(5)[rng.integers(0, 5, 200)]
    assert any(
        "not distinguishably better than a random one" in said for said in audit("gain", Slates.of(rows)).warnings
    )
    good = np.eye(5)[rng.integers(0, 3, 200)]
    assert audit("gain", Slates.of(good)).warnings == ()


def test_a_plain_function_is_audited_like_any_reward():
    def first_is_relevant(rankings_BK, slates):
        return slates.relevance_BK[np.arange(len(slates)), rankings_BK[:, 0]]

    report = audit(FunctionReward(first_is_relevant, name="first", low=0, high=1, invalid=-1), SLATES)
    # relevant at place 2, and at place 1: the echo is right about the second, half of what there is
    assert report["identity"].share_of_oracle == 0.5
    assert not report.passed
    assert report["empty"].passed


def test_a_report_prints_as_a_table_and_exports_plain_data():
    report = audit("naive", MANY)
    lines = str(report).splitlines()
    assert lines[:3] == [
        "audit of naive on 30 requests, texts as list",
        "  = rank_promotion + 0.2*valid_format",
        report.verdict,
    ]
    assert str(audit(naive(), MANY)).splitlines()[0] == (
        "audit of rank_promotion + 0.2*valid_format on 30 requests, texts as list"
    )
    assert report.verdict.startswith("FAIL: ")
    assert report.verdict.endswith("of the oracle's pay")
    place = next(n for n, line in enumerate(lines) if line.startswith("identity"))
    assert lines[place].split() == (
        ["identity", "+0.2000", "+0.2000", "+0.2000", "61.5%", "100%", "100%", "100%", "ok", "FAIL"]
    )
    assert lines[place + 1] == "    takes 61.5% of the oracle's pay: the incoming order echoed"
    # texts that are refused alike are one line
    (refused,) = [line for line in lines if line.startswith("40 malformed texts")]
    assert refused.split()[:2] == ["40", "malformed"]
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (plain["n_requests"], plain["passed"], plain["asked"]) == (30, False, "naive")
    (truncated,) = [row for row in plain["rows"] if row["name"] == "truncated"]
    assert truncated == {
        "name": "truncated",
        "kind": "malformed",
        "mean_reward": -1.0,
        "low": -1.0,
        "high": -1.0,
        "share_of_oracle": 0.0,
        "valid_share": 0.0,
        "identity_rate": 0.0,
        "near_identity_rate": 0.0,
        "verdict": "missing",
        "passed": True,
        "reason": "is paid less than the worst valid answer",
        "about": "the last candidate is left out",
        "step": 0,
    }
    with pytest.raises(KeyError):
        report["unheard_of"]


def test_part_of_a_scene_is_the_same_scene_on_fewer_requests():
    rows = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]

    def asked(numbers):
        return Scene(
            reward=gain(),
            slates=Slates.of([rows[n] for n in numbers]),
            text_format="json",
            step=7,
            users_B=np.array([[5, 5, 6][n] for n in numbers]),
            groups_B=np.array([[1, 2, 3][n] for n in numbers]),
            popularity_BK=np.array([[[1, 2, 3], [4, 5, 6], [7, 8, 9]][n] for n in numbers]),
            prompts=["abc"[n] for n in numbers],
            parse=read,
        )

    def read(text, size):
        del text, size

    whole = asked([0, 1, 2])
    for rows_B, numbers in ((np.array([True, False, True]), [0, 2]), (np.array([2, 2, 1]), [2, 2, 1])):
        part, expected = whole.take(rows_B), asked(numbers)
        assert part.slates.relevance_BK.tolist() == expected.slates.relevance_BK.tolist()
        for field in fields(Scene):
            if field.name not in ("reward", "slates"):
                np.testing.assert_array_equal(getattr(part, field.name), getattr(expected, field.name), field.name)
        assert part.reward == whole.reward


@settings(max_examples=30, deadline=None)
@given(reward=testing.rewards(max_leaves=4), slates=testing.slates(max_requests=4))
def test_any_reward_can_be_audited_on_any_requests(reward, slates):
    report = audit(reward, slates)
    json.dumps(report.to_dict(), allow_nan=False)
    assert report["identity"].identity_rate == 1.0
    assert all(row.low <= row.mean_reward <= row.high for row in report.rows)
    assert all(row.valid_share == 0.0 for row in report.rows if row.kind == "malformed")
    assert str(report).count("oracle ") > 1
    # what promises less for an invalid answer than for any valid one keeps the promise on every request
    if reward.invalid < reward.low - 1e-6:
        assert all(row.passed for row in report.rows if row.kind == "malformed")
