"""Log-probabilities of given completions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents.language.likelihood import token_log_probs  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402

PROMPTS = [[5, 6, 7, 8, 9, 10], [11], [12, 13], [14, 15, 16]]
TEXTS = [[20, 21], [22, 23, 24, 25, 26], [], [27]]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(tiny_tokenizer(), seed=2)


def one_by_one(model: Any, prompt: list[int], text: list[int], temperature: float) -> list[float]:
    """The reference: a forward for every token, without padding."""
    found = []
    for end, token in enumerate(text):
        logits = model(input_ids=torch.tensor([[*prompt, *text[:end]]])).logits[0, -1] / temperature
        found.append(float(logits.log_softmax(-1)[token]))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_they_are_those_of_a_forward_for_every_token(model: Any, batch_size: int, temperature: float) -> None:
    with torch.no_grad():
        found = token_log_probs(model, PROMPTS, TEXTS, pad_id=0, temperature=temperature, batch_size=batch_size)
        for prompt, text, logprobs in zip(PROMPTS, TEXTS, found, strict=True):
            assert logprobs.shape == (len(text),)
            assert logprobs.dtype == torch.float32
            assert logprobs.tolist() == pytest.approx(one_by_one(model, prompt, text, temperature), abs=1e-4)


def test_the_probabilities_of_all_texts_of_two_tokens_sum_to_one() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=7, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    texts = [list(text) for text in itertools.product(range(7), repeat=2)]
    with torch.no_grad():
        found = token_log_probs(model, [[1, 2, 3]] * len(texts), texts, pad_id=0, batch_size=10)
    assert math.fsum(float(logprobs.sum().exp()) for logprobs in found) == pytest.approx(1.0, abs=1e-5)


def test_gradients_are_those_of_the_plain_loss() -> None:
    model = tiny_model(tiny_tokenizer(), seed=2)
    (-torch.cat(token_log_probs(model, PROMPTS, TEXTS, pad_id=0)).sum()).backward()
    found = {name: weights.grad.clone() for name, weights in model.named_parameters()}
    model.zero_grad()
    for prompt, text in zip(PROMPTS, TEXTS, strict=True):
        if text:
            ids = torch.tensor([[*prompt, *text]])
            labels = torch.tensor([[-100] * len(prompt) + text])
            (model(input_ids=ids, labels=labels).loss * len(text)).backward()
    for name, weights in model.named_parameters():
        torch.testing.assert_close(found[name], weights.grad, atol=1e-4, rtol=1e-3)


def test_nothing_to_score_is_no_score(model: Any) -> None:
    assert token_log_probs(model, [], [], pad_id=0) == []
    assert token_log_probs(model, [[4]], [[]], pad_id=0)[0].shape == (0,)


def test_what_does_not_fit_together_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="3 completions came with 4 prompts"):
        token_log_probs(model, PROMPTS, TEXTS[:3], pad_id=0)
    with pytest.raises(InputError, match="prompt 1 has no tokens"):
        token_log_probs(model, [[3], []], [[4], [5]], pad_id=0)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="temperature"):
            token_log_probs(model, PROMPTS, TEXTS, pad_id=0, temperature=temperature)
