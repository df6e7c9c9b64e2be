"""Requests in words: the wordings, what stands where, and completions read back."""

import hashlib
import json
import re
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import rerank_env
from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.prompts import (
    PROMPT,
    TEMPLATES,
    PromptWriter,
    Template,
    build_prompt,
    build_prompts,
    longest_prompt_chars,
    prompt_characters,
    template_of,
)
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.formats import FORMATS, has_reasoning
from rerank_env.rewards.parsing import parse
from rerank_env.rewards.rankings import Verdict
from rerank_env.vector_env import RerankVectorEnv

ANSWERS = {
    "list": "[2, 4, 1, 3]",
    "arrows": "[2] > [4] > [1] > [3]",
    "json": '{"explanation": "one relevant film", "ranking": [2, 4, 1, 3]}',
    "tagged-list": "<think>one relevant film</think>\n<answer>[2, 4, 1, 3]</answer>",
    "tagged-arrows": "<think>one relevant film</think><answer>[2] > [4] > [1] > [3]</answer>",
    "tagged-json": '<answer>{"explanation": "one relevant film", "ranking": [2, 4, 1, 3]}</answer>',
}

IDS = [f"<a_{item // 4}><b_{item % 4}>" for item in range(8)]

SECOND = {
    "arrows": "7bf48bb37bb3c3f1",
    "json": "e344c5d0d332ddd8",
    "list": "760459a356dd814e",
    "tagged-arrows": "6ea4a30afbf38dd1",
    "tagged-json": "9e1cfadab7a31da9",
    "tagged-list": "59b9abd29c8b9056",
}
"""SHA-256 of the prompts of all six requests, as the release wrote them that had version 2 as its only wording."""


def labelled(requests: Requests) -> Requests:
    labels = tuple(("Film", f"Noir {item}") for item in range(len(requests.catalog)))
    return replace(requests, catalog=replace(requests.catalog, labels=labels))


def writer(name: str, text_format: str = "list") -> PromptWriter:
    """A writer with IDs wherever they are shown."""
    return PromptWriter(text_format, prompt=name, semantic_ids=IDS if "id" in TEMPLATES[name].shows else None)


