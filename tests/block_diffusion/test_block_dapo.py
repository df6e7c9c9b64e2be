"""DAPO of a block-diffusion policy: parts, its loss against plain loops, several updates, estimators, whole runs.

Longer than other files because all of it measures one trainer on one policy and its requests, made here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

import torch
from torch import Tensor
from trl import GRPOTrainer

from rerank_env.agents.block_diffusion import BlockDecoding, BlockDiffusionPolicy, Blocks, convert
from rerank_env.agents.block_diffusion.likelihood import Elbo, Setting, Written, score
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.data import Requests
from rerank_env.prompts import PromptWriter, ask
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.training.block_diffusion.dapo import BlockDapoConfig, BlockDapoTrainer, run
from rerank_env.training.block_diffusion.parts import parts_of
from rerank_env.training.logs import read_log

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),  # as TRL asks for it
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

FORM = "tagged-list"
WORDS = ("apple", "pear", "plum", "fig")
SIZE = 4
"""Tokens of a block."""


def requests_of(count: int, *, seed: int = 0, without: int = 0, target: int | None = None) -> Requests:
    """Lists of three of four items, one of them relevant: at place `target`, or any; the first `without` have none."""
    rng = np.random.default_rng(seed)
    candidates = [rng.permutation(4)[:3].tolist() for _ in range(count)]
    targets = [int(rng.integers(3)) if target is None else target for _ in range(count)]
    return Requests.of(
        candidates,
        [[float(p == t and n >= without) for p in range(3)] for n, t in enumerate(targets)],
        history=[[items[t]] for items, t in zip(candidates, targets, strict=True)],
        texts=WORDS,
    )


REQUESTS = requests_of(24)


@cache
def tokenizer() -> Any:
    told = [f"<think>{word}.</think><answer>[1, 2, 3]</answer>" for word in WORDS]
    return build_tokenizer([prompt.text for prompt in ask(REQUESTS, PromptWriter(FORM)).prompts] + told, vocab_size=900)


@cache
def begun() -> BlockDiffusionPolicy:
    """A policy that answers lists of three, in any order, after a word; often wrongly, now and then too long."""
    causal = LanguagePolicy(
        build_model(tokenizer(), width=32, layers=1, heads=2, seed=0), tokenizer(), PromptWriter(FORM)
    )
    policy = convert(causal, blocks=Blocks(SIZE), decoding=BlockDecoding("threshold(0.5)"), in_place=True)
    prompts = policy.prompt_ids(policy.ask(REQUESTS).prompts)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-2)
    for _ in range(150):
        told = []
        for row in rng.integers(len(prompts), size=8).tolist():
            order = (1 + rng.permutation(3)).tolist()
            text = f"<think>{WORDS[rng.integers(4)]}.</think><answer>{order}</answer>"
            told.append(Written(prompts[row], policy.completion_ids(text)))
        plans = Elbo(draws=2).plan(told, Setting(policy.blocks, policy.mask_id, generator=generator))
        found = score(policy.model, plans, blocks=policy.blocks, mask_id=policy.mask_id, pad_id=policy.pad_id)
        loss = -torch.cat(found.log_probs).sum() / sum(len(one.completion) for one in told)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    policy.model.eval()
    return policy


def policy_of(**decoding: Any) -> BlockDiffusionPolicy:
    taught = begun()
    return BlockDiffusionPolicy(
        copy.deepcopy(taught.model),
        taught.tokenizer,
        taught.writer,
        blocks=taught.blocks,
        decoding=replace(taught.decoding, **decoding),
    )


def config_of(**changes: Any) -> BlockDapoConfig:
    small = {"steps": 1, "groups_per_step": 4, "group_size": 4, "max_tokens": 18, "micro_batch": 8, "warmup_steps": 0}
    return BlockDapoConfig(**{**small, "learning_rate": 1e-3, "max_grad_norm": 1e9, "max_resamples": 4, **changes})


def trainer_of(
    directory: Path,
    *,
    policy: BlockDiffusionPolicy | None = None,
    requests: Requests = REQUESTS,
    reward: str = "gain",
    kind: type[BlockDapoTrainer] = BlockDapoTrainer,
    **changes: Any,
) -> BlockDapoTrainer:
    own = policy_of() if policy is None else policy
    return kind(own, requests, reward, config=config_of(**changes), directory=directory)


def parts_of_step(trainer: BlockDapoTrainer) -> list[dict[str, Any]]:
    """The parts of one step, as training takes them."""
    trainer.model.train()
    trainer._prepare_inputs([0])
    return list(trainer._buffered_inputs)


def weights_of(policy: BlockDiffusionPolicy) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def moved(policy: BlockDiffusionPolicy, *, by: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += by * weight.abs().mean() * torch.randn(weight.shape, generator=generator)


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=2e-3, atol=2e-6), name


def plain_log_p(policy: BlockDiffusionPolicy, written: Written, place: int, temperature: float) -> Tensor:
    """The log-probability of one token where it was committed: one canvas, read by the model behind all before it."""
    told = written.trajectory
    assert told is not None
    start, prompt = place // SIZE * SIZE, len(written.prompt)
    canvas = [
        token if -1 < when < told.committed[place] else told.mask_id
        for token, when in zip(told.written[start : start + SIZE], told.committed[start : start + SIZE], strict=True)
    ]
    ids = [*written.prompt, *told.written[:start], *canvas]
    seen = torch.ones(len(ids), len(ids)).tril().bool()
    for query in range(prompt, len(ids)):  # a block sees all of itself
        seen[query, : prompt + ((query - prompt) // SIZE + 1) * SIZE] = True
    mask = torch.zeros(1, 1, len(ids), len(ids)).masked_fill(~seen, torch.finfo(torch.float32).min)
    logits = policy.model(input_ids=torch.tensor([ids]), attention_mask=mask).logits[0, prompt + place - 1]
    keep = torch.arange(len(logits)) != told.mask_id
    return logits[told.written[place]] / temperature - (logits[keep] / temperature).logsumexp(0)


def plain_loss(
    trainer: BlockDapoTrainer, parts: list[dict[str, Any]], old: dict[int, Tensor] | None = None
) -> tuple[Tensor, list[int]]:
    """The loss of all parts of an update, token by token, and how many tokens are reasoning and answer."""
    config, policy = trainer.config, trainer.policy
    sums, counts = [torch.zeros(()), torch.zeros(())], [0, 0]
    for part in parts:
        for row, number in enumerate(part["written"].tolist()):
            if not part["tool_mask"][row].any():
                continue
            written, advantage = trainer.written[number], part["advantages"][row]
            which = parts_of(policy.tokenizer, written.completion, FORM)
            for t in range(len(written.completion)):
                new = plain_log_p(policy, written, t, config.temperature)
                before = new.detach() if old is None else old[number][t]
                ratio = (new - before).exp()
                clipped = ratio.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
                sums[which[t]] = sums[which[t]] - torch.min(ratio * advantage, clipped * advantage)
                counts[which[t]] += 1
    return config.reasoning * sums[0] / counts[0] + config.answer * sums[1] / counts[1], counts


@pytest.mark.parametrize(
    ("text_format", "reasoning", "answer"),
    [
        (FORM, "<think>", None),  # alone: reasons that never came to an answer
        (FORM, "pear.", "<answer>[1, 1"),
        (FORM, "", "<answer>[2]"),
        ("json", '{"explanation": "pear", ', '"ranking": [1, 1'),
        ("list", "", "[2, pear"),
        ("arrows", None, "[2] > pear"),
    ],
)
def test_what_is_no_text_of_its_format_is_parted_where_its_answer_opens(
    text_format: str, reasoning: str | None, answer: str | None
) -> None:
    first, second = (tokenizer()(text or "", add_special_tokens=False)["input_ids"] for text in (reasoning, answer))
    found = parts_of(tokenizer(), [*first, *second, tokenizer().eos_token_id], text_format)
    end = 0 if answer is None else 1
    assert found.tolist() == [0] * len(first) + [1] * len(second) + [end]


def test_tags_and_the_end_of_a_text_of_its_format_count_as_the_answer_does() -> None:
    pieces = ["<think>", "pear.", "</think>", "<answer>", "[1, 2, 3]", "</answer>"]
    tokens = [tokenizer()(piece, add_special_tokens=False)["input_ids"] for piece in pieces]
    found = parts_of(tokenizer(), [*(token for some in tokens for token in some), tokenizer().eos_token_id], FORM)
    assert found.tolist() == [int(piece != 1) for piece, some in enumerate(tokens) for _ in some] + [1]


@given(st.lists(st.integers(0, 600), max_size=12), st.sampled_from([FORM, "tagged-json", "json"]))
@settings(max_examples=60, deadline=None)
def test_an_answer_once_begun_goes_on_to_the_end_in_any_text(tokens: list[int], text_format: str) -> None:
    found = parts_of(tokenizer(), tokens, text_format)
    assert len(found) == len(tokens)
    assert found.tolist() == sorted(found.tolist())  # chance writes no text of its format, which might begin with a tag


def test_parts_are_divided_each_by_its_own_tokens(tmp_path: Path) -> None:
    """Answers of 4 reasoning and 2 answer tokens at advantage 1, of 2 and 2 at -1: sums -(4 - 2) and -(2 - 2), of
    6 and 4 tokens, so 0.3 * -2 / 6 + 1.0 * 0 / 4 = -0.1; with 3 answer tokens at 1, 0.3 * -2 / 6 + -1 / 5 = -0.3.
    """
    trainer = trainer_of(tmp_path)
    assert trainer.part_loss(torch.tensor([-2.0, 0.0]), torch.tensor([6.0, 4.0])).item() == pytest.approx(-0.1)
    assert trainer.part_loss(torch.tensor([-2.0, -1.0]), torch.tensor([6.0, 5.0])).item() == pytest.approx(-0.3)
    assert trainer.part_loss(torch.tensor([-2.0, 0.0]), torch.tensor([6.0, 0.0])).item() == pytest.approx(-0.1)


def test_a_step_knows_how_each_of_its_rollouts_was_written(tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path, requests=requests_of(40, without=20), groups_per_step=8, max_resamples=2, temperature=0.7
    )
    parts = parts_of_step(trainer)
    said = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    assert said["resamples"] > 0 and len(trainer.written) == len(trainer.keys) > 32
    assert len(set(trainer.keys)) == len(trainer.keys)
    seen = []
    for part in parts:
        assert part["update"].tolist() == [0] * 8
        for row, written in enumerate(trainer.written_of(part)):
            told = written.trajectory
            assert told is not None and told.tokens == written.completion
            assert part["completion_ids"][row][part["completion_mask"][row].bool()].tolist() == written.completion
            assert part["prompt_ids"][row][part["prompt_mask"][row].bool()].tolist() == written.prompt
            logprobs = part["sampling_per_token_logps"][row][: len(written.completion)]
            assert logprobs.tolist() == pytest.approx(told.logprobs)
        seen += part["written"].tolist()
    assert len(set(seen)) == 32
    first = [written.trajectory for written in trainer.written[:32]]  # what is logged is of the first draw
    rounds, tokens = sum(sum(one.block_rounds) for one in first), sum(one.length for one in first)
    assert said["forwards"] == pytest.approx(rounds / 32)
    assert said["tokens_per_forward"] == pytest.approx(tokens / rounds)
    assert said["forced"] == pytest.approx(sum(sum(one.forced) for one in first) / tokens)
    assert 0 < said["forced"] < 1 < said["tokens_per_forward"] < SIZE
    assert said["no_valid"] == 0.0 < said["valid"]


def test_replay_says_what_the_sampler_said_and_the_first_ratio_is_exactly_one(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, temperature=1.3)
    parts = parts_of_step(trainer)
    for part in parts:
        for row, (number, written) in enumerate(zip(part["written"].tolist(), trainer.written_of(part), strict=True)):
            if number in trainer._planned:
                (found_T,) = trainer._scored(trainer.policy.model, [trainer._planned[number]])
                said_T = part["sampling_per_token_logps"][row][: len(written.completion)]
                assert torch.allclose(found_T, said_T, atol=1e-4)
        trainer._compute_loss(trainer.policy.model, part)
    assert trainer._largest == 1.0
    assert trainer._sums[0] > 0 and trainer._sums[1] == 0


@pytest.mark.parametrize("moves", [False, True])
def test_the_loss_and_its_gradient_are_those_of_plain_loops(tmp_path: Path, moves: bool) -> None:
    trainer = trainer_of(tmp_path, temperature=0.8, groups_per_step=2, micro_batch=4, epsilon_high=0.3)
    parts = parts_of_step(trainer)
    assert len(parts) == 2 == trainer.args.gradient_accumulation_steps
    old: dict[int, Tensor] | None = None
    if moves:
        generator, old = torch.Generator().manual_seed(0), {}
        for number, made in trainer._planned.items():
            now = trainer._scored(trainer.policy.model, [made])[0]
            made.old_T = old[number] = now + 0.5 * torch.randn(now.shape, generator=generator)
    loss = sum(trainer._compute_loss(trainer.policy.model, part) for part in parts)
    assert isinstance(loss, Tensor)
    expected, counts = plain_loss(trainer, parts, old)
    assert trainer._totals_UP.tolist() == [counts] and min(counts) > 0
    assert loss.item() == pytest.approx(expected.item(), abs=2e-5)
    same(gradients(trainer.policy.model, loss), gradients(trainer.policy.model, expected))
    assert (trainer._sums[1] > 0) == moves == (trainer._largest > 1.3)


def test_dead_groups_are_left_out_and_do_not_go_through_the_model(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, requests=requests_of(8, without=8), max_resamples=0)
    parts = parts_of_step(trainer)
    widths = []
    trainer.policy.model.register_forward_pre_hook(
        lambda _, __, given: widths.append(given["input_ids"].shape), with_kwargs=True
    )
    losses = [trainer._compute_loss(trainer.policy.model, part) for part in parts]
    assert [loss.item() for loss in losses] == [0.0, 0.0]
    prompt = len(trainer.written[0].prompt)
    assert [shape[0] for shape in widths] == [1, 1] and widths[0][1] < prompt + SIZE
    losses[0].backward()  # of the graph that all processes have
    assert not any(weight.grad.any() for weight in trainer.policy.model.parameters() if weight.grad is not None)


def test_a_hook_adds_to_the_loss_of_dead_groups_as_well(tmp_path: Path) -> None:
    class Smaller(BlockDapoTrainer):
        def extra_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
            return sum((weight**2).sum() for weight in model.parameters()) * len(inputs["written"])

    policy = policy_of()
    size = sum(float((weight**2).sum()) for weight in weights_of(policy).values())
    trainer = trainer_of(tmp_path, policy=policy, requests=requests_of(8, without=8), kind=Smaller, max_resamples=0)
    parts = parts_of_step(trainer)
    assert trainer._compute_loss(policy.model, parts[0]).item() == pytest.approx(8 * size, rel=1e-5)
    trainer._step, trainer._buffered_inputs, trainer._counted = 0, None, 0.0
    trainer.train()
    assert sum(float((weight**2).sum()) for weight in weights_of(policy).values()) < size
    assert trainer.state.log_history[0]["skipped"] == 0.0


@pytest.mark.parametrize("likelihood", ["replay", "elbo"])
def test_later_updates_are_compared_with_the_model_that_drew_on_the_same_masks(tmp_path: Path, likelihood: str) -> None:
    trainer = trainer_of(tmp_path, likelihood=likelihood, updates_per_step=2, groups_per_step=4, micro_batch=4)
    parts = parts_of_step(trainer)
    assert [part["update"].unique().tolist() for part in parts] == [[0], [0], [1], [1]]
    rollouts = [[trainer._planned.get(number) for number in part["written"].tolist()] for part in parts]
    first, later = ([one for some in half for one in some if one] for half in (rollouts[:2], rollouts[2:]))
    assert first and later and all(one.old_T is None for one in first)
    now = trainer._scored(trainer.policy.model, later)
    for one, now_T in zip(later, now, strict=True):  # new values on the plan that the old ones were made on
        assert one.old_T is not None and torch.allclose(one.old_T, now_T, atol=1e-5)
    kept = [one.old_T.clone() for one in later if one.old_T is not None]
    moved(trainer.policy)
    for part in parts[:2]:
        trainer._compute_loss(trainer.policy.model, part)
    assert trainer._largest == 1.0
    for part in parts[2:]:
        trainer._compute_loss(trainer.policy.model, part)
    new = trainer._scored(trainer.policy.model, later)
    differences = [new_T - old_T for new_T, old_T in zip(new, kept, strict=True)]
    if likelihood == "elbo":
        differences = [one.mean()[None] for one in differences]
    assert trainer._largest == pytest.approx(float(torch.cat(differences).max().exp()), rel=1e-4)
    assert trainer._largest > 1.0


def test_a_step_of_several_updates_moves_away_from_the_model_that_drew(tmp_path: Path) -> None:
    result = run(
        policy_of(), REQUESTS, "gain", directory=tmp_path, config=config_of(updates_per_step=2, learning_rate=1e-2)
    )
    first, second = read_log(result.log_path)
    assert (first["ratio_max"], first["clipped"], first["skipped"]) == (1.0, 0.0, 0.0)
    assert second["ratio_max"] > 1.01
    assert result.updates == 2


def test_the_distance_to_the_start_is_weighted_like_the_reward(tmp_path: Path) -> None:
    beta, policy = 0.2, policy_of()
    start = copy.deepcopy(policy.model)
    trainer = trainer_of(tmp_path, policy=policy, beta=beta, temperature=0.9)
    parts = parts_of_step(trainer)
    moved(trainer.policy)
    found = sum(trainer._compute_loss(trainer.policy.model, part).item() for part in parts)
    sums, total, tokens = [0.0, 0.0], 0.0, 0
    for part in parts:
        for row, number in enumerate(part["written"].tolist()):
            made = trainer._planned.get(number)
            if made is None:
                continue
            (new,), (ref,) = trainer._scored(trainer.policy.model, [made]), trainer._scored(start, [made])
            for t, which in enumerate(made.parts_T.tolist()):
                away = float(ref[t] - new[t])
                k3 = math.exp(away) - away - 1
                sums[which] += beta * k3 - float(part["advantages"][row])
                total, tokens = total + k3, tokens + 1
    counts = trainer._totals_UP[0].tolist()
    assert found == pytest.approx(0.3 * sums[0] / counts[0] + sums[1] / counts[1], rel=1e-4)
    assert float(trainer._sums[2]) == pytest.approx(total, rel=1e-3) and total > 0
    assert float(trainer._sums[0]) == tokens


def test_a_causal_model_is_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", refused)
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", refused)
    result = run(
        policy_of(), REQUESTS, "gain", directory=tmp_path, config=config_of(updates_per_step=2, beta=0.1, steps=1)
    )
    assert all(line["kl"] is not None for line in read_log(result.log_path))


LIKELIHOODS = ("replay", "replay(merge=2)", "replay(tail=True)", "elbo", "mean_field", "coupled", "ar_order")


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_estimator_makes_a_step(tmp_path: Path, likelihood: str) -> None:
    policy = policy_of()
    before = weights_of(policy)
    result = run(policy, REQUESTS, "gain", directory=tmp_path, config=config_of(likelihood=likelihood, beta=0.01))
    (line,) = read_log(result.log_path)
    assert line["skipped"] == 0.0 and line["ratio_max"] == 1.0 and 0 < line["grad_norm"] < math.inf
    assert line["kl"] == pytest.approx(0.0, abs=1e-5)
    assert not are_equal(before, weights_of(policy))


def test_answers_that_are_filled_in_are_scored_by_their_law_and_the_rest_by_replay(tmp_path: Path) -> None:
    policy = policy_of(answer="plackett-luce")
    trainer = trainer_of(
        tmp_path, policy=policy, likelihood="gpl(rest=replay)", max_tokens=6, groups_per_step=6, temperature=2.5
    )
    parts = parts_of_step(trainer)
    forms = {number: trainer.written[number].form for number in trainer._planned}
    assert {form is None for form in forms.values()} == {True, False}  # some never came to their answer
    for part in parts:
        for row, (number, written) in enumerate(zip(part["written"].tolist(), trainer.written_of(part), strict=True)):
            assert part["completion_ids"][row][part["completion_mask"][row].bool()].tolist() == written.completion
            if number not in trainer._planned:
                continue
            (found_T,) = trainer._scored(policy.model, [trainer._planned[number]])
            said_T = part["sampling_per_token_logps"][row][: len(written.completion)]
            assert torch.allclose(found_T, said_T, atol=1e-4)
            counted_T, form = trainer._planned[number].counted_T, written.form
            if form is None:
                assert counted_T.all()
            else:  # what was written before it, and three slots
                drawn = [1.0] * len(form.written) + [float(token == policy.mask_id) for token in form.answer]
                assert counted_T.tolist() == drawn and sum(drawn) == len(form.written) + 3
    before = weights_of(policy)
    trainer._step, trainer._buffered_inputs = 0, None
    trainer.train()
    assert not are_equal(before, weights_of(policy))
    assert trainer.state.log_history[0]["ratio_max"] == 1.0


def test_without_a_rest_only_slots_are_learned_from(tmp_path: Path) -> None:
    policy = policy_of(answer="plackett-luce")
    trainer = trainer_of(tmp_path, policy=policy, likelihood="gpl", max_tokens=6, groups_per_step=6, temperature=2.5)
    parts = parts_of_step(trainer)
    filled = [number for number in trainer._planned if trainer.written[number].form is not None]
    assert 0 < len(filled) < len(trainer._planned)
    assert trainer._totals_UP.tolist() == [[0.0, 3.0 * len(filled)]]
    loss = sum(trainer._compute_loss(policy.model, part) for part in parts)
    assert isinstance(loss, Tensor) and any(value.any() for value in gradients(policy.model, loss).values())


def test_rollouts_do_not_depend_on_who_draws_them(tmp_path: Path) -> None:
    """What the second of two processes draws is what one process draws for its requests, filled-in answers too."""

    def written(process: int, share: int) -> list[list[int]]:
        policy = policy_of(answer="plackett-luce")
        trainer = trainer_of(tmp_path, policy=policy, likelihood="gpl(rest=replay)", groups_per_step=4, temperature=1.5)
        rows = trainer.schedule[0][process * share :][:share]
        shown = trainer.shuffles.show(rows, 4, draw=0)
        trainer._asked = 0, 0, shown
        first = process * share * 4
        whole = trainer.accelerator.__class__
        generator = torch.Generator().manual_seed(1)
        torch.rand((first, trainer.config.max_tokens), dtype=torch.float64, generator=generator)
        before = whole.process_index
        whole.process_index = property(lambda _: process)
        try:
            ids, _ = trainer.drawn(policy.model, shown.token_ids[::4], n=4, generator=generator)
        finally:
            whole.process_index = before
        assert trainer.keys[0] == (0, 0, first)
        return ids

    alone = written(0, 4)
    assert written(0, 2) == alone[:8]
    assert written(1, 2) == alone[8:]


def test_a_batch_without_one_valid_answer_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    policy = policy_of()
    before = weights_of(policy)
    config = config_of(steps=2, max_tokens=3, weight_decay=0.5, max_resamples=1, updates_per_step=2)
    result = run(policy, REQUESTS, "gain", directory=tmp_path, config=config)
    lines = read_log(result.log_path)
    assert len(lines) == 4
    assert [line["skipped"] for line in lines] == [1.0] * 4
    assert [(line["no_valid"], line["valid"]) for line in lines if "no_valid" in line] == [(1.0, 0.0)] * 2
    assert all(line["grad_norm"] == 0.0 == line["loss"] for line in lines)
    assert are_equal(before, weights_of(policy))


@pytest.mark.parametrize(
    ("likelihood", "decoding", "changes", "gain"),
    [
        ("replay", {"rule": "static(4)"}, {"steps": 14, "group_size": 16, "learning_rate": 3e-3}, 0.1),
        ("gpl(rest=replay)", {"answer": "plackett-luce"}, {"steps": 8, "group_size": 8, "learning_rate": 5e-3}, 0.15),
    ],
)
def test_rewards_go_up(
    tmp_path: Path, likelihood: str, decoding: dict[str, Any], changes: dict[str, Any], gain: float
) -> None:
    """Whoever names the first candidate first is paid most."""
    first = requests_of(12, target=0)
    given = {"likelihood": likelihood, "shuffle": "none", "max_resamples": 1, **changes}
    config = config_of(micro_batch=32, max_grad_norm=1.0, **given)
    result = run(
        policy_of(**decoding), first, "ndcg@10", directory=tmp_path, config=config, validation=first.take(range(4))
    )
    raw = [line["raw"] for line in read_log(result.log_path)]
    assert np.mean(raw[-3:]) > np.mean(raw[:3]) + gain
    assert result.best_validation is not None and result.best_validation > 0.9


def test_a_run_is_not_resumed_with_another_way_of_writing(tmp_path: Path) -> None:
    config = config_of(save_every=1)
    run(policy_of(), REQUESTS, "gain", directory=tmp_path, config=config)
    others: list[Callable[[], BlockDiffusionPolicy]] = [
        lambda: policy_of(rule="threshold(0.9)"),
        lambda: policy_of(end="prefix"),
        lambda: BlockDiffusionPolicy(
            copy.deepcopy(begun().model), tokenizer(), begun().writer, blocks=Blocks(8), decoding=begun().decoding
        ),
    ]
    for other in others:
        with pytest.raises(InputError, match=r"started with config\.decoding 'threshold\(0\.5\) end=block"):
            run(other(), REQUESTS, "gain", directory=tmp_path, config=config)
    with pytest.raises(InputError, match=r"started with config\.likelihood 'replay' but now it is 'elbo'"):
        run(policy_of(), REQUESTS, "gain", directory=tmp_path, config=replace(config, likelihood="elbo"))


def test_validation_is_of_the_own_decoding_with_nothing_drawn(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, policy=policy_of(rule="static(2)", temperature=0.7, end="prefix"))
    assert trainer.validating == BlockDecoding("static(2)", end="prefix")


def test_a_likelihood_that_does_not_know_how_answers_are_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpl\\(rest=replay\\), but answers are written freely and have no slots"):
        trainer_of(tmp_path, likelihood="gpl(rest=replay)")
    with pytest.raises(InputError, match="filled in by plackett-luce, whose law replay does not know"):
        trainer_of(tmp_path, policy=policy_of(answer="plackett-luce"))
    with pytest.raises(InputError, match=r"filled in by constrained\(static\(4\)\), whose law gpl does not know"):
        trainer_of(tmp_path, policy=policy_of(answer="constrained(static(4))"), likelihood="gpl")
    with pytest.raises(InputError, match="which draws nothing, but temperature is 1.0"):
        trainer_of(tmp_path, policy=policy_of(answer="assignment(1)"), likelihood="gpl")


def test_settings_are_checked_and_kept_as_they_say_themselves() -> None:
    plain = BlockDapoConfig()
    assert (plain.epsilon_low, plain.epsilon_high, plain.group_size, plain.beta) == (0.2, 0.2, 8, 0.0)
    assert (plain.steps, plain.learning_rate, plain.reasoning, plain.answer) == (600, 5e-7, 0.3, 1.0)
    assert config_of(likelihood=" replay( merge = 2 ) ").likelihood == "replay(merge=2)"
    assert config_of(likelihood=Elbo(draws=3)).likelihood == "elbo(draws=3)"
    with pytest.raises(UnknownNameError, match="did you mean 'replay'"):
        config_of(likelihood="repaly")
    with pytest.raises(InputError, match="both weigh 0, so nothing is learned"):
        config_of(reasoning=0, answer=0.0)
    with pytest.raises(InputError, match="answer is -1.0; give a number of at least 0"):
        config_of(answer=-1)
    with pytest.raises(InputError, match="epsilon_low is 1.0"):
        config_of(epsilon_low=1.0)
