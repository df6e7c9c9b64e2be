"""Mid-training: first the new rows alone, then everything; a run that was killed ends as one that was not."""

import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank_env.agents.language.next_items import next_items
from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.agents.language.vocabulary import extend, tables
from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import leave_one_out
from rerank_env.rewards.errors import CheckpointError, DivergedError, InputError
from rerank_env.semantic_ids import SemanticIds
from rerank_env.training.language.corpus import Corpus, bought
from rerank_env.training.language.exam import RECALL, Exam
from rerank_env.training.language.midtrain import JOINT, MODEL, WARMUP, MidtrainConfig, run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:(?!rerank_env|tests).*"),
]

ITEMS, USERS = 24, 30


@pytest.fixture(autouse=True, scope="module")
def frozen():
    """Every trainer collects garbage twice; what was imported is no garbage, and there is much of it."""
    gc.freeze()
    yield
    gc.unfreeze()


def corpus_of():
    """Users who walk round the items in order, some further than others, so that the next one can be learned."""
    rng = np.random.default_rng(0)
    starts, lengths = rng.integers(ITEMS, size=USERS), rng.integers(4, 10, size=USERS)
    places = np.concatenate([np.arange(length) for length in lengths])
    log = Interactions.arranged(
        np.repeat(np.arange(USERS), lengths),
        (np.repeat(starts, lengths) + places) % ITEMS,
        np.ones(len(places)),
        places.astype(float),
        texts=tuple(f"item {chr(97 + item)}" for item in range(ITEMS)),
        content_IC=np.zeros((ITEMS, 0), dtype=np.float32),
        content_names=(),
        seed=0,
    )
    ids = SemanticIds.of([[item // 5, item % 5] for item in range(ITEMS)], (5, 5), texts=log.texts)
    return Corpus.of(log, leave_one_out(log), ids)


CORPUS = corpus_of()
CONFIG = MidtrainConfig(
    warmup_steps=3, steps=5, warmup_lr=1e-2, lr=3e-3, batch=4, micro_batch=2, length=64, save_every=2, log_every=1
)


def fresh(*, tied=True, dropout=0.0):
    tokenizer = build_tokenizer([text.given + text.told for text in CORPUS.texts["persona"]], vocab_size=330)
    model = build_model(tokenizer, width=16, layers=1, heads=2, seed=0, tied=tied)
    for part in model.modules():
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = dropout
    return model, tokenizer


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


@pytest.mark.parametrize("tied", [True, False])
def test_the_warmup_moves_the_new_rows_and_no_other_bit(tied, tmp_path):
    model, tokenizer = fresh(tied=tied)
    made = extend(model, tokenizer, CORPUS.semantic_ids)
    before = weights(model)
    free = {id(table) for table in tables(model)}
    run(model, tokenizer, CORPUS, directory=tmp_path, config=replace(CONFIG, steps=0))
    rows = torch.tensor(made.new_ids)
    others = torch.tensor(sorted(set(range(len(tokenizer))) - set(made.new_ids)))
    moved = 0
    for name, parameter in model.named_parameters():
        if id(parameter) in free:
            moved += 1
            assert torch.equal(parameter[others], before[name][others])
            assert (parameter[rows] != before[name][rows]).any(dim=1).all()
        else:
            assert torch.equal(parameter, before[name]), name
        assert parameter.requires_grad
    assert moved == (1 if tied else 2)


def test_the_joint_phase_learns_the_next_item(tmp_path):
    _, tokenizer = fresh()
    model = build_model(tokenizer, width=32, layers=1, heads=2, seed=0, tied=False)
    config = replace(
        CONFIG, steps=120, lr=2e-2, micro_batch=4, save_every=200, validate_every=60, weights={"sequence": 1.0}
    )
    entries = []
    result = run(model, tokenizer, CORPUS, directory=tmp_path, config=config, on_log=lambda *one: entries.append(one))
    evaluations = [entry for phase, entry in entries if phase == JOINT and f"eval_{RECALL}" in entry]
    assert [entry["step"] for entry in evaluations] == [60, 120]
    assert evaluations[-1]["eval_loss"] == pytest.approx(result.loss, rel=1e-4)
    assert evaluations[-1][f"eval_{RECALL}"] == pytest.approx(result.recall)
    assert result.recall > 0.75  # ten of 24 items at random are 0.42
    assert result.shares["sequence"] == 1.0


def test_what_was_saved_is_what_was_trained(tmp_path):
    model, tokenizer = fresh()
    result = run(model, tokenizer, CORPUS, directory=tmp_path, config=CONFIG)
    assert result.model is model and not model.training
    back = AutoModelForCausalLM.from_pretrained(tmp_path / MODEL)
    assert_same(weights(back), weights(model))
    words = AutoTokenizer.from_pretrained(tmp_path / MODEL)
    text = bought([3, 1], CORPUS.semantic_ids)
    assert words(text)["input_ids"] == tokenizer(text)["input_ids"]
    asked = [text]
    one, other = (next_items(m, words, CORPUS.semantic_ids, asked) for m in (back, model))
    assert one.items_BN.tolist() == other.items_BN.tolist()


def test_a_finished_run_is_loaded_and_not_trained_again(tmp_path):
    model, tokenizer = fresh()
    first = run(model, tokenizer, CORPUS, directory=tmp_path, config=CONFIG)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    again, words = fresh()
    second = run(again, words, CORPUS, directory=tmp_path, config=CONFIG)
    assert_same(weights(again), weights(model))
    assert (second.loss, second.recall, second.log) == (first.loss, first.recall, first.log)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == written


def test_another_run_in_the_same_folder_is_refused_unless_it_starts_anew(tmp_path):
    run(*fresh(), CORPUS, directory=tmp_path, config=CONFIG)
    other = replace(CONFIG, lr=1e-3)
    with pytest.raises(InputError, match="config.lr"):
        run(*fresh(), CORPUS, directory=tmp_path, config=other)
    with pytest.raises(InputError, match="documents"):
        run(*fresh(), replace(CORPUS, texts={**CORPUS.texts, "general": CORPUS.texts["caption"]}), directory=tmp_path,
            config=CONFIG)  # fmt: skip
    model, words = fresh()
    with torch.no_grad():
        model.get_input_embeddings().weight[5] += 1.0
    with pytest.raises(InputError, match="model"):
        run(model, words, CORPUS, directory=tmp_path, config=CONFIG)
    model, words = fresh()
    run(model, words, CORPUS, directory=tmp_path, config=other, resume=False)
    expected, signs = fresh()
    run(expected, signs, CORPUS, directory=tmp_path / "other", config=other)
    assert_same(weights(model), weights(expected))


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_midtrain import CONFIG, CORPUS, fresh, run
model, tokenizer = fresh(dropout=0.1)
told = lambda phase, entry: print(phase, entry["step"], "loss" in entry, flush=True)
run(model, tokenizer, CORPUS, directory=Path(sys.argv[1]), config=CONFIG, on_log=told)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", [f"{WARMUP} 3 True", f"{JOINT} 4 True"])
def test_a_run_that_was_killed_ends_as_one_that_was_not(where, tmp_path):
    model, tokenizer = fresh(dropout=0.1)
    run(model, tokenizer, CORPUS, directory=tmp_path / "whole", config=CONFIG)
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "killed"), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        for line in process.stdout:
            if line.strip() == where:
                os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / MODEL).exists()
    assert list((tmp_path / "killed").glob("*/checkpoint-*"))
    again, signs = fresh(dropout=0.1)
    steps = []
    run(again, signs, CORPUS, directory=tmp_path / "killed", config=CONFIG,
        on_log=lambda phase, entry: steps.append((phase, entry["step"])))  # fmt: skip
    assert (WARMUP, 1) not in steps
    assert_same(weights(again), weights(model))


def test_a_checkpoint_that_was_cut_short_is_passed_over(tmp_path):
    whole, tokenizer = fresh()
    run(whole, tokenizer, CORPUS, directory=tmp_path, config=CONFIG)
    newest = max((tmp_path / JOINT).glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    (newest / "whole").unlink()
    (newest / "model.safetensors").write_bytes(b"half")
    (tmp_path / MODEL / "whole").unlink()
    model, words = fresh()
    run(model, words, CORPUS, directory=tmp_path, config=CONFIG)
    assert_same(weights(model), weights(whole))


def test_patience_ends_the_phase_and_keeps_the_best_weights(tmp_path, monkeypatch):
    recalls = iter([2.0, 5.0, 4.0, 5.0, 0.0, 9.0])
    kept = []

    def found(self, model, *, part=slice(None)):
        kept.append(weights(model))
        return torch.tensor([next(recalls), 10.0], dtype=torch.float64)

    monkeypatch.setattr(Exam, "found", found)
    config = replace(CONFIG, warmup_steps=0, steps=40, validate_every=2, patience=2, save_every=1)
    model, tokenizer = fresh()
    result = run(model, tokenizer, CORPUS, directory=tmp_path, config=config)
    seen = [entry["step"] for entry in result.log[JOINT] if f"eval_{RECALL}" in entry]
    assert seen == [2, 4, 6, 8]  # 0.5 at 8 is not better than 0.5 at 4
    assert_same(weights(model), kept[1])
    assert result.recall == 0.0  # the last measurement is the fifth answer

    # Killed after the phase was over and before its outcome was kept: nothing is trained again.
    (tmp_path / MODEL / "whole").unlink()
    again, words = fresh()
    ended = run(again, words, CORPUS, directory=tmp_path, config=config)
    assert_same(weights(again), kept[1])
    assert ended.recall == 0.9
    assert len(kept) == 6


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoints(tmp_path):
    model, tokenizer = fresh()
    entries = []

    def poison(phase, entry):
        entries.append(entry["step"])
        if phase == JOINT and entry["step"] == 3:
            model.get_input_embeddings().weight.data[0] = torch.nan
            model.model.norm.weight.data[0] = torch.nan

    with pytest.raises(DivergedError, match="update 4 is nan"):
        run(model, tokenizer, CORPUS, directory=tmp_path, config=CONFIG, on_log=poison)
    assert (tmp_path / JOINT / "checkpoint-2" / "whole").is_file()
    whole, signs = fresh()
    run(whole, signs, CORPUS, directory=tmp_path / "other", config=CONFIG)
    back, words = fresh()
    run(back, words, CORPUS, directory=tmp_path, config=CONFIG)
    assert_same(weights(back), weights(whole))


def test_a_disk_that_refuses_is_told_in_a_sentence_and_the_run_goes_on_later(tmp_path):
    resource = pytest.importorskip("resource")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def narrow(phase, entry):
        if (phase, entry["step"]) == (JOINT, 3):
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))

    try:
        with pytest.raises(CheckpointError, match="checkpoint 4 .* could not be written"):
            run(*fresh(), CORPUS, directory=tmp_path, config=CONFIG, on_log=narrow)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    back, words = fresh()
    run(back, words, CORPUS, directory=tmp_path, config=CONFIG)
    whole, signs = fresh()
    run(whole, signs, CORPUS, directory=tmp_path / "other", config=CONFIG)
    assert_same(weights(back), weights(whole))


