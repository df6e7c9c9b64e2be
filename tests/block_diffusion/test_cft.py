"""Conversion fine-tuning: the loss against plain loops and fine-tuning's own, learning, resuming, what is refused.

Longer than other files because runs that are killed or shared by processes import its models and examples.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

from datasets import Dataset
from tiny import tiny_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback

from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits
from rerank_env.rewards.errors import DivergedError, InputError
from rerank_env.training.block_diffusion.cft import HELD_OUT, ConversionTrainer, run
from rerank_env.training.block_diffusion.cft_settings import CftConfig, NumberedCollator, numbered
from rerank_env.training.block_diffusion.noise import Completion, Noise, keyed, noised
from rerank_env.training.language.checkpoints import checkpoints
from rerank_env.training.language.sft import SftConfig, WeightedSFTTrainer
from rerank_env.training.language.sft_settings import arguments

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),  # as TRL and PEFT ask
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

PAD, END, MASK, WORDS = 0, 1, 2, 24
BLOCKS = Blocks(4)


def small_tokenizer() -> Any:
    """Padding, the end, the mask token, and 21 words."""
    names = ["<pad>", "<end>", "<mask>", *(f"w{number}" for number in range(3, WORDS))]
    inner = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>", mask_token="<mask>")


def small_model(*, seed: int = 0, width: int = 16, layers: int = 1, words: int = WORDS) -> Any:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=width // 2,
        max_position_embeddings=64,
        initializer_range=width**-0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return Qwen3ForCausalLM(config).eval()


def examples(count: int = 6, *, seed: int = 0, reasons: bool = True, weights: Sequence[float] = (0.3, 1.0)) -> Dataset:
    """Prompts, reasons of random words, answers that name two or three candidates between signs, and the end."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        prompt = rng.integers(3, WORDS, int(rng.integers(2, 6))).tolist()
        reasoning = rng.integers(3, WORDS, int(rng.integers(1, 6)) if reasons else 0).tolist()
        names = rng.permutation(np.arange(3, 12))[: int(rng.integers(2, 4))].tolist()
        answer = [token for name in names for token in (name, 20)]
        slots = [slot for number in range(len(names)) for slot in (number, -1)]
        told = [*reasoning, *answer, END]
        discounts = [1.0 if slot < 0 else 1.0 / np.log2(slot + 2.0) for slot in slots]
        rows.append(
            {
                "input_ids": [*prompt, *told],
                "labels": [-100] * len(prompt) + told,
                "loss_weights": [0.0] * len(prompt)
                + [weights[0]] * len(reasoning)
                + [weights[1] * discount for discount in [*discounts, 1.0]],
                "roles": [-1] * len(prompt) + [0] * len(reasoning) + [1] * len(answer) + [2],
                "slots": [-1] * (len(prompt) + len(reasoning)) + slots + [-1],
            }
        )
    return Dataset.from_list(rows)


