"""DAPO on TRL's trainer: its loss against plain loops, dead groups, lengths, hooks, and whole runs of a tiny model.

Longer than other files because all of it measures one trainer on one policy and its requests, made here.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

import torch
from torch import Tensor
from transformers import TrainerCallback

from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.data import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.rewards import InputError, parse_reward
from rerank_env.rewards.errors import CheckpointError, DivergedError
from rerank_env.training.language.dapo import DapoConfig, DapoResult, DapoTrainer, StopRule, run
from rerank_env.training.language.groups import advantages
from rerank_env.training.language.sharing import completion_logits
from rerank_env.training.language.stopping import PATIENCE
from rerank_env.training.logs import read_log

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),  # as TRL asks for it
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),
]

WORDS = ("apple", "pear", "plum", "fig")
ASK = "rank {} for {}"


def requests_of(count: int, *, seed: int = 0, without: int = 0) -> Requests:
    """Lists of three of four items, one of them relevant: the user's last; `without` of the requests have none."""
    rng = np.random.default_rng(seed)
    candidates = [rng.permutation(4)[:3].tolist() for _ in range(count)]
    targets = [int(rng.integers(3)) for _ in range(count)]
    return Requests.of(
        candidates,
        [[float(p == t and n >= without) for p in range(3)] for n, t in enumerate(targets)],
        history=[[items[t]] for items, t in zip(candidates, targets, strict=True)],
        texts=WORDS,
    )


REQUESTS = requests_of(24)
WRITER = PromptWriter()


@pytest.fixture(scope="module")
def taught() -> LanguagePolicy:
    """A policy that answers lists of three, in any order, and now and then wrongly or too long."""
    prompts = [f"{message['role']}\n{message['content']}" for p in WRITER.write(REQUESTS) for message in p.chat]
    tokenizer = build_tokenizer(
        [*prompts, *(f"[{a}, {b}, {c}]" for a in "123" for b in "123" for c in "123")], vocab_size=500
    )
    model = build_model(tokenizer, width=32, layers=1, heads=2, seed=0)
    policy = LanguagePolicy(model, tokenizer, WRITER, decoding=Decoding(max_tokens=16))
    rng = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    texts = policy.prompt_ids(policy.ask(REQUESTS).prompts)
    for _ in range(150):
        rows = rng.integers(len(texts), size=8).tolist()
        orders = [(1 + rng.permutation(3)).tolist() for _ in rows]
        told = [policy.completion_ids(str(order * (1 + (rng.random() < 0.2)))) for order in orders]
        inputs = batch_of([texts[row] for row in rows], told, policy.pad_id)
        logits = completion_logits(model, *inputs)
        mask = inputs[3].bool()
        loss = torch.nn.functional.cross_entropy(logits[mask], inputs[2][mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def batch_of(prompts: list[list[int]], answers: list[list[int]], pad: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    width, length = max(map(len, prompts)), max(map(len, answers))
    return (
        torch.tensor([[pad] * (width - len(p)) + p for p in prompts]),
        torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
        torch.tensor([a + [pad] * (length - len(a)) for a in answers]),
        torch.tensor([[1] * len(a) + [0] * (length - len(a)) for a in answers]),
    )


@pytest.fixture
def policy(taught: LanguagePolicy) -> LanguagePolicy:
    return LanguagePolicy(copy.deepcopy(taught.model), taught.tokenizer, WRITER, decoding=taught.decoding)


def settings_of(**settings: Any) -> DapoConfig:
    small = {"steps": 2, "groups_per_step": 4, "group_size": 4, "max_tokens": 12, "micro_batch": 8, "warmup_steps": 0}
    return DapoConfig(**{**small, "learning_rate": 1e-3, "metric": "ndcg@10", **settings})


def trainer_of(
    policy: LanguagePolicy,
    tmp_path: Path,
    *,
    requests: Requests = REQUESTS,
    reward: str = "gain",
    kind: type[DapoTrainer] = DapoTrainer,
    **settings: Any,
) -> DapoTrainer:
    trainer = kind(policy, requests, reward, config=settings_of(**settings), directory=tmp_path)
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    return trainer


def parts_of(trainer: DapoTrainer, draw: int = 0) -> list[dict[str, Any]]:
    """The parts of one step, as training takes them."""
    trainer.model.train()
    trainer._prepare_inputs([draw])
    assert trainer._buffered_inputs is not None
    return list(trainer._buffered_inputs)


def weights_of(policy: LanguagePolicy) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}


def log_p(model: Any, prompt: Tensor, answer: Tensor) -> Tensor:
    """The log-probabilities of one answer, from one unpadded text."""
    logits = model(input_ids=torch.cat([prompt, answer])[None]).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, answer[:, None]).squeeze(-1)


def by_hand(
    model: Any, parts: list[dict[str, Any]], low: float, high: float, old: list[Tensor] | None = None
) -> tuple[Tensor, int]:
    """DAPO's loss, answer by answer and token by token: the sum of its terms, and how many there are."""
    total, count, number = torch.zeros(()), 0, 0
    for part in parts:
        for row in range(len(part["advantages"])):
            prompt = part["prompt_ids"][row][part["prompt_mask"][row].bool()]
            answer = part["completion_ids"][row][part["completion_mask"][row].bool()]
            trained = part["tool_mask"][row][part["completion_mask"][row].bool()].bool()
            new = log_p(model, prompt, answer)
            before = new.detach() if old is None else old[number][: len(answer)]
            number += 1
            for t in range(len(answer)):
                if trained[t]:
                    ratio, advantage = (new[t] - before[t]).exp(), part["advantages"][row]
                    clipped = ratio.clamp(1 - low, 1 + high)
                    total = total - torch.min(ratio * advantage, clipped * advantage)
                    count += 1
    return total, count


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-3, atol=2e-6), name


