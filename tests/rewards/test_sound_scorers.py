"""Scorers of text: ours is strict, and one that is not is found."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from rerank_env.rewards.errors import UnsoundRewardError
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.rewards.testing import assert_scorer_sound


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