def log_law(model: Any, row: Mapping[str, Any], start: int, canvas: Canvas, blocks: Blocks) -> Tensor:
    """The log-law at every place of one noisy block, [S, V], from the prompt, the clean blocks before it, and it."""
    before = start + canvas.block * blocks.size
    ids = [*row["input_ids"][:before], *canvas.tokens]
    block = [-1] * start + [place // blocks.size for place in range(len(ids) - start)]
    seen = torch.full((len(ids), len(ids)), torch.finfo(torch.float32).min)
    for q in range(len(ids)):
        for k in range(len(ids)):
            if k <= q or (block[k] == block[q] != -1):
                seen[q, k] = 0.0
    logits_TV = model(input_ids=torch.tensor([ids]), attention_mask=seen[None, None]).logits[0]
    read = range(before - 1, len(ids) - 1) if blocks.shift else range(before, len(ids))
    logits_SV = logits_TV[list(read)].clone()
    logits_SV[:, MASK] = -torch.inf
    return logits_SV.log_softmax(-1)


def by_hand(model: Any, rows: Sequence[Any], config: CftConfig, blocks: Blocks, *, epoch: int = 0) -> Tensor:
    """Both parts, block by block and token by token, each over its own weight, with the trainer's draws: [2]."""
    sums, counts = [torch.zeros(()), torch.zeros(())], [0.0, 0.0]
    for number, row in enumerate(rows):
        start = row["labels"].index(next(label for label in row["labels"] if label != -100))
        for place in range(start, len(row["input_ids"])):
            counts[row["roles"][place] != 0] += row["loss_weights"][place]
        told = Completion(
            np.array(row["input_ids"][start:]),
            np.array(row["labels"][start:]) != -100,
            np.array(row["slots"][start:]) >= 0,
            ends=True,
        )
        rng = keyed(config.seed, epoch, number)
        found = noised(told, blocks=blocks, noise=config.noise, mask_id=MASK, rng=rng)
        at = 0
        for canvas in found.canvases:
            log_p_SV = log_law(model, row, start, canvas, blocks)
            for place in canvas.wanted:
                token = start + int(found.places_N[at])
                term = -log_p_SV[place, int(found.targets_N[at])] * float(found.weights_N[at])
                sums[row["roles"][token] != 0] = sums[row["roles"][token] != 0] + row["loss_weights"][token] * term
                at += 1
    return torch.stack([total / count if count else total for total, count in zip(sums, counts, strict=True)])


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


class Gradients(TrainerCallback):
    """Keeps the gradients of the last update."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.kept = gradients(given["model"])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return small_tokenizer()


@pytest.mark.parametrize(("micro", "blocks"), [(6, BLOCKS), (4, Blocks(3, shift=False)), (1, Blocks(32))])
def test_the_gradient_of_an_update_is_that_of_a_plain_loop_however_it_is_accumulated(
    tokenizer: Any, tmp_path: Path, micro: int, blocks: Blocks
) -> None:
    model, rows = small_model(), examples()
    config = _config(reasoning=0.4, answer=1.5, micro_batch=micro, batch=6 if micro != 4 else 8)
    reference = copy.deepcopy(model)
    parts = by_hand(reference, [*rows], config, blocks)
    loss = 0.4 * parts[0] + 1.5 * parts[1]
    loss.backward()
    kept = Gradients()
    trainer = _trainer(model, tokenizer, rows, tmp_path, config, blocks, callbacks=[kept])
    trainer.train()
    assert trainer.state.global_step == 1
    torch.testing.assert_close(kept.kept, gradients(reference), atol=1e-5, rtol=1e-3)
    reported = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert reported["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert reported["reasoning"] == pytest.approx(parts[0].item(), rel=1e-4)
    assert reported["answer"] == pytest.approx(parts[1].item(), rel=1e-4)


@pytest.mark.parametrize("clean", ["block", "causal"])
def test_blocks_of_one_token_at_rate_one_have_the_loss_of_fine_tuning(
    tokenizer: Any, tmp_path: Path, clean: str
) -> None:
    model = small_model(words=MASK + WORDS)
    mask = MASK + WORDS - 1
    rows = examples(reasons=False)  # one part, so that fine-tuning's mean is the same
    forward = model.lm_head.forward
    model.lm_head.forward = lambda hidden: forward(hidden).index_fill(-1, torch.tensor([mask]), -1e9)  # no law has it
    config = _config(noise=Noise(low=1.0, high=1.0, names_share=0.0))
    blocks = Blocks(1, clean=clean)
    trainer = _trainer(model, tokenizer, rows, tmp_path / "a", config, blocks, mask_id=mask)
    trainer.get_train_dataloader()
    ours = trainer.compute_loss(model.train(), NumberedCollator(PAD)([*trainer.train_dataset]))
    args = arguments(SftConfig(batch=6), tmp_path / "b", model, evaluates=False)
    plain = WeightedSFTTrainer(model, args, rows, processing_class=tokenizer)
    theirs = plain.compute_loss(model, plain.data_collator([*rows]))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_weights_that_the_examples_give_to_a_whole_part_cancel_out(tokenizer: Any, tmp_path: Path) -> None:
    losses = []
    for number, weights in enumerate([(0.3, 1.0), (5.0, 0.1)]):
        model, rows = small_model(), examples(weights=weights)
        trainer = _trainer(model, tokenizer, rows, tmp_path / str(number), _config(), BLOCKS)
        trainer.get_train_dataloader()
        losses.append(trainer.compute_loss(model.train(), NumberedCollator(PAD)([*trainer.train_dataset])).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_batch_of_which_nothing_is_hidden_has_loss_zero_and_gradient_exactly_zero(
    tokenizer: Any, tmp_path: Path
) -> None:
    model, rows = small_model(), examples()
    noise = Noise(low=1e-9, high=1e-9, draw="bernoulli", complementary=False, names_share=1.0)
    unanswered = rows.map(lambda row: {"slots": [-1] * len(row["slots"])})
    trainer = _trainer(model, tokenizer, unanswered, tmp_path, _config(noise=noise), BLOCKS)
    trainer.get_train_dataloader()
    loss = trainer.compute_loss(model.train(), NumberedCollator(PAD)([*trainer.train_dataset]))
    loss.backward()
    assert loss.item() == 0.0
    assert gradients(model) and all((grad == 0).all() for grad in gradients(model).values())


def test_noise_differs_between_epochs_and_not_between_batches_and_evaluations(tokenizer: Any, tmp_path: Path) -> None:
    model, rows = small_model(), examples(7)
    found: list[Any] = []
    config = _config(lr=1e-12, batch=3, micro_batch=2, epochs=2, max_steps=None, eval_every=3, warmup=0.0)
    config = replace(config, batch=3, micro_batch=3)
    run(
        model,
        tokenizer,
        rows,
        blocks=BLOCKS,
        mask_id=MASK,
        directory=tmp_path,
        config=config,
        eval_dataset=rows,
        on_log=lambda step, values: found.append((step, dict(values))),
    )
    evaluated = [values for _, values in found if "eval_loss" in values]
    expected = by_hand(model, [*rows], config, BLOCKS, epoch=HELD_OUT)
    assert len(evaluated) == 2
    for values in evaluated:
        assert values["eval_reasoning"] == pytest.approx(expected[0].item(), rel=1e-4)
        assert values["eval_answer"] == pytest.approx(expected[1].item(), rel=1e-4)
        assert values["eval_loss"] == pytest.approx((0.3 * expected[0] + expected[1]).item(), rel=1e-4)
    trained = [(step, values) for step, values in found if "loss" in values]
    assert [step for step, _ in trained] == [1, 2, 3, 4, 5, 6]  # seven examples are three batches, the last of one
    sums = [sum(values["answer"] for step, values in trained if (step - 1) // 3 == epoch) for epoch in (0, 1)]
    assert abs(sums[0] - sums[1]) > 1e-3


def decoded(model: Any, prompt: list[int], blocks: Blocks, *, threshold: float = 0.9) -> list[int]:
    """Greedy: all hidden slots of at least that probability are filled a round, or the likeliest one; to the end."""
    told: list[int] = []
    while END not in told and len(told) < 24:
        canvas = [MASK] * blocks.size
        while MASK in canvas:
            wanted = [place for place, token in enumerate(canvas) if token == MASK]
            row = Row(prompt, told, [Canvas(len(told) // blocks.size, canvas, wanted)])
            with torch.no_grad():
                laws_NV = canvas_logits(model, [row], blocks=blocks, mask_id=MASK, pad_id=PAD)[0].softmax(-1)
            sure_N, tokens_N = laws_NV.max(-1)
            least = min(threshold, float(sure_N.max()))
            for place, sure, token in zip(wanted, sure_N.tolist(), tokens_N.tolist(), strict=True):
                if sure >= least:
                    canvas[place] = token
        told += canvas
    return told[: told.index(END) + 1] if END in told else told


def test_a_model_from_nothing_learns_eight_examples_by_heart_and_writes_them(tokenizer: Any, tmp_path: Path) -> None:
    rows = examples(8, seed=2)
    config = _config(lr=1e-2, batch=8, micro_batch=8, max_steps=150, max_grad_norm=1.0, reasoning=1.0)
    model = small_model(width=32, layers=2)
    result = run(model, tokenizer, rows, blocks=BLOCKS, mask_id=MASK, directory=tmp_path, config=config)
    assert result.model is model and not model.training and "forward" not in vars(model)
    for row in rows:
        start = row["labels"].count(-100)
        assert decoded(model, row["input_ids"][:start], BLOCKS) == row["input_ids"][start:]


def test_adapters_learn_and_the_weights_under_them_stay(tokenizer: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, rows = small_model(), examples()
    before = model.model.layers[0].self_attn.q_proj.weight.clone()
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    policy = SimpleNamespace(model=model, tokenizer=tokenizer)
    config = _config(lr=1e-2, max_steps=4)
    given: dict[str, Any] = {"blocks": BLOCKS, "mask_id": MASK, "config": config, "peft_config": adapter}
    result = run(policy, None, rows, directory=tmp_path, **given)
    assert isinstance(result.model, peft.PeftModel) and policy.model is result.model
    assert torch.equal(result.model.get_base_model().model.layers[0].self_attn.q_proj.base_layer.weight, before)
    assert all((p != 0).any() for name, p in result.model.named_parameters() if "lora_B" in name)
    again = run(small_model(), tokenizer, rows, directory=tmp_path, **given)
    assert_same(again.model, result.model)  # read back, as it is finished


def test_a_loss_that_is_no_number_is_an_error_and_the_checkpoint_before_it_goes_on(
    tokenizer: Any, tmp_path: Path
) -> None:
    rows = examples()
    config = _config(max_steps=5, save_every=2, batch=4, micro_batch=4)
    given: dict[str, Any] = {"blocks": BLOCKS, "mask_id": MASK, "config": config}
    whole = run(small_model(), tokenizer, rows, directory=tmp_path / "whole", **given)
    model = small_model()

    def poison(step: int, values: Any) -> None:
        if step == 3:
            next(model.parameters()).data.fill_(float("nan"))

    with pytest.raises(DivergedError, match="the loss of update 4 is nan.* lower learning rate"):
        run(model, tokenizer, rows, directory=tmp_path / "hurt", on_log=poison, **given)
    assert [path.name for path in checkpoints(tmp_path / "hurt")] == ["checkpoint-2"]
    again = run(small_model(), tokenizer, rows, directory=tmp_path / "hurt", **given)
    assert again.steps == 5
    assert_same(again.model, whole.model)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
import torch
from test_cft import BLOCKS, MASK, CftConfig, Noise, examples, run, small_model, small_tokenizer
torch.set_num_threads({threads})
def killed(step, values):
    if step == 8:
        os.kill(os.getpid(), signal.SIGKILL)
run(small_model(), small_tokenizer(), examples(10), blocks=BLOCKS, mask_id=MASK, directory=Path({directory!r}),
    config={config!r}, on_log=killed)
"""


def test_a_run_that_was_killed_ends_with_the_weights_of_one_that_was_not(tokenizer: Any, tmp_path: Path) -> None:
    rows = examples(10)
    config = CftConfig(lr=1e-2, epochs=4, batch=4, micro_batch=2, save_every=4, log_every=1, seed=5)
    given: dict[str, Any] = {"blocks": BLOCKS, "mask_id": MASK, "config": config}
    whole = run(small_model(), tokenizer, rows, directory=tmp_path / "whole", **given)
    script = KILLED.format(
        path=[str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")],
        threads=torch.get_num_threads(),
        directory=str(tmp_path / "killed"),
        config=config,
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [path.name for path in checkpoints(tmp_path / "killed")] == ["checkpoint-4"]  # in the second epoch of four
    again = run(small_model(seed=9), tokenizer, rows, directory=tmp_path / "killed", **given)
    assert again.steps == whole.steps == 12
    assert_same(again.model, whole.model)


SHARED = """
import os, sys
from pathlib import Path
sys.path[:0] = {path!r}
import torch
from test_cft import BLOCKS, MASK, CftConfig, Noise, examples, run, small_model, small_tokenizer
torch.set_num_threads(1)
place = Path({directory!r})
result = run(small_model(), small_tokenizer(), examples(12), blocks=BLOCKS, mask_id=MASK, directory=place,
             config={config!r}, eval_dataset=examples(5, seed=2))
torch.save([result.model.state_dict(), *result.log], place / ("rank" + os.environ["RANK"]))
torch.distributed.destroy_process_group()  # whose threads may else outlive the interpreter
"""


@pytest.mark.slow
def test_two_processes_learn_and_report_what_one_does(tokenizer: Any, tmp_path: Path) -> None:
    config = CftConfig(lr=1e-2, epochs=2, batch=4, micro_batch=1, log_every=1, max_grad_norm=1e9)
    one = run(
        small_model(),
        tokenizer,
        examples(12),
        blocks=BLOCKS,
        mask_id=MASK,
        directory=tmp_path / "one",
        config=config,
        eval_dataset=examples(5, seed=2),
    )
    script = tmp_path / "shared.py"
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")]
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
            torch.testing.assert_close(found, one.model.state_dict()[name], atol=1e-4, rtol=1e-3)
        for entry, other in zip(one.log, log, strict=True):
            for name in entry.keys() & {"loss", "eval_loss", "reasoning", "answer", "eval_answer"}:
                assert other[name] == pytest.approx(entry[name], rel=1e-3), name


def test_a_directory_of_another_run_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    rows, config = examples(), _config()
    given: dict[str, Any] = {"blocks": BLOCKS, "mask_id": MASK, "config": config, "directory": tmp_path}
    run(small_model(), tokenizer, rows, **given)
    for name, changes in {
        "blocks.size 4 but now it is 3": {"blocks": Blocks(3)},
        "config.noise.low": {"config": replace(config, noise=Noise(low=0.2))},
        "config.reasoning": {"config": replace(config, reasoning=0.5)},
        "parts": {"dataset": rows.map(lambda row: {"slots": [-1] * len(row["slots"])})},
    }.items():
        with pytest.raises(InputError, match=f"started with {name}"):
            run(small_model(), tokenizer, **{"dataset": rows, **given, **changes})


def test_slots_are_read_from_the_text_where_they_are_not_given() -> None:
    signs = tiny_tokenizer()
    text = "<think>1 leads.</think><answer>[2, 1, 3]</answer>"
    prompt, told = [5, 6, 7], signs(text, add_special_tokens=False)["input_ids"]
    ids = [*prompt, *told, signs.eos_token_id]
    row = {
        "input_ids": ids,
        "labels": [-100] * 3 + ids[3:],
        "roles": [-1] * 3 + [1] * (len(ids) - 3),
        "text_format": "tagged-list",
    }
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace()))
    found = numbered(Dataset.from_list([row] * 2), signs, model, blocks=BLOCKS, mask_id=signs.pad_token_id)
    assert found["example"] == [0, 1]
    named = {slot: signs.decode(ids[place]).strip() for place, slot in enumerate(found[0]["slots"]) if slot >= 0}
    assert named == {0: "2", 1: "1", 2: "3"}
    wrong = Dataset.from_list([{**row, "text_format": "list"}])
    with pytest.raises(InputError, match="the answer of example 0 names no candidate in the format 'list'"):
        numbered(wrong, signs, model, blocks=BLOCKS, mask_id=signs.pad_token_id)


def test_what_cannot_be_trained_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    rows = examples()
    given: dict[str, Any] = {"blocks": BLOCKS, "mask_id": MASK, "directory": tmp_path}
    row = rows[0]
    early = [*row["input_ids"][:-4], END, *row["input_ids"][-3:]]
    longest = {name: row[name] * 7 for name in row} | {"labels": [-100] + [5] * (7 * len(row["labels"]) - 1)}
    longest = {name: values[:63] for name, values in longest.items()}
    for match, dataset in {
        "no examples": rows.select([]),
        r"give input_ids, labels and roles, and slots": rows.remove_columns("roles"),
        r"or the text_format of the answers": rows.remove_columns("slots"),
        "example 0 has no prompt": Dataset.from_list([{**row, "labels": row["input_ids"]}]),
        "example 0 has the mask token 2 in it": Dataset.from_list([{**row, "input_ids": [2, *row["input_ids"][1:]]}]),
        "the end of the text, token 1, stands before the last candidate of example 0": Dataset.from_list(
            [{**row, "labels": [*row["labels"][:-4], 1, *row["labels"][-3:]], "input_ids": early}]
        ),
        "ends a block of 4 at token 65 but the model reads 64": Dataset.from_list([longest]),
    }.items():
        with pytest.raises(InputError, match=match):
            run(small_model(), tokenizer, dataset, **given)
    with pytest.raises(InputError, match="no tokenizer"):
        run(small_model(), None, rows, **given)
    for wrong in ({"reasoning": -1.0}, {"answer": float("nan")}, {"noise": 0.5}, {"lr": 0.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            CftConfig(**wrong)


def assert_same(one: Any, other: Any) -> None:
    """The same weights, bit for bit."""
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p, q), name


def _config(**changes: Any) -> CftConfig:
    """One update on all examples, not clipped."""
    return replace(
        CftConfig(lr=1e-3, batch=6, micro_batch=6, max_steps=1, max_grad_norm=1e9, log_every=1, warmup=0.0), **changes
    )


def _trainer(
    model: Any,
    tokenizer: Any,
    rows: Dataset,
    directory: Path,
    config: CftConfig,
    blocks: Blocks,
    *,
    mask_id: int = MASK,
    callbacks: Sequence[Any] = (),
) -> ConversionTrainer:
    made = numbered(rows, tokenizer, model, blocks=blocks, mask_id=mask_id)
    args = arguments(config, directory, model, evaluates=False)
    return ConversionTrainer(
        model,
        args,
        made,
        blocks=blocks,
        mask_id=mask_id,
        config=config,
        processing_class=tokenizer,
        callbacks=[*callbacks],
    )
