"""Weighted fine-tuning: the loss against plain loops and TRL's own, resuming, and what is refused.

Longer than other files because runs that are killed or shared by processes import its model and examples.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

from datasets import Dataset
from tiny import tiny_model, tiny_tokenizer
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from rerank_env.rewards.errors import DivergedError, InputError
from rerank_env.training.language.batches import POOL_BATCHES, Collator, LengthSortedSampler
from rerank_env.training.language.checkpoints import WHOLE, checkpoints
from rerank_env.training.language.sft import SftConfig, WeightedSFTTrainer, run
from rerank_env.training.language.sft_settings import arguments

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),  # as TRL and PEFT ask
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

Example = dict[str, list[Any]]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


def examples(tokenizer: Any, count: int = 12, *, seed: int = 0, weights: Sequence[float] = (0.3, 1.0)) -> Dataset:
    """Prompts and answers of random tokens and lengths; the first half of an answer is reasoning."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        prompt, reasoning, answer = (
            rng.integers(3, len(tokenizer), size).tolist() for size in rng.integers(2, 9, size=3)
        )
        told = [*reasoning, *answer]
        rows.append(
            {
                "input_ids": [*prompt, *told],
                "labels": [-100] * len(prompt) + told,
                "loss_weights": [0.0] * len(prompt) + [weights[0]] * len(reasoning) + [weights[1]] * len(answer),
                "roles": [-1] * len(prompt) + [0] * len(reasoning) + [1] * len(answer),
            }
        )
    return Dataset.from_list(rows)


