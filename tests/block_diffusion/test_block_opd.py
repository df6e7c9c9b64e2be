"""Distillation of a block-diffusion policy: against a plain loop, what is cut, the teacher, resuming, refusals.

Longer than other files because all of it measures one trainer on one student and one teacher, made here.
"""

from __future__ import annotations

import copy
import math
import signal
import subprocess
import sys
from dataclasses import fields, replace
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

import torch
from torch import Tensor
from transformers import TrainerCallback

from rerank_env.agents.block_diffusion import BlockDecoding, BlockDiffusionPolicy, Blocks, Canvas, Row, convert
from rerank_env.agents.block_diffusion.model import canvas_logits
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.data import Requests, load
from rerank_env.prompts import PromptWriter, ask
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training.block_diffusion.cuts import learned
from rerank_env.training.block_diffusion.dapo import BlockDapoConfig, BlockDapoTrainer
from rerank_env.training.block_diffusion.opd import BlockOpdConfig, BlockOpdTrainer, common, run
from rerank_env.training.block_diffusion.parts import parts_of
from rerank_env.training.language.checkpoints import checkpoints
from rerank_env.training.language.divergences import token_divergence
from rerank_env.training.language.teaching import FrozenTeacher, check_same_tokens

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),  # as TRL asks
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

FORM = "tagged-list"

ANSWERS = "<think>Drama.</think><answer>[3, 1, 2]</answer>", "<answer>[2, 1, 3]</answer>"


@cache
def requests() -> Requests:
    return load("synthetic", requests=6, slate_size=3, history=1)


@cache
def tokenizer() -> Any:
    prompts = [prompt.text for prompt in ask(requests(), PromptWriter(FORM)).prompts]
    return build_tokenizer(prompts * 3 + [*ANSWERS], vocab_size=900)  # large for short prompts