def sha(texts: list[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_format_the_parser_reads_can_be_asked_for(name: str) -> None:
    assert set(TEMPLATES[name].answers) == set(FORMATS) == set(ANSWERS)
    assert TEMPLATES[name].version == name
    assert template_of(name) is TEMPLATES[name] is template_of(TEMPLATES[name])


def test_the_words_are_those_of_the_hashes_that_runs_have_recorded(requests: Requests) -> None:
    """Whoever changes a word, or what a line says of an item, sees this fail, and gives the wording another name."""
    shown = {
        name: (
            template.hash,
            sha([p.text for form in FORMATS for p in writer(name, form).write(labelled(requests))]),
        )
        for name, template in TEMPLATES.items()
    }
    assert shown == {
        "2": ("5d783cc53cad9d3a", "9d85320553568341"),
        "3-index": ("c7979b0b7929821c", "50df4f4079d4d65e"),
        "3-index-steps": ("fc679628d86e6cc3", "8842c7b38639e7b8"),
        "3-id": ("063605c1e3880a49", "af6cb310d9638940"),
        "3-id-steps": ("d6d818ea4e0f9cb9", "43561554756a1239"),
    }


def test_version_2_reads_as_it_always_did(requests: Requests) -> None:
    for data in (requests, labelled(requests)):
        assert {form: sha(build_prompts(data, text_format=form, prompt="2")) for form in FORMATS} == SECOND
    assert [message.role for message in writer("2").write(requests)[0].messages] == ["user"]


@pytest.mark.parametrize("form", [RerankEnv, RerankVectorEnv])
def test_environments_name_the_wording_and_its_hash(form: type) -> None:
    assert (
        form.metadata["prompt_version"] == form(action="text").metadata["prompt_version"] == "3-index" == PROMPT.version
    )
    assert form.metadata["prompt_hash"] == PROMPT.hash
    own = TEMPLATES["3-index-steps"].primed("Who buys a camera buys a card next.")
    env = form(action="text", prompt=own)
    assert env.metadata["prompt_version"] == "3-index-steps"
    assert env.metadata["prompt_hash"] == own.hash != TEMPLATES["3-index-steps"].hash
    assert form.metadata["prompt_version"] == "3-index"


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text_format", FORMATS)
def test_the_example_in_a_prompt_is_an_answer_for_three_candidates(name: str, text_format: str) -> None:
    template = TEMPLATES[name]
    instruction = template.answers[text_format].format(size=3)
    example = instruction.partition("could be answered as ")[2].removesuffix(".")
    ids = ["ID_A", "ID_B", "ID_C"] if template.cites == "ids" else None
    assert parse(example, 3, text_format=text_format, ids=ids).ranking == (2, 0, 1)


def test_the_default_puts_what_is_asked_first_then_the_candidates_then_the_user(requests: Requests) -> None:
    """Row 1: history Alien (4), Brazil (5), Dune (2); candidates Casablanca, Élan, Fargo, Gilda."""
    (prompt,) = PromptWriter().write(requests, [1])
    assert prompt.chat == [
        {"role": "system", "content": f"{PROMPT.opening}\n\n{PROMPT.answers['list']}"},
        {
            "role": "user",
            "content": (
                "Candidates, 4 of them:\n1. Casablanca\n2. Élan\n3. Fargo\n4. Gilda\n\n"
                "History of the user, oldest first:\n- Alien | feedback 4\n- Brazil | feedback 5\n"
                "- Dune, Part Two | feedback 2\n\n"
                "Now put all 4 candidates in order for this user, and answer exactly as asked for at the start."
            ),
        },
    ]
    assert prompt.text == f"{prompt.system}\n\n{prompt.user}" == build_prompt(requests, 1)
    assert (prompt.dropped, prompt.shortened) == (0, 0)


def test_an_item_is_its_id_its_title_and_its_path_wherever_it_stands(requests: Requests) -> None:
    by_number, by_id = (writer(name).write(labelled(requests), [1])[0].user for name in ("3-index", "3-id"))
    assert "1. <a_0><b_2> | Casablanca | Film > Noir 2\n2. <a_1><b_0> | Élan | Film > Noir 4\n" in by_number
    assert "* <a_0><b_2> | Casablanca | Film > Noir 2\n* <a_1><b_0> | Élan | Film > Noir 4\n" in by_id
    for text in (by_number, by_id):
        assert "- <a_0><b_3> | Dune, Part Two | Film > Noir 3 | feedback 2\n" in text
    assert "1. Casablanca | Film > Noir 2\n" in build_prompt(labelled(requests), 1)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "2"])
@pytest.mark.parametrize("text_format", FORMATS)
def test_users_with_the_same_candidates_share_all_that_comes_before_their_history(name: str, text_format: str) -> None:
    histories = [[0], [1, 2, 3], []]
    data = Requests.of([[4, 5, 6, 7]] * 3, [[0, 0, 1, 0]] * 3, history=histories, texts=[f"film {i}" for i in range(8)])
    prompts = writer(name, text_format).write(data)
    heads = {prompt.text.partition("History of the user")[0] for prompt in prompts}
    assert len(heads) == 1 and heads.pop().count("film ") == 4
    assert len({prompt.text for prompt in prompts}) == 3
    assert {prompt.messages[0] for prompt in prompts} == {prompts[0].messages[0]}
    chats = {prompt.user.partition("History of the user")[0] for prompt in prompts}
    assert len(chats) == 1
    # the system's message is the same even for other candidates, and another number of them
    other = Requests.of([[1, 0]], [[0, 1]], texts=["a"] * 8)
    assert writer(name, text_format).write(other)[0].system == prompts[0].system