@pytest.mark.parametrize("shuffle", ["across", "inside", "none"])
def test_the_loss_is_the_mean_over_all_tokens_of_the_step(policy: LanguagePolicy, tmp_path: Path, shuffle: str) -> None:
    trainer = trainer_of(policy, tmp_path, shuffle=shuffle)
    parts = parts_of(trainer)
    assert len(parts) == 2 == trainer.args.gradient_accumulation_steps
    loss = sum(trainer._compute_loss(policy.model, part) for part in parts)
    total, count = by_hand(policy.model, parts, 0.2, 0.28)
    assert count == int(parts[0]["num_items_in_batch"]) > 0
    assert loss.item() == pytest.approx(total.item() / count, abs=1e-6)
    same(gradients(policy.model, loss), gradients(policy.model, total / count))


def test_ratios_are_clipped_higher_above_than_below(policy: LanguagePolicy, tmp_path: Path) -> None:
    trainer = trainer_of(policy, tmp_path)
    parts = parts_of(trainer)
    generator = torch.Generator().manual_seed(0)
    old = []
    for part in parts:
        shape = part["completion_ids"].shape
        now = torch.zeros(shape)
        for row in range(shape[0]):
            prompt = part["prompt_ids"][row][part["prompt_mask"][row].bool()]
            answer = part["completion_ids"][row][part["completion_mask"][row].bool()]
            now[row, : len(answer)] = log_p(policy.model, prompt, answer).detach()
        part["old_per_token_logps"] = now + 0.5 * torch.randn(shape, generator=generator)
        old += list(part["old_per_token_logps"])
    loss = sum(trainer._compute_loss(policy.model, part) for part in parts)
    total, count = by_hand(policy.model, parts, 0.2, 0.28, old)
    assert loss.item() == pytest.approx(total.item() / count, rel=1e-4)
    same(gradients(policy.model, loss), gradients(policy.model, total / count))
    narrow, _ = by_hand(policy.model, parts, 0.2, 0.2, old)
    assert narrow.item() != pytest.approx(total.item(), rel=1e-3)


def test_advantages_are_trls_own_and_rewards_the_scorers(policy: LanguagePolicy, tmp_path: Path) -> None:
    trainer = trainer_of(policy, tmp_path, groups_per_step=8, max_resamples=0)
    trainer.model.train()
    found = trainer._rollouts(trainer.schedule[0], 0, 0)
    logged = list(trainer._logs["advantages"])  # what TRL made of the rewards
    assert found["advantages"].tolist() == pytest.approx(logged, abs=1e-4)
    assert list(trainer._logs["rewards"]["gain"]) == pytest.approx(trainer.paid.last.reward_N.tolist(), abs=1e-6)
    assert trainer.paid.last.valid_N.mean() > 0.1


