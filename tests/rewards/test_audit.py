"""The audit says what each hack earns, on slates small enough to work out by hand."""

import json

import numpy as np
import pytest

from rerank_env.rewards import Constant, Slates, Verdict, audit, auditing, gain, gr2, naive
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.rankings import identity_rankings

SLATES = Slates.of([[0, 1, 0, 0], [1, 0, 0]])
"""One relevant item each: at place 2 of 4, and at place 1 of 3."""


def test_what_every_answer_earns_under_gr2():
    report = audit(gr2(), SLATES)
    earned = {row.name: row.mean_reward for row in report.rows}
    # oracle: promoted by 1 of 4 with the bonus, 0.25 + 0.2; kept first, 0.2.  mean 0.325
    assert earned["oracle"] == pytest.approx(0.325)
    # identity: unchanged below rank 1, 0; kept first, 0.2
    assert earned["identity"] == pytest.approx(0.1)
    # one swap of the last two changes neither item
    assert earned["one_swap"] == pytest.approx(0.1)
    # reverse: place 2 -> 3 of 4, -0.25; place 1 -> 3 of 3, -2/3
    assert earned["reverse"] == pytest.approx((-0.25 - 2 / 3) / 2)
    assert earned["truncated"] == earned["duplicate_top"] == earned["empty"] == -1.0


def test_rows_say_what_kind_of_answer_they_are():
    report = audit(naive(), SLATES)
    kinds = {row.name: (row.kind, row.valid_share, row.verdict) for row in report.rows}
    assert kinds == {
        "oracle": ("honest", 1.0, Verdict.OK),
        "random": ("honest", 1.0, Verdict.OK),
        "identity": ("hack", 1.0, Verdict.OK),
        "one_swap": ("hack", 1.0, Verdict.OK),
        "reverse": ("hack", 1.0, Verdict.OK),
        "truncated": ("hack", 0.0, Verdict.MISSING),
        "duplicate_top": ("hack", 0.0, Verdict.DUPLICATE),
        "empty": ("hack", 0.0, Verdict.EMPTY),
    }


def test_the_share_of_the_oracle_is_what_a_hack_steals():
    report = audit("naive", SLATES)
    # naive oracle: (0.25 + 0.2 + 0.2) / 2 = 0.325; identity 0.2
    assert report["identity"].share_of_oracle == pytest.approx(0.2 / 0.325)
    assert report["oracle"].share_of_oracle == 1.0
    assert audit(Constant(0), SLATES)["identity"].share_of_oracle is None


def test_no_hack_earns_anything_under_gain_where_the_incoming_order_is_good():
    # the incoming order has the best item first, so that nothing but keeping it is right
    report = audit(gain(), Slates.of([[3, 2, 1, 0]] * 3))
    assert report["identity"].mean_reward == 0.0
    assert max(row.mean_reward for row in report.rows if row.kind == "hack") == 0.0
    assert report["empty"].mean_reward == -1.1


def test_one_swap_is_no_longer_the_identity_and_stays_inside_the_request():
    report = audit("1 * valid_format.when(not_identity)", Slates.of([[1, 0, 0, 0], [1, 0]]))
    assert report["one_swap"].mean_reward == 1.0
    assert report["reverse"].mean_reward == 1.0
    assert report["identity"].mean_reward == 0.0


def test_the_seed_decides_the_random_answers():
    slates = Slates.of(np.random.default_rng(0).integers(0, 3, (50, 6)).tolist())
    assert audit("ndcg", slates, seed=1) == audit("ndcg", slates, seed=1)
    assert audit("ndcg", slates, seed=1)["random"] != audit("ndcg", slates, seed=2)["random"]


def test_the_share_of_valid_answers_is_measured(monkeypatch):
    def half_cut(slates, rng):
        """Answers that look valid as arrays; every second text was cut off, and the first answer names nobody."""
        rankings_BK = identity_rankings(slates.sizes_B, slates.width)
        rankings_BK[0, 0] = 99
        return rankings_BK, np.where(np.arange(len(slates)) % 2, Verdict.TRUNCATED, Verdict.OK).astype(np.int8)

    monkeypatch.setitem(auditing._STRATEGIES, "half_cut", ("hack", half_cut))
    row = audit("naive", Slates.of([[0, 1, 0]] * 4))["half_cut"]
    # unknown, truncated, ok, truncated
    assert (row.valid_share, row.verdict) == (0.25, Verdict.TRUNCATED)
    assert row.mean_reward == pytest.approx((0.2 - 3) / 4)


def test_a_report_prints_as_a_table_and_exports_plain_data():
    report = audit("naive", SLATES)
    lines = str(report).splitlines()
    assert lines[0] == "audit of rank_promotion + 0.2*valid_format on 2 requests"
    assert [line.split()[0] for line in lines[2:]] == [row.name for row in report.rows]
    identity = next(line for line in lines if line.startswith("identity"))
    assert identity.split() == ["identity", "hack", "+0.2000", "100.0%", "61.5%", "ok"]
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["requests"] == 2
    assert plain["rows"][5] == {
        "name": "truncated",
        "kind": "hack",
        "mean_reward": -1.0,
        "valid_share": 0.0,
        "share_of_oracle": pytest.approx(-1 / 0.325),
        "verdict": "missing",
    }
    with pytest.raises(KeyError):
        report["unheard_of"]


def test_an_audit_needs_slates_and_a_reward_that_exists():
    with pytest.raises(InputError, match="no slates to audit on"):
        audit("naive", Slates.of([]))
    with pytest.raises(UnknownNameError, match="did you mean 'naive'"):
        audit("naiv", SLATES)
