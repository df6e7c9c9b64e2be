"""A run of block DAPO that is killed in the middle and started again ends as one that was not; two processes agree."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None or find_spec("transformers") is None:
    pytest.skip("needs the extra: pip install 'rerank-env[language]'", allow_module_level=True)

from safetensors.numpy import load_file

from rerank_env.training.logs import read_log

pytestmark = pytest.mark.torch

PROGRAM = textwrap.dedent(
    """
    import json, os, signal, sys
    from pathlib import Path
    import numpy as np
    import torch
    from rerank_env.agents.block_diffusion import BlockDecoding, Blocks, convert
    from rerank_env.agents.block_diffusion.likelihood import Elbo, Setting, Written, log_probs
    from rerank_env.agents.language.policy import LanguagePolicy
    from rerank_env.agents.language.scratch import build_model, build_tokenizer
    from rerank_env.data import load
    from rerank_env.prompts import PromptWriter
    from rerank_env.training.block_diffusion.dapo import BlockDapoConfig, run

    directory, dies_at, settings = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    answer = settings.pop("head", None)
    requests = load("synthetic", requests=12, slate_size=3, history=2)
    writer = PromptWriter()
    texts = [prompt.text for prompt in writer.write(requests)] + ["[1, 2, 3]", "[2, 3, 1]"] * 20
    tokenizer = build_tokenizer(texts, vocab_size=700)
    causal = LanguagePolicy(build_model(tokenizer, width=16, layers=1, heads=2, seed=0), tokenizer, writer)
    decoding = BlockDecoding("threshold(0.6)", max_tokens=10, answer=answer)
    policy = convert(causal, blocks=Blocks(3), decoding=decoding, in_place=True)
    rng, optimizer = np.random.default_rng(0), torch.optim.AdamW(policy.model.parameters(), lr=2e-2)
    prompts = policy.prompt_ids(policy.ask(requests).prompts)
    setting = Setting(policy.blocks, policy.mask_id, generator=torch.Generator().manual_seed(0))
    for _ in range(50):  # so that some answers are rankings
        told = [
            Written(prompts[row], policy.completion_ids(str((1 + rng.permutation(3)).tolist())))
            for row in rng.integers(12, size=4)
        ]
        loss = -torch.cat(log_probs(Elbo(), policy.model, told, setting, pad_id=policy.pad_id).log_probs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def watch(update, _):
        if update == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    small = dict(groups_per_step=4, group_size=4, learning_rate=1e-3, max_tokens=10, micro_batch=4, validate_every=1)
    result = run(
        policy, requests, "gain", directory=directory, config=BlockDapoConfig(**{**small, **settings}),
        validation=requests.take(range(5)), on_log=watch,
    )
    if int(os.environ.get("RANK", 0)) == 0:
        ended = {"updates": result.updates, "best": result.best_update, "validation": result.best_validation}
        (directory / "result.json").write_text(json.dumps(ended))
    """
)

ALONE = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def start(directory: Path, settings: dict[str, Any], *, dies_at: int = 0, **rank: str) -> subprocess.Popen[str]:
    directory.mkdir(exist_ok=True)
    plain = {name: value for name, value in os.environ.items() if name not in ALONE}
    command = [sys.executable, "-c", PROGRAM, str(directory), str(dies_at), json.dumps(settings)]
    return subprocess.Popen(
        command,
        env={**plain, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **rank},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*processes: subprocess.Popen[str], expected: int = 0) -> None:
    for process in processes:
        _, said = process.communicate()
        assert process.returncode == expected, said[-3000:]


def log_of(directory: Path) -> list[dict[str, Any]]:
    return read_log(directory / "metrics.jsonl")


def test_a_run_that_was_killed_ends_with_the_weights_and_the_log_of_one_that_was_not(tmp_path: Path) -> None:
    settings = {"steps": 4, "updates_per_step": 2, "save_every": 2, "warmup_steps": 2, "likelihood": "elbo"}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first, second = start(whole, settings), start(killed, settings, dies_at=5)
    ended(first)
    ended(second, expected=-signal.SIGKILL)
    assert not (killed / "result.json").exists() and (killed / "checkpoint-4" / "whole").exists()
    ended(start(killed, settings))
    result = json.loads((whole / "result.json").read_text())
    assert json.loads((killed / "result.json").read_text()) == result and result["updates"] == 8
    lines = log_of(whole)
    assert lines == log_of(killed)
    assert any(line.get("trained_groups", 0) > 0 for line in lines)
    assert any(line.get("ratio_max", 1.0) > 1.0 for line in lines)
    for name in ("checkpoint-8/model.safetensors", f"weights-{result['best']}.safetensors"):
        before, after = load_file(whole / name), load_file(killed / name)
        assert before.keys() == after.keys()
        assert all((before[tensor] == after[tensor]).all() for tensor in before), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"likelihood": "replay", "updates_per_step": 2, "steps": 1},
        {"likelihood": "coupled", "beta": 0.1, "steps": 2},
        {"likelihood": "gpl(rest=replay)", "head": "plackett-luce", "steps": 2},
    ],
)
def test_two_processes_do_what_one_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    settings = {"save_every": 1, "max_resamples": 0, **settings}
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    ended(start(alone, settings))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    ended(*(start(shared, settings, RANK=rank, LOCAL_RANK=rank, **world) for rank in ("0", "1")))
    lines = list(zip(log_of(alone), log_of(shared), strict=True))
    assert len(lines) == 2
    for one, two in lines[: settings["steps"]]:
        for name in ("reward", "raw", "valid", "no_valid", "forwards", "tokens_per_forward", "forced"):
            assert two[name] == pytest.approx(one[name], abs=1e-5), (one["step"], name)
    if "updates_per_step" in settings:  # each process deals its own groups to the updates, so only the draw is the same
        assert any(two["skipped"] == 0.0 for _, two in lines)  # which may leave one of them without a live group
        return
    for one, two in lines:
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3, abs=1e-6), one["step"]
        assert two["validation"] == pytest.approx(one["validation"], abs=1e-5), one["step"]
    one, two = (load_file(folder / "checkpoint-2" / "model.safetensors") for folder in (alone, shared))
    assert all(abs(one[name] - two[name]).max() < 1e-4 for name in one)