def test_a_masked_answer_changes_neither_loss_nor_gradient(policy: LanguagePolicy, tmp_path: Path) -> None:
    trainer = trainer_of(policy, tmp_path, length_policy="mask", max_tokens=9, groups_per_step=8, max_resamples=0)
    parts = parts_of(trainer)
    finished = trainer.paid.last.finished_N
    assert 0 < finished.mean() < 1
    lost = sum(int((part["completion_mask"].any(1) & ~part["tool_mask"].any(1)).sum()) for part in parts)
    assert lost >= (~finished).sum()
    loss = sum(trainer._compute_loss(policy.model, part) for part in parts)
    kept = [{k: v[part["tool_mask"].any(1)] if v.ndim else v for k, v in part.items()} for part in parts]
    without = sum(trainer._compute_loss(policy.model, part) for part in kept if len(part["advantages"]))
    assert loss.item() == without.item()
    total, count = by_hand(policy.model, kept, 0.2, 0.28)
    assert loss.item() == pytest.approx(total.item() / count, abs=1e-6)
    answers = trainer.paid.last
    expected = advantages(answers.reward_N.reshape(-1, 4), finished.reshape(-1, 4)).ravel()
    made = torch.cat([part["advantages"] for part in parts])
    assert sorted(made.tolist()) == pytest.approx(sorted(expected.tolist()), abs=1e-6)


def test_rules_for_length_decide_what_a_cut_answer_earns(policy: LanguagePolicy, tmp_path: Path) -> None:
    earned = {}
    for rule in ("invalid", "soft"):
        trainer = trainer_of(policy, tmp_path, length_policy=rule, max_tokens=8, groups_per_step=8)
        trainer.model.train()
        trainer._rollouts(trainer.schedule[0], 0, 0)
        earned[rule] = trainer.paid.last
    cut = ~earned["invalid"].finished_N
    assert cut.any() and (earned["invalid"].reward_N[cut] == parse_reward("gain").invalid).all()
    assert not earned["invalid"].valid_N[cut].any()
    assert np.array_equal(earned["soft"].finished_N, earned["invalid"].finished_N)
    gap = earned["invalid"].reward_N - earned["soft"].reward_N
    assert gap[earned["soft"].tokens_N <= 7].tolist() == [0.0] * int((earned["soft"].tokens_N <= 7).sum())
    assert gap[cut].min() == 1.0  # cut off, no ranking either way, and the whole penalty on top


def test_equal_rewards_are_no_update(policy: LanguagePolicy, tmp_path: Path) -> None:
    nothing = requests_of(8, without=8)  # nobody wants anything: every order is worth the same
    before = weights_of(policy)
    result = run(
        policy, nothing, "gain", directory=tmp_path, config=settings_of(weight_decay=0.5, steps=2, max_resamples=1)
    )
    lines = read_log(result.log_path)
    assert [line["skipped"] for line in lines] == [1.0, 1.0]
    assert [(line["dead_share"], line["trained_groups"], line["grad_norm"]) for line in lines] == [(1.0, 0.0, 0.0)] * 2
    for name, weight in weights_of(policy).items():
        assert torch.equal(weight, before[name]), name


