"""What a DAPO run is kept close to: the weights that it started from, and never those of a file or of another run."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if find_spec("trl") is None or find_spec("peft") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

import torch
from peft import LoraConfig, get_peft_model
from tiny import taught_model, tiny_tokenizer
from torch import Tensor
from trl import GRPOTrainer

from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.data import load
from rerank_env.prompts import PromptWriter
from rerank_env.rewards import parse_reward
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.training.language.dapo import DapoConfig, DapoTrainer, run
from rerank_env.training.language.reference import REFERENCE, copied
from rerank_env.training.logs import read_log

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),  # as TRL asks for it
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Could not find a config file:UserWarning"),  # PEFT, of a model from nothing
]

REQUESTS = load("synthetic", requests=12, slate_size=3, history=2)
WRITER = PromptWriter()
SMALL = {"groups_per_step": 4, "group_size": 4, "max_tokens": 12, "micro_batch": 8, "warmup_steps": 0, "seed": 1}


@pytest.fixture(scope="module")
def taught() -> LanguagePolicy:
    """A policy from nothing that has begun to answer lists of three."""
    tokenizer = tiny_tokenizer()
    chats = [prompt.chat for prompt in WRITER.write(REQUESTS)]
    prompts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats] * 3
    rng = np.random.default_rng(0)
    answers = [str((1 + rng.permutation(3)).tolist()) for _ in prompts]
    model = taught_model(tokenizer, prompts, answers)
    return LanguagePolicy(model, tokenizer, WRITER, decoding=Decoding(max_tokens=12))


@pytest.fixture(params=["weights", "adapter"])
def policy(taught: LanguagePolicy, request: pytest.FixtureRequest) -> LanguagePolicy:
    model = copy.deepcopy(taught.model)
    if request.param == "adapter":
        torch.manual_seed(0)
        lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    return LanguagePolicy(model, taught.tokenizer, WRITER, decoding=taught.decoding)


def config_of(**settings: Any) -> DapoConfig:
    return DapoConfig(**{**SMALL, "steps": 2, "learning_rate": 5e-4, "beta": 0.5, **settings})


def weights_of(policy: LanguagePolicy) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}


def moved(policy: LanguagePolicy, *, by: float = 1.5) -> None:
    """Everything that is trained is somewhere else, as after another run."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.mul_(by)


@torch.no_grad()
def log_p(model: Any, prompt: Tensor, answer: Tensor) -> Tensor:
    """The log-probabilities of one answer, from one unpadded text."""
    logits = model(input_ids=torch.cat([prompt, answer])[None]).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, answer[:, None]).squeeze(-1)


def test_the_divergence_is_0_before_anything_was_learned_and_then_is_not(
    policy: LanguagePolicy, tmp_path: Path
) -> None:
    for name in ("one", "two"):  # a second run of the same model starts from where the first one ended
        result = run(policy, REQUESTS, "gain", directory=tmp_path / name, config=config_of(steps=2))
        first, second = read_log(result.log_path)
        assert first["trained_groups"] > 0 and second["trained_groups"] > 0
        assert first["kl"] == pytest.approx(0.0, abs=1e-9) and second["kl"] > 1e-7
    policy.save_pretrained(tmp_path / "saved")
    back = LanguagePolicy.from_pretrained(tmp_path / "saved")
    assert weights_of(back).keys() == weights_of(policy).keys()


def test_the_loss_has_the_divergence_from_the_start_at_every_token_that_counts(
    policy: LanguagePolicy, tmp_path: Path
) -> None:
    start = copy.deepcopy(policy.model)
    trainer = DapoTrainer(policy, REQUESTS, "gain", config=config_of(), directory=tmp_path)
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    moved(policy, by=1.02)
    trainer.model.train()
    trainer._prepare_inputs([0])
    parts = list(trainer._buffered_inputs)
    kept = sum(float(trainer._compute_loss(policy.model, part).detach()) for part in parts)
    trainer.beta = 0.0
    free = sum(float(trainer._compute_loss(policy.model, part).detach()) for part in parts)
    total, count = 0.0, 0
    for part in parts:
        for row in range(len(part["advantages"])):
            prompt = part["prompt_ids"][row][part["prompt_mask"][row].bool()]
            answer = part["completion_ids"][row][part["completion_mask"][row].bool()]
            if part["tool_mask"][row].any():
                change = log_p(start, prompt, answer) - log_p(policy.model, prompt, answer)
                total, count = total + float((change.exp() - change - 1).sum()), count + len(answer)
    assert count > 0 and total > 0
    assert kept - free == pytest.approx(0.5 * total / count, rel=1e-3)


