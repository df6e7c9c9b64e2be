"""What all adapters share: rows, the way back to slates, and the contract's own completions in the environment."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from contract import BAD, COMPLETIONS, GOOD, GROUP, REWARDS, cases

from rerank_env.data import Requests
from rerank_env.prompts import PROMPT
from rerank_env.rewards import InputError, SlateError, Slates, Verdict
from rerank_env.rewards.errors import CheckpointError, DataError, MissingExtraError
from rerank_env.rewards.scoring import Scorer
from rerank_env.training.adapters.records import (
    check_columns,
    groups_of,
    legal_name,
    request_rows,
    signals,
    slate_of,
    slates_of,
)
from rerank_env.training.adapters.trl import dataset_and_reward
from rerank_env.training.adapters.verl import to_verl

needs_datasets = pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets: pip install datasets")

WORDING = {
    "prompt_version": PROMPT.version,
    "prompt_hash": PROMPT.hash,
    "prompt_dropped": 0,
    "prompt_shortened": 0,
}
COLUMNS = ["prompt", "request", "data", "size", "text_format", *WORDING, "candidate_ids", "input_order", "relevance"]


def by_hand(**log: Any) -> Requests:
    """Two requests, of three and of two candidates."""
    texts = ["Alien", "Brazil", "Casablanca", "Dune"]
    return Requests.of([[3, 1, 0], [2, 3]], [[0.0, 0.1, 2.0], [1.0, 0.0]], texts=texts, name="by hand", **log)


@pytest.fixture
def requests() -> Requests:
    return by_hand()


@pytest.fixture
def logged() -> Requests:
    """The same with a log of clicks, the second before the first, and each in a shuffled order."""
    whole = by_hand(
        clicks=[[1, 0, 0], [0, 1]],
        propensities=[[1.0, 0.5, 0.25], [1.0, 0.5]],
        predictions=[[0.5, 0.5, 0.5], [0.1, 0.2]],
    )
    return whole.take([1, 0]).reordered(np.array([[1, 0, -1], [2, 0, 1]]))


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_a_row_holds_the_prompt_and_all_that_a_reward_needs(requests: Requests) -> None:
    first, second = request_rows(requests)
    assert [*first] == [*second] == COLUMNS
    assert [message["role"] for message in first["prompt"]] == ["system", "user"]
    assert "1. Dune\n2. Brazil\n3. Alien" in first["prompt"][1]["content"]
    assert {name: value for name, value in first.items() if name != "prompt"} == {
        "request": 0,
        "data": "by hand",
        "size": 3,
        "text_format": "list",
        **WORDING,
        "candidate_ids": ["3", "1", "0"],
        "input_order": [0, 1, 2],
        "relevance": [0.0, 0.1, 2.0],
    }
    assert (second["size"], second["candidate_ids"], second["relevance"]) == (2, ["2", "3"], [1.0, 0.0])
    said = [message["content"] for message in first["prompt"]]
    assert request_rows(requests, conversational=False)[0]["prompt"] == "\n\n".join(said)


def test_rows_become_the_slates_they_came_from(logged: Requests) -> None:
    rows = request_rows(logged)
    assert [row["request"] for row in rows] == [1, 0]
    assert [row["input_order"] for row in rows] == [[1, 0], [2, 0, 1]]
    assert [row["candidate_ids"] for row in rows] == [["3", "2"], ["0", "3", "1"]]
    assert [row["clicks"] for row in rows] == [[1, 0], [0, 1, 0]]
    assert [row["propensities"] for row in rows] == [[0.5, 1.0], [0.25, 1.0, 0.5]]
    back = slates_of(columns_of(rows), 2, text_format="list", needs={"clicks", "predictions"})
    for name in Slates.__dataclass_fields__:
        assert np.array_equal(getattr(back, name), getattr(logged.slates, name)), name
    assert slate_of(rows[0], text_format="list").relevance_BK.tolist() == [[0.0, 1.0]]
    assert groups_of(columns_of(rows), 2).tolist() == [0, 1]


def test_a_missing_column_is_named_with_those_that_are_there(requests: Requests) -> None:
    columns = columns_of(request_rows(requests))
    del columns["relevance"]
    with pytest.raises(InputError, match="'relevance' is missing.*candidate_ids, data, input_order"):
        slates_of(columns, 2, text_format="list")
    whole = columns_of(request_rows(requests))
    for needed, name in [("clicks", "clicks"), ("predictions", "predictions")]:
        with pytest.raises(InputError, match=f"'{name}' is missing"):
            slates_of(whole, 2, text_format="list", needs={needed})
    with pytest.raises(InputError, match="'propensities' is missing"):
        check_columns([*COLUMNS, "clicks"], {"clicks"})
    with pytest.raises(InputError, match="'request' is missing"):
        groups_of({"relevance": [[1, 0]]}, 1)


@pytest.mark.parametrize("name", ["relevance", "clicks", "propensities", "predictions", "input_order", "size"])
def test_a_wrong_number_of_entries_is_found_and_named(logged: Requests, name: str) -> None:
    columns = columns_of(request_rows(logged))
    columns[name] = columns[name][:1]
    with pytest.raises(DataError, match=f"{name} has 1 "):
        slates_of(columns, 2, text_format="list")


@pytest.mark.parametrize("name", ["clicks", "propensities", "predictions", "input_order", "relevance"])
def test_a_list_of_the_wrong_length_is_found_and_named(logged: Requests, name: str) -> None:
    columns = columns_of(request_rows(logged))
    columns[name] = [columns[name][0], columns[name][1] * 2]
    with pytest.raises(DataError, match=r"request 1 has \d entries|size of answer 1 is 2"):
        slates_of(columns, 2, text_format="list")


def test_what_arrow_makes_of_a_missing_value_is_refused(requests: Requests) -> None:
    columns = columns_of(request_rows(requests))
    with pytest.raises(DataError, match="relevance of request 1 is None"):
        slates_of(columns | {"relevance": [[0, 0.1, 2], None]}, 2, text_format="list")
    with pytest.raises(SlateError, match="nan"):
        slates_of(columns | {"relevance": [[0, 0.1, 2], [None, 1]]}, 2, text_format="list")
    with pytest.raises(DataError, match="request of answer 0 is None"):
        groups_of({"relevance": [], "request": [None, 1]}, 2)


def test_equal_numbers_of_different_data_are_different_groups() -> None:
    columns = {"relevance": [], "request": [5, 7, 5, 5], "data": ["a", "a", "a", "b"]}
    assert groups_of(columns, 4).tolist() == [0, 1, 0, 2]


def test_shuffled_copies_of_a_request_are_one_group(requests: Requests) -> None:
    copies = requests.take([0, 1, 0]).reordered(np.array([[0, 1, 2], [1, 0, -1], [2, 0, 1]]))
    assert groups_of(columns_of(request_rows(copies)), 3).tolist() == [0, 1, 0]


def test_formats_must_agree(requests: Requests) -> None:
    columns = columns_of(request_rows(requests, text_format="json"))
    assert len(slates_of(columns, 2, text_format="json")) == 2
    with pytest.raises(InputError, match="answer 1 asks for the text format 'list' but the reward reads 'json'"):
        slates_of(columns | {"text_format": ["json", "list"]}, 2, text_format="json")
    del columns["text_format"]
    assert len(slates_of(columns, 2, text_format="list")) == 2


def test_names_are_legal_and_tell_signs_apart() -> None:
    assert legal_name("ndcg@10") == "ndcg_10"
    assert legal_name("ndcg - 1") != legal_name("ndcg + 1")


def test_signals_say_what_the_answers_are() -> None:
    # the incoming order, two swaps of neighbours from it, three swaps, which reverses it, and no ranking
    answers = ["[1, 2, 3]", "[3, 1, 2]", "[3, 2, 1]", "[1, 1, 2]"]
    slates = Slates.of([[0, 0, 1]] * 4)
    found = signals(Scorer("gr2")(answers, slates), slates)
    assert found["valid"].tolist() == [1, 1, 1, 0]
    assert found["identity"].tolist() == [1, 0, 0, 0]
    assert found["near_identity"].tolist() == [1, 1, 0, 0]
    assert found["failed"].tolist() == [0, 0, 0, 0]
    assert found["verdict/duplicate"].tolist() == [0, 0, 0, 1]
    parts = [values for name, values in found.items() if name.startswith("part/")]
    assert np.array_equal(sum(parts), Scorer("gr2")(answers, slates).total_B)
    assert found.keys() == signals(Scorer("gr2")(answers[:1], slates.take([0])), slates.take([0])).keys()


def test_importing_adapters_loads_no_peer() -> None:
    heavy = ("trl", "verl", "datasets", "torch", "transformers", "pyarrow", "pandas", "ray", "verifiers", "openenv")
    code = (
        "import sys, rerank_env.training, rerank_env.training.adapters.records, rerank_env.training.adapters.trl, "
        f"rerank_env.training.adapters.verl; print(sorted(set({heavy!r}) & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


# The contract itself.


def test_the_contract_holds_every_format_and_every_verdict() -> None:
    assert sum(len(case.completions) for case in cases()) == COMPLETIONS
    for case in cases():
        read = case.expected("gain")
        assert read.verdicts_B.tolist() == [int(verdict) for verdict in case.verdicts], case.text_format
        assert {*read.verdicts_B.tolist()} == {int(verdict) for verdict in {Verdict.OK, *BAD.values()}}
        assert len(set(case.requests.sizes_B.tolist())) > 3  # ragged
        assert len(set(case.rows)) == -(-len(case.rows) // GROUP)
    assert len(GOOD) == 5


@pytest.mark.parametrize("reward", REWARDS)
def test_the_environment_reports_the_contracts_numbers(reward: str) -> None:
    for case in cases():
        expected = case.expected(reward)
        env = gym.make(
            "rerank_env:Rerank-v0",
            data=case.requests,
            reward=reward,
            action="text",
            text_format=case.text_format,
            disable_env_checker=True,
        )
        for answer, (row, text) in enumerate(zip(case.rows, case.completions, strict=True)):
            env.reset(options={"request": row})
            _, value, _, _, info = env.step(text)
            assert value == expected.total_B[answer], text
            assert info["verdict"] == expected.verdicts_B[answer]
            assert info["reward_parts"] == {name: part_B[answer] for name, part_B in expected.parts.items()}


def test_columns_of_rows_report_the_contracts_numbers() -> None:
    for case in cases():
        slates = slates_of(columns_of(case.records()), len(case.rows), text_format=case.text_format)
        for reward in REWARDS:
            scored = Scorer(reward, case.text_format)(case.completions, slates)
            assert np.array_equal(scored.total_B, case.expected(reward).total_B)


# Hugging Face data sets.


@needs_datasets
@pytest.mark.parametrize("conversational", [True, False])
def test_a_data_set_survives_parquet_with_its_types(logged: Requests, tmp_path: Path, conversational: bool) -> None:
    from datasets import List, Value

    from rerank_env.training.adapters import huggingface

    dataset = huggingface.to_dataset(logged, conversational=conversational)
    assert dataset.features["relevance"] == List(Value("float64"))
    assert dataset.features["candidate_ids"] == List(Value("string"))
    assert dataset.features["input_order"] == List(Value("int64"))
    assert dataset.to_list() == request_rows(logged, conversational=conversational)
    loaded = huggingface.load(huggingface.save(dataset, tmp_path / "folder" / "rows.parquet"))
    assert loaded.features == dataset.features
    assert loaded.to_list() == dataset.to_list()
    back = slates_of(loaded[:], len(loaded), text_format="list", needs={"clicks", "predictions"})
    assert np.array_equal(back.relevance_BK, logged.slates.relevance_BK)  # 0.1 to the last bit
    assert np.array_equal(back.canonical_BK, logged.slates.canonical_BK)


@needs_datasets
def test_a_file_that_is_no_data_set_of_requests_is_refused(requests: Requests, tmp_path: Path) -> None:
    from rerank_env.training.adapters import huggingface

    dataset = huggingface.to_dataset(requests)
    path = huggingface.save(dataset.remove_columns("size"), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="column 'size' .* is missing"):
        huggingface.load(path)
    path.write_text("no parquet")
    with pytest.raises(DataError, match="cannot be read as a parquet file"):
        huggingface.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        huggingface.load(tmp_path / "absent.parquet")
    with pytest.raises(CheckpointError, match="could not be written"):
        huggingface.save(dataset, path / "below-a-file.parquet")


@pytest.mark.skipif(find_spec("datasets") is not None, reason="datasets is installed")
def test_without_datasets_the_error_names_the_extra(requests: Requests, tmp_path: Path) -> None:
    for build in (lambda: dataset_and_reward(requests), lambda: to_verl(requests, "gain", tmp_path)):
        with pytest.raises(MissingExtraError, match=r"pip install .rerank-env\[datasets\]"):
            build()