@pytest.mark.parametrize("text_format", FORMATS)
def test_reasoning_steps_are_asked_for_where_the_answer_has_room_for_them(requests: Requests, text_format: str) -> None:
    for name in ("3-index", "3-id"):
        plain, steps = (writer(each, text_format).write(requests)[0].text for each in (name, f"{name}-steps"))
        assert ("three steps" in steps) is has_reasoning(text_format)
        assert "three steps" not in plain and (steps != plain) is has_reasoning(text_format)
        assert len(re.findall(r"^\d+\. ", steps, re.MULTILINE)) == (5 if name == "3-index" else 0)


def test_what_is_known_of_the_domain_stands_between_the_task_and_the_answer(requests: Requests) -> None:
    primed = PROMPT.primed("Who buys a {camera} buys a card next.")
    assert primed.hash != PROMPT.hash and primed.version == PROMPT.version
    text = build_prompt(requests, 0, prompt=primed)
    assert "to you.\n\nWhat is known of this domain:\nWho buys a {camera} buys a card next.\n\nAnswer with" in text
    assert primed.primed("") == PROMPT and hash(primed.primed("")) == hash(PROMPT)
    with pytest.raises(InputError, match="'2' has no block 'priming'"):
        TEMPLATES["2"].primed("anything")
    with pytest.raises(InputError, match="priming is 3"):
        PROMPT.primed(3)  # type: ignore[arg-type]


def test_a_user_without_history_is_said_to_have_none(requests: Requests) -> None:
    assert "History, oldest first:\n(none)\n\nCandidates:\n1. Alien\n" in build_prompt(requests, 2, prompt="2")
    assert "\n\nHistory of the user, oldest first:\n(none)\n\nNow put all 2" in build_prompt(requests, 2)


def test_prompts_of_all_rows_are_the_prompts_of_each_row(requests: Requests) -> None:
    assert build_prompts(requests) == [build_prompt(requests, row) for row in range(len(requests))]
    assert build_prompts(requests, [3, 3, 0])[1] == build_prompt(requests, 3)
    assert build_prompts(requests, []) == []


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text_format", ANSWERS)
def test_every_prompt_lies_in_its_space(requests: Requests, text_format: str, name: str) -> None:
    for data in (labelled(requests), rerank_env.load("synthetic", requests=60)):
        ids = [f"<a_{item}>" for item in range(len(data.catalog))] if name.startswith("3-id") else None
        wording = {"prompt": name, "semantic_ids": ids}
        space = RerankEnv(data, action="text", text_format=text_format, **wording).observation_space["prompt"]
        prompts = build_prompts(data, text_format=text_format, **wording)
        assert all(prompt in space for prompt in prompts)
        assert max(map(len, prompts)) <= longest_prompt_chars(data, **wording) <= 1.5 * max(map(len, prompts)) + 900
    assert "É" in prompt_characters(requests)


def test_extreme_feedback_still_lies_in_the_space(requests: Requests) -> None:
    feedback = np.where(requests.history_BH >= 0, np.float32(-1.23456e-38), np.float32(0))
    extreme = replace(requests, feedback_BH=feedback)
    space = RerankEnv(extreme, action="text").observation_space["prompt"]
    assert all(prompt in space for prompt in build_prompts(extreme))


@pytest.mark.parametrize("text_format", ANSWERS)
def test_the_single_form_reads_a_completion(requests: Requests, text_format: str) -> None:
    env = RerankEnv(requests, action="text", text_format=text_format)
    observation, _ = env.reset(seed=0, options={"request": 1})
    assert observation["prompt"] == build_prompt(requests, 1, text_format=text_format)
    info = env.step(ANSWERS[text_format])[4]
    assert info["valid"]
    assert info["ranking"].tolist() == [1, 3, 0, 2, -1]


