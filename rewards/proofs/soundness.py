"""Proofs for users: does a reward keep what it promises? A breach comes with the smallest counterexample found.

    assert_reward_sound(my_function, low=-1, high=1, invalid=-1.1, identity_at_most=0)

All small requests are tried first, with every answer; then some long ones and some large batches; then odd ones, which
hypothesis draws, the same ones each time, and shrinks. The promises are those of `promises`; a reward that keeps them
is what it says it is, which a constant is too. What can be earned without being any use is for the audit to find. May
import numpy and hypothesis; `testing` exports what is public here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TypedDict, Unpack, get_args

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError, UnsoundRewardError
from rerank_env.rewards.function import FunctionReward
from rerank_env.rewards.isolation import RewardFunction
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.proofs.fixed import STARS, large_cases, small_cases
from rerank_env.rewards.proofs.promises import PROMISES
from rerank_env.rewards.proofs.searching import smallest
from rerank_env.rewards.proofs.strategies import contexts_of, groups
from rerank_env.rewards.proofs.strategies import slates as any_slates
from rerank_env.rewards.proofs.trials import Case, LooksAt, Subject, Worth
from rerank_env.rewards.rankings import identity_rankings, random_rankings
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.slates import MAX_RELEVANCE, Slates

MAX_EXAMPLES = 60
"""How many batches of requests are drawn for a reward, unless it is told otherwise."""

GAINS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.5, 0.1, *STARS, 150.0, 1e4, 1e-9, MAX_RELEVANCE)
"""Gains that are drawn more often than others, the simplest first."""


class Options(TypedDict, total=False):
    """The options of `unsound_properties`."""

    low: float | None
    high: float | None
    invalid: float | None
    identity_at_most: float | None
    worth: Worth | None
    looks_at: LooksAt
    waive: Collection[str]
    slates: SearchStrategy[Slates] | None
    max_examples: int


def assert_reward_sound(reward: Reward | str | RewardFunction, **options: Unpack[Options]) -> None:
    """Raise `UnsoundRewardError` with a minimal counterexample unless the reward keeps every promise.

    The options are those of `unsound_properties`. No error means that no breach was found, and not that the reward
    cannot be gamed: see `audit`.

    >>> assert_reward_sound("gain", identity_at_most=0)
    """
    broken = unsound_properties(reward, **options)
    if broken:
        raise UnsoundRewardError(_name_of(reward), broken)


def unsound_properties(
    reward: Reward | str | RewardFunction,
    *,
    low: float | None = None,
    high: float | None = None,
    invalid: float | None = None,
    identity_at_most: float | None = None,
    worth: Worth | None = None,
    looks_at: LooksAt = "incoming",
    waive: Collection[str] = (),
    slates: SearchStrategy[Slates] | None = None,
    max_examples: int = MAX_EXAMPLES,
) -> dict[str, str]:
    """The promises that a reward breaks, each with a counterexample in words; empty for a sound one.

    `reward`: a reward, its text, or a plain function of (rankings_BK, slates), whose range over valid answers and score
    of an invalid one are then given by `low`, `high` and `invalid`. `identity_at_most`: what echoing the incoming order
    may earn, the reward's own `identity` unless given. `worth`: slates -> how good each candidate is, [B, K]; the
    relevance unless given. `looks_at`: "gains" for what depends on the gains in the answer's order alone, "incoming"
    for what also compares with the incoming order, "places" for what counts who moved where; see `properties`.
    `waive`: names of promises that are not made. `slates`: requests to draw instead of any.

    Raises `InputError` for a useless declaration, `UnknownNameError` for a promise that does not exist.
    """
    subject = _subject(reward, {"low": low, "high": high, "invalid": invalid}, identity_at_most, worth, looks_at)
    for name in waive:
        one_of("property of rewards", name, PROMISES)
    examples = whole("max_examples", max_examples, least=1)
    promises = {name: promise for name, promise in PROMISES.items() if name not in waive}
    needs = subject.reward.needs
    found: dict[str, str] = {}

    def tried(case: Case) -> None:
        for name, promise in promises.items():
            if name not in found and (breach := promise.breach(subject, case)):
                found[name] = promise.in_words(breach)

    if slates is None and not needs:
        for case in small_cases():
            tried(case)
    smallest_already = set(found)
    if slates is None and not needs:
        for case in large_cases():
            tried(case)
    cases = _cases(needs, slates)
    smallest(tried, cases, max_examples=examples)
    for name in found.keys() - smallest_already:
        promise = promises[name]
        if breach := smallest(partial(promise.breach, subject), cases, max_examples=examples):
            found[name] = promise.in_words(breach)
    return {name: found[name] for name in promises if name in found}


def _subject(
    reward: Reward | str | RewardFunction,
    declared: Mapping[str, float | None],
    identity_at_most: float | None,
    worth: Worth | None,
    looks_at: LooksAt,
) -> Subject:
    given = {bound: value for bound, value in declared.items() if value is not None}
    if isinstance(reward, Reward | str):
        if given:
            raise InputError(f"{', '.join(given)} came with a reward, which declares that itself; leave it out")
        reward = parse_reward(reward)
    elif len(given) < len(declared):
        missing = ", ".join(bound for bound in declared if bound not in given)
        raise InputError(f"a plain function declares nothing; give {missing} as well")
    else:
        low, high, invalid = given["low"], given["high"], given["invalid"]
        name = _name_of(reward)
        reward = FunctionReward(reward, name, low=low, high=high, invalid=invalid, identity=identity_at_most)
    identity = reward.identity if identity_at_most is None else finite("identity_at_most", identity_at_most)
    one_of("thing to look at", looks_at, get_args(LooksAt))
    return Subject(reward, identity, worth or (lambda slates: slates.relevance_BK), looks_at)


def _name_of(reward: Reward | str | RewardFunction) -> str:
    if isinstance(reward, Reward | str):
        return str(reward)
    name = getattr(reward, "__name__", "")
    return name if name.isidentifier() else "reward"


@st.composite
def _cases(draw: st.DrawFn, needs: Collection[str], requests: SearchStrategy[Slates] | None) -> Case:
    """Up to three requests, each with an answer, or where answers are compared with a group of answers."""
    drawn = requests
    if drawn is None:
        gains = st.sampled_from(GAINS) | st.floats(0, 100, allow_subnormal=False)
        logged = bool({"clicks", "predictions"} & set(needs))
        drawn = any_slates(max_requests=3, max_candidates=12, relevance=gains, logged=logged)
    if "groups" in needs:
        several = draw(groups(requests=drawn))
        batch, groups_B = several.slates, several.groups_B
    else:
        batch = draw(drawn)
        groups_B = np.arange(len(batch))
    context = draw(contexts_of(batch, needs=set(needs) - {"groups"}))
    order = draw(st.integers(0, 99))
    rankings_BK = identity_rankings(batch.sizes_B, batch.width)
    if order:
        rankings_BK = random_rankings(batch.sizes_B, batch.width, np.random.default_rng(order))
    return Case(batch, rankings_BK, context).take(np.arange(len(batch)), groups_B)