def test_moments_do_not_move_weights_in_a_step_without_signal(policy: LanguagePolicy, tmp_path: Path) -> None:
    """The first step learns, the second has nothing to learn from, and the optimiser must not coast."""
    half = requests_of(8, without=4)
    trainer = trainer_of(policy, tmp_path, requests=half, max_resamples=0, weight_decay=0.5)
    trainer.schedule = np.array([[4, 5, 6, 7], [0, 1, 2, 3]])
    seen = []

    class Look(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.append(weights_of(policy))

    trainer.add_callback(Look())
    start = weights_of(policy)
    trainer.train()
    assert any(not torch.equal(seen[0][name], start[name]) for name in start)
    assert all(torch.equal(seen[1][name], seen[0][name]) for name in start)


def test_dead_groups_are_replaced_by_requests_that_say_something(policy: LanguagePolicy, tmp_path: Path) -> None:
    half = requests_of(60, without=12)
    config = {"requests": half, "groups_per_step": 6, "group_size": 8, "max_resamples": 6}
    trainer = trainer_of(policy, tmp_path, **config)
    trainer.schedule = np.array([[0, 1, 2, 3, 22, 23]] * 2)
    parts = parts_of(trainer)
    said = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    assert said["dead_share"] >= 4 / 6 and said["resamples"] >= 1
    assert said["trained_groups"] == 6
    assert all(part["tool_mask"].any(1).all() for part in parts)
    assert len(trainer._metrics["train"]["reward"]) == 1  # the log is of the first draw
    again = trainer_of(policy, tmp_path, **config)
    again.schedule = trainer.schedule
    for part, other in zip(parts, parts_of(again), strict=True):
        assert torch.equal(part["completion_ids"], other["completion_ids"])


def test_the_filter_is_the_raw_metric_and_not_the_shaped_reward(policy: LanguagePolicy, tmp_path: Path) -> None:
    nothing = requests_of(8, without=8)
    trainer = trainer_of(policy, tmp_path, requests=nothing, reward="ndcg@10 + 0.2 * valid_format", max_resamples=0)
    parts = parts_of(trainer)
    assert np.ptp(trainer.paid.last.reward_N) > 0  # the bonus for the format tells answers apart
    assert not any(part["tool_mask"].any() for part in parts)


def test_terms_of_a_subclass_are_averaged_over_all_tokens_written(policy: LanguagePolicy, tmp_path: Path) -> None:
    class Likely(DapoTrainer):
        keeps_logits: ClassVar[bool] = True

        def counted(self, inputs: Mapping[str, Tensor]) -> Tensor:
            return inputs["completion_mask"]

        def token_terms(self, inputs: Mapping[str, Tensor], logits_NTV: Tensor | None) -> Tensor:
            assert logits_NTV is not None
            return -logits_NTV.log_softmax(-1).gather(-1, inputs["completion_ids"][..., None]).squeeze(-1)

    nothing = requests_of(8, without=8)
    trainer = trainer_of(policy, tmp_path, requests=nothing, kind=Likely, max_resamples=0)
    parts = parts_of(trainer)
    loss = sum(trainer._compute_loss(policy.model, part) for part in parts)
    total, count = torch.zeros(()), 0
    for part in parts:
        for row in range(len(part["advantages"])):
            prompt = part["prompt_ids"][row][part["prompt_mask"][row].bool()]
            answer = part["completion_ids"][row][part["completion_mask"][row].bool()]
            total, count = total - log_p(policy.model, prompt, answer).sum(), count + len(answer)
    assert loss.item() == pytest.approx(total.item() / count, rel=1e-5)
    same(gradients(policy.model, loss), gradients(policy.model, total / count))


def test_shared_prompts_change_no_logit_and_no_gradient(policy: LanguagePolicy) -> None:
    asked = policy.prompt_ids(policy.ask(REQUESTS.take([0, 1, 0, 1, 0])).prompts)
    asked[1] = asked[3] = asked[1][5:]  # of another length, so that there is padding
    rng = np.random.default_rng(0)
    answers = [rng.integers(5, 200, size=n).tolist() for n in (3, 1, 6, 4, 6)]
    inputs = batch_of(asked, answers, policy.pad_id)
    mask = inputs[3].bool()
    plain, shared = (completion_logits(policy.model, *inputs, share=share) for share in (False, True))
    assert torch.allclose(plain[mask], shared[mask], atol=1e-5)
    losses = [logits[mask].log_softmax(-1)[:, 7].sum() for logits in (plain, shared)]
    same(gradients(policy.model, losses[1]), gradients(policy.model, losses[0]))
    one = batch_of(asked[:1] * 2, [[7], [9]], policy.pad_id)
    assert torch.allclose(
        completion_logits(policy.model, *one), completion_logits(policy.model, *one, share=False), atol=1e-5
    )


def test_a_run_learns_and_ends_with_the_best_weights(policy: LanguagePolicy, tmp_path: Path) -> None:
    told: list[int] = []
    result = run(
        policy,
        REQUESTS,
        "gain",
        directory=tmp_path,
        config=settings_of(
            steps=24,
            groups_per_step=8,
            group_size=8,
            micro_batch=64,
            learning_rate=3e-3,
            validate_every=6,
            save_every=12,
        ),
        validation=requests_of(16, seed=5),
        on_log=lambda step, _: told.append(step),
    )
    lines = read_log(result.log_path)
    assert told == [line["step"] for line in lines] == list(range(1, 25))
    first, last = (np.mean([line["reward"] for line in lines[part]]) for part in (slice(6), slice(-6, None)))
    assert last > first + 0.1
    names = {"raw", "gain", "identity", "echo", "valid", "finished", "dead_share", "resamples", "entropy", "skipped"}
    assert names <= lines[0].keys()
    points = {line["step"]: line["validation"] for line in lines if line.get("validation") is not None}
    assert list(points) == [6, 12, 18, 24]
    assert result.best_validation == max([*points.values(), result.best_validation])
    held_out = requests_of(16, seed=5)
    rankings = policy.rank(held_out, rng=np.random.default_rng(0))
    assert parse_reward("ndcg@10")(rankings, held_out.slates).mean() == pytest.approx(result.best_validation)
    assert (result.updates, result.stopped) == (24, None)
    assert "forward" not in policy.model.__dict__  # TRL's head is off again


def test_a_run_stops_when_patience_is_out_and_is_not_trained_again(policy: LanguagePolicy, tmp_path: Path) -> None:
    config = settings_of(
        steps=20, validate_every=1, save_every=1, learning_rate=1e-9, stopping=StopRule(patience=2, window=None)
    )
    before = weights_of(policy)

    def again() -> DapoResult:
        return run(policy, REQUESTS, "gain", directory=tmp_path, config=config, validation=REQUESTS.take(range(4)))

    result = again()
    assert result.stopped == PATIENCE and result.best_update == 0
    assert result.updates == 2 == len(read_log(result.log_path))
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(policy).items())
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.zero_()
    assert again() == result  # read back, not trained
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(policy).items())