@pytest.mark.parametrize("text_format", ANSWERS)
def test_the_vector_form_reads_completions(requests: Requests, text_format: str) -> None:
    envs = RerankVectorEnv(requests, num_envs=3, action="text", text_format=text_format)
    observations, _ = envs.reset(seed=0, options={"request": 1})
    assert observations["prompt"] == (build_prompt(requests, 1, text_format=text_format),) * 3
    answers = [ANSWERS[text_format], "I cannot decide.</answer>", None]
    for given in (answers, tuple(answers), np.array(answers, dtype=object)):
        envs.reset(options={"request": 1})
        infos = envs.step(given)[4]["final_info"]
        assert infos["valid"].tolist() == [True, False, False]
        assert infos["ranking"].tolist() == [[1, 3, 0, 2, -1], [-1] * 5, [-1] * 5]
        assert infos["verdict"][1:].tolist() == [Verdict.MALFORMED, Verdict.MALFORMED]


def test_text_and_ranking_actions_earn_the_same(requests: Requests) -> None:
    texts, rankings = RerankEnv(requests, action="text"), RerankEnv(requests)
    texts.reset(seed=0, options={"request": 1})
    rankings.reset(seed=0, options={"request": 1})
    assert texts.step(ANSWERS["list"])[1] == rankings.step([1, 3, 0, 2, 0])[1]


def test_a_row_format_or_template_that_does_not_exist_is_refused(requests: Requests) -> None:
    for row in (6, -1):
        with pytest.raises(InputError, match=r"requests 0\.\.5"):
            build_prompt(requests, row)
        with pytest.raises(InputError, match=r"requests 0\.\.5"):
            build_prompts(requests, [0, row])
    with pytest.raises(UnknownNameError, match="did you mean 'arrows'"):
        build_prompt(requests, 0, text_format="arow")
    with pytest.raises(UnknownNameError, match="unknown prompt '3-idx'; did you mean '3-id'"):
        build_prompt(requests, 0, prompt="3-idx")
    with pytest.raises(InputError, match="prompt is of type int; give a Template"):
        template_of(3)  # type: ignore[arg-type]