def by_hand(model: Any, rows: Sequence[Example], *, part: int | None = None) -> Tensor:
    """The weighted mean over all tokens, example by example and token by token; of the tokens of one role alone."""
    total, count = torch.zeros(()), 0.0
    for row in rows:
        log_p_TV = model(input_ids=torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
        for place in range(1, len(row["input_ids"])):
            weight = row["loss_weights"][place] if part is None else float(row["roles"][place] == part)
            if weight and row["labels"][place] != -100:
                total = total - weight * log_p_TV[place - 1, row["labels"][place]]
                count += weight
    return total / count


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


class Gradients(TrainerCallback):
    """Keeps the gradients of the last update."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.kept = gradients(given["model"])


def test_the_loss_is_the_weighted_mean_of_a_plain_loop(tokenizer: Any, tmp_path: Path) -> None:
    model, rows = tiny_model(tokenizer), examples(tokenizer)
    trainer = _trainer(model, tokenizer, rows, tmp_path)
    batch = Collator(tokenizer.pad_token_id)([*rows])
    expected = by_hand(model, [*rows])
    torch.testing.assert_close(trainer.compute_loss(trainer.model, batch), expected)
    trainer._keeps_logits = False  # TRL's fused head, as on accelerators
    torch.testing.assert_close(trainer.compute_loss(trainer.model, batch), expected)


@pytest.mark.parametrize("micro", [12, 4, 1])
def test_the_gradient_of_an_update_is_that_of_a_plain_loop_however_it_is_accumulated(
    tokenizer: Any, tmp_path: Path, micro: int
) -> None:
    model, rows = tiny_model(tokenizer), examples(tokenizer)
    reference = copy.deepcopy(model)
    by_hand(reference, [*rows]).backward()
    kept = Gradients()
    trainer = _trainer(model, tokenizer, rows, tmp_path, micro_batch=micro, callbacks=[kept])
    trainer.train()
    assert trainer.state.global_step == 1
    torch.testing.assert_close(kept.kept, gradients(reference), atol=1e-6, rtol=1e-4)
    reported = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert reported["loss"] == pytest.approx(by_hand(reference, [*rows]).item(), rel=1e-5)
    for role, name in enumerate(("reasoning", "answer")):
        assert reported[name] == pytest.approx(by_hand(reference, [*rows], part=role).item(), rel=1e-5)


@pytest.mark.parametrize("micro", [12, 3])
def test_with_weights_of_one_the_gradient_is_that_of_trl(tokenizer: Any, tmp_path: Path, micro: int) -> None:
    rows = examples(tokenizer, weights=(1.0, 1.0))
    model = tiny_model(tokenizer)
    ours, theirs = Gradients(), Gradients()
    trainer = _trainer(copy.deepcopy(model), tokenizer, rows, tmp_path / "a", micro_batch=micro, callbacks=[ours])
    trainer.train()
    args = arguments(_config(micro_batch=micro), tmp_path / "b", model, evaluates=False)
    plain = rows.select_columns(["input_ids", "labels"])
    reference = SFTTrainer(model, args=args, train_dataset=plain, processing_class=tokenizer, callbacks=[theirs])
    reference.train()
    torch.testing.assert_close(ours.kept, theirs.kept, atol=1e-6, rtol=1e-4)
    pair = [next(e["loss"] for e in t.state.log_history if "loss" in e) for t in (trainer, reference)]
    assert pair[0] == pytest.approx(pair[1], rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_a_batch_without_weight_has_loss_zero_and_gradient_exactly_zero(
    tokenizer: Any, tmp_path: Path, fused: bool
) -> None:
    rows = examples(tokenizer, weights=(0.0, 0.0))
    model = tiny_model(tokenizer)
    trainer = _trainer(model, tokenizer, rows, tmp_path)
    trainer._keeps_logits = not fused
    loss = trainer.compute_loss(model, Collator(tokenizer.pad_token_id)([*rows]))
    loss.backward()
    assert loss.item() == 0.0
    assert all((grad == 0).all() for grad in gradients(model).values()) and gradients(model)


def test_what_is_evaluated_is_the_loss_of_the_whole_set(tokenizer: Any, tmp_path: Path) -> None:
    model, rows = tiny_model(tokenizer), examples(tokenizer, 7, seed=1)
    found: list[Any] = []
    config = _config(lr=1e-12, micro_batch=3, batch=3)
    run(
        model,
        tokenizer,
        rows,
        directory=tmp_path,
        config=replace(config, epochs=1, max_steps=None),
        eval_dataset=rows,
        on_log=lambda step, values: found.append((step, dict(values))),
    )
    step, values = next(entry for entry in found if "eval_loss" in entry[1])
    assert step == 3
    assert values["eval_loss"] == pytest.approx(by_hand(model, [*rows]).item(), rel=1e-5)
    assert values["eval_answer"] == pytest.approx(by_hand(model, [*rows], part=1).item(), rel=1e-5)


def test_trl_is_left_no_trace_in_the_model_and_it_learns(tokenizer: Any, tmp_path: Path) -> None:
    model, rows = tiny_model(tokenizer), examples(tokenizer)
    before = by_hand(model, [*rows]).item()
    result = run(model, tokenizer, rows, directory=tmp_path, config=_config(lr=1e-2, max_steps=15))
    assert result.model is model and not model.training and result.steps == 15
    assert "forward" not in vars(model)
    assert by_hand(model, [*rows]).item() < before - 0.2


def test_adapters_learn_and_the_weights_under_them_stay(tokenizer: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, rows = tiny_model(tokenizer), examples(tokenizer)
    before = {name: p.clone() for name, p in model.named_parameters()}
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    result = run(model, tokenizer, rows, directory=tmp_path, config=_config(lr=1e-2, max_steps=5), peft_config=adapter)
    assert isinstance(result.model, peft.PeftModel)
    after = dict(result.model.get_base_model().named_parameters())
    for name, p in before.items():
        head, _, last = name.rpartition(".")
        found = after.get(name, after.get(f"{head}.base_layer.{last}"))
        assert found is not None and torch.equal(found, p)
    moved = [p for name, p in result.model.named_parameters() if "lora_B" in name]
    assert moved and all((p != 0).any() for p in moved)
    again = run(
        tiny_model(tokenizer),
        tokenizer,
        rows,
        directory=tmp_path,
        config=_config(lr=1e-2, max_steps=5),
        peft_config=adapter,
    )
    assert_same(again.model, result.model)  # read back, as it is finished
    assert adapter.base_model_name_or_path is None  # what was given is not written into
    other = peft.LoraConfig(r=2, target_modules=["v_proj", "q_proj"], task_type="CAUSAL_LM")
    with pytest.raises(InputError, match=r"started with adapter\.r 4 but now it is 2"):
        run(model, tokenizer, rows, directory=tmp_path, config=_config(lr=1e-2, max_steps=5), peft_config=other)
    policy = SimpleNamespace(model=result.model, tokenizer=tokenizer)
    more = run(policy, None, rows, directory=tmp_path / "more", config=_config(lr=1e-2, max_steps=3))
    assert more.model is policy.model and "forward" not in vars(more.model.get_base_model())
    assert by_hand(more.model, [*rows]).item() < by_hand(again.model, [*rows]).item()


def test_a_loss_that_is_no_number_is_an_error_and_the_checkpoint_before_it_goes_on(
    tokenizer: Any, tmp_path: Path
) -> None:
    rows = examples(tokenizer)
    config = _config(max_steps=5, save_every=2, batch=4, micro_batch=4)
    whole = run(tiny_model(tokenizer), tokenizer, rows, directory=tmp_path / "whole", config=config)
    model = tiny_model(tokenizer)

    def poison(step: int, values: Any) -> None:
        if step == 3:
            next(model.parameters()).data.fill_(float("nan"))

    with pytest.raises(DivergedError, match="the loss of update 4 is nan.* lower learning rate"):
        run(model, tokenizer, rows, directory=tmp_path / "hurt", config=config, on_log=poison)
    assert [path.name for path in checkpoints(tmp_path / "hurt")] == ["checkpoint-2"]
    again = run(tiny_model(tokenizer), tokenizer, rows, directory=tmp_path / "hurt", config=config)
    assert again.steps == 5
    assert_same(again.model, whole.model)


FULL = """
import resource, sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_sft import SftConfig, examples, run, tiny_model, tiny_tokenizer
import torch
from rerank_env.rewards.errors import CheckpointError
torch.set_num_threads({threads})
tokenizer, _, hard = tiny_tokenizer(), *resource.getrlimit(resource.RLIMIT_FSIZE)
for part in ("model", "optimizer"):  # the files are refused by safetensors and by PyTorch
    place = Path({directory!r}) / part
    def narrow(step, values):
        if step == 3:
            size = (place / "checkpoint-2" / "model.safetensors").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2 if part == "model" else size + 1000, hard))
    try:
        run(tiny_model(tokenizer), tokenizer, examples(tokenizer), directory=place, config={config!r}, on_log=narrow)
    except CheckpointError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print(error)