def test_the_loss_of_an_exam_is_that_of_the_answers_tokens():
    model, tokenizer = fresh()
    extend(model, tokenizer, CORPUS.semantic_ids)
    exam = Exam.of(CORPUS.questions[:5], tokenizer, CORPUS.semantic_ids, beams=10, length=64)
    loss, count = exam.loss(model, 2).tolist()
    by_hand = 0.0
    for asked in CORPUS.questions[:5]:
        before = tokenizer(bought(asked.history, CORPUS.semantic_ids))["input_ids"]
        after = tokenizer(CORPUS.semantic_ids.text(asked.target))["input_ids"]
        logits = model(torch.tensor([before + after])).logits[0].log_softmax(-1)
        by_hand -= sum(logits[len(before) + place - 1, token].item() for place, token in enumerate(after))
    assert count == 5 * (2 + 2)
    assert loss == pytest.approx(by_hand, rel=1e-5)
    parts = [exam.loss(model, 2, part=slice(one, None, 2)) for one in (0, 1)]
    assert sum(parts).tolist() == pytest.approx([loss, count])
    found = exam.found(model)
    assert sum(exam.found(model, part=slice(one, None, 2)) for one in (0, 1)).tolist() == found.tolist()


def every_item(model, tokenizer, text):
    """The logarithm of the probability of the codes of every item after a text and the begin marker."""
    found = []
    for item in range(ITEMS):
        words = CORPUS.semantic_ids.words(item)
        ids = tokenizer(text)["input_ids"] + tokenizer.convert_tokens_to_ids(list(words[:-1]))
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found.append(sum(logits[-3 + level, ids[-2 + level]].item() for level in range(2)))
    return np.array(found)


