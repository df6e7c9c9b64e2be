"""On-policy distillation: its gradient against TRL's own trainer and a plain loop, the teacher, resuming, refusals."""

from __future__ import annotations

import copy
import json
import math
import signal
import subprocess
import sys
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

from datasets import Dataset
from tiny import taught_model, tiny_model, tiny_tokenizer
from transformers import TrainerCallback
from trl import DistillationConfig, DistillationTrainer

from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.data import Requests, load
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training.language.checkpoints import checkpoints
from rerank_env.training.language.dapo import DapoConfig, DapoTrainer
from rerank_env.training.language.divergences import token_divergence
from rerank_env.training.language.opd import OpdConfig, OpdTrainer, run
from rerank_env.training.language.teaching import FrozenTeacher, check_same_tokens

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),  # as TRL asks
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

NAMES = "prompt_ids", "prompt_mask", "completion_ids", "completion_mask"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", requests=8, slate_size=3, history=2)


def policy(tokenizer: Any, *, seed: int = 0) -> LanguagePolicy:
    model = tiny_model(tokenizer, seed=seed)
    with torch.no_grad():  # wide enough apart that a divergence is not a rounding error
        model.lm_head.weight.mul_(8.0)
    return LanguagePolicy(model, tokenizer, PromptWriter("list"))


def pure(**changes: Any) -> OpdConfig:
    """Distillation alone: two answers to different requests, one update, nothing clipped."""
    config = OpdConfig(
        steps=1,
        groups_per_step=4,
        group_size=1,
        reward_weight=0.0,
        distill_weight=1.0,
        learning_rate=1e-3,
        warmup_steps=0,
        max_grad_norm=1e9,
        max_tokens=6,
        micro_batch=4,
        save_every=1,
        seed=3,
    )
    return replace(config, **changes)


class Kept(TrainerCallback):
    """Keeps the gradients of every update."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        named = given["model"].named_parameters()
        self.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})


def one_update(trainer: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The gradient of one update, and the rollouts it came from."""
    kept = Kept()
    trainer.add_callback(kept)
    trainer.train()
    parts = trainer._buffered_inputs
    rollouts = {name: torch.cat([part[name] for part in parts]) for name in (*NAMES, "advantages", "tool_mask")}
    (gradient,) = kept.gradients
    return gradient, rollouts


@pytest.mark.parametrize(("kind", "beta"), [("reverse_kl", 1.0), ("forward_kl", 0.0), ("jsd", 0.3)])
def test_without_rewards_the_gradient_is_that_of_trls_distillation(
    tokenizer: Any, requests: Requests, tmp_path: Path, kind: str, beta: float
) -> None:
    student, teacher = policy(tokenizer), policy(tokenizer, seed=1)
    before = copy.deepcopy(student.model)
    config = pure(divergence=kind, jsd_beta=0.3, temperature=0.7)
    ours, rollouts = one_update(
        OpdTrainer(student, requests, "gain", config=config, directory=tmp_path / "ours", teacher=teacher)
    )
    theirs = DistillationTrainer(
        before,
        teacher_model=copy.deepcopy(teacher.model),
        args=DistillationConfig(
            output_dir=str(tmp_path / "theirs"),
            beta=beta,
            temperature=0.7,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"]}),
        processing_class=tokenizer,
    )
    total = rollouts["completion_mask"].sum()
    batch = {name: rollouts[name] for name in NAMES} | {"num_items_in_batch": total}
    before.train()
    theirs.compute_loss(before, batch).backward()  # both are sums over tokens divided by all tokens of the step
    expected = {name: p.grad for name, p in before.named_parameters() if p.grad is not None}
    assert max(float(grad.abs().max()) for grad in expected.values()) > 1e-3
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-3)


