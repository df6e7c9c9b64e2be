"""Prompts that share a beginning: read once, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents.language.decoding import Decoding  # noqa: E402
from rerank_env.agents.language.generation import generate  # noqa: E402
from rerank_env.agents.language.prefix import Pass, can_share, common_prefix, passes, read  # noqa: E402

TOKENS = st.integers(3, 9)


def of(kind: str, **settings: Any) -> Any:
    """A tiny model of a class of transformers."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, **settings
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def counted(model: Any) -> list[int]:
    """The tokens that the model reads from now on, a number a call."""
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, __, given: seen.append(given["input_ids"].numel()), with_kwargs=True)
    return seen


prompt_sets = st.tuples(
    st.lists(TOKENS, max_size=25),
    st.lists(st.lists(TOKENS, max_size=30), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.lists(TOKENS, min_size=1, max_size=8)), min_size=1, max_size=8),
).map(lambda parts: [(*parts[0], *parts[1][group % len(parts[1])], *tail) for group, tail in parts[2]])


@given(prompt_sets)
def test_passes_spell_the_prompts(prompts: list[tuple[int, ...]]) -> None:
    distinct = sorted(set(prompts))
    start = common_prefix(distinct)
    assert all(prompt[:start] == distinct[0][:start] and len(prompt) > start for prompt in distinct)
    found, rows = passes(distinct, start)
    texts = [tuple(distinct[0][:start])]
    for one in found:
        texts = [texts[parent] + tuple(s) for parent, s in zip(one.parents, one.segments, strict=True)]
    assert [texts[row] for row in rows] == distinct
    assert all(found[-1].segments)


@settings(max_examples=25)
@given(prompts=prompt_sets, n=st.integers(1, 2), batch_size=st.integers(1, 9))
def test_sharing_changes_no_token_and_no_probability(prompts: list[tuple[int, ...]], n: int, batch_size: int) -> None:
    both = [
        generate(
            MODELS["Qwen2"], 0, 2, prompts, n=n, generator=torch.Generator().manual_seed(1),
            decoding=Decoding(max_tokens=4, temperature=1.0, batch_size=batch_size, share_prefix=share),
        )
        for share in (True, False)
    ]  # fmt: skip
    assert both[0].ids == both[1].ids
    for shared, plain in zip(both[0].logprobs, both[1].logprobs, strict=True):
        assert shared == pytest.approx(plain, abs=1e-4)


class _Models(dict[str, Any]):
    def __missing__(self, kind: str) -> Any:
        self[kind] = tiny_model(tiny_tokenizer()) if kind == "Qwen2" else of(kind, num_key_value_heads=2)
        return self[kind]


MODELS = _Models()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "GPTNeoX", "Gemma"])
def test_several_kinds_of_models_read_shared_prompts(kind: str, attention: str) -> None:
    more = {} if kind == "GPTNeoX" else {"num_key_value_heads": 2}
    model = of(kind, attn_implementation=attention, bos_token_id=None, eos_token_id=2, pad_token_id=0, **more)
    assert can_share(model)
    head, middle = list(range(3, 33)), list(range(33, 60))
    prompts = [head + middle + [5], head + middle + [6, 7, 8], [*head, 9, 10], head + middle + [5], [4, 4, 4]]
    for some in (prompts, prompts[:4]):
        both = [
            generate(model, 0, 2, some, decoding=Decoding(max_tokens=6, share_prefix=share)) for share in (True, False)
        ]
        assert both[0].ids == both[1].ids
        for shared, plain in zip(both[0].logprobs, both[1].logprobs, strict=True):
            assert shared == pytest.approx(plain, abs=1e-4)


def test_what_is_shared_is_read_once() -> None:
    model = tiny_model(tiny_tokenizer())
    seen = counted(model)
    system, offer_a, offer_b = list(range(3, 103)), list(range(110, 160)), list(range(160, 210))
    prompts = [[*system, *offer, 220 + user] for offer in (offer_a, offer_b) for user in range(4)]
    generate(model, 0, 2, prompts, decoding=Decoding(max_tokens=1), n=4)
    assert seen == [100, 2 * 50, 8]  # the system's part, both offers, one token a user; n copies cost nothing more
    seen.clear()
    generate(model, 0, 2, prompts, decoding=Decoding(max_tokens=1, share_prefix=False))
    assert seen == [8 * 151]


def test_the_beginning_of_all_prompts_is_read_once_for_all_batches() -> None:
    model = tiny_model(tiny_tokenizer())
    seen = counted(model)
    prompts = [[*range(3, 103), 110 + user, 120 + user] for user in range(6)]
    generate(model, 0, 2, prompts, decoding=Decoding(max_tokens=1, batch_size=2))
    assert seen == [100, 4, 4, 4]


def test_a_cache_that_is_copied_is_left_as_it_was() -> None:
    model = tiny_model(tiny_tokenizer())
    with torch.no_grad():
        root = read(model, None, Pass([list(range(3, 30))], [0]), pad_id=0)
        keys = root.cache.layers[0].keys.clone()
        children = [read(model, root, Pass([[40, 41], [42]], [0, 0]), pad_id=0) for _ in range(2)]
    assert torch.equal(root.cache.layers[0].keys, keys)
    torch.testing.assert_close(children[0].logits_RV, children[1].logits_RV, rtol=0, atol=0)
    assert children[0].mask_RS.tolist()[1][-2:] == [False, True]
    assert children[0].lengths_R.tolist() == [29, 28]


def test_models_with_windows_or_states_are_told_apart() -> None:
    assert can_share(tiny_model(tiny_tokenizer()))
    assert not can_share(of("Mistral", sliding_window=8, num_key_value_heads=2))
    assert can_share(of("Mistral", sliding_window=None, num_key_value_heads=2))
    from transformers import MambaConfig, MambaForCausalLM

    mamba = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1))
    assert not can_share(mamba)
    made = generate(mamba, 0, 2, [[5, 6, 7], [8, 9]], decoding=Decoding(max_tokens=3), n=2)
    assert [len(ids) for ids in made.ids] == [len(p) for p in made.logprobs]
    assert made.ids[0] == made.ids[1]
