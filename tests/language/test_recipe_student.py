"""Policies with adapters, as the stages of a recipe keep them: found again wherever the run's folder is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for library in ("transformers", "trl", "peft"):
    pytest.importorskip(library, reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents.language import Decoding, LanguagePolicy  # noqa: E402
from rerank_env.data import load  # noqa: E402
from rerank_env.prompts import PromptWriter  # noqa: E402
from rerank_env.training.recipes.crew import Crew  # noqa: E402
from rerank_env.training.recipes.policies import POLICY, adapted, keep_policy, load_policy  # noqa: E402
from rerank_env.training.recipes.stages import Work  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # PEFT asks transformers for it
]

SETTINGS = {"model": {"dtype": "float32", "device": "cpu"}}


def work(folder: Path) -> Work:
    return Work(folder, {}, SETTINGS, Crew(), lambda what, done, total: None)


def changed(policy: LanguagePolicy, seed: int) -> LanguagePolicy:
    """With an adapter whose weights are not those that do nothing."""
    policy.model = adapted(policy.model, 2, seed=0)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in policy.model.named_parameters():
            if "lora" in name:
                weights.copy_(torch.randn(weights.shape, generator=draw))
    return policy


def test_a_run_folder_with_adapters_can_be_moved_and_gone_on_with(tmp_path: Path) -> None:
    requests, tokenizer = load("synthetic", requests=4, slate_size=3, history=2), tiny_tokenizer()
    texts = ["[2, 1, 3]"] * len(requests)

    def said(policy: LanguagePolicy) -> Any:
        with torch.no_grad():
            return torch.cat(policy.log_prob(requests, texts)).numpy()

    run = tmp_path / "here" / "run"
    base = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter("list"), decoding=Decoding(max_tokens=8))
    keep_policy(work(run / "midtrain"), base)
    tuned = changed(load_policy(run / "midtrain" / POLICY, SETTINGS), seed=1)
    keep_policy(work(run / "sft"), tuned)
    assert not (run / "sft" / POLICY / "base").exists()
    for path in (run / "sft" / POLICY).iterdir():
        assert path.suffix == ".safetensors" or str(tmp_path) not in path.read_text(), path.name
    assert json.loads((run / "sft" / POLICY / "policy.json").read_bytes())["adapter"] == "../../midtrain/policy"

    moved = tmp_path / "there" / "deeper" / "run"
    moved.parent.mkdir(parents=True)
    shutil.move(run, moved)
    again = load_policy(moved / "sft" / POLICY, SETTINGS)
    np.testing.assert_allclose(said(again), said(tuned), atol=1e-5)
    further = changed(again, seed=2)
    keep_policy(work(moved / "dapo"), further, moved / "dapo" / "seed-0")  # saved from what was moved
    shutil.move(moved, run)
    last = load_policy(run / "dapo" / "seed-0" / POLICY, SETTINGS)
    np.testing.assert_allclose(said(last), said(further), atol=1e-5)
    assert not np.allclose(said(last), said(base), atol=1e-3)
