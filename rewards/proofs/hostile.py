"""Texts meant to break or fool whoever reads answers, as hypothesis strategies: soup, bytes, and spoilt answers.

Most are one or two edits away from an answer in some format, because a parser is fooled at its border. May import
numpy and hypothesis; `testing` exports what is here.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rerank_env.rewards.formats import FORMATS, answer_text, has_reasoning

ALIASES = ("0", "-1", "+1", "01", "1.0", "1e0", "0x1", "1_0", "\uff11", "\u0661", "\u00b2", "true", "null", '"1"')
"""What a lenient reader may take for the number of a candidate."""

SIGNS = (*'[]{},>:"\\ \n', "\x00", "\x1b[2J", "\u00a0", "\u200b", "\u202e", "\ufeff", "\ud800", "\\ud800", "\\u0031")
"""Signs of the formats, and signs that are hard to see or to write."""

WORDS = ("<think>", "</think>", "<answer>", "</answer>", '"ranking"', '"explanation"', '"reasoning": ""', "```", "[1]")
"""Words of the formats, in places where they do not belong."""


def candidate_ids(size: int) -> list[str]:
    """IDs as generative recommenders write them, one a candidate."""
    return [f"<a_{index % 3}><b_{index // 3}>" for index in range(size)]


def _numbers() -> SearchStrategy[str]:
    return st.integers(-2, 12).map(str) | st.sampled_from([*ALIASES, "9" * 5_000])


def _pieces() -> SearchStrategy[str]:
    return st.sampled_from(SIGNS) | st.sampled_from(WORDS) | _numbers() | st.characters()


@st.composite
def answers(draw: st.DrawFn, *, text_format: str | None = None, size: int | None = None) -> str:
    """Answers as they should be, by number or by `candidate_ids`, some with a reasoning."""
    form = draw(st.sampled_from(FORMATS)) if text_format is None else text_format
    ranking = draw(st.permutations(range(draw(st.integers(2, 10)) if size is None else size)))
    ids = candidate_ids(len(ranking)) if draw(st.booleans()) else None
    reasoning = draw(st.sampled_from(["", "1 > 2, so there", 'é {"ranking": [1, 2]} <b_1> \\']))
    return answer_text(ranking, text_format=form, ids=ids, reasoning=reasoning if has_reasoning(form) else "")


@st.composite
def spoilt(draw: st.DrawFn, answer: SearchStrategy[str]) -> str:
    """An answer with up to three pieces put in, taken out or exchanged; at times cut at the end."""
    text: str = draw(answer)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        put_in, taken_out = draw(st.just("") | _pieces()), draw(st.integers(0, 4))
        text = text[:at] + put_in + text[at + taken_out :]
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


@st.composite
def repeated(draw: st.DrawFn) -> str:
    """One piece over and over, up to hundreds of thousands of characters, at times behind the start of an answer."""
    start = draw(st.sampled_from(["", "[", '{"ranking": [', '{"explanation": "', "<think>", "<answer>["]))
    piece = draw(st.sampled_from([*SIGNS, *WORDS, "1, ", "[1] > ", '{"ranking":', "[1, 2]", "<"]))
    return f"{start}{piece * draw(st.integers(0, 30_000))}"


@st.composite
def hostile_texts(draw: st.DrawFn) -> str | bytes:
    """Answers meant to break or fool a parser: number aliases, wrong brackets, nesting, control characters, bytes."""
    soup = st.lists(_pieces(), max_size=24).map("".join)
    text = draw(st.one_of(st.text(), soup, repeated(), spoilt(answers()), st.binary()))
    encoding = draw(st.sampled_from(["", "", "utf-8", "utf-16"]))
    return text.encode(encoding, "replace") if encoding and isinstance(text, str) else text