@pytest.mark.parametrize("cached", [True, False])
def test_the_next_items_are_the_likeliest_where_there_are_beams_enough(cached, monkeypatch):
    if not cached:
        monkeypatch.setattr("rerank_env.agents.language.next_items.can_share", lambda model: False)
    model, tokenizer = fresh()
    extend(model, tokenizer, CORPUS.semantic_ids)
    with torch.no_grad():
        model.get_input_embeddings().weight *= 20
    texts = [bought(asked.history, CORPUS.semantic_ids) for asked in CORPUS.questions[:4]] + ["", "item a"]
    found = next_items(model, tokenizer, CORPUS.semantic_ids, texts, beams=ITEMS, batch_size=2)
    for row, text in enumerate(texts):
        expected = every_item(model, tokenizer, text)
        order = np.argsort(-expected, kind="stable")
        assert found.items_BN[row].tolist() == order.tolist()
        assert found.log_probs_BN[row] == pytest.approx(expected[order], abs=1e-4)
    fewer = next_items(model, tokenizer, CORPUS.semantic_ids, texts, beams=3, batch_size=6)
    assert fewer.items_BN.shape == (6, 3)
    assert (np.diff(fewer.log_probs_BN, axis=1) <= 0).all()


def test_only_items_are_found_and_the_rest_is_padding():
    twins = SemanticIds.of([[0], [1], [0]], (2,), texts=["a", "b", "c"])
    model, tokenizer = fresh()
    extend(model, tokenizer, twins)
    shared = next_items(model, tokenizer, twins, ["item a"], beams=4)
    assert sorted(shared.items_BN[0].tolist()) == [-1, 0, 1, 2]
    assert np.isneginf(shared.log_probs_BN[0, 3:]).all()
    assert shared.items_BN[0].tolist().index(2) - shared.items_BN[0].tolist().index(0) == 1
    assert next_items(model, tokenizer, twins, [], beams=3).items_BN.shape == (0, 3)