def test_a_run_that_stopped_early_without_a_checkpoint_is_finished(policy: LanguagePolicy, tmp_path: Path) -> None:
    config = settings_of(
        steps=8, validate_every=1, save_every=50, learning_rate=1e-9, stopping=StopRule(patience=2, window=None)
    )

    def again(reward: str = "gain", **others: Any) -> DapoResult:
        held_out = REQUESTS.take(range(4))
        return run(policy, REQUESTS, reward, directory=tmp_path, config=config, validation=held_out, **others)

    result = again()
    assert result.stopped == PATIENCE and not list(tmp_path.glob("checkpoint-*"))
    log = result.log_path.read_bytes()
    with pytest.raises(InputError, match="reward "):
        again("gr2")
    assert again() == result and result.log_path.read_bytes() == log  # read back, not trained
    (tmp_path / "finished.json").write_text(json.dumps({"updates": 99}))
    assert again("gr2", resume=False).updates == 2  # what another run ended with is forgotten


@pytest.mark.parametrize("micro_batch", [8, 16])  # an update of two parts, and of one
def test_killed_between_the_last_checkpoint_and_the_end_a_run_that_stopped_makes_no_more_updates(
    policy: LanguagePolicy, tmp_path: Path, micro_batch: int
) -> None:
    config = settings_of(
        steps=8,
        validate_every=1,
        save_every=2,
        learning_rate=1e-9,
        micro_batch=micro_batch,
        stopping=StopRule(patience=2),
    )

    def again() -> DapoResult:
        return run(policy, REQUESTS, "gain", directory=tmp_path, config=config, validation=REQUESTS.take(range(4)))

    result = again()
    log, ended = result.log_path.read_bytes(), (tmp_path / "finished.json").read_bytes()
    (tmp_path / "finished.json").unlink()
    assert again() == result and result.updates == 2
    assert result.log_path.read_bytes() == log and (tmp_path / "finished.json").read_bytes() == ended


def test_special_tokens_inside_an_answer_are_not_rewarded(policy: LanguagePolicy, tmp_path: Path) -> None:
    trainer = trainer_of(policy, tmp_path)
    shown = trainer.shuffles.show(np.array([0]), 2, draw=0, round_=0)
    plain = policy.completion_ids("[1, 2, 3]")
    spoilt = [*plain[:-2], policy.tokenizer.pad_token_id, *plain[-2:]]
    trainer.paid(completions=["[1, 2, 3]"] * 2, completion_ids=[plain, spoilt], **shown.columns)
    assert trainer.paid.last.valid_N.tolist() == [True, False]


def test_several_updates_a_step_use_every_rollout_once(policy: LanguagePolicy, tmp_path: Path) -> None:
    trainer = trainer_of(policy, tmp_path, updates_per_step=2, groups_per_step=4, micro_batch=4, steps=2)
    assert (trainer.args.max_steps, trainer.args.gradient_accumulation_steps) == (4, 2)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert len(entries) == 4
    assert ["dead_share" in entry for entry in entries] == [True, False, True, False]  # drawn once a step
    assert entries[1]["clip_ratio/region_mean"] >= 0.0