"""


def test_a_disk_that_refuses_is_told_in_a_sentence_and_the_run_goes_on_later(tokenizer: Any, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    config = _config(max_steps=5, save_every=2, batch=4, micro_batch=4)
    here = Path(__file__).parent
    script = FULL.format(
        path=[str(here), str(here.parents[1] / "benchmarks")],
        threads=torch.get_num_threads(),
        directory=str(tmp_path),
        config=config,
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stdout.splitlines() if line.startswith("checkpoint 4 in ")]
    assert len(told) == 2 and all("could not be written" in line for line in told), ended.stdout
    whole = run(tiny_model(tokenizer), tokenizer, examples(tokenizer), directory=tmp_path / "whole", config=config)
    for place in (tmp_path / "model", tmp_path / "optimizer"):
        assert [path.name for path in checkpoints(place)] == ["checkpoint-2"]
        again = run(tiny_model(tokenizer), tokenizer, examples(tokenizer), directory=place, config=config)
        assert again.steps == 5
        assert_same(again.model, whole.model)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_sft import SftConfig, examples, run, tiny_model, tiny_tokenizer
import torch
torch.set_num_threads({threads})
tokenizer = tiny_tokenizer()
def killed(step, values):
    if step == 8:
        os.kill(os.getpid(), signal.SIGKILL)
rows, place = examples(tokenizer), Path({directory!r})
run(tiny_model(tokenizer), tokenizer, rows, directory=place, config={config!r}, on_log=killed)
"""


