"""Hypothesis strategies for slates, rankings, rewards, conditions and hostile texts, for our tests and for yours.

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

import numpy as np

from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import MissingExtraError
from rerank_env.rewards.slates import Slates

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as cause:
    raise MissingExtraError(
        "rerank_env.rewards.testing needs hypothesis; run `pip install 'rerank-env[dev]'` or `pip install hypothesis`"
    ) from cause

from rerank_env.rewards.algebra import Constant
from rerank_env.rewards.kernels import GAINS
from rerank_env.rewards.presets import Exemption
from rerank_env.rewards.registry import CONDITIONS, LEAVES, PRESETS
from rerank_env.rewards.reward import Condition, Reward

GRADES = (0.0, 0.0, 1.0, 2.0, 3.0, 0.5, 0.1, 1e-9, 4.75)
"""Gains that are drawn more often than others: mostly small whole numbers, some that are not exact in binary."""


def relevances() -> SearchStrategy[float]:
    """Gains of one candidate: usual grades, and any float from 0 to 100."""
    return st.sampled_from(GRADES) | st.floats(0, 100, allow_subnormal=False)


@st.composite
def slates(
    draw: st.DrawFn, *, max_requests: int = 6, max_candidates: int = 8, relevance: SearchStrategy[float] | None = None
) -> Slates:
    """Ragged batches of at least one request with at least two candidates each, some with nothing relevant."""
    gains = relevances() if relevance is None else relevance
    rows = draw(
        st.lists(st.lists(gains, min_size=2, max_size=max_candidates), min_size=1, max_size=max_requests),
        label="relevance",
    )
    return Slates.of(rows)


@st.composite
def rankings_of(draw: st.DrawFn, slates: Slates, *, invalid: bool = False) -> IntArray:
    """One ranking a request, padded with -1; with `invalid`, any row may be spoilt by a wrong or repeated number."""
    rankings_BK = np.full((len(slates), slates.width), PAD, dtype=np.int64)
    for row, size in enumerate(slates.sizes_B.tolist()):
        rankings_BK[row, :size] = draw(st.permutations(range(size)))
        if invalid and draw(st.booleans()):
            place = draw(st.integers(0, size - 1))
            rankings_BK[row, place] = draw(st.sampled_from([-1, size, 2**62, -(2**63), *range(size)]))
    return rankings_BK


def _numbers() -> SearchStrategy[float]:
    return st.sampled_from([0.2, 1.0, -1.0, 0.0, 0.5, -0.25, 3.0, 1e-7]) | st.floats(-4, 4, allow_subnormal=False)


ARGUMENTS: dict[str, Callable[[], SearchStrategy[Any]]] = {
    "alpha": _numbers,
    "exemption": lambda: st.sampled_from(get_args(Exemption)),
    "gains": lambda: st.sampled_from(GAINS),
    "invalid": _numbers,
    "k": lambda: st.integers(1, 12),
    "quality": lambda: leaves(),
}
"""What the arguments of built-in rewards, conditions and presets may be; those with a default may be left out too."""


def _built(build: Callable[..., Any]) -> SearchStrategy[Any]:
    """What `build` makes of any arguments."""
    parameters = inspect.signature(build).parameters.values()
    drawn = {parameter.name: ARGUMENTS[parameter.name]() for parameter in parameters}
    needed = {p.name: drawn.pop(p.name) for p in parameters if p.default is p.empty}
    return st.fixed_dictionaries(needed, optional=drawn).map(lambda arguments: build(**arguments))


def leaves() -> SearchStrategy[Reward]:
    """Every built-in reward that is not made of others, in every variant."""
    return st.one_of([_built(leaf) for leaf in LEAVES])


def presets() -> SearchStrategy[Reward]:
    """Every preset, with any arguments."""
    return st.one_of([_built(preset) for preset in PRESETS])


def conditions() -> SearchStrategy[Condition]:
    """Conditions combined with `&`, `|` and `~` at random."""
    base: SearchStrategy[Condition] = st.one_of([_built(condition) for condition in CONDITIONS])

    def combined(children: SearchStrategy[Condition]) -> SearchStrategy[Condition]:
        return st.one_of(
            st.builds(lambda a, b: a & b, children, children),
            st.builds(lambda a, b: a | b, children, children),
            st.builds(lambda a: ~a, children),
        )

    return st.recursive(base, combined, max_leaves=4)


def rewards(*, max_leaves: int = 6) -> SearchStrategy[Reward]:
    """Random expressions over every leaf, operator and preset."""
    base: SearchStrategy[Reward] = st.one_of(leaves(), presets(), st.builds(Constant, _numbers()))

    def combined(children: SearchStrategy[Reward]) -> SearchStrategy[Reward]:
        several = st.lists(children, min_size=2, max_size=3)
        ends = st.tuples(_numbers(), _numbers()).map(sorted)
        return st.one_of(
            st.builds(lambda terms: reduce(add, terms), several),
            st.builds(lambda terms: reduce(mul, terms), several),
            st.builds(lambda a, b: a - b, children, children),
            st.builds(lambda number, a: number * a, _numbers(), children),
            st.builds(lambda number, a: a + number, _numbers(), children),
            st.builds(lambda a, c: a.when(c), children, conditions()),
            st.builds(lambda a, c, x: a.gate(c, otherwise=x), children, conditions(), _numbers()),
            st.builds(lambda a, pair: a.clip(*pair), children, ends),
            st.builds(lambda a: a.over_incoming(), children),
        )

    return st.recursive(base, combined, max_leaves=max_leaves)


def hostile_texts() -> SearchStrategy[str | bytes]:
    """Answers meant to break or fool a parser: number aliases, wrong brackets, nesting, control characters, bytes."""
    aliases = st.sampled_from(
        [
            "0",
            "-1",
            "+1",
            "01",
            "1.0",
            "1e0",
            "0x1",
            "1_0",
            "\uff11",
            "\u0661",
            "\u00b2",
            "true",
            "null",
            '"1"',
            "9" * 5000,
        ]
    )
    pieces = st.sampled_from(
        [
            "[",
            "]",
            "{",
            "}",
            ",",
            ">",
            ":",
            " ",
            "\n",
            "\x00",
            "\u202e",
            "\ufeff",
            "\ud800",
            '"ranking"',
            "</think>",
            "```",
        ]
    )
    numbers = st.integers(-2, 12).map(str)
    soup = st.lists(st.one_of(numbers, aliases, pieces), max_size=24).map("".join)
    lists = st.lists(st.one_of(numbers, aliases), max_size=10).map(lambda parts: f"[{', '.join(parts)}]")
    objects = st.one_of(lists, soup).map(lambda inner: '{"ranking": ' + inner + "}")
    arrows = st.lists(numbers, max_size=10).map(lambda parts: " > ".join(f"[{part}]" for part in parts))
    repeated: SearchStrategy[Any] = st.builds(
        lambda piece, times: piece * times,
        st.sampled_from(["[", "]", "{", '{"ranking":', "1, ", "[1] > ", " ", "\x00", "a", "[1, 2]"]),
        st.integers(0, 30_000),
    )
    texts = st.one_of(st.text(), soup, lists, objects, arrows, repeated)
    return st.one_of(texts, st.binary(), lists.map(lambda text: text.encode("utf-16")))