@cache
def begun(seed: int, *, updates: int = 60, width: int = 16, layers: int = 1, read: int = 20) -> LanguagePolicy:
    """A policy that has begun to answer: its answers hold the signs of reasons and rankings, and are wrong.

    `read`: how much of a prompt it was taught with.
    """
    policy = LanguagePolicy(
        build_model(tokenizer(), width=width, layers=layers, heads=2, seed=seed), tokenizer(), PromptWriter(FORM)
    )
    prompts = policy.prompt_ids(policy.ask(requests()).prompts)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=2e-2)
    for update in range(updates):
        for turn, text in enumerate(ANSWERS):
            prompt, answer = prompts[(update + turn) % len(prompts)][-read:], policy.completion_ids(text)
            ids = torch.tensor([[*prompt, *answer]])
            policy.model(input_ids=ids, labels=torch.tensor([[-100] * len(prompt) + answer])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    policy.model.eval()
    return policy


def teacher_of(seed: int = 2) -> LanguagePolicy:
    return copy.deepcopy(begun(seed))


def student_of(*, seed: int = 3, size: int = 3, rule: str = "threshold(0.4)") -> BlockDiffusionPolicy:
    return convert(begun(seed), blocks=Blocks(size), decoding=BlockDecoding(rule))


def pure(**changes: Any) -> BlockOpdConfig:
    """Distillation alone, two answers to a request, one update, nothing clipped."""
    config = BlockOpdConfig(
        steps=1,
        groups_per_step=4,
        group_size=2,
        learning_rate=1e-3,
        max_grad_norm=1e9,
        temperature=0.8,
        teacher_temperature=1.3,
        max_tokens=11,
        micro_batch=4,
        save_every=1,
        topk=10**6,
        seed=3,
    )
    return replace(config, **changes)


def trainer_of(
    directory: Path, config: BlockOpdConfig, *, student: BlockDiffusionPolicy | None = None, teacher: Any = None
) -> BlockOpdTrainer:
    return BlockOpdTrainer(
        student_of() if student is None else student,
        requests(),
        "gain",
        config=config,
        directory=directory,
        teacher=teacher_of() if teacher is None else teacher,
    )


def plain_canvases(trainer: BlockOpdTrainer, number: int) -> list[tuple[list[int], int, int]]:
    """Of a rollout, for each target, the canvas, its block and the place: token by token, from what was recorded."""
    told, config, size = trainer.written[number].trajectory, trainer.config, trainer.policy.blocks.size
    assert told is not None
    most = learned(told.tokens, decode=lambda some: trainer.policy.texts([some])[0], text_format=FORM, size=3)
    rng, found = np.random.default_rng([config.seed, *trainer.keys[number], 3]), []
    for start in range(0, most, size):
        span = range(start, min(start + size, len(told.written)))
        targets = [place for place in span if place < most]
        drawn = None
        if config.places == "hidden":
            drawn = int(rng.integers(max(told.committed[place] for place in targets) + 1))
        for place in targets:
            when = told.committed[place] if drawn is None else drawn
            canvas = [told.written[at] if -1 < told.committed[at] < when else told.mask_id for at in span]
            if canvas[place - start] == told.mask_id:
                found.append((canvas, start // size, place - start))
    return found


def plain_laws(trainer: BlockOpdTrainer, model: Any) -> list[tuple[int, Tensor, Tensor]]:
    """Of every target of a step its part, and the log-laws of student and teacher: one canvas, one prefix at a time."""
    config, policy, size = trainer.config, trainer.policy, trainer.policy.blocks.size
    found = []
    for number, written in enumerate(trainer.written):
        parts = parts_of(policy.tokenizer, written.completion, FORM)
        for canvas, block, place in plain_canvases(trainer, number):
            at = block * size + place
            row = Row(written.prompt, written.completion[: block * size], [Canvas(block, canvas, [place])])
            (logits,) = canvas_logits(model, [row], blocks=policy.blocks, mask_id=policy.mask_id, pad_id=policy.pad_id)
            with torch.no_grad():
                read = torch.tensor([[*written.prompt, *written.completion[:at]]])
                last = trainer.frozen.model(input_ids=read).logits[0, -1]
            log_t = (last / config.teacher_temperature).log_softmax(-1)
            log_s = (logits[0, : len(last)] / config.temperature).log_softmax(-1)  # the mask token is the last
            found.append((int(parts[at]), log_s, log_t))
    return found


def plain_loss(laws: list[tuple[int, Tensor, Tensor]], config: BlockOpdConfig) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of these targets, and the sums of divergences and the targets of each part: one law at a time."""
    sums, counts, b = [torch.zeros(()), torch.zeros(())], [0, 0], config.jsd_beta
    for part, log_s, log_t in laws:
        t, s = log_t.exp(), log_s.exp()
        log_m = (b * t + (1 - b) * s).log()
        if config.divergence == "forward_kl":
            value = (t * (log_t - log_s)).sum()
        elif config.divergence == "reverse_kl":
            value = (s * (log_s - log_t)).sum()
        else:
            value = b * (t * (log_t - log_m)).sum() + (1 - b) * (s * (log_s - log_m)).sum()
        sums[part] = sums[part] + value
        counts[part] += 1
    weights = config.reasoning, config.answer
    loss = sum((w * one / n for w, one, n in zip(weights, sums, counts, strict=True) if n), torch.zeros(()))
    return config.distill_weight * loss, torch.stack(sums).detach(), torch.tensor(counts)


def gradient(loss: Tensor, model: Any) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), retain_graph=True))


@pytest.mark.parametrize("places", ["committed", "hidden"])
def test_loss_and_gradient_are_those_of_a_plain_loop(tmp_path: Path, places: str) -> None:
    trainer = trainer_of(tmp_path, pure(places=places, distill_weight=0.7))
    batch = trainer._generate_and_score_completions([0])
    model = trainer.policy.model
    laws = plain_laws(trainer, model)
    seen = set()
    for kind, form in product(("forward_kl", "reverse_kl", "jsd"), ("full", "topk")):
        trainer.config = replace(trainer.config, divergence=kind, form=form, jsd_beta=0.3)
        found = trainer.extra_loss(model, batch)
        expected, sums, counts = plain_loss(laws, trainer.config)
        assert found.item() == pytest.approx(expected.item(), rel=1e-4)
        torch.testing.assert_close(gradient(found, model), gradient(expected, model), atol=1e-5, rtol=1e-3)
        assert (counts > 2).all()  # both parts are there
        seen.add(round(float(sums.sum()), 3))
    assert len(seen) == 3


def test_three_way_laws_by_hand() -> None:
    # T = (1/2, 1/4, 1/4) and S = (1/4, 1/4, 1/2), beside a mask token that S may say anything of, and T, too.
    teacher, student = torch.tensor([[2.0, 1.0, 1.0, 7.0]]).log(), torch.tensor([[1.0, 1.0, 2.0, 9.0]]).log()
    laws = common(student, 3, 4), common(teacher, 3, 4)
    assert [len(law[0]) for law in laws] == [3, 3]
    forward = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert token_divergence(*laws, kind="forward_kl").item() == pytest.approx(forward)
    first = torch.tensor([[8.0, 1.0, 1.0]]).log(), torch.tensor([[1.0, 1.0, 2.0]]).log()  # T = (.8, .1, .1)
    assert token_divergence(common(first[1], 7, 3), common(first[0], 7, 3), kind="forward_kl").item() == pytest.approx(
        0.8 * math.log(0.8 / 0.25) + 0.1 * math.log(0.1 / 0.25) + 0.1 * math.log(0.1 / 0.5)
    )
    assert token_divergence(common(first[1], 7, 3), common(first[0], 7, 3), kind="reverse_kl").item() == pytest.approx(
        0.25 * math.log(0.25 / 0.8) + 0.25 * math.log(0.25 / 0.1) + 0.5 * math.log(0.5 / 0.1)
    )


class Kept(TrainerCallback):
    """Keeps the gradients of every update."""

    def __init__(self) -> None:
        self.gradients: list[list[Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.gradients.append([p.grad.clone() for p in given["model"].parameters() if p.requires_grad])


def test_an_update_of_many_micro_batches_is_the_mean_over_all_its_targets(tmp_path: Path) -> None:
    student = student_of()
    before = copy.deepcopy(student.model)
    trainer = trainer_of(tmp_path, pure(micro_batch=2), student=student)
    kept, lines = Kept(), list[dict[str, float]]()
    trainer.add_callback(kept)
    own = trainer.log

    def log(logs: dict[str, float], *rest: Any) -> None:
        own(logs, *rest)
        lines.append(dict(logs))

    trainer.log = log  # type: ignore[method-assign]
    trainer.train()
    expected, sums, counts = plain_loss(plain_laws(trainer, before), trainer.config)
    (found,) = kept.gradients
    torch.testing.assert_close(found, gradient(expected, before), atol=1e-5, rtol=1e-3)
    said = next(line for line in lines if "divergence" in line)
    assert said["divergence"] == pytest.approx(float(sums.sum() / counts.sum()), rel=1e-4)
    assert said["divergence_reasoning"] == pytest.approx(float(sums[0] / counts[0]), rel=1e-4)
    assert said["divergence_answer"] == pytest.approx(float(sums[1] / counts[1]), rel=1e-4)
    written = sum(len(one.completion) for one in trainer.written)
    assert said["cut"] == pytest.approx((written - int(counts.sum())) / written)
    assert 0 < said["cut"] < 1
    assert said["no_valid"] == 1.0  # and there was something to learn
    assert said["skipped"] == 0.0
    assert "ratio_max" not in said  # nothing was scored for rewards
    assert said["resamples"] == 0.0


@pytest.mark.parametrize(("updates", "micro"), [(1, 8), (2, 2)])
def test_the_teacher_reads_every_rollout_once_and_stays_as_it_is(tmp_path: Path, updates: int, micro: int) -> None:
    teacher = teacher_of()
    kept = copy.deepcopy(teacher.model.state_dict())
    trainer = trainer_of(tmp_path, pure(steps=2, updates_per_step=updates, micro_batch=micro), teacher=teacher)
    read: list[int] = []
    own = trainer.frozen.logits

    def logits(rollouts: Any) -> Tensor:
        read.append(len(rollouts["prompt_ids"]))
        return own(rollouts)

    trainer.frozen.logits = logits  # type: ignore[method-assign]
    trainer.train()
    assert sum(read) == 2 * 8
    assert read == [micro] * (16 // micro)
    assert all(torch.equal(kept[name], weights) for name, weights in teacher.model.state_dict().items())
    assert all(p.grad is None for p in teacher.model.parameters())


def test_prompts_of_a_group_are_read_by_the_teacher_once(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, pure(groups_per_step=2, group_size=4, micro_batch=8, shuffle="none"))
    seen: list[tuple[int, ...]] = []
    hook = trainer.frozen.model.register_forward_pre_hook(
        lambda _module, _given, named: seen.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    batch = trainer._generate_and_score_completions([0])
    trainer.extra_loss(trainer.policy.model, batch)
    hook.remove()
    assert [rows for rows, _ in seen] == [2, 8]  # prompts, then answers
    assert seen[1][1] < 11


def test_a_student_that_writes_token_by_token_starts_where_its_teacher_is(tmp_path: Path) -> None:
    config = pure(temperature=1.0, teacher_temperature=1.0)
    trainer = trainer_of(tmp_path, config, student=student_of(size=1), teacher=begun(3))
    batch = trainer._generate_and_score_completions([0])
    for kind in ("forward_kl", "reverse_kl", "jsd"):
        trainer.config = replace(config, divergence=kind)
        assert abs(trainer.extra_loss(trainer.policy.model, batch).item()) < 1e-6
    trainer.config = replace(config, teacher_temperature=2.0)
    assert trainer.extra_loss(trainer.policy.model, batch).item() > 1e-2


def test_parts_weigh_what_they_are_told(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, pure())
    batch = trainer._generate_and_score_completions([0])

    def weighed(reasoning: float, answer: float) -> float:
        trainer.config = replace(trainer.config, reasoning=reasoning, answer=answer)
        return trainer.extra_loss(trainer.policy.model, batch).item()

    reasoning, answer = weighed(1.0, 0.0), weighed(0.0, 1.0)
    assert reasoning > 0 < answer
    assert weighed(0.3, 2.0) == pytest.approx(0.3 * reasoning + 2.0 * answer, rel=1e-5)


def test_a_few_steps_bring_the_student_nearer_to_its_teacher(tmp_path: Path) -> None:
    config = pure(steps=12, learning_rate=1e-2, micro_batch=8, save_every=99)
    student, lines = student_of(), []
    first = trainer_of(tmp_path / "first", config, student=student)
    batch = first._generate_and_score_completions([0])  # of the student as it is now, to compare with
    before = first.extra_loss(student.model, batch).item()
    result = run(
        student, requests(), teacher_of(), directory=tmp_path / "run", config=config,
        on_log=lambda _step, values: lines.append(values),
    )  # fmt: skip
    assert result.policy is student
    assert [math.isfinite(values["divergence"]) and values["divergence"] > 0 for values in lines] == [True] * 12
    assert first.extra_loss(student.model, batch).item() < 0.7 * before


def test_rewards_and_the_teacher_are_learned_from_together(tmp_path: Path) -> None:
    able = begun(3, width=32, layers=2, read=300)  # writes both answers, whose rewards differ
    student = convert(able, blocks=Blocks(1), decoding=BlockDecoding("static(1)"))
    config = pure(group_size=4, temperature=1.0, max_tokens=18, max_resamples=0, micro_batch=16, reward_weight=0.5)
    trainer = trainer_of(tmp_path / "both", config, student=student)
    batch = trainer._generate_and_score_completions([0])
    loss = trainer._compute_loss(student.model, batch)
    of_rewards, of_teacher = trainer._surrogate(student.model, batch), trainer.extra_loss(student.model, batch)
    assert loss.item() == pytest.approx(of_rewards.item() + of_teacher.item(), rel=1e-5)
    torch.testing.assert_close(
        gradient(loss, student.model), gradient(of_rewards + of_teacher, student.model), atol=1e-6, rtol=1e-4
    )
    rewarded = {part.name: getattr(config, part.name) for part in fields(BlockDapoConfig)}
    alone = BlockDapoTrainer(
        student, requests(), "gain", config=BlockDapoConfig(**rewarded), directory=tmp_path / "alone"
    )
    again = alone._generate_and_score_completions([0])
    assert again["completion_ids"].tolist() == batch["completion_ids"].tolist()
    assert again["advantages"].abs().max() > 0.5
    torch.testing.assert_close(batch["advantages"], 0.5 * again["advantages"])
    assert alone._metrics["train"]["valid"][-1] > 0
    whole = [row for row, one in enumerate(trainer.written) if trainer.policy.texts([one.completion])[0] in ANSWERS]
    assert whole
    for number in whole:  # nothing of a right answer is cut, and its end is learned
        most = len(trainer.written[number].completion)
        assert trainer.written[number].completion[-1] in student.eos_ids
        assert sorted(trainer._taught[number].targets.places_N.tolist()) == list(range(most))


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{path!r}]
from test_block_opd import BlockOpdConfig, requests, run, student_of, teacher_of
import torch
torch.set_num_threads({threads})
def killed(step, values):
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
run(student_of(), requests(), teacher_of(), directory=Path({directory!r}), config=BlockOpdConfig(**{config!r}),
    on_log=killed)
"""


def test_a_run_that_was_killed_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    whole = student_of()
    config = pure(steps=4, save_every=2, micro_batch=8, places="hidden", reward_weight=1.0, max_resamples=1)
    run(whole, requests(), teacher_of(), directory=tmp_path / "whole", config=config)
    script = KILLED.format(
        path=str(Path(__file__).parent),
        threads=torch.get_num_threads(),
        directory=str(tmp_path / "broken"),
        config={part.name: getattr(config, part.name) for part in fields(config) if part.name != "stopping"},
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [path.name for path in checkpoints(tmp_path / "broken")] == ["checkpoint-2"]
    with pytest.raises(InputError, match=r"started with config\.teacher"):
        run(student_of(), requests(), teacher_of(1), directory=tmp_path / "broken", config=config)
    again = student_of()
    run(again, requests(), teacher_of(), directory=tmp_path / "broken", config=config)
    for (name, p), (_, q) in zip(again.model.named_parameters(), whole.model.named_parameters(), strict=True):
        assert torch.equal(p, q), name


def test_all_tokens_but_the_mask_have_to_be_the_same() -> None:
    student, teacher = student_of(), teacher_of()
    mask_id, size = student.mask_id, len(tokenizer())
    assert mask_id == size
    with pytest.raises(InputError, match=r"<\|mask\|>.*missing for the teacher"):
        FrozenTeacher(teacher, student)
    assert FrozenTeacher(teacher, student, mask_id=mask_id).size == size
    check_same_tokens(student.tokenizer, teacher.tokenizer, sizes=(size + 1, size), mask_id=mask_id)
    with pytest.raises(InputError, match=f"the student has {size + 2} logits but the teacher {size}"):
        check_same_tokens(student.tokenizer, teacher.tokenizer, sizes=(size + 2, size), mask_id=mask_id)
    with pytest.raises(InputError, match="missing for the teacher"):
        check_same_tokens(student.tokenizer, teacher.tokenizer, mask_id=3)
    other = copy.deepcopy(teacher.tokenizer)
    other.add_tokens(["<a_1>"])  # of the number that hides tokens, and one more
    check_same_tokens(student.tokenizer, other, mask_id=mask_id)
    other.add_tokens(["<a_2>"])
    with pytest.raises(InputError, match="token '<a_2>' is missing for the student"):
        check_same_tokens(student.tokenizer, other, mask_id=mask_id)


def test_a_mask_token_that_the_teacher_knows_is_left_out_of_both_laws(tmp_path: Path) -> None:
    spare = "!"
    known = convert(begun(3), blocks=Blocks(3), decoding=BlockDecoding("threshold(0.4)"), mask_token=spare)
    trainer = trainer_of(tmp_path, pure(), student=known)
    batch = trainer._generate_and_score_completions([0])
    before = trainer.extra_loss(known.model, batch).item()
    own = trainer.frozen.logits

    def sure(rollouts: Any) -> Tensor:
        return own(rollouts).index_fill(-1, torch.tensor([known.mask_id]), 50.0)

    trainer.frozen.logits = sure  # type: ignore[method-assign]
    assert known.mask_id < trainer.frozen.size == len(tokenizer())
    assert math.isfinite(before)
    assert trainer.extra_loss(known.model, batch).item() == pytest.approx(before, rel=1e-6)


def test_what_cannot_be_distilled_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    student = student_of()
    with pytest.raises(InputError, match="the student itself"):
        run(student, requests(), student, directory=tmp_path / "none", config=pure())
    student.decoding = replace(student.decoding, answer="plackett-luce")
    with pytest.raises(InputError, match="answers are filled in by plackett-luce"):
        trainer_of(tmp_path / "none", pure(), student=student)
    assert not (tmp_path / "none").exists()


def test_settings_that_make_no_sense_are_refused() -> None:
    assert (BlockOpdConfig().steps, BlockOpdConfig().groups_per_step, BlockOpdConfig().group_size) == (1500, 128, 4)
    assert pure(group_size=1, groups_per_step=8).group_size == 1
    with pytest.raises(InputError, match="both 0"):
        pure(distill_weight=0.0)
    with pytest.raises(InputError, match="group_size is 1 but rewards count"):
        pure(reward_weight=1.0, group_size=1)
    with pytest.raises(InputError, match="beta is 0.1 but rewards weigh 0"):
        pure(beta=0.1)
    with pytest.raises(InputError, match="beta is 1.0; give a number between 0 and 1"):
        pure(divergence="jsd", jsd_beta=1.0)
    with pytest.raises(InputError, match="teacher_temperature is 0"):
        pure(teacher_temperature=0.0)
    with pytest.raises(UnknownNameError, match="form of a divergence"):
        pure(form="sampled")
    with pytest.raises(UnknownNameError, match="kind of places"):
        pure(places="visible")
    with pytest.raises(UnknownNameError, match="divergence"):
        pure(divergence="kl")
