"""TRL's own machinery with our reward: the contract, training runs, and an environment with a tool."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import COMPLETIONS, OF_GROUPS, REWARDS, Case, as_messages, cases, fails_on_the_last

from rerank_env.data import Requests, load
from rerank_env.prompts import PromptWriter
from rerank_env.rewards import FunctionReward, InputError, Verdict
from rerank_env.rewards.scoring import Scorer
from rerank_env.training.adapters.records import request_rows
from rerank_env.training.adapters.trl import TrlReward, dataset_and_reward, environment_factory

pytestmark = [
    pytest.mark.skipif(find_spec("trl") is None, reason="needs the trl extra: pip install 'rerank-env[trl]'"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),  # as TRL asks for it
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", requests=12, slate_size=3, history=2)


@pytest.fixture(scope="module")
def taught(tokenizer: Any, requests: Requests) -> Any:
    """A model that answers lists of three most of the time, in any order, and now and then wrongly."""
    from tiny import taught_model

    rng = np.random.default_rng(0)
    asked = PromptWriter().write(requests)
    prompts = [*(prompt.text for prompt in asked), *(chat(tokenizer, prompt.chat) for prompt in asked)] * 6
    return taught_model(tokenizer, prompts, [str((1 + rng.permutation(3)).tolist()) for _ in prompts])


def chat(signs: Any, asked: list[dict[str, str]], **tools: Any) -> str:
    """A prompt as the chat template puts it."""
    return str(signs.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, **tools))


@pytest.fixture
def trainer_of(tokenizer: Any, tmp_path: Path) -> Callable[..., Any]:
    """A GRPO trainer on the CPU, of a tiny random model where none is given."""

    def build(dataset: Any, rewards: Any = None, *, model: Any = None, signs: Any = None, **settings: Any) -> Any:
        from tiny import tiny_model
        from trl import GRPOConfig, GRPOTrainer

        factory = settings.pop("environment_factory", None)
        signs = tokenizer if signs is None else signs
        config = {
            "output_dir": str(tmp_path),
            "per_device_train_batch_size": 16,
            "num_generations": 4,
            "max_completion_length": 12,
            "max_steps": 3,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "bf16": False,
            "seed": 3,
            **settings,
        }
        return GRPOTrainer(
            model=tiny_model(signs) if model is None else copy.deepcopy(model),
            reward_funcs=rewards,
            args=GRPOConfig(**config),
            train_dataset=dataset,
            processing_class=signs,
            environment_factory=factory,
        )

    return build


def through(trainer: Any, case: Case, *, conversational: bool) -> list[list[float]]:
    """What TRL's trainer makes of the completions of a case, one list a reward function."""
    records = case.records()
    signs = trainer.processing_class
    completions: list[Any] = [*case.completions]
    if conversational:
        completions = [as_messages(text) for text in completions]
    token_ids = [signs(text, add_special_tokens=False)["input_ids"] for text in case.completions]
    if not conversational:
        records = request_rows(case.requests, text_format=case.text_format, conversational=False)
        records = [records[row] for row in case.rows]
    prompts = [record["prompt"] for record in records]
    return trainer._calculate_rewards(records, prompts, completions, token_ids).T.tolist()


@pytest.mark.parametrize("conversational", [False, True], ids=["standard", "conversational"])
def test_trl_reports_the_contracts_numbers(trainer_of: Callable[..., Any], conversational: bool) -> None:
    compared = 0
    for case in cases():
        texts = (*REWARDS, OF_GROUPS)
        rewards = [TrlReward(reward, case.text_format) for reward in texts]
        dataset, _ = dataset_and_reward(case.requests, conversational=conversational)
        trainer = trainer_of(dataset, rewards)
        reported = through(trainer, case, conversational=conversational)
        for reward, values in zip(texts, reported, strict=True):
            assert values == case.expected(reward).total_B.astype(np.float32).tolist(), (case.text_format, reward)
        compared += len(case.completions)
        pending = trainer._pending_metrics
        assert pending["gain/valid"] == [pytest.approx(np.mean([not verdict for verdict in case.verdicts]))]
    assert compared == COMPLETIONS


