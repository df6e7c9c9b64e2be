"""Rewards by name: what is printed parses back, and what cannot be read says where and why."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards import (
    Auc,
    Constant,
    FunctionReward,
    Improved,
    IncomingIsIdeal,
    KeptFirst,
    Ndcg,
    NotIdentity,
    RankPromotion,
    Recall,
    Valid,
    ValidFormat,
    clicks,
    conditions,
    gain,
    gr2,
    gr2_industrial,
    groups,
    naive,
    names,
    parse_reward,
    register_reward,
    reward_names,
    schedules,
    textual,
    verifiable,
)
from rerank_env.rewards.errors import InputError, RerankError, UnknownNameError
from rerank_env.rewards.expression import Expression
from rerank_env.rewards.registry import CONDITION_OF, CONDITIONS, CONTEXTUAL, LEAVES, PRESETS, REWARD_OF
from rerank_env.rewards.testing import rewards


@given(rewards())
def test_what_is_printed_parses_back_to_an_equal_reward(reward):
    again = parse_reward(str(reward))
    assert again == reward
    assert str(again) == str(reward)


PRINTED = [
    ("ndcg", Ndcg()),
    ("ndcg@10", Ndcg(k=10)),
    ("ndcg(k=10, gains='exp2')", Ndcg(k=10, gains="exp2")),
    ("ndcg(k=10, invalid=-0.5)", Ndcg(k=10, invalid=-0.5)),
    ("recall@5", Recall(k=5)),
    ("0.5", Constant(0.5)),
    ("0", Constant(-0.0)),
    ("0*ndcg", -0.0 * Ndcg()),
    ("2*ndcg", 2 * Ndcg()),
    ("ndcg - 0.2*auc", Ndcg() - 0.2 * Auc()),
    ("ndcg - auc - 0.5", Ndcg() - Auc() - 0.5),
    ("1 - (ndcg + auc)", 1 - (Ndcg() + Auc())),
    ("0.5*(ndcg + auc)", 0.5 * (Ndcg() + Auc())),
    ("ndcg*auc", Ndcg() * Auc()),
    ("ndcg*(auc + 1)", Ndcg() * (Auc() + 1)),
    ("(2*ndcg).clip(-1, 1e-07)", (2 * Ndcg()).clip(-1, 1e-7)),
    ("(ndcg + auc).over_incoming()", (Ndcg() + Auc()).over_incoming()),
    ("ndcg.gate(improved, otherwise=0.5)", Ndcg().gate(Improved(), otherwise=0.5)),
    ("ndcg.when(improved)", Ndcg().gate(Improved(), otherwise=-0.0)),
    ("ndcg.when(~(improved | kept_first))", Ndcg().when(~(Improved() | KeptFirst()))),
    ("ndcg.when((improved | kept_first) & ~valid)", Ndcg().when((Improved() | KeptFirst()) & ~Valid())),
    ("ndcg.when(improved(quality=auc) | valid & not_identity)", Ndcg().when(Improved(Auc()) | Valid() & NotIdentity())),
    ("auc.when(incoming_is_ideal(quality=ndcg@3))", Auc().when(IncomingIsIdeal(Ndcg(k=3)))),
    ("ndcg@10.over_incoming().gate(valid, otherwise=-1.1)", gain()),
    ("rank_promotion + 0.2*valid_format.when(improved | kept_first)", gr2()),
    ("auc.when(not_identity | incoming_is_ideal) + 0.2*valid_format", gr2_industrial()),
    ("rank_promotion + 0.2*valid_format", naive()),
]


@pytest.mark.parametrize(("text", "reward"), PRINTED)
def test_a_reward_prints_as_it_is_written(text, reward):
    assert str(reward) == text
    assert parse_reward(text) == reward


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("gain", gain()),
        ("gr2", gr2()),
        ("gr2()", gr2()),
        ("gr2(alpha=0.2)", gr2()),
        ("gr2(0.3, exemption='literal')", gr2(0.3, exemption="literal")),
        ("gr2_industrial", gr2_industrial()),
        ("gr2_industrial(quality=ndcg(gains='exp2'), alpha=0.1)", gr2_industrial(Ndcg(gains="exp2"), 0.1)),
        ("naive", naive()),
        ("gain(ndcg@5)", gain(Ndcg(k=5))),
        ("gain(quality=0.5*auc + 0.5*recall@3)", gain(0.5 * Auc() + 0.5 * Recall(k=3))),
        ("ndcg(None)", Ndcg()),
        ("ndcg(10)", Ndcg(k=10)),
        ("  gain\n", gain()),
        ("rank_promotion\n + 0.2*valid_format", naive()),
        ("-ndcg", -Ndcg()),
        ("+ndcg", Ndcg()),
        ("--ndcg", -(-Ndcg())),
        ("2*3*ndcg", 6 * Ndcg()),
        ("ndcg*2", 2 * Ndcg()),
        ("ndcg.gate(improved, otherwise=0)", Ndcg().when(Improved())),
        ("ndcg@1000000000000", Ndcg(k=10**12)),
    ],
)
def test_other_ways_of_writing_are_read_too(text, reward):
    assert parse_reward(text) == reward


def test_a_reward_is_returned_as_it_is():
    reward = gain()
    assert parse_reward(reward) is reward


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ndgc@10", r"unknown reward 'ndgc'; did you mean 'ndcg'\? known: ap, auc, "),
        ("ndcg.when(improve)", r"unknown reward 'improve'; did you mean 'improved'\?"),
        ("ndcg.gates(valid, otherwise=1)", r"unknown reward method 'gates'; did you mean 'gate'\?"),
        ("gr2(exemption='literaly')", r"unknown exemption 'literaly'; did you mean 'literal'\?"),
        ("ndcg(gains='exp')", r"unknown gain 'exp'; did you mean 'exp2'\?"),
    ],
)
def test_unknown_names_get_a_suggestion(text, message):
    with pytest.raises(UnknownNameError, match=message):
        parse_reward(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a reward cannot be empty"),
        (" \n ", "a reward cannot be empty"),
        ("ndcg +", r"at character \d of the reward 'ndcg \+': .* is not an expression"),
        ("  ndcg ndcg", "at character .* is not an expression"),
        ("ndcg + auc/2", r"at character 8 of the reward .*: 'auc/2' uses an operator that rewards do not have"),
        ("  ndcg**2", r"at character 3 of the reward .*: 'ndcg\*\*2' uses an operator"),
        ("ndcg@ten", "has a stray @; write a cut-off right behind a name"),
        ("(ndcg)@10", "has a stray @"),
        ("0.2*ndcg@10*auc*2j", "at character 17 of the reward .* is not allowed"),
        ("ndcg@10(k=5)", "gives k twice"),
        ("ndcg(k=1, k=2)", "gives k twice|is not an expression"),
        ("gr2_hardened(alpha=ndcg)", "alpha is .*; expected a number"),
        ("gr2(alpha='x')", "alpha is 'x'; expected a number"),
        ("ndcg@0", "k is 0; give a whole number of at least 1"),
        ("ndcg(k=1.5)", "k is 1.5"),
        (
            "ndcg(l=1)",
            r"at character 1 .*does not fit: got an unexpected keyword argument 'l'; it takes k, gains, invalid",
        ),
        ("recall", "does not fit: missing a required argument: 'k'; it takes k, invalid"),
        ("auc@3", "does not fit: got an unexpected keyword argument 'k'"),
        ("ndcg.gate(valid)", "does not fit: missing a required .*argument: 'otherwise'"),
        ("ndcg.when()", "does not fit"),
        ("ndcg.when", "is not allowed in a reward"),
        ("ndcg.when(auc)", "is no condition"),
        ("ndcg.clip('a', 1)", "expected a number"),
        ("ndcg | auc", "at character 1 .* is a reward, expected a condition"),
        ("ndcg + valid", "at character 8 .* is a condition, expected a reward or a number"),
        ("valid", "'valid' is a condition, expected a reward"),
        ("'gain'", "is a string, expected a reward"),
        ("None", "is a plain None, expected a reward"),
        ("True*ndcg", "is a plain True, expected a reward"),
        ("ndcg(**{})", "write every keyword out"),
        ("ndcg(*[1])", "is not allowed in a reward"),
        ("ndcg if valid else auc", "is not allowed in a reward"),
        ("[ndcg]", "is not allowed in a reward"),
        ("ndcg; auc", "is not an expression"),
        ("__import__('os').system('true')", "unknown reward '__import__'"),
        ("ndcg.__class__()", "unknown reward method '__class__'"),
        ("lambda: ndcg", "is not allowed in a reward"),
        ("(ndcg := auc)", "is not allowed in a reward"),
        ("f'{ndcg}'", "is not allowed in a reward"),
        ("ndcg + \u0661", "is not ASCII"),
        ("gain" + " " * 10_000, "is too long; 10000 are allowed"),
        ("9" * 5000 + "*ndcg", "cannot be read|is not an expression"),
        ("1e999*ndcg", "expected a finite number"),
        ("1e308*ndcg + 1e308*ndcg", "use smaller numbers"),
        ("(" * 5000, "cannot be read|is not an expression"),
        ("-" * 5000 + "ndcg", "cannot be read|is not an expression"),
        ("+".join(["ndcg"] * 2000), "cannot be read|is not an expression"),
        ("\x00", "cannot be read|is not an expression"),
        ("gain(quality=0.5)", "quality is 0.5; expected a reward"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_reward(text)
    assert "\n" not in str(caught.value)


def test_only_text_and_rewards_are_read():
    with pytest.raises(InputError, match="given as text or as a Reward, not as int"):
        parse_reward(3)


@given(st.text(alphabet="ndcgau@10+-*().,=~|&'_ \n\\", max_size=30) | st.text(max_size=20))
def test_any_text_is_a_reward_or_a_typed_error(text):
    try:
        reward = parse_reward(text)
    except RerankError:
        return
    assert parse_reward(str(reward)) == reward


def test_everything_built_in_is_known_by_its_own_name():
    modules = (clicks, conditions, groups, schedules, textual, verifiable)
    own = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    assert {kind for kind in own if issubclass(kind, Expression) and kind.name} == {*LEAVES, *CONTEXTUAL, *CONDITIONS}
    assert set(REWARD_OF) >= {kind.name for kind in LEAVES + CONTEXTUAL} | {preset.__name__ for preset in PRESETS}
    assert set(CONDITION_OF) >= {kind.name for kind in CONDITIONS}
    assert len(set(REWARD_OF) | set(CONDITION_OF)) >= len(LEAVES) + len(PRESETS) + len(CONDITIONS)
    assert not set(REWARD_OF) & set(CONDITION_OF)


def test_names_are_listed():
    assert {"gain", "gr2", "gr2_industrial", "naive", "ndcg", "rank_promotion"} <= set(reward_names())
    assert list(reward_names()) == sorted(reward_names())


def test_a_registered_reward_is_known_by_its_name():
    register_reward("half_ndcg_of_the_tests", 0.5 * Ndcg())
    register_reward("half_ndcg_of_the_tests", 0.5 * Ndcg())  # the same again, as on a reload
    assert parse_reward("half_ndcg_of_the_tests + auc") == 0.5 * Ndcg() + Auc()
    with pytest.raises(InputError, match="is a registered reward and takes no arguments"):
        parse_reward("half_ndcg_of_the_tests@3")
    with pytest.raises(InputError, match="is taken"):
        register_reward("half_ndcg_of_the_tests", Ndcg())


def weighted_of_the_tests(weight=1.0):
    return weight * RankPromotion()


def test_a_registered_function_takes_keywords():
    register_reward("weighted_of_the_tests", weighted_of_the_tests)
    assert parse_reward("weighted_of_the_tests(weight=2) + valid_format") == 2 * RankPromotion() + ValidFormat()
    register_reward("broken_of_the_tests", lambda: 3)
    with pytest.raises(InputError, match="'broken_of_the_tests' was registered as a reward but builds a int"):
        parse_reward("broken_of_the_tests")


def second_gain(rankings_BK, slates):
    return slates.relevance_BK[:, 1]


SECOND = FunctionReward(second_gain, "second_of_the_tests", low=0, high=9, invalid=-1)


class Named(ValidFormat):
    name = "named_of_the_tests"


def test_a_reward_whose_text_would_not_read_back_is_refused():
    for name, reward in [
        ("other_of_the_tests", SECOND),
        ("twice_of_the_tests", 2 * SECOND),
        ("gated_of_the_tests", Ndcg().when(Improved(SECOND))),
        ("gain_of_the_tests", FunctionReward(second_gain, "gain", low=0, high=9, invalid=-1)),
        ("other_of_the_tests", Named()),
    ]:
        with pytest.raises(InputError, match=f"the reward '{name}' prints as '.*', which does not read back"):
            register_reward(name, reward)
        assert name not in reward_names()
    with pytest.raises(InputError, match="rewards of that class print as 'named_of_the_tests'"):
        register_reward("other_of_the_tests", Named)
    register_reward("second_of_the_tests", SECOND)
    register_reward("twice_of_the_tests", 2 * SECOND)  # now the text can be read
    register_reward("named_of_the_tests", Named)
    for reward in (SECOND, 2 * SECOND, Named(), Named(invalid=-1)):
        assert parse_reward(str(reward)) == reward


@pytest.mark.parametrize("name", ["", "1st", "a b", "a.b", "None", "and", "gain", "valid", "ndcg", "\u00e9t\u00e9"])
def test_names_that_cannot_be_written_or_are_taken_are_refused(name):
    with pytest.raises(InputError, match=r"cannot name a reward|is taken"):
        register_reward(name, Auc())


def test_only_rewards_and_functions_can_be_registered():
    with pytest.raises(InputError, match="neither a reward nor a function"):
        register_reward("number_of_the_tests", 3)


def test_parsed_rewards_pickle():
    for text, _ in PRINTED:
        assert pickle.loads(pickle.dumps(parse_reward(text))) == parse_reward(text)


def test_a_registered_function_that_raises_is_told_with_its_place(monkeypatch):
    monkeypatch.setattr(names, "REWARD_OF", dict(names.REWARD_OF))

    def picky(weight):
        return {"half": 0.5}[weight] * Ndcg()

    register_reward("picky", picky)
    assert parse_reward("picky(weight='half')") == 0.5 * Ndcg()
    with pytest.raises(InputError, match=r"at character 8 of the reward .* cannot be built: KeyError: 'third'"):
        parse_reward("ndcg + picky(weight='third')")
