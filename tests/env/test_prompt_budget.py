"""Prompts that have to be short: what is left out, in which order, and that it is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.prompts import TEMPLATES, Budget, Prompt, PromptWriter, TokensOf
from rerank_env.prompts.budget import SHORTEST
from rerank_env.prompts.items import MARK, shortened
from rerank_env.prompts.lines import Item, Lines
from rerank_env.rewards.errors import InputError
from rerank_env.vector_env import RerankVectorEnv


def words(text: str) -> int:
    return len(text.split())


def requests_of(titles: list[str], size: int) -> Requests:
    """One request whose first `size` items are the candidates and the rest the history."""
    return Requests.of([[*range(size)]], [[1] + [0] * (size - 1)], history=[[*range(size, len(titles))]], texts=titles)


def written(requests: Requests, budget: int | Budget | None, name: str = "3-index") -> Prompt:
    return PromptWriter(prompt=name, prompt_budget=budget).write(requests)[0]


def seen(prompt: Prompt) -> list[str]:
    return re.findall(r"^- (.*) \| feedback", prompt.text, re.MULTILINE)


def offered(prompt: Prompt) -> list[str]:
    return re.findall(r"^\d+\. (.*)$", prompt.text, re.MULTILINE)


TEN = [f"candidate number {n}" for n in range(4)] + [f"seen {n}" for n in range(6)]
"""Four candidates, and six items of history, the oldest first."""


def test_a_prompt_that_fits_is_left_alone() -> None:
    whole = written(requests_of(TEN, 4), None)
    assert written(requests_of(TEN, 4), len(whole.text)) == whole
    assert written(requests_of(TEN, 4), Budget(words(whole.text), words)) == whole


def test_the_oldest_entries_of_the_history_go_first_and_it_is_said_how_many() -> None:
    whole = written(requests_of(TEN, 4), None)
    # "- seen 0 | feedback 1" and its break are 22 characters, "(1 earlier left out)" and its break 21: one less for the
    # first entry, 22 less for every further one.
    assert [written(requests_of(TEN, 4), len(whole.text) - less).dropped for less in (1, 2, 23, 24)] == [1, 2, 2, 3]
    shorter = written(requests_of(TEN, 4), len(whole.text) - 2)
    assert (shorter.dropped, shorter.shortened) == (2, 0)
    assert seen(shorter) == ["seen 2", "seen 3", "seen 4", "seen 5"]
    assert "oldest first:\n(2 earlier left out)\n- seen 2 " in shorter.text
    assert offered(shorter) == TEN[:4] and shorter.system == whole.system
    none = written(
        requests_of(TEN, 4), len(whole.text) - 6 * len("- seen 0 | feedback 1\n") + len("(6 earlier left out)\n")
    )
    assert (none.dropped, seen(none)) == (6, [])
    assert "oldest first:\n(6 earlier left out)\n\nNow" in none.text


def test_then_all_texts_are_cut_to_one_length_at_the_end_of_a_word_with_a_mark() -> None:
    """Texts of 44, 44 and 9 characters, and no history; 30 characters too many: 15 off each of the long ones."""
    titles = [
        "alpha beta gamma delta epsilon zeta eta theta",
        "a second title that is as long as the others",
        "short one",
    ]
    whole = written(requests_of(titles, 3), None)
    cut = written(requests_of(titles, 3), len(whole.text) - 30)
    assert (cut.dropped, cut.shortened) == (0, 2)
    assert offered(cut) == [f"alpha beta gamma delta{MARK}", f"a second title that is as{MARK}", "short one"]
    assert len(cut.text) <= len(whole.text) - 30


def test_the_newest_entries_that_are_to_be_kept_are_kept_and_shortened_too() -> None:
    titles = [
        "one long title of a candidate",
        "another long title of a candidate",
        "an old one",
        "the newest thing that was seen",
    ]
    whole = written(requests_of(titles, 2), None)
    kept = written(requests_of(titles, 2), Budget(len(whole.text) - 45, keep=1))
    assert kept.dropped == 1 and kept.shortened == 3
    assert len(seen(kept)) == 1 and seen(kept)[0].startswith("the newest") and seen(kept)[0].endswith(MARK)
    without = written(requests_of(titles, 2), len(whole.text) - 45)
    assert (without.dropped, without.shortened) == (2, 0)


def test_a_budget_that_cannot_hold_the_candidates_is_refused_and_named() -> None:
    requests = requests_of(["a title of many words " * 9] * 50, 50)
    for name in ("2", "3-index"):
        with pytest.raises(
            InputError, match=r"prompt of request 0 takes \d+ with .* cut to 16 .* the budget is 600; raise it"
        ):
            written(requests, 600, name)
    with pytest.raises(InputError, match="limit of a prompt is 0"):
        Budget(0)
    with pytest.raises(InputError, match="keep is -1"):
        Budget(5, keep=-1)
    with pytest.raises(InputError, match="count is of type int"):
        Budget(5, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="limit of a prompt is 'long'"):
        written(requests, "long")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [len, words, lambda text: len(text.encode("utf-8", "replace"))])
@settings(max_examples=40, deadline=None)
@given(
    titles=st.lists(st.text(max_size=60), min_size=2, max_size=14),
    share=st.floats(0, 1),
    keep=st.integers(0, 4),
    name=st.sampled_from([*TEMPLATES]),
)
def test_whatever_the_budget_a_prompt_fits_or_is_refused(
    count: Callable[[str], int], titles: list[str], share: float, keep: int, name: str
) -> None:
    size = min(len(titles), 5)
    requests = requests_of(titles, size)
    ids = [f"<{item}>" for item in range(len(titles))] if "id" in TEMPLATES[name].shows else None
    writer = PromptWriter(prompt=name, semantic_ids=ids)
    whole = writer.write(requests)[0]
    budget = Budget(max(1, int(share * count(whole.text))), count, keep)
    try:
        (prompt,) = PromptWriter(prompt=name, semantic_ids=ids, prompt_budget=budget).write(requests)
    except InputError:
        assert share < 1  # the whole prompt does fit
        return
    assert count(prompt.text) <= budget.limit
    history = len(titles) - size
    assert 0 <= prompt.dropped <= max(0, history - keep)
    assert prompt.shortened <= len(titles) - prompt.dropped
    if prompt.shortened:  # nothing is cut while leaving out something old still helps
        assert prompt.dropped in (0, max(0, history - keep))
    start = r"^\* <" if TEMPLATES[name].cites == "ids" else r"^\d+\. "
    assert len(re.findall(start, prompt.text, re.MULTILINE)) == size
    assert len(re.findall("^- ", prompt.text, re.MULTILINE)) == history - prompt.dropped
    assert prompt.system == whole.system
    assert len(prompt.text) <= writer.longest_chars(requests)
    assert set(prompt.text) <= set(writer.characters(requests))


def test_texts_are_cut_where_leaving_out_the_history_makes_a_prompt_longer() -> None:
    """ "- C | feedback 1" has 16 characters and "(1 earlier left out)" 20, so that leaving C out costs 4."""
    titles = ["A title that is long", "B title that is long", "C"]
    whole = written(requests_of(titles, 2), None)
    # cut to 16, "A title that is…" and "B title that is…" are 4 characters shorter each
    for less in (1, 4, 5, 8):
        cut = written(requests_of(titles, 2), len(whole.text) - less)
        assert (cut.dropped, cut.shortened, seen(cut)) == (0, 2, ["C"]) if less > 4 else cut.dropped in (0, 1)
        assert len(cut.text) == len(whole.text) - (8 if cut.dropped == 0 else 4)
    with pytest.raises(InputError, match=f"takes {len(whole.text) - 8} .* budget is {len(whole.text) - 9}; raise it"):
        written(requests_of(titles, 2), len(whole.text) - 9)


@settings(max_examples=150, deadline=None)
@given(
    titles=st.lists(st.text("ab >|\u0301", max_size=30), min_size=2, max_size=14),
    short=st.integers(0, 40),
    keep=st.integers(0, 3),
    note=st.sampled_from(
        ["", "({count} earlier left out)", "{count} of the entries were left out as there is no room"]
    ),
)
def test_a_budget_of_characters_finds_a_fit_where_any_cut_is_one(
    titles: list[str], short: int, keep: int, note: str
) -> None:
    """Against all numbers of entries with all lengths of texts, tried one by one."""
    requests = requests_of(titles, 2)
    template = replace(TEMPLATES["3-index"], earlier=note, seen="{item}")
    items = [Item("", " ".join(title.split()) or "(no text)") for title in requests.catalog.texts]
    lines = Lines(template, "list", [(item, 1.0) for item in items[2:]], items[:2])
    most = max(0, len(titles) - 2 - keep)
    length = {
        (dropped, limit): len(Prompt(lines.messages(dropped, limit)).text)
        for dropped in range(most + 1)
        for limit in (None, *range(SHORTEST, 31))
    }
    budget = Budget(length[0, None] - short, keep=keep)
    if min(length.values()) > budget.limit:
        with pytest.raises(InputError, match=f"takes {min(length.values())} with"):
            lines.prompt(budget)
        with pytest.raises(InputError, match=f"takes {min(length.values())} with"):
            lines.check(budget)
        return
    lines.check(budget)
    found = lines.prompt(budget)
    assert len(found.text) <= budget.limit
    whole_texts = [dropped for dropped in range(most + 1) if length[dropped, None] <= budget.limit]
    if whole_texts:
        assert (found.dropped, found.shortened) == (whole_texts[0], 0)
    else:
        assert found.dropped in (most, 0)
        fits = [limit for limit in range(SHORTEST, 31) if length[found.dropped, limit] <= budget.limit]
        assert found == Prompt(lines.messages(found.dropped, fits[-1]), found.dropped, found.shortened)
        assert found.dropped == most or min(length[most, limit] for limit in range(SHORTEST, 31)) > budget.limit


@pytest.mark.parametrize("form", [RerankEnv, lambda *given, **named: RerankVectorEnv(*given, num_envs=2, **named)])
def test_a_budget_that_cannot_hold_some_request_is_refused_when_the_environment_is_made(
    form: Callable[..., object],
) -> None:
    candidates = [[0, 1], [1, 0], [*range(9)], [0, 2]]
    requests = Requests.of(candidates, [[0] * len(row) for row in candidates], texts=[f"title {i}" for i in range(9)])
    lengths = [len(prompt.text) for prompt in PromptWriter().write(requests)]
    for budget in (Budget(max(lengths) - 1), Budget(max(lengths) - 1, lambda text: len(text))):
        with pytest.raises(InputError, match=f"prompt of request 2 takes {lengths[2]} .*; raise it"):
            form(requests, action="text", prompt_budget=budget)
        form(requests, prompt_budget=budget)  # nobody is shown a prompt
        form(requests.take([0, 1, 3]), action="text", prompt_budget=budget)
    form(requests, action="text", prompt_budget=max(lengths))


def test_a_check_counts_every_prompt_once_and_none_where_none_can_be_too_long() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    requests = requests_of(TEN, 4).take([0] * 5)
    writer = PromptWriter(prompt_budget=Budget(len(written(requests_of(TEN, 4), None).text) - 30, count))
    writer.check(requests)
    assert len(counted) == len(requests)
    roomy = PromptWriter(prompt_budget=PromptWriter().longest_chars(requests))
    roomy.check(requests)
    assert roomy.budget is not None and roomy.budget.count is len


@pytest.mark.parametrize("count", [words, lambda text: len(text.encode()), lambda text: -len(text) % 97])
@settings(max_examples=30, deadline=None)
@given(titles=st.lists(st.text("ab é", max_size=40), min_size=2, max_size=9), limit=st.integers(1, 1200))
def test_a_check_refuses_what_writing_refuses_whatever_is_counted(
    count: Callable[[str], int], titles: list[str], limit: int
) -> None:
    requests = requests_of(titles, 2)
    writer = PromptWriter(prompt_budget=Budget(limit, count))
    try:
        writer.check(requests)
    except InputError as refused:
        with pytest.raises(InputError, match=re.escape(str(refused))):
            writer.write(requests)
    else:
        assert count(writer.write(requests)[0].text) <= limit


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40).map(lambda text: " ".join(text.split())), limit=st.integers(1, 40))
@example(text="e\u0301" * 9, limit=3)
@example(text="👩\u200d👩\u200d👧 family", limit=2)
@example(text="superlongword and more", limit=5)
def test_a_shortened_text_is_the_beginning_of_it_and_a_mark(text: str, limit: int) -> None:
    cut = shortened(text, limit)
    if len(text) <= limit:
        assert cut == text
        return
    head = cut.removesuffix(MARK)
    assert cut == head + MARK and 0 < len(head) <= limit and text.startswith(head) and len(cut) <= len(text)
    whole_words = re.split(r"[ >|]", text)[0] != "" and " " in text[: limit + 1]
    if whole_words:
        assert text[len(head)] in " >|"


def test_a_text_is_cut_inside_a_word_only_where_the_first_word_is_too_long() -> None:
    assert shortened("superlongword and more", 5) == f"super{MARK}"
    assert shortened("e\u0301e\u0301e\u0301e\u0301", 3) == f"e\u0301{MARK}"  # not between a letter and its accent
    assert shortened("Dune | Film > Drama", 8) == f"Dune{MARK}"  # no separator is left behind
    assert shortened("Dune | Film > Drama", 13) == f"Dune | Film{MARK}"
    assert SHORTEST >= 1


def test_tokens_are_counted_by_a_tokenizer_of_either_library() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the tokenizers package")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(["candidate number seen feedback"] * 9, trainer)
    count = TokensOf(inner)
    assert count("é 1") == len(inner.encode("é 1").ids) == 4  # two bytes, a blank, a digit
    whole = written(requests_of(TEN, 4), None)
    tokens = count(whole.text)
    assert tokens < len(whole.text)
    short = written(requests_of(TEN, 4), Budget(tokens - 1, count))
    assert 1 <= short.dropped <= 3 and short.shortened == 0 and count(short.text) < tokens
    assert written(requests_of(TEN, 4), Budget(tokens, count)) == whole


@pytest.mark.parametrize("form", [RerankEnv, lambda *given, **named: RerankVectorEnv(*given, num_envs=2, **named)])
def test_environments_show_what_fits_and_say_what_was_left_out(form: Callable[..., RerankEnv]) -> None:
    requests = requests_of(TEN, 4)
    limit = len(written(requests, None).text) - 24
    asked = written(requests, limit)
    assert asked.dropped == 3
    env = form(requests, action="text", prompt_budget=limit)
    observation, info = env.reset(seed=0)
    assert set(np.atleast_1d(observation["prompt"])) == {asked.text}
    assert set(np.atleast_1d(info["prompt_dropped"])) == {asked.dropped}
    assert set(np.atleast_1d(info["prompt_shortened"])) == {0}
    assert "prompt_dropped" not in form(requests, action="text").reset(seed=0)[1]
    assert "prompt_dropped" not in form(requests, prompt_budget=limit).reset(seed=0)[1]
    with pytest.raises(InputError, match="prompt of request 0 takes"):
        form(requests, action="text", prompt_budget=100).reset(seed=0)


def test_the_end_of_an_episode_says_it_too() -> None:
    budget = Budget(len(written(requests_of(TEN, 4), None).text) - 24)
    env = RerankEnv(requests_of(TEN, 4), action="text", prompt_budget=budget)
    env.reset(seed=0)
    *_, info = env.step("[1, 2, 3, 4]")
    assert info["valid"] and info["prompt_dropped"] == 3
    many = replace(requests_of(TEN, 4).take([0] * 3), name="three")
    envs = RerankVectorEnv(many, num_envs=3, action="text", prompt_budget=budget)
    envs.reset(seed=0)
    infos = envs.step(["[1, 2, 3, 4]", "no", ""])[4]
    assert infos["final_info"]["prompt_dropped"].tolist() == [3] * 3
    assert infos["final_info"]["_prompt_dropped"].tolist() == [True] * 3
