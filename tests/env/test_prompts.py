"""Requests in words, and completions read back."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

import rerank_env
from rerank_env.data.requests import Requests
from rerank_env.env import RerankEnv
from rerank_env.prompts import PROMPT, build_prompt, build_prompts, longest_prompt_chars, prompt_characters
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.rewards.formats import FORMATS
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


def test_every_format_the_parser_reads_can_be_asked_for() -> None:
    assert set(PROMPT.answers) == set(FORMATS) == set(ANSWERS)


def test_the_words_are_those_of_the_version_that_environments_name() -> None:
    """Whoever changes a word sees this fail, and raises the version with the number here."""
    words = "".join(PROMPT.words(text_format) for text_format in FORMATS)
    assert (PROMPT.version, hashlib.sha256(words.encode()).hexdigest()[:12]) == ("2", "748f13a2b92a")
    for env in (RerankEnv(action="text"), RerankVectorEnv(action="text")):
        assert env.metadata["prompt_version"] == PROMPT.version


@pytest.mark.parametrize("text_format", FORMATS)
def test_the_example_in_a_prompt_is_an_answer_for_three_candidates(text_format: str) -> None:
    instruction = PROMPT.answers[text_format].format(size=3)
    example = instruction.partition("could be answered as ")[2].removesuffix(".")
    assert parse(example, 3, text_format=text_format).ranking == (2, 0, 1)


def test_a_template_can_put_the_candidates_first() -> None:
    turned = replace(PROMPT, order=("candidates", "history"))
    prompt = turned.filled(["- Up (feedback: 4)"], ["1. Alien", "2. Brazil"], "list")
    assert (
        "may be wrong.\n\nCandidates:\n1. Alien\n2. Brazil\n\nHistory, oldest first:\n- Up (feedback: 4)\n\nAnswer"
        in prompt
    )
    assert len(prompt) == len(PROMPT.filled(["- Up (feedback: 4)"], ["1. Alien", "2. Brazil"], "list"))


def test_a_prompt_shows_history_and_numbered_candidates_by_text(requests: Requests) -> None:
    """Row 1: history Alien (4), Brazil (5), Dune (2); candidates Casablanca, Élan, Fargo, Gilda."""
    prompt = build_prompt(requests, 1)
    assert "- Alien (feedback: 4)\n- Brazil (feedback: 5)\n- Dune, Part Two (feedback: 2)\n" in prompt
    assert "1. Casablanca\n2. Élan\n3. Fargo\n4. Gilda\n" in prompt
    assert "5. " not in prompt
    assert "all 4 candidates" in prompt
    assert prompt.index("Task:") < prompt.index("History") < prompt.index("Candidates:") < prompt.index("Answer with")


def test_a_user_without_history_is_said_to_have_none(requests: Requests) -> None:
    assert "History, oldest first:\n(none)\n\nCandidates:\n1. Alien\n2. Brazil\n" in build_prompt(requests, 2)


def test_prompts_of_all_rows_are_the_prompts_of_each_row(requests: Requests) -> None:
    assert build_prompts(requests) == [build_prompt(requests, row) for row in range(len(requests))]
    assert build_prompts(requests, [3, 3, 0])[1] == build_prompt(requests, 3)


@pytest.mark.parametrize("text_format", ANSWERS)
def test_every_prompt_lies_in_its_space(requests: Requests, text_format: str) -> None:
    for data in (requests, rerank_env.load("synthetic")):
        space = RerankEnv(data, action="text", text_format=text_format).observation_space["prompt"]
        prompts = build_prompts(data, text_format=text_format)
        assert all(prompt in space for prompt in prompts)
        assert max(map(len, prompts)) <= longest_prompt_chars(data) <= 1.5 * max(map(len, prompts)) + 600
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


def test_a_row_or_format_that_does_not_exist_is_refused(requests: Requests) -> None:
    for row in (6, -1):
        with pytest.raises(InputError, match=r"requests 0\.\.5"):
            build_prompt(requests, row)
        with pytest.raises(InputError, match=r"requests 0\.\.5"):
            build_prompts(requests, [0, row])
    with pytest.raises(UnknownNameError, match="did you mean 'arrows'"):
        build_prompt(requests, 0, text_format="arow")