def test_a_template_that_no_prompt_can_be_made_of_is_refused() -> None:
    own: Template = replace(PROMPT, version="mine", user=("history", "candidates"))
    assert own.messages(["- Up"], ["1. Alien", "2. Brazil"], "list")[-1].content.endswith(
        "oldest first:\n- Up\n\nCandidates, 2 of them:\n1. Alien\n2. Brazil"
    )
    for changes, sentence in [
        ({"user": ("candidates",)}, "'history'"),
        ({"user": ("candidates", "history", "candidates")}, "at most once"),
        ({"user": ("candidates", "history", "story")}, "story"),
        ({"shows": ("text", "price")}, "price"),
        ({"cites": "ids", "shows": ("text",)}, "'id' where answers cite it"),
        ({"answers": {"list": "..."}}, r"answers for \['list'\]"),
    ]:
        with pytest.raises(InputError, match=sentence):
            replace(PROMPT, **changes)
    with pytest.raises(UnknownNameError, match="did you mean 'numbers'"):
        replace(PROMPT, cites="number")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("seen", "- {items}"),  # misspelt
        ("seen", "- {item} {item}"),  # twice: longer than the bound
        ("seen", "- {item} {feedback:>9000}"),
        ("seen", "- {item:{feedback}}"),
        ("seen", "- {item!r}"),
        ("seen", "- {item.text}"),
        ("seen", "- {item[0]}"),
        ("seen", "- {}"),
        ("seen", "- {0}"),
        ("seen", "- {item"),
        ("seen", "- item}"),
        ("seen", "- {feedback}"),  # without what it is about
        ("seen", "- {item} {number}"),  # a value that entries of the history do not have
        ("seen", 3),
        ("offered", "{item}"),  # without what answers cite
        ("offered", "{number}. {item} {feedback}"),
        ("earlier", "{count} and {count}"),
        ("earlier", "{dropped}"),
        ("candidates", "{size} of {size}"),
        ("candidates", "{count}"),
        ("closing", "All {size:08d}"),
        ("closing", None),
        ("answers", '{"ranking": [1]}'),
    ],
)
def test_a_text_that_cannot_be_filled_in_as_documented_is_refused_by_the_name_of_its_field(
    name: str, text: object
) -> None:
    changes = {name: dict.fromkeys(FORMATS, text) if name == "answers" else text}
    with pytest.raises(InputError, match=rf"template '3-index' has {name}.*=.*at most once each") as caught:
        replace(PROMPT, **changes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


WORDS = st.text(st.characters(exclude_categories=()), max_size=9)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(data=st.data())
def test_no_template_that_is_accepted_makes_a_prompt_longer_than_the_bound_or_in_other_characters(
    requests: Requests, data: st.DataObject
) -> None:
    def filled(*placeholders: str) -> str:
        """Words with some of the placeholders between them, in any order, and braces that are meant as such."""
        kept = [f"{{{name}}}" for name in data.draw(st.permutations(placeholders))]
        words = [data.draw(WORDS).replace("{", "{{").replace("}", "}}") for _ in range(len(kept) + 1)]
        return "".join(word + mark for word, mark in zip(words, [*kept, ""], strict=True))

    own = replace(
        PROMPT,
        version="own",
        offered=filled("item", "number"),
        seen=filled("item", *data.draw(st.sampled_from([(), ("feedback",)]))),
        earlier=filled(*data.draw(st.sampled_from([(), ("count",)]))),
        candidates=filled("size"),
        closing=filled("size"),
        nothing=data.draw(WORDS),
        untitled=data.draw(WORDS),
        answers={form: filled("size") for form in FORMATS},
    )
    for budget in (None, 1 + max(map(len, build_prompts(requests, prompt=own)))):
        own_writer = PromptWriter(prompt=own, prompt_budget=budget)
        texts = [prompt.text for prompt in own_writer.write(requests)]
        assert max(map(len, texts)) <= own_writer.longest_chars(requests)
        assert set().union(*texts) <= set(own_writer.characters(requests))


def test_rows_are_whole_numbers_or_a_mask_and_nothing_is_misread_as_either(requests: Requests) -> None:
    every = build_prompts(requests)
    mask = np.array([False, True, False, True, True, False])
    for rows in (mask, mask.tolist(), [1, 3, 4], np.array([1, 3, 4], dtype=np.uint8), (np.int32(1), 3, 4)):
        assert build_prompts(requests, rows) == [every[1], every[3], every[4]]
    assert build_prompts(requests, range(2)) == every[:2] and build_prompts(requests, ~mask & mask) == []
    assert build_prompt(requests, np.int64(3)) == every[3]
    wrong: list[tuple[object, str]] = [
        ([0.9], "rows has dtype float64"),
        (np.array([1.0, 2.0]), "rows has dtype float64"),
        (["1"], "rows has dtype <U1"),
        ([None], "rows has dtype object"),
        ([[0, 1], [2, 3]], r"shape \(2, 2\)"),
        ([[0, 1], [2]], "lists of unequal length"),
        ({0, 1}, "rows has dtype object"),
        (2, r"shape \(\)"),
        (mask[:5], "a mask of 5 entries for 6 requests"),
        ([True], "a mask of 1 entries for 6 requests"),
        (np.array([2**64 - 1], dtype=np.uint64), "request 18446744073709551615 does not exist"),
    ]
    for rows, sentence in wrong:
        with pytest.raises(InputError, match=sentence):
            build_prompts(requests, rows)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=sentence):
            writer("3-id").answer_ids(requests, rows)  # type: ignore[arg-type]
    for row in (True, False, 0.9, "1", None, [1]):
        with pytest.raises(InputError, match="row is .*; give a whole number from 0"):
            build_prompt(requests, row)  # type: ignore[arg-type]
