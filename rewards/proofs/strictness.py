"""Proof for users that a scorer is strict: no text that is not a ranking is paid for being nearly one.

What is a ranking is judged here by a reader of three lines, not by the parser under test: the numbers 1..K, written
plainly, one after the other. May import numpy and hypothesis; `testing` exports what is public here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rerank_env.rewards.errors import UnsoundRewardError
from rerank_env.rewards.expression import number_text
from rerank_env.rewards.formats import short
from rerank_env.rewards.proofs.hostile import answers, hostile_texts, spoilt
from rerank_env.rewards.proofs.searching import smallest
from rerank_env.rewards.proofs.strategies import slates as any_slates
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.rewards.slates import Slates

MAX_EXAMPLES = 100
"""How many batches of texts a scorer is tried on, unless it is told otherwise."""

_SEPARATORS = re.compile(r'[ \t\r\n,\[\]{}<>:"]+')


class _Asked(NamedTuple):
    """Texts and the requests they answer, and what else a reward may need."""

    texts: list[str | bytes]
    slates: Slates
    step: int
    tokens: int


def assert_scorer_sound(
    scorer: Scorer | Reward | str,
    *,
    texts: SearchStrategy[str | bytes] | None = None,
    max_examples: int = MAX_EXAMPLES,
) -> None:
    """Raise `UnsoundRewardError` with a minimal counterexample unless the scorer is strict.

    Strict is: it raises nothing, gives each text one finite number that does not depend on the others, gives what is no
    ranking exactly the declared score of invalid answers, and calls a text valid only if it names every candidate once
    and in the order that is scored, by number.

    `scorer`: a `Scorer`, or a reward for the default one. `texts`: what to try instead of `hostile_texts` and spoilt
    answers in the scorer's format.
    """
    tried = scorer if isinstance(scorer, Scorer) else Scorer(scorer)
    asked = _asked(tried, texts)
    told = smallest(lambda case: _breach(tried, case), asked, max_examples=max_examples)
    if told is not None:
        raise UnsoundRewardError(f"the scorer of {tried.reward} from {tried.text_format} texts", {"strict": told})


@st.composite
def _asked(draw: st.DrawFn, scorer: Scorer, texts: SearchStrategy[str | bytes] | None) -> _Asked:
    batch = draw(any_slates(max_requests=3, max_candidates=5, logged=True))
    given = []
    for size in batch.sizes_B.tolist():
        own = answers(text_format=scorer.text_format, size=size)
        given.append(draw(hostile_texts() | spoilt(own) | own if texts is None else texts))
    return _Asked(given, batch, draw(st.integers(0, 30)), draw(st.integers(0, 100)))


def _scored(scorer: Scorer, asked: _Asked, rows: list[int]) -> Scored:
    return scorer(
        [asked.texts[row] for row in rows],
        asked.slates.take(np.array(rows)),
        step=asked.step,
        groups_B=np.array(rows),
        tokens_B=np.full(len(rows), asked.tokens),
    )


def _breach(scorer: Scorer, asked: _Asked) -> str | None:
    rows = list(range(len(asked.texts)))
    try:
        together = _scored(scorer, asked, rows)
    except Exception as cause:
        return _told(asked, rows, f"raises {type(cause).__name__}: {cause}")
    reward = scorer.reward
    assert isinstance(reward, Reward), "read at construction"
    for row in rows:
        score, verdict = float(together.total_B[row]), Verdict(int(together.verdicts_B[row]))
        earns = f"earns {number_text(score)}"
        if not np.isfinite(score):
            return _told(asked, [row], earns)
        if verdict is not Verdict.OK and score != reward.invalid:
            return _told(asked, [row], f"{earns}, called {verdict.name}; declared is {number_text(reward.invalid)}")
        if verdict is Verdict.OK and not _names(together, asked, row):
            return _told(asked, [row], f"{earns}, called a ranking: {together.rankings_BK[row].tolist()} from 0")
        alone = float(_scored(scorer, asked, [row]).total_B[0])
        if alone != score:
            return _told(asked, rows, f"{row} {earns} in this batch and {number_text(alone)} by itself")
    return None


def _names(scored: Scored, asked: _Asked, row: int) -> bool:
    """Whether a text that is called valid names every candidate once, and in the order that was scored."""
    size, text = int(asked.slates.sizes_B[row]), asked.texts[row]
    ranking = scored.rankings_BK[row, :size].tolist()
    plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    words, wanted = _SEPARATORS.split(plain), [str(candidate + 1) for candidate in ranking]
    found = any(words[at : at + size] == wanted for at in range(len(words) - size + 1))
    return found and sorted(ranking) == list(range(size))


def _told(asked: _Asked, rows: list[int], what: str) -> str:
    given = ", ".join(f"{short(asked.texts[row])} for {int(asked.slates.sizes_B[row])} candidates" for row in rows)
    return f"a text that is no ranking earns the declared score of invalid answers\n  {given} {what}"
