"""One request, one prompt: the environment's text and every peer's row are the same, byte for byte, in every wording.

The environment's observation is the reference. Each peer is asked through its own way in, where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank_env.data import Requests
from rerank_env.env import RerankEnv
from rerank_env.prompts import TEMPLATES, Budget, TokensOf, Wording
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.rewards.formats import FORMATS, answer_text
from rerank_env.rewards.scoring import Scorer
from rerank_env.training.adapters.records import ids_of, request_rows
from rerank_env.training.adapters.trl import RerankTool, TrlReward, dataset_and_reward
from rerank_env.training.adapters.verl import VerlReward, to_verl

needs_datasets = pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets: pip install datasets")
needs_verifiers = pytest.mark.skipif(find_spec("verifiers") is None, reason="needs the verifiers extra")
needs_openenv = pytest.mark.skipif(find_spec("openenv") is None, reason="needs the openenv extra")

TEXTS = ("Alien", "Brazil [DVD]", 'Casa"blanca"', "Dune,\n Part 2", "</answer>", "Fargo \ud800", "日本 <|im_end|>", "")
IDS = tuple(f"<a_{item // 3}><b_{item % 3}>" for item in range(len(TEXTS)))

ASKED = Requests.of(
    [[3, 4, 5, 6, 7], [2, 4, 5, 6], [0, 1]],
    [[0, 2, 0, 1, 0], [0, 0, 1, 0], [1, 2]],
    history=[[0, 1, 2], [0, 1, 3, 7], []],
    feedback=[[4, 5, 1], [4, 5, 2, 0.5], []],
    texts=TEXTS,
    name="by hand",
).reordered(np.array([[4, 3, 2, 1, 0], [0, 2, 1, 3, -1], [1, 0, -1, -1, -1]]))
"""Ragged, shuffled, and with titles that mean something to a format, a chat template or nobody."""


def wordings() -> Iterator[Any]:
    """Every template, with IDs where they are shown, whole and with some of the history left out."""
    for name, template in TEMPLATES.items():
        wording: Wording = {"prompt": name}
        if "id" in template.shows:
            wording["semantic_ids"] = IDS
        yield pytest.param(wording, id=name)
    whole = max(len(row["prompt"]) for row in request_rows(ASKED, text_format="tagged-json", conversational=False))
    yield pytest.param({"prompt_budget": whole - 30}, id="budget")
    primed = TEMPLATES["3-id"].primed("Who buys a camera buys a card next.")
    yield pytest.param({"prompt": primed, "semantic_ids": IDS}, id="primed")


every_wording = pytest.mark.parametrize("wording", [*wordings()])
every_format = pytest.mark.parametrize("text_format", FORMATS)


def observed(text_format: str, wording: Wording) -> list[str]:
    """What the environment shows of each request."""
    env = RerankEnv(ASKED, action="text", text_format=text_format, **wording)
    env.reset(seed=0)
    return [env.reset(options={"request": row})[0]["prompt"] for row in range(len(ASKED))]


def as_text(chat: list[dict[str, str]]) -> str:
    """A chat as the environment shows it."""
    return "\n\n".join(message["content"] for message in chat)


@every_wording
@every_format
def test_rows_hold_what_the_environment_shows(text_format: str, wording: Wording) -> None:
    plain = request_rows(ASKED, text_format=text_format, conversational=False, **wording)
    chats = request_rows(ASKED, text_format=text_format, **wording)
    shown = observed(text_format, wording)
    assert [row["prompt"] for row in plain] == shown
    assert [as_text(row["prompt"]) for row in chats] == shown
    roles = ["user"] if wording.get("prompt") == "2" else ["system", "user"]
    assert all([message["role"] for message in row["prompt"]] == roles for row in chats)
    env = RerankEnv(ASKED, action="text", text_format=text_format, **wording)
    for row in (*plain, *chats):
        assert row["prompt_version"] == env.metadata["prompt_version"]
        assert row["prompt_hash"] == env.metadata["prompt_hash"]
    if "prompt_budget" in wording:
        told = [env.reset(options={"request": row}, seed=0)[1] for row in range(len(ASKED))]
        assert [row["prompt_dropped"] for row in plain] == [info["prompt_dropped"] for info in told]
        assert [row["prompt_shortened"] for row in plain] == [info["prompt_shortened"] for info in told]


@every_format
def test_answers_in_ids_earn_the_same_from_rows_as_in_the_environment(text_format: str) -> None:
    wording: Wording = {"prompt": "3-id", "semantic_ids": IDS}
    rows = request_rows(ASKED, text_format=text_format, **wording)
    assert [row["answer_ids"] for row in rows] == [[IDS[int(item)] for item in row["candidate_ids"]] for row in rows]
    env = RerankEnv(ASKED, action="text", text_format=text_format, **wording)
    rng = np.random.default_rng(0)
    texts, paid = [], []
    for row, asked in enumerate(rows):
        texts.append(answer_text(rng.permutation(asked["size"]), text_format=text_format, ids=asked["answer_ids"]))
        env.reset(seed=0, options={"request": row})
        _, reward, _, _, info = env.step(texts[-1])
        assert info["valid"]
        paid.append(reward)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    assert TrlReward("gain", text_format)(completions=texts, **columns) == paid
    verl = VerlReward("gain", text_format)
    for row, text, value in zip(rows, texts, paid, strict=True):
        told = {name: entry for name, entry in row.items() if name not in ("prompt", "relevance")}
        assert verl("by hand", text, row["relevance"], told)["score"] == value
        told["answer_ids"] = np.array(told["answer_ids"])  # as pandas hands lists on
        assert verl("by hand", text, row["relevance"], told)["score"] == value
    numbers = [str([*range(1, row["size"] + 1)]) for row in rows]
    assert TrlReward("gain")(completions=numbers, **columns | {"text_format": ["list"] * 3}) == [-1.1] * 3


def test_rows_without_ids_have_no_column_for_them_and_a_broken_one_is_named() -> None:
    rows = request_rows(ASKED, semantic_ids=IDS)  # shown, and not cited
    assert all("answer_ids" not in row for row in rows)
    assert ids_of({"relevance": []}, 2) is None is ids_of({"answer_ids": None}, 2)
    with pytest.raises(DataError, match="answer_ids of answer 1 is None"):
        ids_of({"answer_ids": [["<a>", "<b>"], None]}, 2)
    with pytest.raises(DataError, match="answer_ids of answer 0 is '<a>'"):
        ids_of({"answer_ids": ["<a>", "<b>"]}, 2)
    with pytest.raises(DataError, match="answer_ids has 1 entries for 2 answers"):
        ids_of({"answer_ids": [["<a>", "<b>"]]}, 2)
    tool = RerankTool()
    with pytest.raises(InputError, match="asks for IDs but the tool takes"):
        tool.reset(**request_rows(ASKED, prompt="3-id", semantic_ids=IDS)[0])


def test_a_budget_in_tokens_counts_what_the_model_reads(tokenizer: Any) -> None:
    count = TokensOf(tokenizer)
    assert count("[1, 2, 3]") == len(tokenizer("[1, 2, 3]", add_special_tokens=False)["input_ids"])
    whole = [count(row["prompt"]) for row in request_rows(ASKED, conversational=False)]
    budget = Budget(max(whole) - 20, count)
    rows = request_rows(ASKED, conversational=False, prompt_budget=budget)
    assert all(count(row["prompt"]) <= budget.limit for row in rows)
    assert [row["prompt_dropped"] > 0 for row in rows] == [tokens > budget.limit for tokens in whole]
    # a title cannot bring a special token of the chat template with it
    special = [tokenizer.convert_tokens_to_ids(sign) for sign in ("<|im_start|>", "<|im_end|>")]
    for row in rows:
        assert not set(special) & set(tokenizer(row["prompt"], add_special_tokens=False)["input_ids"])


@needs_datasets
@every_wording
@every_format
def test_trl_gets_the_same(text_format: str, wording: Wording) -> None:
    for conversational in (True, False):
        dataset, _ = dataset_and_reward(ASKED, text_format=text_format, conversational=conversational, **wording)
        rows = request_rows(ASKED, text_format=text_format, conversational=conversational, **wording)
        assert dataset.to_list() == rows
        asked = [as_text(row["prompt"]) if conversational else row["prompt"] for row in dataset]
        assert asked == observed(text_format, wording)


@needs_datasets
@pytest.mark.parametrize("text_format", ["arrows", "tagged-json"])
@every_wording
def test_verl_gets_the_same(text_format: str, wording: Wording, tmp_path: Path) -> None:
    from rerank_env.training.adapters import huggingface

    files = to_verl(ASKED, "gain", tmp_path, validation=ASKED, text_format=text_format, **wording)
    from datasets import load_dataset

    for path in (files.train, files.validation):
        read = load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        assert [as_text(row["prompt"]) for row in read] == observed(text_format, wording)
        kept = request_rows(ASKED, text_format=text_format, **wording)
        for index, (row, told) in enumerate(zip(kept, read, strict=True)):
            rest = {name: value for name, value in row.items() if name not in ("prompt", "relevance")}
            assert told["extra_info"] == {"index": index, **rest}
    dataset = huggingface.to_dataset(ASKED, text_format=text_format, **wording)
    loaded = huggingface.load(huggingface.save(dataset, tmp_path / "rows.parquet"))
    assert loaded.features == dataset.features and loaded.to_list() == dataset.to_list()


@needs_verifiers
@every_wording
@every_format
def test_verifiers_gets_the_same(text_format: str, wording: Wording) -> None:
    from rerank_env.training.adapters.verifiers import RerankConfig, RerankTaskConfig, RerankTaskset

    class Own(RerankTaskset):
        def requests(self) -> Requests:
            return ASKED

        def semantic_ids(self) -> Any:
            return wording.get("semantic_ids")

    prompt = wording.get("prompt", "3-index")
    if not isinstance(prompt, str):
        pytest.skip("a configuration of verifiers is plain text, so it names a template")
    settings = {"prompt": prompt, "prompt_budget": wording.get("prompt_budget")}
    tasks = list(Own(RerankConfig(task=RerankTaskConfig(text_format=text_format), **settings)))
    said = [[task.data.system_prompt, task.data.prompt] for task in tasks]
    assert ["\n\n".join(filter(None, messages)) for messages in said] == observed(text_format, wording)
    assert [system is None for system, _ in said] == [prompt == "2"] * len(ASKED)


@needs_verifiers
def test_verifiers_reads_answers_in_ids() -> None:
    import asyncio

    import verifiers.v1 as vf
    from pydantic import ValidationError

    from rerank_env.training.adapters.verifiers import RerankConfig, RerankTaskset

    class Own(RerankTaskset):
        def requests(self) -> Requests:
            return ASKED

        def semantic_ids(self) -> Any:
            return IDS

    task = list(Own(RerankConfig(prompt="3-id")))[2]
    ids = task.data.row["answer_ids"]
    nodes = [
        vf.MessageNode(message=vf.UserMessage(content=task.data.prompt)),
        vf.MessageNode(parent=0, message=vf.AssistantMessage(content=f"[{ids[0]}, {ids[1]}]"), sampled=True),
    ]
    told = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=told, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=nodes)
    asyncio.run(task.score(trace))
    assert (trace.metrics["valid"], trace.metrics["identity"]) == (1.0, 1.0)
    assert trace.rewards["total"].score == 0.0  # gain pays nothing for the order they came in
    with pytest.raises(ValidationError, match="did you mean '3-index'"):
        RerankConfig(prompt="3-indx")


@needs_openenv
@every_wording
@every_format
def test_openenv_gets_the_same(text_format: str, wording: Wording) -> None:
    from rerank_env.training.adapters.openenv import RerankEnvironment

    env = RerankEnvironment(ASKED, text_format=text_format, **wording)
    asked = [env.reset(request=row) for row in range(len(ASKED))]
    assert [observation.prompt for observation in asked] == observed(text_format, wording)
    rows = request_rows(ASKED, text_format=text_format, **wording)
    assert [observation.messages for observation in asked] == [row["prompt"] for row in rows]
    assert [(o.dropped, o.shortened) for o in asked] == [(r["prompt_dropped"], r["prompt_shortened"]) for r in rows]
    assert env.get_metadata().version == f"{rows[0]['prompt_version']}, {rows[0]['prompt_hash']}"


@needs_openenv
@every_format
def test_openenv_reads_answers_in_ids(text_format: str) -> None:
    from rerank_env.training.adapters.openenv import RerankAction, RerankEnvironment

    env = RerankEnvironment(
        ASKED, reward="0.7*ndcg@5 + gr2", text_format=text_format, prompt="3-id-steps", semantic_ids=IDS
    )
    for row, asked in enumerate(request_rows(ASKED, prompt="3-id", semantic_ids=IDS)):
        ids, order = asked["answer_ids"], [*range(1, asked["size"]), 0]
        text = answer_text(order, text_format=text_format, ids=ids)
        env.reset(request=row)
        after = env.step(RerankAction(completion=text))
        expected = Scorer("0.7*ndcg@5 + gr2", text_format)([text], ASKED.slates.take([row]), ids=[ids])
        assert (after.ranking, after.verdict, after.reward) == (order, "OK", expected.total_B[0])
        assert after.messages and after.done
    env.reset(request=0)
    assert env.step(RerankAction(completion=answer_text([0, 1, 2, 3, 4], text_format=text_format))).verdict != "OK"
    with pytest.raises(InputError, match="two candidates of request"):
        RerankEnvironment(ASKED, prompt="3-id", semantic_ids=["<x>"] * len(TEXTS))
