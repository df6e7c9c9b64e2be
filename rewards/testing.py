"""Proofs for our rewards and for yours, and the hypothesis strategies they are made with.

    testing.assert_reward_sound(my_reward)

tries what a sound reward promises and shows the smallest request on which a promise is broken. Sound is not ungameable:
a constant reward is sound, so run the audit too. The strategies draw requests, groups, answers, contexts, rewards,
conditions and hostile texts for tests of your own:

    @given(st.data())
    def test_my_reward_never_exceeds_its_range(data):
        slates = data.draw(testing.slates())
        rankings = data.draw(testing.rankings_of(slates))
        assert (my_reward(rankings, slates) <= my_reward.high).all()

May import numpy and hypothesis; nothing else in the library imports this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import reduce
from operator import add, mul
from typing import Any, get_args

from rerank_env.rewards.errors import MissingExtraError

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as cause:
    raise MissingExtraError(
        "rerank_env.rewards.testing needs hypothesis; run `pip install 'rerank-env[testing]'`"
    ) from cause

from rerank_env.rewards.algebra import Constant
from rerank_env.rewards.clicks import LEAST_PROPENSITY, Estimator
from rerank_env.rewards.context import UNITS
from rerank_env.rewards.kernels import GAINS
from rerank_env.rewards.presets import Exemption
from rerank_env.rewards.proofs.hostile import hostile_texts
from rerank_env.rewards.proofs.soundness import assert_reward_sound, unsound_properties
from rerank_env.rewards.proofs.strategies import contexts_of, groups, rankings_of, relevances, slates
from rerank_env.rewards.proofs.strictness import assert_scorer_sound
from rerank_env.rewards.registry import CONDITIONS, CONTEXTUAL, LEAVES, PRESETS
from rerank_env.rewards.reward import Condition, Reward, Scale

__all__ = [
    "ARGUMENTS",
    "assert_reward_sound",
    "assert_scorer_sound",
    "conditions",
    "contexts_of",
    "groups",
    "hostile_texts",
    "leaves",
    "presets",
    "rankings_of",
    "relevances",
    "rewards",
    "slates",
    "unsound_properties",
]


def _numbers() -> SearchStrategy[float]:
    return st.sampled_from([0.2, 1.0, -1.0, 0.0, 0.5, -0.25, 3.0, 1e-7]) | st.floats(-4, 4, allow_subnormal=False)


ARGUMENTS: dict[str, Callable[[], SearchStrategy[Any]]] = {
    "alpha": _numbers,
    "begin": lambda: st.integers(0, 20),
    "buffer": lambda: st.integers(1, 10),
    "end": lambda: st.floats(0, 2),
    "estimator": lambda: st.sampled_from(get_args(Estimator)),
    "exemption": lambda: st.sampled_from(get_args(Exemption)),
    "gains": lambda: st.sampled_from(GAINS),
    "invalid": _numbers,
    "k": lambda: st.integers(1, 12),
    "least": lambda: st.integers(1, 4),
    "limit": lambda: st.integers(10, 50),
    "max_grade": lambda: st.integers(1, 5),
    "min_propensity": lambda: st.floats(LEAST_PROPENSITY, 1),
    "most": lambda: st.integers(5, 50),
    "p": lambda: st.floats(0.01, 0.99),
    "quality": lambda: leaves(),
    "scale": lambda: st.sampled_from(get_args(Scale)),
    "start": lambda: st.floats(0, 2),
    "step": lambda: st.integers(0, 30),
    "steps": lambda: st.integers(1, 20),
    "swaps": lambda: st.integers(0, 5),
    "tau": lambda: st.floats(-1, 1),
    "unit": lambda: st.sampled_from(UNITS),
}
"""What the arguments of built-in rewards, conditions and presets may be; those with a default may be left out too."""


def _built(build: Callable[..., Any]) -> SearchStrategy[Any]:
    """What `build` makes of any arguments."""
    parameters = inspect.signature(build).parameters.values()
    drawn = {parameter.name: ARGUMENTS[parameter.name]() for parameter in parameters}
    needed = {p.name: drawn.pop(p.name) for p in parameters if p.default is p.empty}
    return st.fixed_dictionaries(needed, optional=drawn).map(lambda arguments: build(**arguments))


def leaves(*, contextual: bool = False) -> SearchStrategy[Reward]:
    """Every built-in reward that is not made of others, in every variant; `contextual`: also those that need more,
    which `contexts_of` and `slates(logged=True)` give.
    """
    return st.one_of([_built(leaf) for leaf in LEAVES + (CONTEXTUAL if contextual else ())])


def presets() -> SearchStrategy[Reward]:
    """Every preset, with any arguments."""
    return st.one_of([_built(preset) for preset in PRESETS])


def conditions(*, contextual: bool = False) -> SearchStrategy[Condition]:
    """Conditions combined with `&`, `|` and `~` at random; `contextual`: also those of `contexts_of`."""
    usable = [condition for condition in CONDITIONS if contextual or not condition.own_needs]
    base: SearchStrategy[Condition] = st.one_of([_built(condition) for condition in usable])

    def combined(children: SearchStrategy[Condition]) -> SearchStrategy[Condition]:
        return st.one_of(
            st.builds(lambda a, b: a & b, children, children),
            st.builds(lambda a, b: a | b, children, children),
            st.builds(lambda a: ~a, children),
        )

    return st.recursive(base, combined, max_leaves=4)


def _over_incoming(reward: Reward, scale: Scale) -> Reward:
    """The reward over the incoming order where it has one; a filter would print this whole strategy when it retries."""
    return reward if "groups" in reward.needs else reward.over_incoming(scale)


def rewards(*, max_leaves: int = 6, contextual: bool = False) -> SearchStrategy[Reward]:
    """Random expressions over every leaf, operator and preset; `contextual`: also those of `contexts_of`."""
    base: SearchStrategy[Reward] = st.one_of(leaves(contextual=contextual), presets(), st.builds(Constant, _numbers()))
    tests = conditions(contextual=contextual)

    def combined(children: SearchStrategy[Reward]) -> SearchStrategy[Reward]:
        several = st.lists(children, min_size=2, max_size=3)
        ends = st.tuples(_numbers(), _numbers()).map(sorted)
        return st.one_of(
            st.builds(lambda terms: reduce(add, terms), several),
            st.builds(lambda terms: reduce(mul, terms), several),
            st.builds(lambda a, b: a - b, children, children),
            st.builds(lambda number, a: number * a, _numbers(), children),
            st.builds(lambda number, a: a + number, _numbers(), children),
            st.builds(lambda a, c: a.when(c), children, tests),
            st.builds(lambda a, c, b: a.when(c).otherwise(b), children, tests, children | _numbers()),
            st.builds(lambda a, c, x: a.gate(c, otherwise=x), children, tests, _numbers()),
            st.builds(lambda a, pair: a.clip(*pair), children, ends),
            st.builds(_over_incoming, children, st.sampled_from(get_args(Scale))),
        )

    return st.recursive(base, combined, max_leaves=max_leaves)