def test_the_gradient_is_the_weighted_sum_of_dapos_and_of_a_plain_loop(
    tokenizer: Any, requests: Requests, tmp_path: Path
) -> None:
    taught = policy(tokenizer)
    asked = [prompt.chat for prompt in taught.writer.write(requests)] * 6
    prompts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in asked]
    answers = ["[1, 2, 3]", "[3, 2, 1]", "[2, 3, 1]", "[2, 1, 3]"] * (len(prompts) // 4)
    taught.model = taught_model(tokenizer, prompts, answers)  # so that rewards differ inside groups
    teacher = policy(tokenizer, seed=1)
    common: dict[str, Any] = {
        "steps": 1,
        "groups_per_step": 4,
        "group_size": 4,
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "max_grad_norm": 1e9,
        "max_tokens": 12,
        "micro_batch": 4,
        "max_resamples": 0,
        "seed": 3,
    }
    plain, both = copy.deepcopy(taught), copy.deepcopy(taught)
    of_rewards, rollouts = one_update(
        DapoTrainer(plain, requests, "gain", config=DapoConfig(**common), directory=tmp_path / "dapo")
    )
    assert rollouts["advantages"].abs().sum() > 0
    config = OpdConfig(**common, reward_weight=0.5, distill_weight=0.2)
    found, again = one_update(
        OpdTrainer(both, requests, "gain", config=config, directory=tmp_path / "opd", teacher=teacher)
    )
    assert rollouts["completion_ids"].tolist() == again["completion_ids"].tolist()
    torch.testing.assert_close(again["advantages"], 0.5 * rollouts["advantages"])

    model, total = taught.model, torch.zeros(())
    for row in range(len(rollouts["prompt_ids"])):  # every answer, those of dead groups too
        prompt = rollouts["prompt_ids"][row][rollouts["prompt_mask"][row] == 1]
        answer = rollouts["completion_ids"][row][rollouts["completion_mask"][row] == 1]
        ids = torch.cat([prompt, answer])[None]
        log_s = model(input_ids=ids).logits[0].log_softmax(-1)
        with torch.no_grad():
            log_t = teacher.model(input_ids=ids).logits[0].log_softmax(-1)
        for place in range(len(prompt) - 1, len(ids[0]) - 1):
            total = total + (log_s[place].exp() * (log_s[place] - log_t[place])).sum()
    model.zero_grad()
    (total / rollouts["completion_mask"].sum()).backward()
    expected = {
        name: 0.5 * of_rewards[name] + 0.2 * p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


@torch.no_grad()
def distance(student: LanguagePolicy, teacher: LanguagePolicy, requests: Requests) -> float:
    """KL of the two laws of the first token of an answer, over all requests."""
    prompts = student.prompt_ids(student.ask(requests).prompts)
    laws = [[p.model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in prompts] for p in (student, teacher)]
    return float(token_divergence(*map(torch.stack, laws)).mean())


@pytest.mark.parametrize("form", ["full", "topk", "sampled"])
def test_the_student_comes_nearer_to_the_teacher_which_stays_as_it_is(
    tokenizer: Any, requests: Requests, tmp_path: Path, form: str
) -> None:
    student, teacher = policy(tokenizer), policy(tokenizer, seed=1)
    kept = copy.deepcopy(teacher.model.state_dict())
    found: list[float] = []
    config = pure(form=form, topk=64, steps=12, group_size=4, micro_batch=16, learning_rate=1e-2, save_every=99)
    before = distance(student, teacher, requests)
    run(
        student,
        requests,
        teacher,
        directory=tmp_path,
        config=config,
        on_log=lambda _step, values: found.append(values["divergence"]),
    )
    assert len(found) == 12 and all(math.isfinite(value) and value > 0 for value in found)
    assert distance(student, teacher, requests) < 0.8 * before
    assert all(torch.equal(kept[name], weights) for name, weights in teacher.model.state_dict().items())


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_opd import OpdConfig, load, policy, run, tiny_tokenizer
import torch
torch.set_num_threads({threads})
tokenizer = tiny_tokenizer()
def killed(step, values):
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
run(
    policy(tokenizer), load("synthetic", requests=8, slate_size=3, history=2), policy(tokenizer, seed=1),
    directory=Path({directory!r}), config=OpdConfig(**{config!r}), on_log=killed,
)
"""


def test_a_run_that_was_killed_ends_with_the_weights_of_one_that_was_not(
    tokenizer: Any, requests: Requests, tmp_path: Path
) -> None:
    teacher, whole = policy(tokenizer, seed=1), policy(tokenizer)
    config = pure(steps=4, save_every=2, reward_weight=1.0, distill_weight=0.1, group_size=2, max_resamples=1)
    run(whole, requests, teacher, directory=tmp_path / "whole", config=config)
    here = Path(__file__).parent
    script = KILLED.format(
        path=[str(here), str(here.parents[1] / "benchmarks")],
        threads=torch.get_num_threads(),
        directory=str(tmp_path / "broken"),
        config={part.name: getattr(config, part.name) for part in fields(config) if part.name != "stopping"},
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [path.name for path in checkpoints(tmp_path / "broken")] == ["checkpoint-2"]
    with pytest.raises(InputError, match=r"started with config\.teacher"):
        run(policy(tokenizer), requests, policy(tokenizer, seed=2), directory=tmp_path / "broken", config=config)
    again = policy(tokenizer)
    run(again, requests, teacher, directory=tmp_path / "broken", config=config)
    for (name, p), (_, q) in zip(again.model.named_parameters(), whole.model.named_parameters(), strict=True):
        assert torch.equal(p, q), name


def altered(tokenizer: Any, change: Any) -> Any:
    """The tokenizer with another file."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    described = json.loads(tokenizer.backend_tokenizer.to_str())
    change(described)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def test_tokens_are_compared_one_by_one_and_the_first_that_differs_is_named(tokenizer: Any) -> None:
    check_same_tokens(tokenizer, altered(tokenizer, lambda described: None))

    def swapped(described: Any) -> None:
        vocabulary = described["model"]["vocab"]
        vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]

    number = tokenizer.convert_tokens_to_ids("A")
    same_size = altered(tokenizer, swapped)
    assert len(same_size) == len(tokenizer)
    with pytest.raises(InputError, match=rf"token 'A' is {number} for the student but {number + 1} for the teacher"):
        check_same_tokens(tokenizer, same_size)
    more = altered(tokenizer, lambda described: None)
    more.add_tokens(["<a_1>"])
    with pytest.raises(InputError, match=r"token '<a_1>' is missing for the student but \d+ for the teacher"):
        check_same_tokens(tokenizer, more)
    with pytest.raises(InputError, match=r"token '<a_1>' is \d+ for the student but missing for the teacher"):
        check_same_tokens(more, tokenizer)
    with pytest.raises(InputError, match="the student has 300 logits but the teacher 304"):
        check_same_tokens(tokenizer, tokenizer, sizes=(300, 304))


def test_a_teacher_that_cannot_teach_is_refused_before_anything_is_trained(
    tokenizer: Any, requests: Requests, tmp_path: Path
) -> None:
    student, wider = policy(tokenizer), policy(tokenizer, seed=1)
    wider.model.resize_token_embeddings(len(tokenizer) + 8)
    with pytest.raises(InputError, match="resize one of them"):
        OpdTrainer(student, requests, "gain", config=pure(), directory=tmp_path, teacher=wider)
    with pytest.raises(InputError, match="the student itself"):
        run(student, requests, student, directory=tmp_path, config=pure())
    assert list(tmp_path.iterdir()) == []


def test_the_teacher_reads_the_same_whatever_the_padding_is(tokenizer: Any) -> None:
    student, teacher = policy(tokenizer), policy(tokenizer, seed=1)
    frozen = FrozenTeacher(teacher, student)
    prompt, answer = torch.tensor([[5, 9, 7]]), torch.tensor([[8, 6]])
    bare = {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": answer,
        "completion_mask": torch.ones_like(answer),
    }
    sides = {"prompt": (2, 0), "completion": (0, 3)}
    padded = {name: torch.nn.functional.pad(bare[name], sides[name.split("_")[0]]) for name in bare}
    expected = teacher.model(input_ids=torch.cat([prompt, answer], dim=1)).logits[:, 2:4]
    torch.testing.assert_close(frozen.logits(bare), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(frozen.logits(padded)[:, :2], expected, atol=1e-5, rtol=1e-4)
    assert not frozen.logits(bare).requires_grad


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="both 0"):
        pure(distill_weight=0.0)
    with pytest.raises(InputError, match="group_size is 1 but rewards count"):
        pure(reward_weight=1.0)
    with pytest.raises(InputError, match="k1 is zero in expectation"):
        pure(form="sampled", estimator="k1")
    with pytest.raises(InputError, match="cannot be estimated"):
        pure(form="sampled", divergence="jsd")
    with pytest.raises(InputError, match="reward_weight"):
        pure(reward_weight=-1.0)
    with pytest.raises(UnknownNameError, match="divergence"):
        pure(divergence="kl")
