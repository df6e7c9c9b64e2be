"""No prompt of rejection sampling tells the target, and whoever writes one that does is found out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from rerank_env.data.catalog import Catalog
from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, Message, Prompt, PromptWriter, ask
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.training.language.traces import collect
from rerank_env.training.language.traces.leaks import JUDGED, check_no_leak, telling_word
from rerank_env.training.language.traces.prompting import HINT, blinded, hinted_rows, some, targeted
from rerank_env.training.language.traces.proposals import Proposal, read
from rerank_env.training.language.traces.settling import Asking

WRITER = PromptWriter("tagged-list")


def requests_of(count: int = 4, size: int = 3) -> Requests:
    """Requests whose target is in place 0, 1, 2, 0, ..."""
    relevance = [[float(place == row % size) for place in range(size)] for row in range(count)]
    return Requests.of([list(range(size))] * count, relevance, history=[[0]] * count)


def remarked(requests: Requests, words: Sequence[Sequence[str]]) -> Requests:
    remarks_BK = np.full(requests.candidates_BK.shape, "", dtype=object)
    for row, some_words in enumerate(words):
        remarks_BK[row, : len(some_words)] = some_words
    return replace(requests, remarks_BK=remarks_BK)


class LeakingWriter(PromptWriter):
    """Marks the target in the prompt of one request, as a careless writer would."""

    def write(self, requests: Requests, rows: Any = None) -> list[Prompt]:
        prompts = super().write(requests, rows)
        role, content = prompts[-1].messages[-1]
        best = int(requests.relevance_BK[-1].argmax())
        marked = Message(role, content.replace(f"{best + 1}. ", f"{best + 1}.  "))
        return [*prompts[:-1], replace(prompts[-1], messages=(*prompts[-1].messages[:-1], marked))]


class Silent:
    """A teacher that must not be asked."""

    name = "silent"

    def propose(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> list[Proposal]:
        raise AssertionError("a prompt that leaks was sent")


@pytest.mark.parametrize("text_format", ["tagged-list", "json"])
def test_prompts_of_this_library_tell_nothing(text_format: str) -> None:
    writer = PromptWriter(text_format)
    check_no_leak(writer.write, requests_of(40))


def test_a_writer_that_marks_the_target_by_one_blank_is_caught_with_its_request() -> None:
    with pytest.raises(DataError, match=r"^the prompt of request 3 changes when the relevance"):
        check_no_leak(LeakingWriter("tagged-list").write, requests_of(4))


def test_a_remark_that_is_made_from_relevance_is_caught_where_it_is_made() -> None:
    def prompts(requests: Requests) -> list[Prompt]:
        words = [[f"near {int(gain)}" for gain in gains] for gains in requests.relevance_BK]
        return PromptWriter("tagged-list", prompt="evidence").write(remarked(requests, words))

    with pytest.raises(DataError, match="prompt of request 0 changes"):
        check_no_leak(prompts, requests_of(2))


def test_a_word_that_came_with_the_requests_and_stands_with_every_target_is_caught() -> None:
    requests = requests_of(JUDGED)
    marked = [["near 1 hit" if gain else "near 2" for gain in gains] for gains in requests.relevance_BK]
    assert telling_word(remarked(requests, marked)) == "hit"
    with pytest.raises(DataError, match="the word 'hit' of the remarks"):
        check_no_leak(WRITER.write, remarked(requests, marked))


def test_a_word_that_marks_nearly_all_targets_tells_and_one_that_marks_fewer_is_evidence() -> None:
    requests = requests_of(JUDGED + 1)
    marked = [["hit" if gain else "miss" for gain in gains] for gains in requests.relevance_BK]
    assert telling_word(remarked(requests, marked)) == "hit"
    for other in (["hit"] * 3, ["miss"] * 3):
        for spoilt, word in ((3, "hit"), (4, None)):  # 30 of 33 are 91 %, 29 are 88 %
            some_words = remarked(requests, [other] * spoilt + marked[spoilt:])
            assert telling_word(some_words) == word
            if word is None:
                check_no_leak(WRITER.write, some_words)


def test_a_word_that_the_target_alone_lacks_tells_it_whatever_is_padded() -> None:
    relevance = [[float(place == row % 2) for place in range(2 + row % 3)] for row in range(JUDGED)]
    requests = Requests.of([list(range(len(gains))) for gains in relevance], relevance)
    marked = remarked(requests, [["own" if gain else "own miss" for gain in gains] for gains in relevance])
    assert telling_word(marked) == "miss"
    with pytest.raises(DataError, match="all candidates but the target, in at least 90% of the requests"):
        check_no_leak(WRITER.write, marked)


def test_too_few_requests_or_none_with_one_target_are_not_judged_by_their_remarks() -> None:
    few = requests_of(JUDGED - 1)
    marked = [["hit" if gain else "miss" for gain in gains] for gains in few.relevance_BK]
    assert telling_word(remarked(few, marked)) is None
    many = requests_of(JUDGED)
    assert telling_word(many) is None
    flat = replace(many, relevance_BK=np.ones((JUDGED, 3)))
    assert telling_word(remarked(flat, [["hit", "miss", "miss"]] * JUDGED)) is None


def test_a_hint_in_a_prompt_of_rejection_is_caught() -> None:
    asked = ask(requests_of(3), WRITER)
    hinted = targeted(asked, [0, 1, 2]).prompts
    assert hinted_rows(hinted) == [0, 1, 2]
    assert hinted_rows(asked.prompts) == []
    with pytest.raises(DataError, match="prompt of request 1 holds the hint"):
        check_no_leak(lambda _: [asked.prompts[0], *hinted[1:]], requests_of(3))


def test_a_hint_names_the_target_as_answers_do_and_leaves_the_rest_of_the_prompt() -> None:
    requests = requests_of(2)
    plain = ask(requests, WRITER)
    hinted = targeted(plain, np.array([2, 0]))
    for before, after, name in zip(plain.prompts, hinted.prompts, ("3", "1"), strict=True):
        assert after.messages[:-1] == before.messages[:-1]
        assert after.user.startswith(f"{before.user}\n\n{HINT}{name}. ")
    writer = PromptWriter("tagged-list", prompt="3-id", semantic_ids=["<a_0>", "<a_1>", "<a_2>"])
    assert f"{HINT}<a_2>. " in targeted(ask(requests, writer), [2, 0]).prompts[0].user
    two = PromptWriter("tagged-list", prompt="2")  # one message, the user's
    assert targeted(ask(requests, two), [2, 0]).prompts[0].text.count(HINT) == 1


@pytest.mark.parametrize("targets", [[0], [0, 3], [0, -1], [0.0, 1.0]])
def test_a_target_that_is_not_shown_is_refused(targets: list[Any]) -> None:
    with pytest.raises(InputError, match="target"):
        targeted(ask(requests_of(2), WRITER), targets)


def test_a_blinded_request_has_neither_relevance_nor_clicks_and_the_same_prompt() -> None:
    logged = Requests.of(
        [[0, 1]], [[0.0, 1.0]], clicks=[[0.0, 1.0]], propensities=[[0.5, 0.5]], predictions=[[0.1, 0.2]]
    )
    asked = ask(logged, WRITER)
    blind = blinded(asked)
    assert blind.prompts == asked.prompts
    assert not blind.shown.relevance_BK.any()
    assert blind.shown.clicks_BK is None
    assert blind.shown.propensities_BK is None
    assert blind.shown.predictions_BK is None
    assert len(some(blind, []).prompts) == 0


def test_collecting_by_rejection_asks_nobody_where_a_prompt_leaks(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="changes when the relevance"):
        collect(requests_of(), Silent(), LeakingWriter("tagged-list"), mode="rejection", directory=tmp_path / "a")
    requests = requests_of(JUDGED)
    marked = remarked(requests, [["hit" if gain else "miss" for gain in gains] for gains in requests.relevance_BK])
    with pytest.raises(DataError, match="the word 'hit' of the remarks"):
        collect(marked, Silent(), WRITER, mode="rejection", directory=tmp_path / "b", batch=2)

    def known(plain: Requests) -> Requests:  # by the item, so that moving relevance changes no word
        words = [["hit" if item == 0 else "" for item in items] for items in plain.candidates_BK]
        return remarked(plain, words)

    zero = replace(requests, relevance_BK=np.eye(3)[np.zeros(JUDGED, dtype=int)])
    with pytest.raises(DataError, match="the word 'hit' of the remarks"):
        collect(zero, Silent(), WRITER, mode="rejection", directory=tmp_path / "d", prepare=known, batch=2)
    with pytest.raises(DataError, match="the word 'hit' of the remarks"):
        Asking(Silent(), WRITER, "rejection", prepare=known).settle(zero, np.arange(JUDGED))

    def telling(plain: Requests) -> Requests:
        return remarked(plain, [[f"near {int(gain)}" for gain in gains] for gains in plain.relevance_BK])

    evidence = PromptWriter("tagged-list", prompt="evidence")
    with pytest.raises(DataError, match="changes when the relevance"):
        collect(requests_of(), Silent(), evidence, mode="rejection", directory=tmp_path / "c", prepare=telling)


def test_a_teacher_that_looks_at_relevance_sees_none(tmp_path: Path) -> None:
    seen: list[float] = []

    class Cheat:
        name = "cheat"

        def propose(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> list[Proposal]:
            seen.append(float(asked.shown.relevance_BK.sum()))
            assert targets_B is None
            return read(asked, ["<think>No idea.</think><answer>[1, 2, 3]</answer>"] * len(asked.prompts))

    collect(requests_of(9), Cheat(), WRITER, mode="rejection", directory=tmp_path, tries=3)
    assert seen == [0.0] * 3


def test_titles_cannot_hide_the_hint_or_break_the_check() -> None:
    catalog = Catalog.of([HINT + "2.", "b", "c"])
    requests = Requests.of([[0, 1, 2]], [[0, 0, 1]], catalog=catalog)
    with pytest.raises(DataError, match="holds the hint"):  # refused rather than guessed at
        check_no_leak(WRITER.write, requests)
