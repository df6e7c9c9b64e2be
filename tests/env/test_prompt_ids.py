"""Semantic IDs in the environment: shown, cited, read back, and refused where they cannot be told apart."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.prompts import TEMPLATES, PromptWriter, ask, build_prompt
from rerank_env.rewards.errors import DataError, InputError, UnknownNameError
from rerank_env.rewards.formats import FORMATS, answer_text
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.scoring import Scorer
from rerank_env.semantic_ids import SemanticIds
from rerank_env.vector_env import RerankVectorEnv

IDS = [f"<a_{item // 4}><b_{item % 4}>" for item in range(8)]

BY_ID = [name for name, template in TEMPLATES.items() if template.cites == "ids"]


@dataclass(frozen=True)
class Table:
    """A table that is no list, as a record of codes is."""

    ids: tuple[str, ...]

    def text(self, item: int) -> str:
        if item >= len(self.ids):
            raise InputError(f"item {item} does not exist")
        return self.ids[item]


@pytest.mark.parametrize("name", BY_ID)
@pytest.mark.parametrize("text_format", FORMATS)
@pytest.mark.parametrize(
    "table", [IDS, tuple(IDS), Table(tuple(IDS)), np.array(IDS).tolist()], ids=["list", "tuple", "object", "array"]
)
def test_an_answer_in_ids_is_read_by_ids(requests: Requests, name: str, text_format: str, table: Any) -> None:
    """Row 1 has the candidates 2, 4, 5, 6, of which 5 is relevant: 3rd, 1st, 4th, 2nd."""
    env = gym.make(
        "rerank_env:Rerank-v0",
        data=requests,
        action="text",
        text_format=text_format,
        prompt=name,
        semantic_ids=table,
        disable_env_checker=True,
    )
    observation, _ = env.reset(seed=0, options={"request": 1})
    wording = {"prompt": name, "semantic_ids": IDS}
    assert observation["prompt"] == build_prompt(requests, 1, text_format=text_format, **wording)
    answer = answer_text([2, 0, 3, 1], text_format=text_format, ids=[IDS[item] for item in (2, 4, 5, 6)])
    *_, info = env.step(answer)
    assert info["valid"] and info["ranking"].tolist() == [2, 0, 3, 1, -1]
    env.reset(options={"request": 1})
    assert not env.step(answer_text([2, 0, 3, 1], text_format=text_format))[4]["valid"]


def test_the_vector_form_reads_the_ids_of_each_environments_request(requests: Requests) -> None:
    envs = RerankVectorEnv(requests, num_envs=3, action="text", prompt="3-id", semantic_ids=IDS)
    envs.reset(seed=0, options={"request": np.array([2, 3, 1])})
    answers = ["[<a_0><b_1>, <a_0><b_0>]", "[<a_1><b_1>, <a_1><b_3>, <a_1><b_2>]", "[<a_0><b_1>, <a_0><b_0>]"]
    infos = envs.step(answers)[4]["final_info"]
    assert infos["ranking"].tolist() == [[1, 0, -1, -1, -1], [2, 0, 1, -1, -1], [-1] * 5]
    assert infos["verdict"].tolist() == [Verdict.OK, Verdict.OK, Verdict.UNKNOWN]
    assert envs.task.scorer == Scorer("gain") and envs.task.scorer.ids is None


def test_ids_that_are_only_shown_are_not_what_answers_name(requests: Requests) -> None:
    env = RerankEnv(requests, action="text", semantic_ids=IDS)
    observation, _ = env.reset(seed=0, options={"request": 2})
    assert "1. <a_0><b_0> | Alien\n2. <a_0><b_1> | Brazil\n" in observation["prompt"]
    assert env.step("[2, 1]")[4]["valid"]


@pytest.mark.parametrize("form", [RerankEnv, RerankVectorEnv])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"prompt": "3-id"}, "'3-id' asks for .*IDs; give semantic_ids"),
        ({"prompt": "2", "semantic_ids": IDS}, "'2' shows no .*IDs"),
        ({"prompt": "3-id", "semantic_ids": IDS[:6]}, "item 6 has no semantic ID; give the IDs of the whole"),
        ({"prompt": "3-id", "semantic_ids": Table(tuple(IDS[:6]))}, "item 6 has no semantic ID"),
        ({"prompt": "3-id", "semantic_ids": [*IDS[:3], "a b", *IDS[4:]]}, "'a b' cannot be told from the format"),
        ({"prompt": "3-id", "semantic_ids": [*IDS[:3], "</answer>", *IDS[4:]]}, "cannot be told from the format"),
        ({"prompt": "3-id", "semantic_ids": [*IDS[:3], 3, *IDS[4:]]}, "ID 3 cannot be told from the format"),
        ({"prompt": "3-id", "semantic_ids": [*IDS[:4], *IDS[:4]]}, "two candidates of request 0 have .* '<a_0><b_3>'"),
        ({"prompt": "3-id", "semantic_ids": "abcdefgh"}, "semantic_ids is of type str"),
        ({"prompt": "3-id", "semantic_ids": 5}, "semantic_ids is of type int"),
    ],
)
def test_ids_that_cannot_be_used_are_refused_before_anything_runs(
    requests: Requests, form: Callable[..., Any], arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        form(requests, action="text", **arguments)
    assert "\n" not in str(caught.value)


def test_an_unknown_prompt_is_one_sentence_with_the_nearest_name() -> None:
    for make in (gym.make, gym.make_vec):
        with pytest.raises(UnknownNameError, match="unknown prompt '3-index-step'; did you mean '3-index-steps'"):
            make("rerank_env:Rerank-v0", prompt="3-index-step")


def test_items_that_share_an_id_are_fine_where_they_never_meet() -> None:
    apart = Requests.of([[0, 1], [2, 1]], [[0, 1], [1, 0]], history=[[2], [0]], texts=["a", "b", "c"])
    env = RerankEnv(apart, action="text", prompt="3-id", semantic_ids=["<x>", "<y>", "<x>"])
    env.reset(seed=0, options={"request": 1})
    assert env.step("[<y>, <x>]")[4]["ranking"].tolist() == [1, 0]


def test_a_table_is_asked_once_for_an_item_and_not_copied_with_the_environment(requests: Requests) -> None:
    asked: list[int] = []

    class Counting:
        def text(self, item: int) -> str:
            asked.append(item)
            return IDS[item]

    writer = PromptWriter(prompt="3-id", semantic_ids=Counting())
    writer.write(requests)
    writer.write(requests)
    assert sorted(asked) == list(range(8))
    assert copy.deepcopy(writer).ids is writer.ids


def test_the_record_of_semantic_ids_is_such_a_table(requests: Requests) -> None:
    codes = SemanticIds.of([[item // 4, item % 4] for item in range(8)], (2, 4), texts=requests.catalog.texts)
    env = RerankEnv(requests, action="text", text_format="json", prompt="3-id", semantic_ids=codes)
    observation, _ = env.reset(seed=0, options={"request": 2})
    first, second = codes.text(0), codes.text(1)
    assert f"* {first} | Alien\n* {second} | Brazil\n" in observation["prompt"]
    assert env.step(f'{{"ranking": ["{second}", "{first}"]}}')[4]["ranking"].tolist() == [1, 0, -1, -1, -1]


OTHER = tuple(reversed(("Alien", "Brazil", "Casablanca", "Dune, Part Two", "Élan", "Fargo", "Gilda", "Heat")))
"""The same items in another order, as another seed numbers them."""


@pytest.mark.parametrize("name", ["3-index", "3-id"])
@pytest.mark.parametrize("texts", [OTHER, (*OTHER, "Ikiru")])
def test_the_ids_of_another_catalogue_are_refused_wherever_requests_come_in(
    requests: Requests, name: str, texts: tuple[str, ...]
) -> None:
    codes = SemanticIds.of([[item // 4, item % 4] for item in range(len(texts))], (3, 4), texts=texts)
    writer = PromptWriter(prompt=name, semantic_ids=codes)
    asks: list[Callable[[], object]] = [
        lambda: RerankEnv(requests, action="text", prompt=name, semantic_ids=codes),
        lambda: RerankVectorEnv(requests, num_envs=2, action="text", prompt=name, semantic_ids=codes),
        lambda: build_prompt(requests, 2, prompt=name, semantic_ids=codes),
        lambda: ask(requests, writer),
        lambda: writer.answer_ids(requests),
        lambda: writer.check(requests),
        lambda: writer.characters(requests),
        lambda: writer.longest_chars(requests),
    ]
    for way_in in asks:
        with pytest.raises(DataError, match="those of another catalogue"):
            way_in()


def test_a_table_is_asked_once_whether_a_catalogue_is_its_own(requests: Requests) -> None:
    asked: list[tuple[str, ...]] = []

    class Careful(list[str]):
        def check_catalogue(self, texts: tuple[str, ...]) -> None:
            asked.append(texts)

    writer = PromptWriter(prompt="3-id", semantic_ids=Careful(IDS))
    for _ in range(2):
        writer.check(requests)
        writer.write(requests)
        writer.answer_ids_of(requests, 0)
        writer.characters(requests)
    assert asked == [requests.catalog.texts]
    other = Requests.of([[0, 1]], [[0, 1]], texts=OTHER)
    writer.answer_ids_of(other, 0)
    assert asked == [requests.catalog.texts, OTHER]


def test_a_scorer_that_cites_reads_as_one_that_is_told(requests: Requests) -> None:
    slates, ids = requests.slates.take([2, 3]), [IDS[:2], [IDS[7], IDS[6], IDS[5]]]
    texts = [f"[{IDS[1]}, {IDS[0]}]", "[1, 2, 3]"]
    scorer = Scorer("gain")
    bound, told = scorer.citing(ids)(texts, slates), scorer(texts, slates, ids=ids)
    assert bound.rankings_BK.tolist() == told.rankings_BK.tolist() == [[1, 0, -1, -1, -1], [-1] * 5]
    assert bound.total_B.tolist() == told.total_B.tolist()
    assert scorer.citing(None) is scorer and scorer.citing(ids) == scorer