def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(policy: LanguagePolicy, tmp_path: Path) -> None:
    class Breaks(DapoTrainer):
        def token_terms(self, inputs: Mapping[str, Tensor], logits_NTV: Tensor | None) -> Tensor | None:
            return inputs["completion_mask"] * float("nan") if self.state.global_step == 3 else None

    config = settings_of(steps=6, save_every=1)
    with pytest.raises(DivergedError, match="the loss of update 4 is nan.* lower learning rate"):
        run(policy, REQUESTS, "gain", directory=tmp_path, config=config, trainer=Breaks)
    assert all(torch.isfinite(weight).all() for weight in policy.model.parameters())
    assert (tmp_path / "checkpoint-3" / "whole").is_file()


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {path!r})
import torch
from test_dapo import REQUESTS, WRITER, LanguagePolicy, Decoding, build_model, build_tokenizer, run, settings_of
from rerank_env.rewards.errors import CheckpointError
from rerank_env.training.language import dapo, watching
torch.set_num_threads({threads})
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
tokenizer = build_tokenizer([prompt.text for prompt in WRITER.write(REQUESTS)] + ["[1, 2, 3]"] * 9, vocab_size=300)
def fresh():
    model = build_model(tokenizer, width=16, layers=1, heads=2, seed=0)
    return LanguagePolicy(model, tokenizer, WRITER, decoding=Decoding(max_tokens=12))
dapo.best_of = watching.best_of = lambda held_out: len(held_out) - 1  # so weights are kept at every validation
def narrow(update, values):
    if update == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
for name, validation in (("checkpoint", None), ("weights", REQUESTS.take([0, 1]))):
    told = dict(directory=Path({directory!r}) / name, validation=validation)
    told["config"] = settings_of(steps=4, save_every=2, validate_every=1, max_resamples=0)
    try:
        run(fresh(), REQUESTS, "gain", **told, on_log=narrow)
    except CheckpointError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print(error)
        print(sorted(path.parent.name for path in told["directory"].glob("checkpoint-*/whole")))
        print(run(fresh(), REQUESTS, "gain", **told).updates)
"""


def test_a_disk_that_refuses_is_told_in_a_sentence_and_the_run_goes_on_later(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    script = FULL.format(path=str(Path(__file__).parent), directory=str(tmp_path), threads=torch.get_num_threads())
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    first, second = (place for place, line in enumerate(lines) if "could not be written" in line)
    assert lines[first].startswith(f"checkpoint 4 in {tmp_path / 'checkpoint'} could")
    assert lines[second].startswith(f"{tmp_path / 'weights' / 'weights-4.safetensors'} could")
    assert [line for line in lines if line in ("['checkpoint-2']", "4")] == ["['checkpoint-2']", "4"] * 2


def test_another_run_in_the_same_directory_is_refused(policy: LanguagePolicy, tmp_path: Path) -> None:
    config = settings_of(steps=1, save_every=1)
    run(policy, REQUESTS, "gain", directory=tmp_path, config=config)
    with pytest.raises(InputError, match="reward "):
        run(policy, REQUESTS, "gr2", directory=tmp_path, config=config)
    with pytest.raises(InputError, match="data "):
        run(policy, requests_of(25), "gain", directory=tmp_path, config=config)
    with pytest.raises(InputError, match="config.seed"):
        run(policy, REQUESTS, "gain", directory=tmp_path, config=settings_of(steps=1, save_every=1, seed=1))
    other = LanguagePolicy(policy.model, copy.deepcopy(policy.tokenizer), WRITER, decoding=policy.decoding)
    other.tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    with pytest.raises(InputError, match="prompts "):
        run(other, REQUESTS, "gain", directory=tmp_path, config=config)
    with pytest.raises(InputError, match="validation has no requests"):
        run(policy, REQUESTS, "gain", directory=tmp_path, config=config, validation=REQUESTS.take([]))
    again = run(policy, REQUESTS, "gr2", directory=tmp_path, config=config, resume=False)
    assert again.updates == 1
    assert json.loads((tmp_path / "run.json").read_text())["reward"] == str(parse_reward("gr2"))
    (tmp_path / "weights-1.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"weights-1\.safetensors cannot be read"):
        run(policy, REQUESTS, "gr2", directory=tmp_path, config=config)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group_size": 1}, "group_size is 1"),
        ({"epsilon_low": 1.0}, "epsilon_low is 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"updates_per_step": 3}, "updates_per_step is 3"),
        ({"length_policy": "soft", "soft_tokens": 99}, "soft_tokens is 99"),
        ({"shuffle": "acros"}, "did you mean 'across'"),
        ({"metric": "ndgc"}, "ndgc"),
        ({"steps": 1.5}, "steps is 1.5"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings_of(**settings)