def test_a_tokenizer_without_the_words_is_refused():
    model, tokenizer = fresh()
    with pytest.raises(InputError, match="has no token"):
        next_items(model, tokenizer, CORPUS.semantic_ids, ["item a"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"length": 2000}, "reads 1024 tokens"),
        ({"batch": 3}, "multiple of both"),
    ],
)
def test_a_run_that_cannot_begin_is_refused(change, told, tmp_path):
    with pytest.raises(InputError, match=told):
        run(*fresh(), CORPUS, directory=tmp_path, config=replace(CONFIG, **change))


def test_patience_without_questions_is_refused(tmp_path):
    config = replace(CONFIG, patience=1, validate_every=2)
    with pytest.raises(InputError, match="no"):
        run(*fresh(), replace(CORPUS, questions=()), directory=tmp_path, config=config)


def test_a_run_without_questions_has_no_recall(tmp_path):
    result = run(*fresh(), replace(CORPUS, questions=()), directory=tmp_path, config=replace(CONFIG, warmup_steps=0))
    assert (result.loss, result.recall) == (None, None)
    assert json.loads((tmp_path / "midtrain.json").read_text())["blocks"] == result.blocks
    assert list(result.log) == [JOINT]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": -1}, {"warmup_steps": 1.5}, {"batch": 0}, {"lr": 0.0}, {"warmup_lr": float("nan")}, {"length": 1},
        {"lr_warmup": 1.5}, {"weight_decay": -1.0}, {"beams": 9}, {"save_every": 0}, {"micro_batch": 0},
        {"patience": 1}, {"tokens": 0},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(change):
    with pytest.raises(InputError):
        replace(CONFIG, **change)
