"""The decoding loop: its law, its order, its batches, and that transformers' own gives the same."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents.language.decoding import Decoding, drawn, law  # noqa: E402
from rerank_env.agents.language.generation import Generated, generate  # noqa: E402
from rerank_env.agents.language.likelihood import token_log_probs  # noqa: E402
from rerank_env.rewards.errors import InputError, UnknownNameError  # noqa: E402

PAD, END = 0, 2


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(tiny_tokenizer(), seed=1)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randint(3, 280, (20,), generator=generator).tolist()
    tails = [torch.randint(3, 280, (length,), generator=generator).tolist() for length in (5, 1, 9, 3, 30, 2)]
    return [*(shared + tail for tail in tails), tails[0], tails[4]]


def written(
    model: Any, prompts: list[list[int]], *, seed: int = 0, n: int = 1, ends: Any = END, **how: Any
) -> Generated:
    decoding = Decoding(**{"max_tokens": 12, **how})
    generator = None if decoding.is_greedy else torch.Generator().manual_seed(seed)
    return generate(model, PAD, ends, prompts, decoding=decoding, generator=generator, n=n)


def plain_greedy(model: Any, prompt: list[int], steps: int) -> tuple[list[int], list[float]]:
    """No cache, no batch: the reference."""
    ids, logprobs = list(prompt), []
    for _ in range(steps):
        with torch.no_grad():
            log_p = model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        ids.append(int(log_p.argmax()))
        logprobs.append(float(log_p.max()))
        if ids[-1] == END:
            break
    return ids[len(prompt) :], logprobs


@pytest.mark.parametrize("share_prefix", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_greedy_tokens_are_those_of_a_plain_loop(
    model: Any, prompts: list[list[int]], batch_size: int, share_prefix: bool
) -> None:
    made = written(model, prompts, batch_size=batch_size, share_prefix=share_prefix)
    for row, prompt in enumerate(prompts):
        ids, logprobs = plain_greedy(model, prompt, 12)
        assert made.ids[row] == ids
        assert made.logprobs[row] == pytest.approx(logprobs, abs=1e-4)
        assert made.finished[row] == (ids[-1] == END)


def test_greedy_tokens_are_those_of_transformers(model: Any, prompts: list[list[int]]) -> None:
    made = written(model, prompts)
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12,
            eos_token_id=END, pad_token_id=PAD,
        )  # fmt: skip
        assert out[0, len(prompt) :].tolist() == made.ids[row]


def test_rows_that_end_leave_and_the_others_go_on(model: Any, prompts: list[list[int]]) -> None:
    long = written(model, prompts, n=8, temperature=2.0, max_tokens=40, ends=-1)
    ends = sorted({token for ids in long.ids for token in ids[1::7]})[:40]
    short = written(model, prompts, n=8, temperature=2.0, max_tokens=40, ends=ends)
    assert not any(long.finished)
    assert len({len(ids) for ids in short.ids}) > 5  # rows end at many different steps
    for whole, ids, finished in zip(long.ids, short.ids, short.finished, strict=True):
        end = next((place + 1 for place, token in enumerate(whole) if token in ends), len(whole))
        assert ids == whole[:end]  # what is left of a text does not depend on who else still writes
        assert finished == (whole[end - 1] in ends)


def test_what_a_row_draws_depends_on_its_place_and_not_on_batches(model: Any, prompts: list[list[int]]) -> None:
    whole = written(model, prompts, n=3, temperature=1.0)
    assert len(whole.ids) == len(prompts) * 3
    for how in ({"batch_size": 2}, {"batch_size": 7}, {"share_prefix": False}):
        other = written(model, prompts, n=3, temperature=1.0, **how)
        assert other.ids == whole.ids
        for a, b in zip(other.logprobs, whole.logprobs, strict=True):
            assert a == pytest.approx(b, abs=1e-4)
    first = written(model, prompts[:2], n=3, temperature=1.0)
    assert first.ids == whole.ids[:6]  # row-major: fewer prompts draw the same numbers first
    assert written(model, prompts, n=3, temperature=1.0, seed=1).ids != whole.ids
    assert len({tuple(ids) for ids in whole.ids[:3]}) > 1


def test_the_logprobs_are_those_of_the_law_it_draws_from(model: Any, prompts: list[list[int]]) -> None:
    made = written(model, prompts, n=2, temperature=0.7)
    repeated = [prompt for prompt in prompts for _ in range(2)]
    with torch.no_grad():
        exact = token_log_probs(model, repeated, made.ids, pad_id=PAD, temperature=0.7)
    for logprobs, reference in zip(made.logprobs, exact, strict=True):
        assert logprobs == pytest.approx(reference.tolist(), abs=1e-4)


def test_frequencies_of_sampled_tokens_are_the_law(model: Any) -> None:
    made = written(model, [[5, 6, 7]], n=4000, temperature=0.8, max_tokens=1, batch_size=4000)
    with torch.no_grad():
        p = (model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1] / 0.8).softmax(-1)
    counts = torch.bincount(torch.tensor([ids[0] for ids in made.ids]), minlength=len(p))
    chi2 = float(((counts - 4000 * p) ** 2 / (4000 * p)).sum())
    degrees = len(p) - 1
    assert chi2 < degrees + 5 * math.sqrt(2 * degrees)


def test_the_law_by_hand() -> None:
    logits = torch.tensor([[math.log(5), math.log(3), math.log(2), -math.inf]])
    assert law(logits, Decoding()).exp()[0].tolist() == pytest.approx([0.5, 0.3, 0.2, 0])
    halved = law(logits, Decoding(temperature=0.5)).exp()[0].tolist()
    assert halved == pytest.approx([25 / 38, 9 / 38, 4 / 38, 0])
    cases = {1e-9: [1, 0, 0, 0], 0.49: [1, 0, 0, 0], 0.51: [5 / 8, 3 / 8, 0, 0], 0.81: [0.5, 0.3, 0.2, 0]}
    for top_p, kept in cases.items():
        nucleus = law(logits, Decoding(temperature=1.0, top_p=top_p)).exp()[0].tolist()
        assert nucleus == pytest.approx(kept), top_p


def test_drawing_inverts_the_cumulative_law() -> None:
    log_p = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).log().expand(6, -1)
    numbers = torch.tensor([0.0, 0.2, 0.2499, 0.2501, 0.9, 1 - 2**-53], dtype=torch.float64)
    assert drawn(log_p, numbers).tolist() == [1, 1, 1, 3, 3, 3]
    assert drawn(log_p, None).tolist() == [3] * 6


def test_models_whose_cache_cannot_be_copied_go_through_transformers(prompts: list[list[int]]) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sliding = MistralForCausalLM(
        MistralConfig(
            vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, sliding_window=8, bos_token_id=None, eos_token_id=END, pad_token_id=PAD,
        )
    )  # fmt: skip
    made = written(sliding, prompts, n=2)
    for row, prompt in enumerate(prompts):
        ids, logprobs = plain_greedy(sliding, prompt, 12)
        assert made.ids[2 * row] == made.ids[2 * row + 1] == ids
        assert made.logprobs[2 * row] == pytest.approx(logprobs, abs=1e-4)
    drawn_once = written(sliding, prompts, n=2, temperature=1.0)
    assert drawn_once.ids == written(sliding, prompts, n=2, temperature=1.0).ids
    assert drawn_once.ids != written(sliding, prompts, n=2, temperature=1.0, seed=3).ids
    repeated = [prompt for prompt in prompts for _ in range(2)]
    with torch.no_grad():
        exact = token_log_probs(sliding, repeated, drawn_once.ids, pad_id=PAD)
    for logprobs, reference in zip(drawn_once.logprobs, exact, strict=True):
        assert logprobs == pytest.approx(reference.tolist(), abs=1e-4)


def test_the_mode_and_the_weights_of_the_model_stay(prompts: list[list[int]]) -> None:
    model = tiny_model(tiny_tokenizer())
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    for training in (True, False):
        model.train(training)
        written(model, prompts)
        assert model.training is training
    assert all(torch.equal(before[name], weights) for name, weights in model.state_dict().items())


def test_what_cannot_be_written_is_said(model: Any, prompts: list[list[int]]) -> None:
    assert written(model, []) == Generated([], [], [])
    with pytest.raises(InputError, match="prompt 1 has no tokens"):
        written(model, [[3], []])
    with pytest.raises(InputError, match="pass a generator"):
        generate(model, PAD, END, prompts, decoding=Decoding(temperature=1.0))
    with pytest.raises(InputError, match="n is 0"):
        written(model, prompts, n=0)
    broken = tiny_model(tiny_tokenizer())
    with torch.no_grad():
        broken.lm_head.weight.fill_(math.nan)
    for temperature in (0.0, 1.0):
        with pytest.raises(InputError, match="not finite"):
            written(broken, prompts, temperature=temperature)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_tokens", 0), ("temperature", -1.0), ("temperature", math.nan), ("top_p", 0.0), ("top_p", 1.1),
     ("batch_size", 0), ("constrained", 1), ("share_prefix", "yes")],
)  # fmt: skip
def test_a_field_of_decoding_that_makes_no_sense_is_named(field: str, value: Any) -> None:
    with pytest.raises((InputError, UnknownNameError), match=field):
        Decoding(**{field: value})