def test_a_run_that_was_killed_ends_with_the_weights_of_one_that_was_not(tokenizer: Any, tmp_path: Path) -> None:
    rows = examples(tokenizer)
    config = SftConfig(lr=1e-2, epochs=4, batch=4, micro_batch=2, save_every=4, log_every=1, seed=5)
    whole = run(tiny_model(tokenizer), tokenizer, rows, directory=tmp_path / "whole", config=config)
    here = Path(__file__).parent
    script = KILLED.format(
        path=[str(here), str(here.parents[1] / "benchmarks")],
        threads=torch.get_num_threads(),
        directory=str(tmp_path / "killed"),
        config=config,
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [path.name for path in checkpoints(tmp_path / "killed")] == ["checkpoint-4"]  # in the second epoch of 3
    again = run(tiny_model(tokenizer, seed=9), tokenizer, rows, directory=tmp_path / "killed", config=config)
    assert again.steps == whole.steps == 12
    assert_same(again.model, whole.model)


SHARED = """
import os, sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_sft import SftConfig, examples, run, tiny_model, tiny_tokenizer
import torch
torch.set_num_threads(1)
tokenizer, place = tiny_tokenizer(), Path({directory!r})
rows, held_out = examples(tokenizer), examples(tokenizer, 5, seed=2)
result = run(tiny_model(tokenizer), tokenizer, rows, directory=place, config={config!r}, eval_dataset=held_out)
torch.save([result.model.state_dict(), *result.log], place / ("rank" + os.environ["RANK"]))
torch.distributed.destroy_process_group()  # whose threads may else outlive the interpreter
"""


@pytest.mark.slow
def test_two_processes_learn_and_report_what_one_does(tokenizer: Any, tmp_path: Path) -> None:
    config = SftConfig(lr=1e-2, epochs=2, batch=4, micro_batch=1, log_every=1, max_grad_norm=1e9)
    one = run(
        tiny_model(tokenizer),
        tokenizer,
        examples(tokenizer),
        directory=tmp_path / "one",
        config=config,
        eval_dataset=examples(tokenizer, 5, seed=2),
    )
    here, script = Path(__file__).parent, tmp_path / "shared.py"
    path = [str(here), str(here.parents[1] / "benchmarks")]
    script.write_text(SHARED.format(path=path, directory=str(tmp_path / "two"), config=config))
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    for rank in range(2):
        weights, *log = torch.load(tmp_path / "two" / f"rank{rank}", weights_only=True)
        for name, found in weights.items():
            torch.testing.assert_close(found, one.model.state_dict()[name], atol=1e-5, rtol=1e-4)
        for entry, other in zip(one.log, log, strict=True):
            for name in entry.keys() & {"loss", "eval_loss", "reasoning", "answer", "eval_answer"}:
                assert other[name] == pytest.approx(entry[name], rel=1e-4), name


def test_a_torn_checkpoint_is_passed_over_and_a_finished_run_is_not_repeated(tokenizer: Any, tmp_path: Path) -> None:
    rows = examples(tokenizer)
    config = _config(max_steps=4, save_every=2, batch=4, micro_batch=4)
    whole = run(tiny_model(tokenizer), tokenizer, rows, directory=tmp_path, config=config)
    steps: list[int] = []
    finished = run(
        tiny_model(tokenizer, seed=3),
        tokenizer,
        rows,
        directory=tmp_path,
        config=config,
        on_log=lambda step, values: steps.append(step) if "loss" in values else None,
    )
    assert steps == []
    assert_same(finished.model, whole.model)
    last = checkpoints(tmp_path)[-1]
    (last / WHOLE).unlink()
    (last / "model.safetensors").write_bytes(b"torn")
    again = run(tiny_model(tokenizer, seed=3), tokenizer, rows, directory=tmp_path, config=config)
    assert_same(again.model, whole.model)


def test_a_directory_of_another_run_is_refused_or_forgotten(tokenizer: Any, tmp_path: Path) -> None:
    rows = examples(tokenizer)
    config = _config(max_steps=2)
    run(tiny_model(tokenizer), tokenizer, rows, directory=tmp_path, config=config)
    with pytest.raises(InputError, match=r"started with config\.lr"):
        run(tiny_model(tokenizer), tokenizer, rows, directory=tmp_path, config=replace(config, lr=0.5))
    with pytest.raises(InputError, match="started with examples"):
        run(tiny_model(tokenizer), tokenizer, examples(tokenizer, seed=1), directory=tmp_path, config=config)
    other = run(
        tiny_model(tokenizer), tokenizer, examples(tokenizer, seed=1), directory=tmp_path, config=config, resume=False
    )
    assert other.steps == 2


def test_what_cannot_be_trained_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    model = tiny_model(tokenizer)
    long = Dataset.from_list([{"input_ids": [5] * 4097, "labels": [5] * 4097}])
    with pytest.raises(InputError, match="4097 tokens but the model reads 4096"):
        run(model, tokenizer, long, directory=tmp_path)
    with pytest.raises(InputError, match="no examples"):
        run(model, tokenizer, long.select([]), directory=tmp_path)
    with pytest.raises(InputError, match="no tokenizer"):
        run(model, None, examples(tokenizer), directory=tmp_path)
    with pytest.raises(InputError, match="batch is 7"):
        run(model, tokenizer, examples(tokenizer), directory=tmp_path, config=SftConfig(batch=7, micro_batch=2))
    for wrong in ({"lr": 0.0}, {"epochs": 0}, {"warmup": 1.5}, {"weight_decay": -1.0}, {"micro_batch": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            SftConfig(**wrong)


@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=400), batch=st.integers(1, 9), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_every_row_comes_once_an_epoch_and_only_the_last_batch_is_incomplete(
    lengths: list[int], batch: int, seed: int
) -> None:
    sampler = LengthSortedSampler(lengths, batch, seed=seed)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append([*sampler])
        assert sorted(orders[-1]) == list(range(len(lengths)))
    assert orders[0] == orders[2]
    if len(lengths) > 20:
        assert orders[0] != orders[1]
    if len(lengths) <= batch * POOL_BATCHES:  # one pool: the ranges of lengths of two batches do not overlap
        cuts = [orders[0][first : first + batch] for first in range(0, len(lengths), batch)]
        spans = sorted((min(lengths[row] for row in cut), max(lengths[row] for row in cut)) for cut in cuts)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_padding_may_be_the_token_that_ends_an_answer() -> None:
    batch = Collator(7)([{"input_ids": [1, 7], "labels": [-100, 7]}, {"input_ids": [2], "labels": [2]}])
    assert batch["input_ids"].tolist() == [[1, 7], [2, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["labels"].tolist() == [[-100, 7], [2, -100]]


def assert_same(one: Any, other: Any) -> None:
    """The same weights, bit for bit."""
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p, q), name


def _config(**changes: Any) -> SftConfig:
    """One update on all twelve examples, not clipped."""
    return replace(
        SftConfig(lr=1e-3, batch=12, micro_batch=12, max_steps=1, max_grad_norm=1e9, log_every=1, warmup=0.0), **changes
    )


def _trainer(
    model: Any, tokenizer: Any, rows: Dataset, directory: Path, *, callbacks: Sequence[Any] = (), **changes: Any
) -> WeightedSFTTrainer:
    args: SFTConfig = arguments(_config(**changes), directory, model, evaluates=False)
    return WeightedSFTTrainer(model, args, rows, processing_class=tokenizer, callbacks=[*callbacks])