@pytest.mark.parametrize("conversational", [False, True], ids=["standard", "conversational"])
def test_a_training_run_pays_what_the_scorer_says(
    trainer_of: Callable[..., Any], requests: Requests, taught: Any, conversational: bool
) -> None:
    dataset, reward = dataset_and_reward(requests, "gain", conversational=conversational)
    trainer = trainer_of(dataset, reward, model=taught)
    trainer.train()
    # The completions of the last batch, whose prompts say which request they answer.
    row_of = {json.dumps(prompt): row for row, prompt in enumerate(dataset["prompt"])}
    rows = [row_of[json.dumps(prompt)] for prompt in trainer._logs["prompt"]]
    expected = Scorer("gain")(list(trainer._logs["completion"]), requests.slates.take(rows))
    assert list(trainer._logs["rewards"]["gain"]) == expected.total_B.astype(np.float32).tolist()
    assert 0.0 < expected.valid_B.mean() < 1.0  # it is worth comparing
    last = [entry for entry in trainer.state.log_history if "rewards/gain/mean" in entry][-1]
    assert last["rewards/gain/mean"] == pytest.approx(expected.total_B.mean(), abs=1e-6)
    assert last["gain/valid"] == pytest.approx(expected.valid_B.mean())
    assert last["gain/verdict/duplicate"] == pytest.approx((expected.verdicts_B == Verdict.DUPLICATE).mean())
    assert {"gain/identity", "gain/near_identity", "gain/failed"} <= last.keys()
    assert last["grad_norm"] > 0


def test_trl_leaves_an_abstaining_answer_out_of_its_group(trainer_of: Callable[..., Any], requests: Requests) -> None:
    isolated = FunctionReward(fails_on_the_last, name="picky", low=0, high=1, invalid=-2, on_error="isolate")
    dataset, reward = dataset_and_reward(requests, isolated, on_failure="abstain")
    trainer = trainer_of(dataset, reward)
    rows, texts = [dataset[0]] * 3, ["[1, 2, 3]", "[3, 1, 2]", "nonsense"]
    prompts, completions = [row["prompt"] for row in rows], [as_messages(text) for text in texts]
    values = trainer._calculate_rewards(rows, prompts, completions, [[1]] * 3)
    assert values[0].tolist() == [1.0] and values[2].tolist() == [-2.0]
    assert math.isnan(values[1].item())  # TRL's own sign for None


def test_trl_passes_the_error_of_a_missing_column_on(trainer_of: Callable[..., Any], requests: Requests) -> None:
    dataset, reward = dataset_and_reward(requests, "gain")
    with pytest.raises(InputError, match="column 'relevance' is missing"):
        trainer_of(dataset.remove_columns("relevance"), reward).train()


def test_an_environment_scores_what_a_model_hands_in_through_the_tool(
    trainer_of: Callable[..., Any], requests: Requests
) -> None:
    from tiny import taught_model, tiny_tokenizer
    from trl.chat_template_utils import qwen3_chat_template

    # Two long tokens make a call short enough for a model of one layer to learn; the text is that of any Qwen3 model.
    before, after = '<tool_call>\n{"name": "submit_ranking", "arguments": {"ranking": [', "]}}\n</tool_call>"
    signs = tiny_tokenizer(qwen3_chat_template, whole=(before, after))
    dataset, _ = dataset_and_reward(requests, "gain")
    environment = environment_factory("gain")()
    prompts = []
    for row in dataset:
        *before_it, asked = row["prompt"]
        asked["content"] += environment.reset(**row)
        prompts.append(chat(signs, [*before_it, asked], tools=[environment.submit_ranking]))
    trainer = trainer_of(
        dataset,
        model=taught_model(signs, prompts, [f"{before}2, 1, 3{after}"] * len(prompts)),
        signs=signs,
        environment_factory=environment_factory("gain"),
        max_completion_length=96,
        max_tool_calling_iterations=2,
    )
    trainer.train()
    row_of = {row["prompt"][-1]["content"]: row["request"] for row in dataset}
    rows, texts = [], []
    for prompt, turns in zip(trainer._logs["prompt"], trainer._logs["completion"], strict=True):
        rows.append(row_of[prompt[-1]["content"].partition("\n\nHand this")[0]])
        calls = turns[0].get("tool_calls") or []
        texts.append(json.dumps(calls[0]["function"]["arguments"]["ranking"]) if calls else "")
    expected = Scorer("gain")(texts, requests.slates.take(rows))
    assert list(trainer._logs["rewards"]["RerankTool"]) == expected.total_B.astype(np.float32).tolist()
    assert expected.valid_B.mean() > 0.5
    last = [entry for entry in trainer.state.log_history if "tools/call_frequency" in entry][-1]
    assert last["tools/call_frequency"] > 1.0 and last["tools/failure_frequency"] > 0.0  # it asks again, and is refused