def test_the_reference_is_the_policy_whichever_way_it_is_scored(policy: LanguagePolicy, tmp_path: Path) -> None:
    trainer = DapoTrainer(policy, REQUESTS, "gain", config=config_of(temperature=0.7), directory=tmp_path)
    asked = policy.prompt_ids(policy.ask(REQUESTS.take([0])).prompts)[0]
    ids = torch.tensor([[*asked, *policy.completion_ids("[1, 2, 3]")]])
    count, mask = ids.shape[1] - len(asked), torch.ones_like(ids)
    moved(policy)  # the reference does not come along
    with torch.no_grad():
        ours = trainer._get_per_token_logps_and_entropies(trainer.ref_model, ids, mask, count)[0]
        fused = GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.ref_model, ids, mask, count)[0]
        now = trainer._get_per_token_logps_and_entropies(policy.model, ids, mask, count)[0]
    torch.testing.assert_close(ours, fused, rtol=1e-4, atol=1e-5)
    assert (ours - now).abs().max() > 1e-2


def test_only_what_is_trained_is_copied(policy: LanguagePolicy) -> None:
    reference = copied(policy.model)
    for (name, weight), (_, copy_) in zip(policy.model.named_parameters(), reference.named_parameters(), strict=True):
        assert (copy_ is weight) == (not weight.requires_grad), name
        assert torch.equal(copy_, weight)


def test_a_resumed_run_is_kept_close_to_where_the_first_one_began(policy: LanguagePolicy, tmp_path: Path) -> None:
    whole = LanguagePolicy(copy.deepcopy(policy.model), policy.tokenizer, WRITER, decoding=policy.decoding)
    config = config_of(steps=3, save_every=1)
    expected = read_log(run(whole, REQUESTS, "gain", directory=tmp_path / "whole", config=config).log_path)

    class StoppedError(Exception):
        pass

    def stop(step: int, _: Any) -> None:
        if step == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(policy, REQUESTS, "gain", directory=tmp_path / "killed", config=config, on_log=stop)
    assert "forward" not in vars(policy.model)
    moved(policy)
    result = run(policy, REQUESTS, "gain", directory=tmp_path / "killed", config=config)
    assert read_log(result.log_path) == expected
    found = weights_of(policy)
    assert all(torch.equal(found[name], weight) for name, weight in weights_of(whole).items())


def test_a_run_without_the_weights_it_started_from_is_not_resumed(taught: LanguagePolicy, tmp_path: Path) -> None:
    policy = LanguagePolicy(copy.deepcopy(taught.model), taught.tokenizer, WRITER, decoding=taught.decoding)
    run(policy, REQUESTS, "gain", directory=tmp_path, config=config_of(steps=1, save_every=1))
    (tmp_path / "finished.json").unlink()
    (tmp_path / REFERENCE).unlink()
    with pytest.raises(CheckpointError, match=r"reference\.safetensors cannot be read.*resume=False"):
        run(policy, REQUESTS, "gain", directory=tmp_path, config=config_of(steps=1, save_every=1))
    plain = config_of(beta=0.0, steps=1)
    run(policy, REQUESTS, "gain", directory=tmp_path, config=config_of(steps=1), resume=False)
    assert (tmp_path / REFERENCE).exists()
    run(policy, REQUESTS, "gain", directory=tmp_path, config=plain, resume=False)
    assert not (tmp_path / REFERENCE).exists()


def test_validation_is_greedy_and_unconstrained_however_the_policy_answers(
    taught: LanguagePolicy, tmp_path: Path
) -> None:
    loud = Decoding(max_tokens=12, temperature=2.0, constrained=True)
    policy = LanguagePolicy(copy.deepcopy(taught.model), taught.tokenizer, WRITER, decoding=loud)
    with torch.no_grad():
        policy.model.lm_head.weight[policy.completion_ids("[")[0]].zero_()  # so that no answer is free to be a list
    held_out = REQUESTS.take(range(6))
    config = config_of(beta=0.0, steps=1, learning_rate=1e-12)
    result = run(policy, REQUESTS, "gain", directory=tmp_path, config=config, validation=held_out)
    greedy = policy.answers(held_out, decoding=Decoding(max_tokens=12)).read()[0][:, 0]
    assert result.best_validation == parse_reward("ndcg@10")(greedy, held_out.slates).mean()
    allowed = policy.rank(held_out, rng=np.random.default_rng(0))
    assert parse_reward("ndcg@10")(allowed, held_out.slates).mean() > result.best_validation


@pytest.mark.parametrize("size", ["two", "", "0"])
def test_a_number_of_processes_that_is_none_is_refused_in_a_sentence(
    taught: LanguagePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(InputError, match="WORLD_SIZE is .*accelerate launch"):
        DapoTrainer(taught, REQUESTS, "gain", config=config_of(), directory=tmp_path)
